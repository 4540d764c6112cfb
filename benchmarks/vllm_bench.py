"""vLLM's own benchmarks, ``vllm bench latency``, ``throughput`` and ``serve``, with the switch off and on.

    python -m benchmarks.vllm_bench                                        # the embedded model
    python -m benchmarks.vllm_bench --shape qwen3-8b --forced paper        # random weights, depths forced

Each number is what vLLM reports. Off and on take turns, ``--rounds`` times; shown are medians of the rounds and of
their ratios. An engine is started for each, so its start is not part of any number.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.engine import AT_START
from benchmarks.gpu_engine import on
from benchmarks.shapes import SHAPES, write_shape
from benchmarks.timing import machine
from demo.server import environment, free_port, started

VLLM = [sys.executable, "-m", "vllm.entrypoints.cli.main"]
SETTINGS = {"off": {}, "on": on()}
READ = {
    "latency": {"latency s": "avg_latency"},
    "throughput": {"tokens/s": "tokens_per_second"},
    "serve": {
        "output tokens/s": "output_throughput",
        "time to first token ms": "median_ttft_ms",
        "time per token ms": "median_tpot_ms",
        "time per token ms, 99%": "p99_tpot_ms",
    },
}
"""What is taken from each benchmark's JSON file."""


def engine_arguments(args, model, config):
    """Of the three benchmarks' engine."""
    words = ["--model", model, "--dtype", "bfloat16", "--max-model-len", "1024", "--no-enable-prefix-caching"]
    words += ["--max-num-seqs", str(args.batch), "--additional-config", json.dumps(config)]
    if args.shape:
        words += ["--load-format", "dummy"]
    if not args.compiled:
        words += ["--enforce-eager"]
    if config and args.forced:
        words += ["--worker-extension-cls", "benchmarks.at_start.Worker"]
    return words


def offline(kind, args, engine, out, env):
    """``latency`` or ``throughput``; returns what vLLM wrote."""
    own = {
        "latency": {"input-len": args.input, "output-len": args.output, "batch-size": args.batch, "num-iters": 5},
        "throughput": {"random-input-len": args.input, "random-output-len": args.output, "num-prompts": args.prompts},
    }[kind]
    warm_up = {"num-iters-warmup": 2} if kind == "latency" else {"num-warmups": args.batch, "dataset-name": "random"}
    own |= warm_up
    options = [word for name, value in own.items() for word in (f"--{name}", str(value))]
    with out.with_suffix(".log").open("w") as log:
        command = [*VLLM, "bench", kind, *engine, *options, "--output-json", str(out)]
        done = subprocess.run(command, env=env, stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"vllm bench {kind} ended with {done.returncode}:\n{out.with_suffix('.log').read_text()[-3000:]}")
    return json.loads(out.read_text())


def serve(args, engine, out, env):
    """``serve`` against a server of its own; returns what vLLM wrote."""
    port, model, log = free_port(), engine[1], out.with_suffix(".log")
    place = ["--host", "127.0.0.1", "--port", str(port)]
    with started([*VLLM, "serve", *engine, *place], port, log, env=env):
        client = ["--model", model, "--dataset-name", "random", "--ignore-eos", "--save-result"]
        client += ["--random-input-len", str(args.input), "--random-output-len", str(args.output)]
        client += ["--num-prompts", str(args.prompts), "--max-concurrency", str(args.batch)]
        client += ["--num-warmups", str(args.batch), "--result-dir", str(out.parent), "--result-filename", out.name]
        command = [*VLLM, "bench", "serve", *place, *client]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"vllm bench serve ended with {done.returncode}:\n{done.stdout[-1500:]}{done.stderr[-3000:]}")
    return json.loads(out.read_text())


def measure(args, model, folder):
    """Rounds of ``{benchmark: {setting: {name: number}}}``."""
    rounds = []
    for number in range(args.rounds):
        found = {}
        for kind in args.benchmarks:
            found[kind] = {}
            for setting in list(SETTINGS)[:: 1 if number % 2 == 0 else -1]:
                config = SETTINGS[setting]
                forced = {AT_START: json.dumps({"under": 0.0, "histogram": args.forced})} if args.forced else {}
                env, out = {**environment(), **forced}, folder / f"{kind}-{setting}-{number}.json"
                engine = engine_arguments(args, model, config)
                told = serve(args, engine, out, env) if kind == "serve" else offline(kind, args, engine, out, env)
                found[kind][setting] = {name: told[key] for name, key in READ[kind].items()}
                print(f"round {number + 1}/{args.rounds}: {kind}, {setting}: {found[kind][setting]}", flush=True)
        rounds.append(found)
    return rounds


def medians(rounds):
    """``{benchmark: {name: {off, on, ratio}}}``."""
    return {
        kind: {
            name: {
                **{s: statistics.median(r[kind][s][name] for r in rounds) for s in SETTINGS},
                "ratio": statistics.median(r[kind]["on"][name] / r[kind]["off"][name] for r in rounds),
            }
            for name in READ[kind]
        }
        for kind in rounds[0]
    }


def with_tokenizer(shape, tokenizer, folder):
    """A folder of the shape with somebody's tokenizer: clients send text."""
    model = write_shape(shape, folder)
    for file in Path(tokenizer).glob("*token*"):
        shutil.copy(file, model)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint; default: the embedded SmolLM2-135M-Instruct")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead")
    parser.add_argument("--tokenizer", help="folder of the tokenizer for --shape; default: the embedded model's")
    parser.add_argument("--forced", choices=["paper", "smollm2"], help="histogram of depths (GPU)")
    parser.add_argument("--benchmarks", nargs="+", default=list(READ), choices=READ)
    parser.add_argument("--input", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--batch", type=int, default=8, help="of latency, and most requests in flight")
    parser.add_argument("--prompts", type=int, default=64, help="of throughput and serve")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compiled", action="store_true", help="with torch.compile and CUDA graphs")
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    args = parser.parse_args()
    from demo.checkpoint import smollm2

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.shape:
            model = with_tokenizer(args.shape, args.tokenizer or smollm2(), folder / args.shape)
        else:
            model = args.model or str(smollm2())
        rounds = measure(args, model, folder)
    table = medians(rounds)
    for kind, row in table.items():
        for what, cell in row.items():
            print(f"{kind:12}{what:24}{cell['off']:12.2f}{cell['on']:12.2f}{cell['ratio']:9.3f}x")
    if args.out:
        arguments = {key: value for key, value in vars(args).items() if key not in ("out", "model", "tokenizer")}
        arguments["model"] = args.shape or Path(model).name
        result = {"machine": machine(), "arguments": arguments, "median": table, "rounds": rounds}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
