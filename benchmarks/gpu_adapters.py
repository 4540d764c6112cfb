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
            "sampling": {"logprobs": 5},
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
            stock_equal, stock_text = follows(mode, every[0], made)
            equal, text = follows(mode if stock_equal else "kernels and graphs", every[2], made)
            report(f"each row of a mixed batch follows its own adapter, {name}", equal, f"{text}; stock: {stock_text}")
            by_kind = every[2][:-1]
            pairs = combinations(by_kind, 2)
            report("  adapters differ", not any(compared(mode, a, b)[0] for a, b in pairs))


def follows(mode, answers, made):
    """`compared` of a mixed batch's answers with those of batches that have one adapter each, the mixed one last."""
    whose = [answers[number % len(made)] for number in range(len(PROMPTS))]
    expected = {part: [answer[part][i] for i, answer in enumerate(whose)] for part in ("tokens", "logprobs")}
    return compared(mode, answers[-1], expected)
