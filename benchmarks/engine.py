"""A vLLM engine in a process of its own that answers questions: how long is a step, what does it take."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ENV = {
    # As people serve; on a CPU with few cores the processes would only take time from each other.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1" if shutil.which("nvidia-smi") else "0",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # functions of this package are sent to the workers
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}


def serve(spec):
    """An engine of its own: answers questions that come as JSON lines."""
    if spec["hide_plugin"]:
        from tests.plugin.driver import hide_plugin

        hide_plugin()
    from vllm import LLM, SamplingParams

    llm = LLM(**spec["engine"])
    say({"cpu_s": time.process_time()})
    for line in sys.stdin:
        question = json.loads(line)
        if question["do"] == "variant":
            from benchmarks import variants

            llm.collective_rpc(variants.apply_variant, args=(question["variant"],))
            say({})
        elif question["do"] == "delay":
            from benchmarks import variants

            llm.collective_rpc(variants.delay_head, args=(question["ms"],))
            say({})
        elif question["do"] == "profile":
            say({"kernels": profile(llm, SamplingParams, question["batch"])})
        elif question["do"] == "memory":
            from benchmarks import variants

            say({"bytes": llm.collective_rpc(variants.peak_memory, args=(question["reset"],))})
        elif question["do"] == "step":
            say({"ms": step_ms(llm, SamplingParams, question["batch"], question["tokens"])})
        elif question["do"] == "prompt":
            prompt = {"prompt_token_ids": [7 + i % 1000 for i in range(question["tokens"])]}
            params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=question.get("prompt_logprobs"))
            start = time.perf_counter()
            llm.generate([prompt], params, use_tqdm=False)
            say({"ms": 1000 * (time.perf_counter() - start)})


def step_ms(llm, sampling_params, batch, tokens):
    """Milliseconds per decode step: the difference of two lengths leaves prefill and the first steps out."""
    prompts = [{"prompt_token_ids": [7 + i] * 16} for i in range(batch)]
    seconds = []
    for length in (tokens, tokens // 4):
        params = sampling_params(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
    return 1000 * (seconds[0] - seconds[1]) / (tokens - tokens // 4)


def profile(llm, sampling_params, batch, tokens=24):
    """Calls and ms per step of each kernel of the first rank, prefill included (one step of ``tokens``)."""
    from benchmarks import variants

    prompts = [{"prompt_token_ids": [7 + i] * 16} for i in range(batch)]
    params = sampling_params(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    llm.collective_rpc(variants.start_profile)
    llm.generate(prompts, params, use_tqdm=False)
    kernels = llm.collective_rpc(variants.stop_profile)[0]
    return {name: (count / tokens, ms / tokens) for name, (count, ms) in kernels.items()}


def say(answer):
    """Answer on the pipe that nothing else writes to."""
    os.write(int(os.environ["BENCH_PIPE"]), (json.dumps(answer) + "\n").encode())


class Engine:
    """One engine in a process of its own; with ``hide_plugin``, as if it had never been installed there."""

    def __init__(self, name, options, log, hide_plugin=False):
        self.name, self._log = name, open(log, "w")  # noqa: SIM115 (closed with the process)
        read, write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engine", json.dumps({"engine": options, "hide_plugin": hide_plugin})],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            text=True,
            pass_fds=[write],
            env={**ENV, **os.environ, "BENCH_PIPE": str(write)},
        )
        os.close(write)
        self._answers = os.fdopen(read)

    def wait(self):
        """Until it has started; returns what that took of the CPU."""
        return self._read()

    def ask(self, **question):
        """One question, one answer."""
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self):
        line = self._answers.readline()
        if not line:
            self._process.wait()
            sys.exit(f"the engine {self.name!r} ended:\n" + Path(self._log.name).read_text()[-5000:])
        return json.loads(line)

    def close(self):
        """End it."""
        self._process.stdin.close()
        self._process.wait(60)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
