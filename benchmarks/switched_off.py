"""What the plugin costs where it is installed and switched off: start-up and step time beside a process without it.

In each round three engines start, one after the other and in another order each time: without the plugin, without it
again (the control: what differs between those two is noise), and with it installed and the switch off. Then all three
are asked for steps in turns. Each number is the median over rounds of the ratio to the first of the same round.

    python -m benchmarks.switched_off                              # the embedded model, on a CPU
    python -m benchmarks.switched_off --model MODEL --compiled --on --batch 1 64
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.engine import Engine
from benchmarks.gpu_engine import on
from benchmarks.timing import machine

SETTINGS = {"not installed": None, "not installed, again": None, "switched off": {}}
"""The plugin's configuration; None: it is hidden."""
ON = {"switched on": on()}
FIRST = "not installed"


def start(settings, options, number, folder):
    """The engines of a round, and what the start of each took: seconds, and seconds of the CPU."""
    names, turn = list(settings), number % len(settings)
    engines, took = {}, {}
    for name in names[turn:] + names[:turn]:
        begun, config = time.perf_counter(), settings[name]
        own = {**options, **({"additional_config": config} if config else {})}
        engines[name] = Engine(name, own, folder / f"{name}.log", hide_plugin=config is None)
        cpu = engines[name].wait()["cpu_s"]
        took[name] = {"start s": time.perf_counter() - begun, "start s of the CPU": cpu}
    return engines, took


def steps(args, engines, took):
    """Add the ms of a step at each batch size: the median of several, asked in turns."""
    for batch in args.batch:
        times = {name: [] for name in sorted(engines)}
        for _ in range(args.repeats):
            for name, found in times.items():
                found.append(engines[name].ask(do="step", batch=batch, tokens=args.tokens)["ms"])
        for name, found in times.items():
            took[name][f"step ms, B={batch}"] = statistics.median(found)


def medians(rounds):
    """Per setting and measure: the median, and the ratios to the first setting of the same round."""
    table = {}
    for name in rounds[0]:
        table[name] = {}
        for measure in rounds[0][name]:
            ratios = [r[name][measure] / r[FIRST][measure] for r in rounds]
            table[name][measure] = {
                "median": statistics.median(r[name][measure] for r in rounds),
                "ratio": statistics.median(ratios),
                "least": min(ratios),
                "most": max(ratios),
            }
    return table


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint; default: the embedded SmolLM2-135M-Instruct")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2, help="measurements of a step in each round")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--compiled", action="store_true", help="with torch.compile and CUDA graphs")
    parser.add_argument(
        "--on", action="store_true", help="also an engine with it on: a restart on a warm compile cache"
    )
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    return parser.parse_args()


def main():
    args = parse()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the process that hides the plugin is the engine's only one
    model = args.model
    if model is None:
        from demo.checkpoint import smollm2

        model = str(smollm2())
    options = {
        "model": model,
        "dtype": args.dtype,
        "max_model_len": 512,
        "enable_prefix_caching": False,
        "skip_tokenizer_init": True,
        "enforce_eager": not args.compiled,
        "max_num_seqs": max(8, *args.batch),
        "gpu_memory_utilization": 0.2,  # up to four at a time
    }
    settings, rounds = {**SETTINGS, **(ON if args.on else {})}, []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(-1, args.rounds):  # the first one warms file and compile caches up
            engines, took = start(settings, options, number + 1, Path(folder))
            steps(args, engines, took)
            for engine in engines.values():
                engine.close()
            if number >= 0:
                rounds.append(took)
            shown = {name: " ".join(f"{value:.2f}" for value in row.values()) for name, row in took.items()}
            print(f"round {number + 1}/{args.rounds}: {shown}", flush=True)
    table = medians(rounds)
    print(f"\n{'':24}" + "".join(f"{measure:>28}" for measure in table[FIRST]))
    for name, row in table.items():
        cells = (f"{x['median']:9.2f} {x['ratio']:6.3f} ({x['least']:.2f}-{x['most']:.2f})" for x in row.values())
        print(f"{name:24}" + "".join(f"{cell:>28}" for cell in cells))
    if args.out:
        arguments = {key: value for key, value in vars(args).items() if key not in ("out", "model")}
        arguments["model"] = Path(args.model).name if args.model else "SmolLM2-135M-Instruct"
        result = {"machine": machine(), "arguments": arguments, "median": table, "rounds": rounds}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
