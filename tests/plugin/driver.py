"""Runs real vLLM engines, one after another, in a process of its own; used by the tests.

Reads a list of jobs (JSON) and writes one result per job. A job is ``{"engine": {LLM arguments},
"calls": [{"prompts": [[token ids]], "sampling": {...}}]}``; a call ``{"do": name, "with": {arguments}}`` is a function
of actions.py. A result holds the outputs of each call, the log lines of the plugin, and the error if the engine did
not start.
"""

import argparse
import gc
import importlib
import json
import logging
import sys
import time
from pathlib import Path

import actions
from actions import sampling_params
from hidden import hide_plugin


class Lines:
    """Collects the plugin's log records at their making: vLLM reconfigures handlers as it likes."""

    def __init__(self):
        self.lines = []
        make = logging.getLogRecordFactory()

        def factory(*args, **kwargs):
            record = make(*args, **kwargs)
            if record.name == "vllm.confident_decoding":
                self.lines.append(f"{record.levelname} {record.getMessage()}")
            return record

        logging.setLogRecordFactory(factory)


def probe(llm):
    """Facts about the loaded model instance that tests assert."""
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    processor = getattr(model, "logits_processor", None)
    return {
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "class_is_registered": type(model) is getattr(sys.modules[type(model).__module__], type(model).__name__),
        "head_in_dict": "_apply_head" in vars(processor) if processor is not None else None,
        "buffers": [n for n, _ in model.named_buffers() if "confident" in n],
        "state_dict": [n for n in model.state_dict() if "confident" in n],
        "aux_layers": list(getattr(model.model, "aux_hidden_state_layers", ())),
        "additional_config": llm.llm_engine.vllm_config.additional_config,
    }


def drafter(llm):
    """What drafts, and whether its class is the registered one."""
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.drafter.model
    return {
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "class_is_registered": type(model) is getattr(sys.modules[type(model).__module__], type(model).__name__),
    }


def record_drafts(llm, drafts):
    """Keep every draft that the model runner's drafter proposes."""
    drafter = llm.llm_engine.model_executor.driver_worker.worker.model_runner.drafter
    propose = drafter.propose

    def recording(*args, **kwargs):
        proposed = propose(*args, **kwargs)
        drafts.append(proposed.tolist())
        return proposed

    drafter.propose = recording


def pooled(llm, prompts):
    """Embeddings of a pooling engine, as lists."""
    return [
        list(o.outputs.embedding) for o in llm.embed([{"prompt_token_ids": ids} for ids in prompts], use_tqdm=False)
    ]


def refusal(llm, prompt, sampling):
    """The ValueError of one request, or None if it is served."""
    try:
        llm.generate([{"prompt_token_ids": prompt}], sampling_params(sampling), use_tqdm=False)
    except ValueError as error:
        return str(error)
    return None


def named(path):
    """The function of a module beside this one, as ``module.function``."""
    module, _, name = path.partition(".")
    return getattr(importlib.import_module(module), name)


def run(job, lines):
    from vllm import LLM

    if "before" in job:
        named(job["before"])()

    given = json.loads(json.dumps(job["engine"].get("additional_config")))
    start = time.perf_counter()
    lines.lines.clear()
    result = {"calls": [], "error": None}
    llm = None
    try:
        llm = LLM(**job["engine"])
        result["start_s"] = time.perf_counter() - start
        result["user_dict_unchanged"] = job["engine"].get("additional_config") == given
        if job.get("probe"):
            result["probe"] = probe(llm)
        if job.get("drafter"):
            result["drafter"] = drafter(llm)
        if job.get("drafts"):
            result["drafts"] = []
            record_drafts(llm, result["drafts"])
        if "embed" in job:
            result["embeddings"] = pooled(llm, job["embed"])
        for call in job["calls"]:
            if "do" in call:
                result["calls"].append(getattr(actions, call["do"])(llm, **call.get("with", {})))
                continue
            start = time.perf_counter()
            adapters = [path and actions.adapter(path) for path in call["lora"]] if "lora" in call else None
            answer = actions.generate(llm, call["prompts"], call["sampling"], lora_request=adapters)
            result["calls"].append({"seconds": time.perf_counter() - start, **answer})
        if job.get("counters"):
            counters = [metric for metric in llm.get_metrics() if hasattr(metric, "value")]
            result["counters"] = {metric.name: metric.value for metric in counters}
        if "ranks" in job:
            result["ranks"] = llm.collective_rpc(named(job["ranks"]))
        result["refusals"] = [refusal(llm, call["prompts"][0], sampling) for sampling in job.get("refused", ())]
    except Exception as error:
        if not job.get("may_fail"):
            raise
        result["error"] = f"{type(error).__name__}: {error}"
    finally:
        del llm
        from vllm.distributed import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()
        gc.collect()
    result["lines"] = list(lines.lines)
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--hide-plugin", action="store_true")
    parser.add_argument("--odd-models", action="store_true", help="register tests/plugin/odd_models.py")
    args = parser.parse_args()
    if args.hide_plugin:
        hide_plugin()
    if args.odd_models:
        import odd_models  # noqa: F401
    lines = Lines()
    args.results.write_text(json.dumps([run(job, lines) for job in json.loads(args.jobs.read_text())]))


if __name__ == "__main__":
    main()
