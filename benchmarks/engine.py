"""A vLLM engine in a process of its own that answers questions: how long is a step, what does it take."""

import json
import time

from benchmarks import parts, variants
from confident_decoding.bench import timed
from confident_decoding.bench.timed import step_ms
from confident_decoding.engines.process import Parent

ENV = {
    **timed.environment(),
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # functions of this package are sent to the workers
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
AT_START = "BENCHMARK_AT_START"
"""Environment variable for `benchmarks.at_start`, with a JSON object."""


def serve(parent):
    """An engine of its own: answers the parent's questions; the first message says how it starts."""
    questions, say = parent.messages(), parent.say
    spec = next(questions)
    if spec["hide_plugin"]:
        from tests.plugin.hidden import hide_plugin

        hide_plugin()
    from vllm import LLM, SamplingParams

    llm = LLM(**spec["engine"])
    say({"cpu_s": time.process_time()})
    for question in questions:
        if question["do"] == "replace":
            llm.collective_rpc(variants.replace_call, args=(question["variant"],))
            say({})
        elif question["do"] == "force":
            llm.collective_rpc("force_depths", args=(question["histogram"],))
            say({})
        elif question["do"] == "delay":
            llm.collective_rpc(variants.delay_head, args=(question["ms"],))
            say({})
        elif question["do"] == "profile":
            say(profile(llm, SamplingParams, question["batch"], question["path"]))
        elif question["do"] == "split":
            say({"ms": split(llm, SamplingParams, question["batch"], question["tokens"])})
        elif question["do"] == "memory":
            say({"bytes": llm.collective_rpc(parts.peak_memory, args=(question["reset"],))})
        elif question["do"] == "step":
            prompts = [{"prompt_token_ids": [7 + i] * 16} for i in range(question["batch"])]
            say({"ms": step_ms(llm, prompts, question["tokens"], question.get("adapter"))})
        elif question["do"] == "adapter":
            from vllm.lora.request import LoRARequest

            # The number that `step_ms` uses.
            change = llm.llm_engine.add_lora if question["load"] else llm.llm_engine.remove_lora
            say({"done": change(LoRARequest("adapter", 1, question["load"]) if question["load"] else 1)})
        elif question["do"] == "drafts":
            say(drafts(llm, SamplingParams, question["prompts"], question["tokens"]))
        elif question["do"] == "prompt":
            prompt = {"prompt_token_ids": [7 + i % 1000 for i in range(question["tokens"])]}
            params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=question.get("prompt_logprobs"))
            start = time.perf_counter()
            llm.generate([prompt], params, use_tqdm=False)
            say({"ms": 1000 * (time.perf_counter() - start)})


def drafts(llm, sampling_params, prompts, tokens):
    """Drafts made, tokens drafted and tokens accepted while ``prompts`` are answered, by vLLM's own counters."""

    def counters():
        found = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
        names = {"drafts": "num_drafts", "drafted": "num_draft_tokens", "accepted": "num_accepted_tokens"}
        return {ours: found[f"vllm:spec_decode_{theirs}"] for ours, theirs in names.items()}

    before = counters()
    params = sampling_params(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    return {name: value - before[name] for name, value in counters().items()}


def split(llm, sampling_params, batch, tokens):
    """See `parts.step_parts`; of the first rank."""
    prompts = [{"prompt_token_ids": [7 + i] * 16} for i in range(batch)]
    params = sampling_params(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    llm.collective_rpc(parts.split_steps)
    llm.generate(prompts, params, use_tqdm=False)
    return llm.collective_rpc(parts.step_parts)[0]


def profile(llm, sampling_params, batch, path, tokens=24):
    """What `parts.stop_profile` found on the first rank, per step; prefill included (one step of ``tokens``)."""
    prompts = [{"prompt_token_ids": [7 + i] * 16} for i in range(batch)]
    params = sampling_params(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    llm.collective_rpc(parts.start_profile)
    llm.generate(prompts, params, use_tqdm=False)
    kernels, gaps = (
        {name: [value / tokens for value in values] for name, values in table.items()}
        for table in llm.collective_rpc(parts.stop_profile, args=(path,))[0]
    )
    return {"kernels": kernels, "gaps": gaps}


class Engine(timed.TimedEngine):
    """One engine in a process of its own.

    Args:
        name: For messages.
        options: Of ``vllm.LLM``.
        log: File for its output.
        hide_plugin: As if it had never been installed there.
        at_start: What `benchmarks.at_start` changes in its workers.
    """

    def __init__(self, name, options, log, hide_plugin=False, at_start=None):
        env = ENV
        if at_start:
            options = {**options, "worker_extension_cls": "benchmarks.at_start.Worker"}
            env = {**ENV, AT_START: json.dumps(at_start)}
        spec = {"engine": options, "hide_plugin": hide_plugin}
        super().__init__(name, spec, log, module="benchmarks.engine", env=env)


if __name__ == "__main__":
    serve(Parent())
