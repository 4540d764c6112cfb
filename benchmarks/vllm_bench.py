"""vLLM's own benchmarks, ``vllm bench latency``, ``throughput`` and ``serve``, with the switch off and on.

    python -m benchmarks.vllm_bench                                        # the embedded model
    python -m benchmarks.vllm_bench --shape qwen3-8b --forced paper        # random weights, depths forced

Each number is what vLLM reports. Off and on take turns, ``--rounds`` times; shown are medians of the rounds and of
their ratios. The engines of both start side by side, and nothing is measured before all have: two servers for all
rounds, then an engine for each offline benchmark and round.
"""

import argparse
import contextlib
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from benchmarks import sharing
from benchmarks.engine import AT_START
from benchmarks.gpu_engine import on
from benchmarks.shapes import SHAPES, write_shape
from benchmarks.timing import machine
from confident_decoding.engines.process import end_group
from demo.server import environment, free_port, started

PATIENCE = 900
"""Seconds that engines have to start."""
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


def engine_arguments(args, model, config, engines):
    """Of a benchmark's engine, one of several."""
    words = ["--model", model, "--dtype", "bfloat16", "--max-model-len", "1024", "--no-enable-prefix-caching"]
    words += ["--max-num-seqs", str(args.batch), "--max-num-batched-tokens", "8192"]
    words += ["--additional-config", json.dumps(config)]
    tokens = args.batch * (args.input + args.output + sharing.BLOCK)
    for name, value in sharing.options(model, engines=engines, tokens=tokens, batches=[args.batch]).items():
        words += [f"--{name.replace('_', '-')}", json.dumps(value)]
    if args.shape:
        words += ["--load-format", "dummy"]
    if not args.compiled:
        words += ["--enforce-eager"]
    if config and args.forced:
        words += ["--worker-extension-cls", "benchmarks.at_start.Worker"]
    return words


def own_arguments(kind, args):
    """Of ``latency`` or ``throughput`` itself."""
    own = {
        "latency": {"input-len": args.input, "output-len": args.output, "batch-size": args.batch, "num-iters": 5},
        "throughput": {"random-input-len": args.input, "random-output-len": args.output, "num-prompts": args.prompts},
    }[kind]
    warm_up = {"num-iters-warmup": 2} if kind == "latency" else {"num-warmups": args.batch, "dataset-name": "random"}
    return [word for name, value in {**own, **warm_up}.items() for word in (f"--{name}", str(value))]


def offline(kinds, settings, args, model, folder, env):
    """One round of ``{kind: {setting: what vLLM wrote}}``."""
    processes, found, deadline = {}, {kind: {} for kind in kinds}, time.monotonic() + PATIENCE
    try:
        for kind, setting in product(kinds, settings):
            place = folder / f"{kind}-{setting}"
            place.mkdir(parents=True)
            engine = engine_arguments(args, model, SETTINGS[setting], len(kinds) * len(settings))
            command = [sys.executable, "-m", "benchmarks.in_turn", str(place), "bench", kind, *engine]
            command += [*own_arguments(kind, args), "--output-json", str(place / "out.json")]
            with (place / "log").open("w") as log:
                processes[kind, setting] = (
                    place,
                    subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True),
                )
        while not all((place / "ready").exists() for place, _ in processes.values()):
            for (kind, _), (place, process) in processes.items():
                if process.poll() is not None or time.monotonic() > deadline:
                    check(kind, f"{process.poll()}, not ready", place / "log")
            time.sleep(0.2)
        for (kind, setting), (place, process) in processes.items():
            (place / "turn").touch()
            check(kind, process.wait(), place / "log")
            found[kind][setting] = json.loads((place / "out.json").read_text())
    finally:
        for _, process in processes.values():
            end_group(process, patience=15)
    return found


def check(kind, status, log):
    """Stop, with the end of its log, where a benchmark failed."""
    if status:
        sys.exit(f"vllm bench {kind} ended with {status}:\n{log.read_text()[-3000:]}")


def serve(args, url, model, out, env):
    """``serve`` against a running server; returns what vLLM wrote."""
    client = ["--base-url", url, "--model", model, "--dataset-name", "random", "--ignore-eos", "--save-result"]
    client += ["--random-input-len", str(args.input), "--random-output-len", str(args.output)]
    client += ["--num-prompts", str(args.prompts), "--max-concurrency", str(args.batch)]
    client += ["--num-warmups", str(args.batch), "--result-dir", str(out.parent), "--result-filename", out.name]
    with out.with_suffix(".log").open("w") as log:
        command = [*VLLM, "bench", "serve", *client]
        done = subprocess.run(command, env=env, stdout=log, stderr=subprocess.STDOUT, check=False)
    check("serve", done.returncode, out.with_suffix(".log"))
    return json.loads(out.read_text())


@contextlib.contextmanager
def servers(args, model, folder, env):
    """``{setting: base URL}`` of one server each, started side by side."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as pool:
        ports = {setting: free_port() for setting in SETTINGS}
        urls = {}
        for setting, port in ports.items():
            engine = engine_arguments(args, model, SETTINGS[setting], len(SETTINGS))
            command = [*VLLM, "serve", *engine, "--host", "127.0.0.1", "--port", str(port)]
            server = started(command, port, folder / f"{setting}.log", env=env)
            urls[setting] = pool.submit(server.__enter__)
            stack.push(server)
        yield {setting: url.result() for setting, url in urls.items()}


def in_order(number):
    """The settings, in the order of a round."""
    return list(SETTINGS)[:: 1 if number % 2 == 0 else -1]


def read(kind, setting, told, number):
    """The numbers that are shown, which are printed."""
    row = {name: told[key] for name, key in READ[kind].items()}
    print(f"round {number + 1}: {kind}, {setting}: {row}", flush=True)
    return row


def measure(args, model, folder):
    """Rounds of ``{benchmark: {setting: {name: number}}}``."""
    forced = {AT_START: json.dumps({"under": 0.0, "histogram": args.forced})} if args.forced else {}
    env = {**environment(), **forced}
    rounds = [{kind: {} for kind in args.benchmarks} for _ in range(args.rounds)]
    if "serve" in args.benchmarks:
        with servers(args, model, folder, env) as urls:
            for number, setting in ((n, s) for n in range(args.rounds) for s in in_order(n)):
                told = serve(args, urls[setting], model, folder / f"serve-{setting}-{number}.json", env)
                rounds[number]["serve"][setting] = read("serve", setting, told, number)
    kinds = [kind for kind in args.benchmarks if kind != "serve"]
    for number in range(args.rounds if kinds else 0):
        found = offline(kinds, in_order(number), args, model, folder / str(number), env)
        for kind, setting in product(kinds, in_order(number)):
            rounds[number][kind][setting] = read(kind, setting, found[kind][setting], number)
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
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
        arguments["model"] = args.shape or (Path(args.model).name if args.model else "SmolLM2-135M-Instruct")
        result = {"machine": machine(), "arguments": arguments, "median": table, "rounds": rounds}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
