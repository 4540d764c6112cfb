"""What Confident Decoding costs beside stock vLLM, in one run on one machine.

Engines with and without it run side by side in processes of their own and are asked in turn; each number is the
median over rounds of the ratio to the stock engine of the same round.

    python -m benchmarks.overhead                                  # the embedded model, on a CPU
    python -m benchmarks.overhead --shape qwen3-8b --forced paper smollm2 --batch 1 8 64 256
    python -m benchmarks.overhead --model MODEL --settings stock planned --tensor-parallel-size 2
"""

import argparse
import json
import re
import tempfile
from pathlib import Path

from benchmarks.engine import Engine
from benchmarks.shapes import SHAPES, write_shape
from benchmarks.timing import machine
from confident_decoding.bench.results import medians

SWITCH = "enable_multi_layer_entropy_selection"
SETTINGS = {
    "stock": None,
    "p=0": {"p": 0.0},
    "planned": {},
    "metrics": {"metrics": True},
    "dense": {"dense": True},
    "threshold 0.01": {"min_entropy": 0.01, "under": 0.64},
    "planned, no graphs": {"eager": True},
    "final layer only": {"final": True},
    "plain recipe": {"plain": True},
}
"""Each but stock is a variant of one engine with the switch on (`benchmarks.variants`)."""
AGAIN = "stock again"
"""A second stock engine: how far apart are two engines that do the same?"""
FORCED = ("planned", "metrics", "planned, no graphs", "threshold 0.01")
"""Settings whose time depends on the depths, for which each histogram is measured."""
CPU_ONLY_SETTINGS = ("stock", "planned")


def show_profiles(args, engines, variants):
    """Where a step's time on the GPU goes: kernels that take longer or shorter than in stock, and idle time."""
    for batch in args.batch:
        path = str(args.profile / "B{}-{}.json.gz")
        stock = engines["stock"].ask(do="profile", batch=batch, path=path.format(batch, "stock"))
        show_profile(f"B={batch}, stock", stock, {"kernels": {}, "gaps": {}}, 6)
        for key, engine in engines.items():
            for name, variant in variants:
                if variant is None or key in ("stock", AGAIN):
                    continue
                engine.ask(do="variant", variant=variant)
                label = re.sub(r"[^\w.]+", "-", f"{name}-{key}")
                mine = engine.ask(do="profile", batch=batch, path=path.format(batch, label))
                show_profile(f"B={batch}, {name}, {key}", mine, stock, 12)


def show_profile(name, mine, stock, most):
    """Ms a step, and the largest differences to stock."""
    print(name)
    for kind, table in mine.items():
        print(f"  {kind}: {sum(row[1] for row in table.values()):.3f} ms a step; more than stock:")
        none = [0, 0, 0]
        more = {k: table.get(k, none)[1] - stock[kind].get(k, none)[1] for k in {*table, *stock[kind]}}
        for what in sorted(more, key=lambda k: -abs(more[k]))[:most]:
            row = table.get(what, none)
            late = f"  host late {row[2]:.2f}" if kind == "gaps" else ""
            print(f"    {more[what]:+8.4f} ms  {row[0]:6.2f} times{late}  {what[:86]}", flush=True)


def show_parts(args, engines, variants):
    """Ms of the parts of a step on the GPU, by events: nothing is slowed down."""
    for batch in args.batch:
        for _ in range(2):
            for key, engine in engines.items():
                for name, variant in variants:
                    if (variant is None) != (key in ("stock", AGAIN)):
                        continue
                    if variant is not None:
                        engine.ask(do="variant", variant=variant)
                    parts = engine.ask(do="split", batch=batch, tokens=args.tokens)["ms"]
                    shown = ", ".join(f"{part} {ms:.3f}" for part, ms in parts.items())
                    print(f"B={batch} {name}, {key}, ms: {shown}", flush=True)


def cases(args, on_gpu):
    """``(name, variant)`` of what is measured beside stock."""
    for name, variant in SETTINGS.items():
        if variant is None or (args.settings and name not in args.settings):
            continue
        if not args.settings and not on_gpu and name not in CPU_ONLY_SETTINGS:
            continue
        for histogram in args.forced if name in FORCED and args.forced else [None]:
            forced = {"histogram": histogram} if histogram else {}
            yield f"{name}, {histogram}" if histogram else name, {**variant, **forced}


def measure(args, engines, variants):
    """Rounds of ms per setting and batch, the settings interleaved."""
    rounds = []
    if args.delay:
        for ms in (0.0, *args.delay):
            engines["stock"].ask(do="delay", ms=ms)
            times = {
                batch: [engines["stock"].ask(do="step", batch=batch, tokens=args.tokens)["ms"] for _ in range(3)]
                for batch in args.batch
            }
            print(f"stock, host busy for {ms} ms in the head call: {times}", flush=True)
        engines["stock"].ask(do="delay", ms=0.0)
    for number in range(-1, args.rounds):  # the first one warms up
        times = {}
        for name, variant in variants:
            for key, engine in engines.items():
                if (variant is None) != (key in ("stock", AGAIN)):
                    continue
                label = key if variant is None else name if len(args.layers) == 1 else f"{name}, {key}"
                if variant is not None and args.variants:
                    engine.ask(do="variant", variant=variant)
                times[label] = {}
                for batch in args.batch:
                    times[label][batch] = engine.ask(do="step", batch=batch, tokens=args.tokens)["ms"]
                if args.prefill:
                    times[label]["prefill"] = engine.ask(do="prompt", tokens=args.prefill)["ms"]
        if number >= 0:
            rounds.append(times)
        shown = {name: " ".join(f"{ms:.2f}" for ms in row.values()) for name, row in times.items()}
        print(f"round {number + 1}/{args.rounds}: {shown}", flush=True)
    return rounds


def memory(args, engines):
    """Peak bytes over what is allocated between requests: a prefill, and prompt logprobs."""
    result = {}
    for key, engine in engines.items():
        result[key] = {}
        for name, question in {
            f"prefill {args.prefill}": {"tokens": args.prefill},
            "prompt_logprobs 4096": {"tokens": 4096, "prompt_logprobs": 1},
        }.items():
            engine.ask(do="memory", reset=True)
            engine.ask(do="prompt", **question)
            result[key][name] = engine.ask(do="memory", reset=True)["bytes"]
    return result


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint; default: the embedded SmolLM2-135M-Instruct")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--layers", type=int, nargs="+", default=[10], help="candidate layers, an engine each")
    parser.add_argument("--settings", nargs="+", choices=[n for n in SETTINGS if n != "stock"])
    parser.add_argument("--forced", nargs="+", default=[], choices=["paper", "smollm2"], help="histograms of depths")
    parser.add_argument("--rounds", type=int, default=5, help="0: only what --profile and --split show")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prefill", type=int, default=0, help="also time a prompt of so many tokens, in one chunk")
    parser.add_argument("--delay", type=float, nargs="+", help="first show how ms of the host change stock's step")
    parser.add_argument("--profile", type=Path, help="first show where the GPU's time goes; traces go to this folder")
    parser.add_argument("--split", action="store_true", help="first show the parts of a step's time")
    parser.add_argument("--again", action="store_true", help="also a second stock engine")
    parser.add_argument("--memory", action="store_true", help="also peak memory (GPU)")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="with torch.compile and CUDA graphs")
    parser.add_argument("--option", nargs="*", default=[], metavar="NAME=JSON", help="further engine options")
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    return parser.parse_args()


def main():
    args = parse()
    import torch

    with tempfile.TemporaryDirectory() as folder:
        if args.shape:
            model = write_shape(args.shape, Path(folder) / args.shape)
        elif args.model:
            model = args.model
        else:
            from demo.checkpoint import smollm2

            model = str(smollm2())
        options = {
            "model": model,
            "dtype": args.dtype,
            "max_model_len": max(512, 2 * args.prefill, 8192 if args.memory else 0),
            "enable_prefix_caching": False,
            "skip_tokenizer_init": True,
            "enforce_eager": not args.compiled,
            "max_num_seqs": max(8, *args.batch),
            "tensor_parallel_size": args.tensor_parallel_size,
            **({"load_format": "dummy"} if args.shape else {}),
            **({"max_num_batched_tokens": args.prefill} if args.prefill else {}),
            **{name: json.loads(value) for name, value in (option.split("=", 1) for option in args.option)},
        }
        engines = {"stock": Engine("stock", options, Path(folder) / "stock.log")}
        if args.again:
            engines[AGAIN] = Engine(AGAIN, options, Path(folder) / "again.log")
        for layers in args.layers:
            # Where variants switch metrics on and off; a CPU's one setting is without.
            config = {SWITCH: True, "trough_max_backtrack_layers": layers, "trough_metrics": torch.cuda.is_available()}
            name = f"K={layers}"
            engines[name] = Engine(name, {**options, "additional_config": config}, Path(folder) / f"{layers}.log")
        for engine in engines.values():
            engine.wait()
        variants = [("stock", None), *cases(args, torch.cuda.is_available())]
        args.variants = torch.cuda.is_available()  # on a CPU there is one setting: as it is
        if args.profile:
            show_profiles(args, engines, variants)
        if args.split:
            show_parts(args, engines, variants)
        if not args.rounds:
            return
        used = memory(args, engines) if args.memory else None
        rounds = measure(args, engines, variants)
        for engine in engines.values():
            engine.close()
    table = medians(rounds)
    columns = list(table["stock"])
    print(f"\n{'':28}" + "".join(f"{f'B={c}' if isinstance(c, int) else c:>20}" for c in columns))
    for name, row in table.items():
        print(f"{name:28}" + "".join(f"{row[c]['ms']:9.2f} ms {row[c]['ratio']:6.3f}x" for c in columns))
    if args.out:
        arguments = {key: value for key, value in vars(args).items() if key not in ("out", "model", "variants")}
        arguments["model"] = args.shape or (Path(args.model).name if args.model else "SmolLM2-135M-Instruct")
        result = {"machine": machine(), "arguments": arguments, "median": table, "memory": used, "rounds": rounds}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
