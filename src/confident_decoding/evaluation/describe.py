"""What a model and tasks are, before an engine starts; runs in the child process."""

import contextlib
import dataclasses
import difflib
import hashlib
import importlib.metadata
import inspect
import itertools
import json
import re
from pathlib import Path
from typing import Any

from confident_decoding.engines.options import WrongUseError, engine_args, text_of
from confident_decoding.evaluation.protocol import Send

PACKAGES = ("confident-decoding", "lm-eval", "vllm", "torch", "transformers")
SET_HERE = {"model": "MODEL", "additional_config": "--setting", "seed": "--seed of this command"}
"""Engine arguments that are not the user's to give as options of vLLM."""
NOT_OURS = {"self", "kwargs", "pretrained", "device", "max_length", "max_batch_size"}
"""Parameters of lm-eval's model class that are this command's, or vLLM's by another name."""


def describe(
    send: Send,
    model: str,
    options: str,
    model_args: dict[str, Any],
    tasks: list[str],
    include_path: list[str],
    limit: int | None,
    allow_unsafe_code: bool,
) -> None:
    """Report the model's layers, the tasks and the versions, as one ``facts`` event.

    Args:
        send: Reports.
        model: Folder or name.
        options: Of ``vllm serve``, quoted as in a shell.
        model_args: Arguments of lm-eval's model class that are not vLLM's.
        tasks: Names, patterns or YAML files.
        include_path: Folders with task files of the user's own.
        limit: Questions of each task, None for all.
        allow_unsafe_code: Tasks may run what the model writes.

    Raises:
        WrongUseError: The model or a task cannot be used.
    """
    loaded = load_tasks(tasks, include_path)
    facts = {}
    for name, task in loaded["tasks"].items():
        if getattr(task, "UNSAFE_CODE", False) and not allow_unsafe_code:
            raise WrongUseError(
                f"task {name!r} runs code that the model writes. If this machine may do that, add --allow-unsafe-code."
            )
        if getattr(task, "MULTIMODAL", False):
            raise WrongUseError(f"task {name!r} has images; tasks of text alone can be compared.")
        facts[name] = _facts(task, limit)
        if not facts[name]["questions"]:
            raise WrongUseError(f"task {name!r} has no questions.")
    _check_model_args(model_args)
    asked = {name: json.loads(json.dumps(value, default=str)) for name, value in given(model, options).items()}
    layers, files, device = _model(model, options)
    groups = {name: [task.task_name for task in group.get_all_tasks()] for name, group in loaded["groups"].items()}
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    send(
        "facts",
        options=asked,
        layers=layers,
        files=files,
        device=device,
        tasks=facts,
        groups=groups,
        versions=versions,
    )


def given(model: str, options: str) -> dict[str, Any]:
    """Engine arguments that options of ``vllm serve`` set to something else than vLLM's own default.

    Raises:
        WrongUseError: An option cannot be used; the message says what instead.
    """
    asked, plain = (engine_args(model, words, {}, SET_HERE) for words in (options, ""))
    if asked.pipeline_parallel_size > 1:
        raise WrongUseError(
            "a setting whose window does not fit onto the last pipeline stage would be standard decoding: use "
            "--tensor-parallel-size."
        )
    if asked.data_parallel_size > 1:
        raise WrongUseError("one engine runs at a time: --tensor-parallel-size spreads it over GPUs.")
    return {name: value for name, value in vars(asked).items() if value != getattr(plain, name)}


def _check_model_args(model_args: dict[str, Any]) -> None:
    from lm_eval.models.vllm_causallms import VLLM
    from vllm.engine.arg_utils import EngineArgs

    engine = {field.name for field in dataclasses.fields(EngineArgs)}
    own = set(inspect.signature(VLLM.__init__).parameters) - engine - NOT_OURS
    for key in model_args:
        if key in engine or key in NOT_OURS:
            raise WrongUseError(f"--model-args cannot hold {key!r}: options of vLLM belong into --vllm.")
        if key not in own:
            raise WrongUseError(f"--model-args: lm-eval's vllm model has no {key!r}; it has {', '.join(sorted(own))}.")


def _model(model: str, options: str) -> tuple[int, str, str]:
    """Decoder layers, what identifies the weights, the device's name."""
    from vllm.platforms import current_platform

    try:
        config = engine_args(model, options, {}, SET_HERE).create_model_config()
    except Exception as error:
        raise WrongUseError(f"the model {model!r} cannot be read: {text_of(error)}") from error
    if config.runner_type != "generate":
        raise WrongUseError(f"the model {model!r} does not generate text (vLLM runs it as {config.runner_type!r}).")
    commit = getattr(config.hf_config, "_commit_hash", None)
    found = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in Path(model).glob("*"))
    return config.get_total_num_hidden_layers(), commit or _digest(found), current_platform.get_device_name()


def load_tasks(tasks: list[str], include_path: list[str]) -> Any:
    """lm-eval's tasks, by name under ``"tasks"``, and groups.

    Raises:
        WrongUseError: Unknown, or the task or its data cannot be loaded.
    """
    from lm_eval.tasks import TaskManager

    files = [name for name in tasks if Path(name).suffix in (".yaml", ".yml")]
    for name in files:
        if not Path(name).is_file():
            raise WrongUseError(f"there is no task file {name}.")
    # To read all of lm-eval's own takes seconds.
    manager = TaskManager(include_path=include_path or None, include_defaults=files != tasks)
    specs: list[str] = []
    for name in tasks:
        found = [name] if name in files else manager.match_tasks([name])
        if not found:
            near = difflib.get_close_matches(name, manager.all_tasks, n=3)
            raise WrongUseError(
                f"unknown task {name!r}."
                + (f" Near are {', '.join(near)}." if near else "")
                + " `lm-eval ls tasks` lists lm-eval's; your own need --include-path FOLDER, or give their YAML file."
            )
        specs += [spec for spec in found if spec not in specs]
    try:
        return manager.load(specs)
    except Exception as error:
        raise WrongUseError(f"the tasks {', '.join(tasks)} cannot be loaded: {text_of(error)}") from error


def _facts(task: Any, limit: int | None) -> dict[str, Any]:
    docs = task.eval_docs
    return {
        "output_type": task.OUTPUT_TYPE,
        "questions": len(docs) if limit is None else min(limit, len(docs)),
        "digest": _digest([task.dump_config(), list(itertools.islice(docs, limit))]),
    }


def _digest(value: Any) -> str:
    """Of JSON-like data; objects count by their text, without the address in it."""
    text = re.sub(r" at 0x[0-9a-f]+", "", json.dumps(value, sort_keys=True, default=str))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
