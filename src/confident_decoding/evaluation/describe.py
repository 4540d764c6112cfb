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

from confident_decoding.evaluation.protocol import RefusedError, Send, text_of

PACKAGES = ("confident-decoding", "lm-eval", "vllm", "torch", "transformers")


def describe(
    send: Send,
    model: str,
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
        model_args: Further arguments of lm-eval's model class and vLLM's engine.
        tasks: Names, patterns or YAML files.
        include_path: Folders with task files of the user's own.
        limit: Questions of each task, None for all.
        allow_unsafe_code: Tasks may run what the model writes.

    Raises:
        RefusedError: The model or a task cannot be used.
    """
    _check_folder(model)
    loaded = load_tasks(tasks, include_path)
    facts = {}
    for name, task in loaded["tasks"].items():
        if getattr(task, "UNSAFE_CODE", False) and not allow_unsafe_code:
            raise RefusedError(
                f"task {name!r} runs code that the model writes. If this machine may do that, add --allow-unsafe-code."
            )
        if getattr(task, "MULTIMODAL", False):
            raise RefusedError(f"task {name!r} has images; tasks of text alone can be compared.")
        facts[name] = _facts(task, limit)
        if not facts[name]["questions"]:
            raise RefusedError(f"task {name!r} has no questions.")
    layers, files, device = _model(model, model_args)
    groups = {name: [task.task_name for task in group.get_all_tasks()] for name, group in loaded["groups"].items()}
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    send("facts", layers=layers, files=files, device=device, tasks=facts, groups=groups, versions=versions)


def _check_folder(model: str) -> None:
    """What can be wrong with a path, before anything slow."""
    folder = Path(model)
    give = "Give a checkpoint's folder, or a model's name on the hub."
    if not folder.exists() and (model.startswith(("/", ".", "~")) or model.count("/") > 1):
        raise RefusedError(f"there is no model in {model}: no such folder. {give}")
    if folder.exists() and not any((folder / name).is_file() for name in ("config.json", "params.json")):
        raise RefusedError(f"there is no model in {model}: it is no folder with a config.json. {give}")


def _model(model: str, model_args: dict[str, Any]) -> tuple[int, str, str]:
    """Decoder layers, what identifies the weights, the device's name."""
    from lm_eval.models.vllm_causallms import VLLM  # type: ignore[import-untyped]
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    fields = {field.name for field in dataclasses.fields(EngineArgs)}
    known = fields | set(inspect.signature(VLLM.__init__).parameters)
    for key in model_args:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=3)
            raise RefusedError(
                f"--model-args: neither vLLM nor lm-eval knows {key!r}"
                + (f"; near are {', '.join(near)}." if near else ".")
            )
    try:
        arguments = {key: value for key, value in model_args.items() if key in fields}
        config = EngineArgs(model=model, **arguments).create_model_config()
    except Exception as error:
        raise RefusedError(f"the model {model!r} cannot be read: {text_of(error)}") from error
    if config.runner_type != "generate":
        raise RefusedError(f"the model {model!r} does not generate text (vLLM runs it as {config.runner_type!r}).")
    commit = getattr(config.hf_config, "_commit_hash", None)
    found = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in Path(model).glob("*"))
    return config.get_total_num_hidden_layers(), commit or _digest(found), current_platform.get_device_name()


def load_tasks(tasks: list[str], include_path: list[str]) -> Any:
    """lm-eval's tasks, by name under ``"tasks"``, and groups.

    Raises:
        RefusedError: Unknown, or the task or its data cannot be loaded.
    """
    from lm_eval.tasks import TaskManager  # type: ignore[import-untyped]

    files = [name for name in tasks if Path(name).suffix in (".yaml", ".yml")]
    for name in files:
        if not Path(name).is_file():
            raise RefusedError(f"there is no task file {name}.")
    # To read all of lm-eval's own takes seconds.
    manager = TaskManager(include_path=include_path or None, include_defaults=files != tasks)
    specs: list[str] = []
    for name in tasks:
        found = [name] if name in files else manager.match_tasks([name])
        if not found:
            near = difflib.get_close_matches(name, manager.all_tasks, n=3)
            raise RefusedError(
                f"unknown task {name!r}."
                + (f" Near are {', '.join(near)}." if near else "")
                + " `lm-eval ls tasks` lists lm-eval's; your own need --include-path FOLDER, or give their YAML file."
            )
        specs += [spec for spec in found if spec not in specs]
    try:
        return manager.load(specs)
    except Exception as error:
        raise RefusedError(f"the tasks {', '.join(tasks)} cannot be loaded: {text_of(error)}") from error


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
