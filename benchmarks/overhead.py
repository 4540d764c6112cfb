"""What Confident Decoding costs beside stock vLLM, in one run on one machine.

Engines with and without it run side by side in processes of their own and are asked in turn; each number is the
median over rounds of the ratio to the stock engine of the same round.

    python -m benchmarks.overhead                                  # the embedded model, on a CPU
    python -m benchmarks.overhead --shape qwen3-8b --forced paper smollm2 --batch 1 8 64 256
    python -m benchmarks.overhead --model MODEL --settings planned dense --tensor-parallel-size 2
"""

import argparse
import json
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import sharing
from benchmarks.engine import Engine
from benchmarks.shapes import SHAPES, write_shape
from benchmarks.timing import machine
from confident_decoding.bench.results import medians

PROMPT = 16
"""Tokens of a prompt (`benchmarks.engine`)."""
SWITCH = "enable_multi_layer_entropy_selection"


@dataclass(frozen=True)
class Setting:
    """What an engine does that is not stock.

    Attributes:
        config: Further keys of ``additional_config``.
        at_start: What `benchmarks.at_start` changes in its workers.
        replace: What `benchmarks.variants` puts in the place of its head call.
        forced: Whether its time depends on the depths, so that each histogram is measured.
        under: Share of rows that are under the threshold when depths are forced.
    """

    config: dict = field(default_factory=dict)
    at_start: dict = field(default_factory=dict)
    replace: str | None = None
    forced: bool = False
    under: float = 0.0


SETTINGS = {
    "planned": Setting(forced=True),
    "threshold 0.01": Setting({"trough_min_entropy": 0.01}, forced=True, under=0.64),
    "metrics": Setting({"trough_metrics": True}, forced=True),
    "planned, no graphs": Setting(at_start={"no_graphs": True}, forced=True),
    "dense": Setting(at_start={"dense": True}),
    "p=0": Setting({"p": 0.0}),
    "final layer only": Setting(replace="final"),
    "plain recipe": Setting(replace="plain"),
}
"""An engine each."""
STOCK, AGAIN = "stock", "stock again"
"""The second: how far apart are two engines that do the same?"""


@dataclass(frozen=True)
class Case:
    """One line of the result: an engine, and the histogram that its depths follow (None: they are what they are)."""

    name: str
    engine: Engine
    histogram: str | None = None

    def ask(self, **question):
        """Ask the engine, its depths forced."""
        if self.histogram is not None:
            self.engine.ask(do="force", histogram=self.histogram)
        return self.engine.ask(**question)


def start(args, options, folder):
    """The cases, stock first, their engines started side by side."""
    cases = [Case(name, Engine(name, options, folder / f"{name}.log")) for name in [STOCK, *[AGAIN] * args.again]]
    for name in args.settings:
        setting = SETTINGS[name]
        histograms = args.forced if setting.forced else []
        at_start = {**setting.at_start, **({"under": setting.under} if histograms else {})}
        for layers in args.layers:
            config = {SWITCH: True, "trough_max_backtrack_layers": layers, **setting.config}
            label = name if len(args.layers) == 1 else f"{name}, K={layers}"
            log = folder / f"{label}.log"
            engine = Engine(label, {**options, "additional_config": config}, log, at_start=at_start)
            cases += [Case(f"{label}, {shape}" if shape else label, engine, shape) for shape in histograms or [None]]
    for engine in engines_of(cases):
        engine.wait()
    for case in cases:
        if (setting := SETTINGS.get(case.engine.name.split(", K=")[0])) and setting.replace:
            case.engine.ask(do="replace", variant=setting.replace)
    return cases


def engines_of(cases):
    """Each once."""
    return list({id(case.engine): case.engine for case in cases}.values())


def show_profiles(args, cases):
    """Where a step's time on the GPU goes: kernels that take longer or shorter than in stock, and idle time."""
    for batch in args.batch:
        stock = None
        for case in cases:
            label = re.sub(r"[^\w.]+", "-", case.name)
            mine = case.ask(do="profile", batch=batch, path=str(args.profile / f"B{batch}-{label}.json.gz"))
            show_profile(f"B={batch}, {case.name}", mine, stock or {"kernels": {}, "gaps": {}}, 12 if stock else 6)
            stock = stock or mine


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


def measure_parts(args, cases):
    """Ms of the parts of a step on the GPU, by events, twice, or once a round: nothing is slowed down."""
    result = {}
    for batch in args.batch:
        result[batch] = {case.name: [] for case in cases}
        for _ in range(max(2, args.rounds)):
            for case in cases:
                parts = case.ask(do="split", batch=batch, tokens=args.tokens)["ms"]
                result[batch][case.name].append(parts)
                shown = ", ".join(f"{part} {ms:.3f}" for part, ms in parts.items())
                print(f"B={batch} {case.name}, ms: {shown}", flush=True)
    return result


def show_delays(args, stock):
    """How far the host is ahead: steps of stock whose head call keeps the host busy."""
    for ms in (0.0, *args.delay):
        stock.ask(do="delay", ms=ms)
        times = {
            batch: [stock.ask(do="step", batch=batch, tokens=args.tokens)["ms"] for _ in range(3)]
            for batch in args.batch
        }
        print(f"stock, host busy for {ms} ms in the head call: {times}", flush=True)
    stock.ask(do="delay", ms=0.0)


def measure(args, cases):
    """Rounds of ms per case and batch, the cases interleaved."""
    rounds = []
    for number in range(-1, args.rounds):  # the first one warms up
        times = {}
        for case in cases:
            row = times[case.name] = {}
            for batch in args.batch:
                row[batch] = case.ask(do="step", batch=batch, tokens=args.tokens)["ms"]
            if args.prefill:
                row["prefill"] = case.ask(do="prompt", tokens=args.prefill)["ms"]
        if number >= 0:
            rounds.append(times)
        shown = {name: " ".join(f"{ms:.2f}" for ms in row.values()) for name, row in times.items()}
        print(f"round {number + 1}/{args.rounds}: {shown}", flush=True)
    return rounds


def memory(args, cases):
    """Peak bytes over what is allocated between requests: a prefill, and prompt logprobs."""
    result = {}
    for engine in engines_of(cases):
        result[engine.name] = {}
        for name, question in {
            f"prefill {args.prefill}": {"tokens": args.prefill},
            "prompt_logprobs 4096": {"tokens": 4096, "prompt_logprobs": 1},
        }.items():
            engine.ask(do="memory", reset=True)
            engine.ask(do="prompt", **question)
            result[engine.name][name] = engine.ask(do="memory", reset=True)["bytes"]
    return result


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint; default: the embedded SmolLM2-135M-Instruct")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--layers", type=int, nargs="+", default=[10], help="candidate layers; again an engine each")
    parser.add_argument("--settings", nargs="+", default=["planned"], choices=SETTINGS, help="an engine each")
    parser.add_argument("--forced", nargs="+", default=[], choices=["paper", "smollm2"], help="histograms of depths")
    parser.add_argument("--rounds", type=int, default=5, help="0: only what --profile and --split show")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prefill", type=int, default=0, help="also time a prompt of so many tokens, in one chunk")
    parser.add_argument("--delay", type=float, nargs="+", help="first show how ms of the host change stock's step")
    parser.add_argument("--profile", type=Path, help="first show where the GPU's time goes; traces go to this folder")
    parser.add_argument("--split", action="store_true", help="first measure the parts of a step's time")
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
    with tempfile.TemporaryDirectory() as folder:
        if args.shape:
            model = write_shape(args.shape, Path(folder) / args.shape)
        elif args.model:
            model = args.model
        else:
            from demo.checkpoint import smollm2

            model = str(smollm2())
        longest = max(512, 2 * args.prefill, 8192 if args.memory else 0)
        options = {
            "model": model,
            "dtype": args.dtype,
            "max_model_len": longest,
            "enable_prefix_caching": False,
            "skip_tokenizer_init": True,
            "enforce_eager": not args.compiled,
            "max_num_seqs": max(8, *args.batch),
            "tensor_parallel_size": args.tensor_parallel_size,
            **({"load_format": "dummy"} if args.shape else {}),
            **({"max_num_batched_tokens": args.prefill} if args.prefill else {}),
            **sharing.options(
                model,
                engines=1 + args.again + len(args.settings) * len(args.layers),
                tokens=max(max(args.batch) * (PROMPT + args.tokens + sharing.BLOCK), longest + sharing.BLOCK),
                batches=args.batch,
                dtype=args.dtype,
                tensor_parallel_size=args.tensor_parallel_size,
            ),
            **{name: json.loads(value) for name, value in (option.split("=", 1) for option in args.option)},
        }
        cases = start(args, options, Path(folder))
        if args.profile:
            show_profiles(args, cases)
        parts = measure_parts(args, cases) if args.split else None
        if args.delay:
            show_delays(args, cases[0])
        used = memory(args, cases) if args.memory else None
        rounds = measure(args, cases) if args.rounds else []
        for engine in engines_of(cases):
            engine.close()
    if not rounds:
        return
    table = medians(rounds)
    columns = list(table["stock"])
    print(f"\n{'':28}" + "".join(f"{f'B={c}' if isinstance(c, int) else c:>20}" for c in columns))
    for name, row in table.items():
        print(f"{name:28}" + "".join(f"{row[c]['ms']:9.2f} ms {row[c]['ratio']:6.3f}x" for c in columns))
    if args.out:
        arguments = {key: value for key, value in vars(args).items() if key not in ("out", "model")}
        arguments["model"] = args.shape or (Path(args.model).name if args.model else "SmolLM2-135M-Instruct")
        result = {
            "machine": machine(),
            "arguments": arguments,
            "median": table,
            "memory": used,
            "parts": parts,
            "rounds": rounds,
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
