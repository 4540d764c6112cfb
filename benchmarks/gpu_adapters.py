"""LoRA beside the selection, on a GPU; run by benchmarks.gpu_check.

What an adapter's rows select is compared with merged checkpoints on the CPU (tests/plugin/test_lora.py). Here: that
each row of a batch follows its own adapter in both runners, with vLLM's GPU kernels, and that p=0 changes nothing.
"""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

from benchmarks.adapters import RANK, TARGETS, write_adapter
from benchmarks.gpu_engine import PROMPTS, on, report, run, same
from benchmarks.gpu_lifecycle import compared, modes_and_runners


def lora(model):
    """Batches without an adapter, with one on attention, with one on the head as well, and with all of them mixed."""
    with tempfile.TemporaryDirectory() as folder:
        made = [None, *(write_adapter(model, Path(folder) / kind, targets) for kind, targets in TARGETS.items())]
        kinds = [path and Path(path).name for path in made]
        mixed = [made[number % len(made)] for number in range(len(PROMPTS))]
        uniform = [[path] * len(PROMPTS) for path in made]
        shared = {
            "enable_lora": True,
            "max_loras": 3,
            "max_lora_rank": RANK,
            "sampling": {"logprobs": 8},
            "adapters": uniform[0],
            "then": [{"adapters": batch} for batch in [*uniform[1:], mixed]],
        }
        for mode, options in modes_and_runners():
            with ThreadPoolExecutor(2) as pool:
                started = [pool.submit(run, model, config, **options, **shared) for config in ({}, on())]
            off, p1 = (answer.result() for answer in started)
            p0 = run(model, on(p=0.0), **options, **shared)  # the same graph as p=1's, which is compiled by now
            name = f"{p1['runner']} runner, {mode}"
            if not (off["tokens"] and p0["tokens"] and p1["tokens"]):
                report(f"engines start and answer, {mode} {options['env']}", False)
                continue
            every = [[result, *result["later"]] for result in (off, p0, p1)]
            for kind, stock, zero, one in zip([*kinds, "mixed"], *every, strict=True):
                equal, text = compared(mode, zero, stock)
                report(f"adapter {kind}: p=0 is off, {name}", equal, text)
                report("  the switch on differs", not compared(mode, one, stock)[0], same(one, stock)[0])
            # vLLM's kernels may add up in another order when adapters are mixed: to the bit where stock's are.
            alone = [as_alone(answers, made) for answers in every]
            exact, told = compared(mode, every[0][-1], alone[0])
            named = "each row of a mixed batch follows its own adapter"
            equal, text = compared(mode if exact else "kernels and graphs", every[2][-1], alone[2])
            if not exact:
                named += ", to the bit not stock's either"
                stock_tokens, tokens = (same(every[i][-1], alone[i])[1] for i in (0, 2))
                equal &= tokens or not stock_tokens
            report(f"{named}, {name}", equal, f"{text}; stock: {told}")
            by_kind = every[2][:-1]
            pairs = combinations(by_kind, 2)
            report("  adapters differ", not any(compared(mode, a, b)[0] for a, b in pairs))


def as_alone(answers, made):
    """What a mixed batch should answer: each row as the batch that has its adapter alone."""
    whose = [answers[number % len(made)] for number in range(len(PROMPTS))]
    return {part: [answer[part][i] for i, answer in enumerate(whose)] for part in ("tokens", "logprobs")}
