"""Cost of a decode step with Confident Decoding against stock vLLM, in one run on one machine.

Engines run one after another in processes of their own, several rounds interleaved; each number is
the median over rounds of the ratio to the stock engine of the same round.

    python -m benchmarks.overhead --model PATH --batch 8 --rounds 5
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SWITCH = "enable_multi_layer_entropy_selection"
SETTINGS = {
    "stock": {},
    "last-m8": {SWITCH: True, "select_method": "last-m8"},
    "K=2": {SWITCH: True, "trough_max_backtrack_layers": 2},
    "K=10": {SWITCH: True, "trough_max_backtrack_layers": 10},
    "K=10, log every step": {SWITCH: True, "trough_max_backtrack_layers": 10, "trough_log_interval": 1},
}


def measure(spec):
    """In a process of its own: milliseconds per decode step for each batch size."""
    from vllm import LLM, SamplingParams

    llm = LLM(**spec["engine"])
    result = {}
    for batch in spec["batches"]:
        prompts = [{"prompt_token_ids": [7 + i] * 16} for i in range(batch)]
        seconds = {}
        for tokens in (spec["tokens"], spec["tokens"] // 4, spec["tokens"], spec["tokens"] // 4):  # first pair warms up
            params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
            start = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            seconds[tokens] = time.perf_counter() - start
        # The difference of two lengths leaves prefill and scheduling of the first step out.
        long, short = spec["tokens"], spec["tokens"] // 4
        result[str(batch)] = 1000 * (seconds[long] - seconds[short]) / (long - short)
    return result


def run_child(spec):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.overhead", "--child", json.dumps({**spec, "out": str(out)})],
            capture_output=True,
            text=True,
            check=False,
            env={**ENV, **os.environ},
        )
        if done.returncode:
            sys.exit(done.stdout[-2000:] + done.stderr[-3000:])
        return json.loads(out.read_text())


ENV = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def machine():
    import torch
    import vllm

    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "",
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vllm": vllm.__version__,
        "confident-decoding": importlib.metadata.version("confident-decoding"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint; default: the embedded SmolLM2-135M-Instruct")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument(
        "--only", nargs="+", choices=[n for n in SETTINGS if n != "stock"], help="settings beside stock"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--compiled", action="store_true", help="with torch.compile (a minute per engine)")
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        spec = json.loads(args.child)
        Path(spec["out"]).write_text(json.dumps(measure(spec)))
        return
    if args.model is None:
        from demo.checkpoint import smollm2

        args.model = str(smollm2())
    engine = {
        "model": args.model,
        "dtype": args.dtype,
        "max_model_len": 512,
        "enable_prefix_caching": False,
        "skip_tokenizer_init": True,
        "enforce_eager": not args.compiled,
        "max_num_seqs": max(8, *args.batch),
    }
    settings = {name: c for name, c in SETTINGS.items() if not args.only or name in ["stock", *args.only]}
    rounds = []
    for number in range(args.rounds):
        times = {}
        for name, config in settings.items():
            times[name] = run_child(
                {"engine": {**engine, "additional_config": config}, "batches": args.batch, "tokens": args.tokens}
            )
            print(
                f"round {number + 1}/{args.rounds} {name}: "
                + ", ".join(f"B={b} {ms:.2f} ms" for b, ms in times[name].items()),
                flush=True,
            )
        rounds.append(times)
    table = {
        name: {
            b: {
                "ms": statistics.median(r[name][str(b)] for r in rounds),
                "ratio": statistics.median(r[name][str(b)] / r["stock"][str(b)] for r in rounds),
            }
            for b in args.batch
        }
        for name in settings
    }
    print(f"\n{'':24}" + "".join(f"  B={b:<18}" for b in args.batch))
    for name, row in table.items():
        print(f"{name:24}" + "".join(f"  {row[b]['ms']:7.2f} ms {row[b]['ratio']:6.3f}x  " for b in args.batch))
    if args.out:
        args.out.write_text(
            json.dumps(
                {
                    "machine": machine(),
                    "arguments": {**vars(args), "model": Path(args.model).name, "out": None},
                    "rounds": rounds,
                    "median": table,
                },
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
