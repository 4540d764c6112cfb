"""What Confident Decoding costs in transformers: ms per token beside standard ``generate``, in one process, in turns.

python -m benchmarks.in_transformers                  the embedded SmolLM2-135M-Instruct, float32, one thread
"""

import argparse
import json
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.timing import machine
from confident_decoding import hf
from confident_decoding.bench.results import medians
from confident_decoding.bench.timed import TEXTS

SETTINGS = {
    "stock": {},
    "trough": {"custom_generate": hf.generate},
    "last-m8": {"custom_generate": hf.generate, "confident_config": {"select_method": "last-m8"}},
    "DoLa": {"custom_generate": hf.dola_generate, "dola_layers": "high"},
}
"""Arguments of ``generate``; the first is standard decoding."""


def ms_per_token(model, inputs, tokens, **options):
    """Of ``tokens`` after the first few: the difference of two lengths leaves the prompt out."""
    seconds = []
    for length in (tokens, tokens // 4):
        start = time.perf_counter()
        answer = model.generate(**inputs, **options, do_sample=False, min_new_tokens=length, max_new_tokens=length)
        seconds.append(time.perf_counter() - start)
        assert answer.shape[1] == inputs["input_ids"].shape[1] + length
    return 1000 * (seconds[0] - seconds[1]) / (tokens - tokens // 4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint folder; default: the embedded SmolLM2-135M-Instruct")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    args = parser.parse_args()
    from demo.checkpoint import smollm2

    torch.set_num_threads(args.threads)
    path = args.model or str(smollm2())
    model = AutoModelForCausalLM.from_pretrained(path, dtype=args.dtype).to(args.device)
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    inputs = {}
    for batch in args.batch:
        texts = [f"{row}. {TEXTS[row % len(TEXTS)]}" for row in range(batch)]
        inputs[batch] = tokenizer(texts, padding=True, return_tensors="pt").to(args.device)
    rounds = []
    for number in range(-1, args.rounds):  # the first one warms up
        times = {
            name: {batch: ms_per_token(model, given, args.tokens, **options) for batch, given in inputs.items()}
            for name, options in SETTINGS.items()
        }
        if number >= 0:
            rounds.append(times)
        print(f"round {number + 1}/{args.rounds}: {times}", flush=True)
    arguments = {"model": Path(path).name, "tokens": args.tokens, "dtype": args.dtype, "threads": args.threads}
    host = {**machine(), "transformers": transformers.__version__}
    result = {"machine": host, "arguments": arguments, "median": medians(rounds), "rounds": rounds}
    for name, row in result["median"].items():
        cells = (
            f"  B={b}: {c['ms']:7.1f} ms {c['ratio']:.2f}x ({c['least']:.2f} to {c['most']:.2f})"
            for b, c in row.items()
        )
        print(f"{name:10}" + "".join(cells))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
