"""One engine in a process of its own, for the checks on GPUs: what is asked of it, and what it answers."""

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from safetensors.torch import load_file

from benchmarks.lifeline import end_with_parent
from confident_decoding.engines.process import end_group

SWITCH = "enable_multi_layer_entropy_selection"
RUNNERS = tuple(os.environ.get("CHECK_RUNNERS", "1,0").split(","))
"""Values of ``VLLM_USE_V2_MODEL_RUNNER`` that checks of both model runners go through."""
PATIENCE = 900
"""Seconds that an engine has; ranks may wait for one that is gone."""
PROMPTS = [[(7 * i + j * j) % 31_000 + 3 for j in range(4 + 5 * i)] for i in range(8)]


DETERMINISTIC = "TORCHINDUCTOR_DETERMINISTIC"
INVARIANT = {"VLLM_BATCH_INVARIANT": "1", DETERMINISTIC: "1"}
"""Environment of engines whose answers are compared to the bit. Without the second, torch.compile times variants of a
reduction on the GPU and takes the fastest, so that the order of a sum depends on what else ran in that moment."""


def on(**keys):
    return {SWITCH: True, **keys}


def run(
    model, config, *, tokens=48, env=None, sync=False, sampling=None, prompts=PROMPTS, adapters=None, then=(), **options
):
    """What an engine in a process of its own answers; tokens None: it failed, and what it said was printed.

    Args:
        model: Checkpoint folder.
        config: ``additional_config``.
        tokens: To generate for each prompt.
        env: On top of this process's environment.
        sync: Whether a head call that synchronises with the host fails.
        sampling: Further parameters, one dictionary for all prompts or a list.
        prompts: Token ids.
        adapters: A folder, or None, for each prompt.
        then: What is done afterwards (`act`), the prompts being asked again after each.
        options: Of ``vllm.LLM``.
    """
    engine = {
        "model": model,
        "skip_tokenizer_init": True,
        "max_model_len": 1024,
        "enable_prefix_caching": False,
        "additional_config": config,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "gpu_memory_utilization": 0.2,
        "kv_cache_memory_bytes": 500_000_000,  # not what is free: checks run side by side
        "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8, 16]},
        **options,
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        spec = {
            "engine": engine,
            "tokens": tokens,
            "out": str(out),
            "sync": sync,
            "sampling": sampling or {"logprobs": 8},
            "prompts": prompts,
            "adapters": adapters,
            "then": then,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu_engine", json.dumps(spec)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
                **os.environ,
                **(env or {}),
            },
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            end_group(process, patience=5)
            output, errors = process.communicate()
        finally:
            end_group(process, patience=5)
        if process.returncode:
            print(f"an engine ended with {process.returncode}\n{output[-1500:]}\n{errors[-3500:]}", flush=True)
            failed = {"tokens": None, "logprobs": None, "drafts": [], "lines": [], "runner": "failed"}
            return {**failed, "log": output + errors}
        return {**json.loads(out.read_text()), "log": output + errors}


def child(spec):
    """One engine in a process of its own: tokens, logprobs and the plugin's lines."""
    lines = []
    make = logging.getLogRecordFactory()

    def factory(*args, **kwargs):
        record = make(*args, **kwargs)
        if record.name == "vllm.confident_decoding":
            lines.append(record.getMessage())
        return record

    logging.setLogRecordFactory(factory)
    from vllm import LLM, SamplingParams

    begun = time.perf_counter()
    llm = LLM(**spec["engine"])
    took = time.perf_counter() - begun
    if spec.get("sync"):
        llm.llm_engine.model_executor.collective_rpc(forbid_sync)
    proposed = record_drafts(llm) if spec["engine"].get("speculative_config") else []
    fixed = {"temperature": 0, "max_tokens": spec["tokens"], "ignore_eos": True, "detokenize": False}
    own = spec["sampling"] if isinstance(spec["sampling"], list) else [spec["sampling"]] * len(spec["prompts"])

    def ask(adapters):
        outputs = llm.generate(
            [{"prompt_token_ids": ids} for ids in spec["prompts"]],
            [SamplingParams(**{**fixed, **options}) for options in own],
            use_tqdm=False,
            lora_request=lora_requests(adapters),
        )
        scores = [[[[t, v.logprob] for t, v in at.items()] for at in o.outputs[0].logprobs or []] for o in outputs]
        return {"tokens": [list(o.outputs[0].token_ids) for o in outputs], "logprobs": scores}

    result, later = ask(spec["adapters"]), []
    for action in spec["then"]:
        if "adapters" not in action:
            act(llm, **action)
        later.append(ask(action.get("adapters", spec["adapters"])))
    scheduling = llm.llm_engine.vllm_config.scheduler_config.async_scheduling
    runner = "V2" if llm.llm_engine.vllm_config.use_v2_model_runner else "V1"
    return {
        **result,
        "later": later,
        "drafts": proposed,
        "lines": lines,
        "start_s": took,
        "runner": runner,
        "asynchronous": bool(scheduling),
        "sequence_parallel_experts": bool(llm.llm_engine.vllm_config.parallel_config.use_sequence_parallel_moe),
    }


_numbers: dict[str, int] = {}
"""vLLM's number of each adapter."""


def lora_requests(adapters):
    """Of each prompt; None: there are none."""
    from vllm.lora.request import LoRARequest

    if adapters is None:
        return None
    numbers = [path and _numbers.setdefault(path, 1 + len(_numbers)) for path in adapters]
    return [path and LoRARequest(Path(path).name, n, path) for path, n in zip(adapters, numbers, strict=True)]


def act(llm, *, sleep=None, path=None, head=None):
    """One action: sleep at a level and wake up, or load the weights of ``path``, or its ``head`` alone, in place."""
    if sleep is not None:
        llm.sleep(level=sleep)
        if sleep == 2:  # weights are discarded: they have to be loaded again before anything is asked
            llm.wake_up(tags=["weights"])
            llm.collective_rpc("reload_weights")
            llm.wake_up(tags=["kv_cache"])
        else:
            llm.wake_up()
    elif head is not None:
        tensor = load_file(f"{head}/model.safetensors")["lm_head.weight"]
        llm.apply_model(lambda model: model.load_weights(iter([("lm_head.weight", tensor)])))
    else:
        llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
    llm.reset_prefix_cache()


def record_drafts(llm):
    """A list that every draft of this in-process engine is appended to."""
    drafts = []
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    drafter = getattr(runner, "drafter", None) or runner.speculator
    propose = drafter.propose

    def recording(*args, **kwargs):
        made = propose(*args, **kwargs)
        drafts.append(made.tolist())
        return made

    drafter.propose = recording
    return drafts


def forbid_sync(worker):
    """Make every head call of this worker fail if it synchronises with the host."""
    import torch

    model = worker.model_runner.get_model()
    processor = model.logits_processor
    head = processor._apply_head

    def checked(*args):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return head(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    processor._apply_head = checked


def same(a, b):
    pairs = list(zip(a["tokens"] or [], b["tokens"] or [], strict=False))
    return f"{sum(x == y for x, y in pairs)}/{len(pairs)} sequences", bool(pairs) and a["tokens"] == b["tokens"]


_written = {"path": None, "check": None, "failed": False}


REPORTING = threading.Lock()
"""For threads that `write_to` and `report` together."""


def write_to(path, check):
    """Results of `report` belong to ``check`` from here on, and are lines of a file, unless ``path`` is None."""
    _written.update(path=path, check=check)


def any_failed():
    """Whether a result of this process was no PASS."""
    return _written["failed"]


def report(name, ok, detail=""):
    _written["failed"] |= not ok
    print(f"{'PASS' if ok else 'FAIL'}  {name}  {detail}", flush=True)
    if _written["path"]:
        from benchmarks.timing import machine

        host = {key: value for key, value in machine().items() if key in ("gpu", "vllm", "torch", "triton", "commit")}
        line = {"check": _written["check"], "name": name.strip(), "passed": bool(ok), "detail": detail, **host}
        with open(_written["path"], "a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    end_with_parent()
    asked = json.loads(sys.argv[1])
    Path(asked["out"]).write_text(json.dumps(child(asked)))
