"""Checks on a machine with GPUs: the same engine behaviour as in tests/, where the CPU cannot show it.

python -m benchmarks.gpu_check exact      p=0 against the switch off, batch-invariant, V1 and V2 runners
python -m benchmarks.gpu_check cache      off, on, other window, off, on: on one warm compile cache
python -m benchmarks.gpu_check sync       no host synchronisation in a head call
python -m benchmarks.gpu_check parallel   tensor parallel 2 against 1; two stages: candidates that fit, and too many
python -m benchmarks.gpu_check context    decode context parallelism, two ranks
python -m benchmarks.gpu_check experts    sequence-parallel experts, two by two ranks
python -m benchmarks.gpu_check graphs     CUDA-graph modes and both runners
python -m benchmarks.gpu_check requests   requests with settings of their own in one batch, V1 and V2 runners
python -m benchmarks.gpu_check invariant  batch-invariant: an answer does not depend on what it is batched with
python -m benchmarks.gpu_check eagle3     an EAGLE-3 drafter beside the selection, V1 and V2 runners, CUDA graphs
python -m benchmarks.gpu_check drafters   a draft model, EAGLE and MTP beside the selection, CUDA graphs
python -m benchmarks.gpu_check lora       adapters on attention and on the head, V1 and V2 runners
python -m benchmarks.gpu_check quantised  fp8, int8, 4-bit, GPTQ and AWQ checkpoints (tests/models/prove.py)
python -m benchmarks.gpu_check sleep      sleep level 1 and 2, and waking up; V1 and V2 runners
python -m benchmarks.gpu_check update     weights of another checkpoint in place; V1 and V2 runners
python -m benchmarks.gpu_check asynchronous   asynchronous scheduling on against off; V1 and V2 runners

The last three are in gpu_lifecycle.py, those of drafters in gpu_drafters.py, of ranks in gpu_ranks.py (where GPUs are
too few they share one), of adapters in gpu_adapters.py. `--jobs N` runs N checks side by side. `--out FILE` appends
each result as a line of JSON, with hardware, versions and commit (benchmarks/results/checks-*.jsonl).
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from benchmarks import gpu_adapters, gpu_drafters, gpu_lifecycle, gpu_ranks
from benchmarks.gpu_engine import (
    DETERMINISTIC,
    INVARIANT,
    PROMPTS,
    REPORTING,
    RUNNERS,
    any_failed,
    on,
    report,
    run,
    same,
    write_to,
)
from benchmarks.shapes import LAYERS, small_checkpoint


def exact(model):
    for runner, eager in product(RUNNERS, (True, False)):
        options = {"env": {**INVARIANT, "VLLM_USE_V2_MODEL_RUNNER": runner}, "enforce_eager": eager}
        configs = {}, {}, on(p=0.0, trough_log_interval=16), on()
        off, again, p0, p1 = (run(model, config, **options) for config in configs)
        name = f"{p0['runner']} runner, batch-invariant, {'eager' if eager else 'compiled'}"
        for what, other in (("off is itself", again), ("p=0 bit-equal to off", p0)):
            text, equal = same(off, other)
            report(f"{what}, {name}", equal and off["logprobs"] == other["logprobs"], text)
        report("  p=1 differs", p1["tokens"] is not None and p1["tokens"] != off["tokens"], same(off, p1)[0])
        print("   ", [line for line in p0["lines"] if "step=" in line][-1:])


def requests(model):
    """One batch of requests that each ask for something else, against servers of those settings."""
    kinds = {
        "default": (on(), {}),
        "off": ({}, {"confident_p": 0}),
        "window of 3": (on(trough_max_backtrack_layers=3), {"confident_max_backtrack_layers": 3}),
        "trough-m1": (on(select_method="trough-m1"), {"confident_select_method": "trough-m1"}),
        "last-m2": (on(select_method="last-m2"), {"confident_select_method": "last-m2"}),
    }
    pairs = [(prompt, kind) for prompt in PROMPTS for kind in kinds]
    sampling = [{"logprobs": 8, "extra_args": kinds[kind][1] or None} for _, kind in pairs]
    for number in RUNNERS:
        env = {**INVARIANT, "VLLM_USE_V2_MODEL_RUNNER": number}
        eager = {"env": env, "enforce_eager": True}
        alone = {kind: run(model, config, **eager) for kind, (config, _) in kinds.items()}
        together = run(model, on(), prompts=[prompt for prompt, _ in pairs], sampling=sampling, **eager)
        tokens = together["tokens"] or []
        wrong = [
            kind
            for (prompt, kind), found in zip(pairs, tokens, strict=False)
            if found != alone[kind]["tokens"][PROMPTS.index(prompt)]
        ]
        distinct = len({str(result["tokens"]) for result in alone.values()})
        ok = bool(tokens) and not wrong and distinct == len(kinds)
        report(
            f"requests of their own settings, {together['runner']} runner",
            ok,
            f"{len(tokens)} requests, wrong: {wrong}",
        )


def invariant(model):
    """Every prompt alone and all of them together: tokens and logprobs equal to the bit."""
    together = run(model, on(trough_log_interval=16), env=INVARIANT)
    alone = run(model, on(), env=INVARIANT, max_num_seqs=1)
    text, equal = same(together, alone)
    report("an answer does not depend on its batch", equal and together["logprobs"] == alone["logprobs"], text)
    print("   ", [line for line in together["lines"] if "step=" in line][-1:])


def quantised(_):
    """fp8 made by vLLM at the start, and the checkpoints of tests/models/quantised.py."""
    tests = Path(__file__).resolve().parent.parent / "tests"
    sys.path[:0] = [str(tests)]
    from models.criteria import problems
    from models.quantised import QUANTISED

    with tempfile.TemporaryDirectory() as folder:
        for number, (tags, options) in enumerate(
            ((["LlamaForCausalLM", "MixtralForCausalLM"], ["--option", 'quantization="fp8"']), (list(QUANTISED), []))
        ):
            out = Path(folder) / f"{number}.jsonl"
            command = [sys.executable, "-m", "models.prove", str(out), *tags, "--dtype", "bfloat16"]
            subprocess.run([*command, "--isolate", "--jobs", "4", *options], cwd=tests, check=False)
            rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
            for row in rows:
                shown = row.get("error", f"{row.get('depths_from_own_logits')} {row.get('relative_error_by_depth')}")
                report(f"{row['tag']} {' '.join(options[1:])}", not problems(row), f"{problems(row)} {shown[-300:]}")
            report("  all were tried", len(rows) == len(tags))


def cache(model):
    """A graph compiled without capture returns no states and the engine stops: starting is the proof."""
    for number, config in enumerate(
        [
            {},
            on(trough_log_interval=16),
            on(trough_max_backtrack_layers=3, trough_log_interval=16),
            {},
            on(trough_log_interval=16),
        ]
    ):
        result = run(model, config)
        armed = re.findall(r"armed: .*?layers=(\[.*?\])", "\n".join(result["lines"]))
        depths = range(config.get("trough_max_backtrack_layers", min(10, LAYERS)) if config else 0)
        layers = [str([LAYERS - 1 - d for d in depths])] if config else []
        loaded = "Directly load" in result["log"]
        ok = bool(result["tokens"]) and armed == layers and loaded == (number > 2)
        told = (
            f"{armed} {'loaded from the cache' if loaded else 'compiled'}, started in {result.get('start_s', 0):.1f} s"
        )
        report(f"run {number}: {config or 'off'}", ok, told)


OWN = [
    {"extra_args": {"confident_p": 0}},
    {"seed": 5, "extra_args": {"confident_p": 0.5}},
    {"extra_args": {"confident_select_method": "trough-m1", "confident_min_entropy": 0.5}},
    {"extra_args": {"confident_max_backtrack_layers": 3}},
]
"""Requests of each kind that changes what a row is given."""


def sync(model):
    for name, config, options in (
        ("trough", on(), {}),
        ("trough, log", on(trough_log_interval=4), {}),
        ("p=0.5", on(p=0.5), {}),
        ("p=0", on(p=0.0, trough_log_interval=4), {}),
        ("last-m4", on(select_method="last-m4", trough_log_interval=4), {}),
        ("metrics", on(trough_metrics=True), {}),
        ("requests, V1", on(trough_metrics=True), {"sampling": OWN * 2, "env": {"VLLM_USE_V2_MODEL_RUNNER": "0"}}),
        ("requests, V2", on(trough_metrics=True), {"sampling": OWN * 2, "env": {"VLLM_USE_V2_MODEL_RUNNER": "1"}}),
    ):
        result = run(model, config, sync=True, enforce_eager=True, **options)
        report(
            f"no host synchronisation: {name}",
            bool(result["tokens"]),
            f"{len([x for x in result['lines'] if 'step=' in x])} lines",
        )


STAGGERED = [[*prompt, 9 + k] for k in range(3) for prompt in PROMPTS][:18]
"""More requests than the largest graph of `graphs` has rows; they end one after the other."""


def graphs(model):
    """CUDA graphs of each kind against none, compiled: an eager engine rounds otherwise.

    Batch-invariant, all answers are equal to the bit, through batches of 18 to 1 rows (captured: 1, 2, 4, 8 and 16),
    with parts of prompts beside tokens. Otherwise our kernels run, and how attention is divided depends on the batch:
    there the first two tokens are compared, the second of which comes from a step that full graphs hold.
    """
    ended = [{"logprobs": 8, "max_tokens": 4 + 2 * number} for number in range(len(STAGGERED))]
    staggered = {"prompts": STAGGERED, "sampling": ended, "max_num_batched_tokens": 64}
    kinds = {"batch-invariant": (INVARIANT, staggered), "kernels": ({DETERMINISTIC: "1"}, {})}

    def with_graphs(case):
        runner, kind = case
        env, options = kinds[kind]
        shared = {"env": {**env, "VLLM_USE_V2_MODEL_RUNNER": runner}, **options}

        def one(mode):
            compilation = {"cudagraph_capture_sizes": [1, 2, 4, 8, 16], "cudagraph_mode": mode}
            return mode, run(model, on(trough_log_interval=16), compilation_config=compilation, **shared)

        found = [one("NONE")]
        with ThreadPoolExecutor(2) as pool:  # of two that compile the same, the second comes later
            found += pool.map(one, ("FULL", "PIECEWISE"))
        return kind, dict([*found, one("FULL_AND_PIECEWISE")])

    with ThreadPoolExecutor(len(kinds)) as pool:
        results = list(pool.map(with_graphs, product(RUNNERS, kinds)))
    for kind, modes in results:
        without = modes.pop("NONE")
        for mode, result in modes.items():
            name = f"{mode}, {result['runner']} runner, {kind}: as without CUDA graphs"
            steps = [line for line in result["lines"] if "step=" in line]
            if not (result["tokens"] and without["tokens"]):
                report(name, False, "no answer")
                continue
            apart = max(gpu_lifecycle.apart(result, without, 2))
            text, equal = same(result, without)
            equal &= result["logprobs"] == without["logprobs"]
            ok = equal if kind == "batch-invariant" else apart < gpu_lifecycle.NOISE
            detail = f"{text}; logprobs of the first two tokens differ by at most {apart:.4f} nats; {steps[-1:]}"
            # The last of three lines comes with a step after it.
            report(name, ok and len(steps) >= 2, detail)


ELSEWHERE = {
    gpu_adapters: ("lora",),
    gpu_drafters: ("eagle3", "drafters"),
    gpu_lifecycle: ("sleep", "update", "asynchronous"),
    gpu_ranks: ("parallel", "context", "experts"),
}


RAN = "ran to its end"
"""The last result of every check."""
BY_RUNNER = ("exact", "requests", "lora", "eagle3", "sleep", "update", "asynchronous", "graphs")
"""Checks that go through `RUNNERS`."""


def side_by_side(args, model):
    """A process for each check, and for each runner of some; each with a compile cache of its own.

    What they print comes as it is printed.
    """

    def one(job):
        name, runner = job
        out = ["--out", str(args.out)] if args.out else []
        command = [sys.executable, "-m", "benchmarks.gpu_check", name, "--model", model, *out]
        with tempfile.TemporaryDirectory() as cache:
            env = {**os.environ, "VLLM_CACHE_ROOT": cache, **({"CHECK_RUNNERS": runner} if runner else {})}
            begun = time.perf_counter()
            status = subprocess.run(command, env=env, check=False).returncode
        if status not in (0, 1):
            with REPORTING:
                write_to(args.out, name)
                report(f"the process ended by itself, {runner or ''}", False, f"exit status {status}")
        print(f"   {name} {runner or ''}: {time.perf_counter() - begun:.0f} s, exit status {status}", flush=True)
        return status != 0

    jobs = [(name, runner) for name in args.checks for runner in (RUNNERS if name in BY_RUNNER else [None])]
    with ThreadPoolExecutor(args.jobs) as pool:
        return any([*pool.map(one, jobs)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="+", metavar="CHECK")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--out", type=Path, help="append each result as a line of JSON")
    parser.add_argument("--model", help="that `small_checkpoint` has written; default: one is written")
    args = parser.parse_args()
    checks = {**globals(), **{name: getattr(module, name) for module, names in ELSEWHERE.items() for name in names}}
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or small_checkpoint(Path(folder) / "model")
        if args.jobs > 1:
            sys.exit(side_by_side(args, model))
        for name in args.checks:
            print(f"== {name}", flush=True)
            write_to(args.out, name)
            try:
                checks[name](model)
            except Exception:
                report(RAN, False, traceback.format_exc()[-300:])
                traceback.print_exc()
            else:
                report(RAN, True, f"runners {','.join(RUNNERS)}" if name in BY_RUNNER else "")
    sys.exit(any_failed())


if __name__ == "__main__":
    main()
