"""How fast ``confident-decoding analyze --text`` reads, beside what the machine's matrix products alone would allow.

    python -m benchmarks.reading                  the embedded SmolLM2-135M-Instruct, float32, on a CPU

The text is this repository's documentation. The command itself measures the rate of the matrix products in each run.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.timing import machine

ROOT = Path(__file__).resolve().parent.parent
ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint folder; default: the embedded SmolLM2-135M-Instruct")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--characters", type=int, default=20_000, help="of text")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    args = parser.parse_args()
    from demo.checkpoint import smollm2

    model = str(Path(args.model).resolve()) if args.model else str(smollm2())
    rounds = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pages = "\n".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
        (folder / "text.txt").write_text(pages[: args.characters])
        for number in range(args.rounds):
            out = folder / f"out-{number}"
            command = [sys.executable, "-m", "confident_decoding.cli", "analyze", model, "--text", "text.txt"]
            command += [
                "--window",
                "10",
                "--sweep",
                "0",
                "--vllm",
                f"--dtype {args.dtype} --max-model-len 2048",
                "-o",
                str(out),
            ]
            subprocess.run(command, cwd=folder, env={**ENV, **os.environ}, check=True, stdout=subprocess.DEVNULL)
            summary = json.loads((out / "summary.json").read_text())
            rounds.append({"tokens": summary["tokens"], "window": summary["window"], **summary["speed"]})
            print(f"round {number + 1}/{args.rounds}: {rounds[-1]}", flush=True)
    median = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
    arguments = {"model": Path(model).name, "dtype": args.dtype}
    threads = {**ENV, **os.environ}["OMP_NUM_THREADS"]
    result = {"machine": {**machine(), "threads": threads}, "arguments": arguments, "median": median, "rounds": rounds}
    print(json.dumps(median, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
