"""What ``doctor`` asks of vLLM, in a process of its own, as vLLM's engine and workers are: JSON on standard output.

Run as ``python -P -m confident_decoding.cli.probe SPEC``, SPEC being JSON with ``model`` (or null), ``options`` (of
``vllm serve``) and ``additional_config``. Loads no weights.
"""

import importlib
import json
import logging
import os
import sys
from dataclasses import asdict
from typing import Any

from confident_decoding.config import ConfidentDecodingConfig, ConfigError, SelectionPlan
from confident_decoding.engines.options import WrongUseError, engine_args, text_of
from confident_decoding.plugin import stages
from confident_decoding.plugin.visible import Problem

MISSING_CAPTURE = "Serve this model with enable_multi_layer_entropy_selection=false; docs/adding-a-model.md says more."


def look(spec: dict[str, Any]) -> dict[str, Any]:
    """Everything about this machine's vLLM, and about the model if one was given."""
    problems: list[Problem] = []
    report: dict[str, Any] = {"device": None, "plugin": None, "model": None, "warnings": []}
    try:
        import vllm
        import vllm.plugins
    except Exception as error:
        problem = Problem(f"vLLM cannot be imported: {type(error).__name__}: {error}.", "Install vLLM anew.")
        return {**report, "problems": [asdict(problem)]}
    from confident_decoding.plugin import compat, visible

    refusal, warning = compat.version_problem(vllm.__version__)
    if refusal:
        problems.append(Problem(refusal, f"Install a vLLM from {compat.RANGE}."))
    report |= {"warnings": [warning] if warning else [], "device": device()}
    if report["device"] is None:
        problems.append(
            Problem(
                "vLLM found no device that it can run on: no GPU that this build supports.",
                "Run on a machine with one, or install vLLM's CPU build (confident-decoding[cpu]).",
            )
        )
    not_loaded = visible.why_not_loaded()
    report["plugin"] = not_loaded is None
    if not_loaded:
        problems.append(Problem(f"vLLM does not load the plugin. {not_loaded.what}", not_loaded.remedy))
    if spec["model"] is not None:
        try:
            report["model"], found = model(spec, has_device=report["device"] is not None)
            problems += found
        except WrongUseError as error:
            if isinstance(error.__cause__, OSError):  # no such model
                problems.append(model_problem(error.__cause__))
            else:
                report["wrong_use"] = str(error)
        except Exception as error:
            problems.append(model_problem(error))
    return {**report, "problems": [asdict(problem) for problem in problems]}


def device() -> dict[str, Any] | None:
    """What vLLM would run on, or None."""
    import torch
    from vllm.platforms import current_platform

    kind = current_platform.device_type
    if not kind:
        return None
    if kind != "cuda":
        return {"type": kind, "names": []}
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    names = [f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, capability {gpu.major}.{gpu.minor}" for gpu in gpus]
    return {"type": kind, "names": names} if names else None


def model(spec: dict[str, Any], has_device: bool) -> tuple[dict[str, Any], list[Problem]]:
    """Facts about the model under these settings, and what is wrong.

    Raises:
        Exception: vLLM cannot read the model, in its own words.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    from confident_decoding.plugin import front_end

    engine = None
    if has_device:
        arguments = engine_args(spec["model"], spec["options"], spec["additional_config"])
        # A server's defaults, not those of LLM(): the question is mostly about a server.
        engine = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
        config = engine.model_config
    else:  # vLLM's options cannot even be parsed
        config = EngineArgs(model=spec["model"]).create_model_config()
    facts: dict[str, Any] = {
        "architecture": config.architecture,
        "layers": config.get_total_num_hidden_layers(),
        "hidden": config.get_hidden_size(),
        "vocabulary": config.get_vocab_size(),
        "dtype": str(config.dtype).removeprefix("torch."),
        "itemsize": config.dtype.itemsize,
        "quantization": config.quantization,
        "generates": config.runner_type == "generate",
    }
    kind, inner = capture(config)
    facts |= {"capture": kind, "inner": inner}
    problems = []
    if kind == "none":
        what = f"{config.architecture} cannot run: it does not capture intermediate states in this vLLM ({inner})."
        problems.append(Problem(what, MISSING_CAPTURE))
    settings = ConfidentDecodingConfig.from_additional_config(spec["additional_config"])
    try:
        plan = settings.resolve(facts["layers"])
        facts["plan"] = asdict(plan)
        if engine:
            facts["serving"] = serving(engine, plan)
            front_end.validate(engine)
    except ConfigError as error:
        problems.append(Problem(str(error), "Change that setting, or leave Confident Decoding off."))
    return facts, problems


def serving(engine: Any, plan: SelectionPlan) -> dict[str, Any]:
    """How this engine would serve, as far as it matters for cost."""
    import torch
    import vllm.envs

    from confident_decoding import planner

    config, parallel = engine.model_config, engine.parallel_config
    columns = config.get_vocab_size() // parallel.tensor_parallel_size
    device, invariant = torch.device(engine.device_config.device_type), bool(vllm.envs.VLLM_BATCH_INVARIANT)
    per_read = planner.rows_per_read(device, config.get_hidden_size(), columns, config.dtype, plain=not invariant)
    return {
        "max_num_batched_tokens": engine.scheduler_config.max_num_batched_tokens,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "not_active": stages.misfit(plan, parallel.pipeline_parallel_size),
        "lora": engine.lora_config is not None,
        "batch_invariant": invariant,
        "dense_rows": None
        if per_read is None
        else planner.dense_rows(len(plan.depths), per_read, counts_on_host=device.type == "cpu"),
    }


def capture(config: Any) -> tuple[str, str]:
    """``(kind, inner model)`` as `survey.verdict` has it, of the class that vLLM resolves for the checkpoint."""
    from vllm.model_executor.models.registry import ModelRegistry

    from confident_decoding.plugin import survey

    registry = {name: entry.load_model_cls for name, entry in ModelRegistry.models.items()}
    cls, _ = config.registry.resolve_model_cls(config.architectures, config)
    kind, inner = survey.verdict(config.architecture, {**registry, config.architecture: lambda: cls})
    if kind == "text model":
        for text in getattr(config.hf_text_config, "architectures", None) or ():
            if text in registry:
                kind, inner = survey.verdict(text, registry)
    if kind == "ours" and not _gets_capture(inner):
        kind = "none"
    return kind, inner


def _gets_capture(inner: str) -> bool:
    """Whether the class is one whose forward we know in this vLLM."""
    from confident_decoding.plugin import missing_capture
    from confident_decoding.plugin.capture import forward_captures

    missing_capture.add_missing_captures()  # as before a model is loaded
    module = next(module for module, name in missing_capture.WITHOUT_CAPTURE.items() if name == inner)
    return forward_captures(getattr(importlib.import_module(module), inner))


def model_problem(error: Exception) -> Problem:
    """A model that vLLM cannot read."""
    return Problem(
        f"vLLM cannot use this model: {text_of(error)}",
        "Check its name or folder, and the options in --vllm; a name needs the network or a copy in the hub's cache.",
    )


def main() -> None:
    """Answer on what was standard output; everything else that is printed goes to standard error."""
    answer = os.dup(1)
    os.dup2(2, 1)
    logging.captureWarnings(True)
    report = look(json.loads(sys.argv[1]))
    with os.fdopen(answer, "w") as out:
        json.dump(report, out)


if __name__ == "__main__":
    main()
