"""What a head call costs by its number of rows: where a further row stops being nearly free.

    python -m benchmarks.head_rows --hidden 576 --vocab 49152 --dtype bfloat16

Times the projection and the entropy apart, interleaved, median of several rounds.
"""

import argparse
import statistics
import time

import torch

from confident_decoding.entropy import entropy

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 128, 256)


def timed(work, device):
    start = time.perf_counter()
    result = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start), result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--vocab", type=int, default=49_152)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    # Logits of a model's usual spread.
    weight = (torch.randn(args.vocab, args.hidden, device=args.device) * 3 / args.hidden**0.5).to(dtype)
    times = {rows: ([], []) for rows in ROWS}
    with torch.inference_mode():
        for _ in range(args.rounds + 1):
            for rows in ROWS:
                states = torch.randn(rows, args.hidden, device=args.device).to(dtype)
                project, logits = timed(lambda states=states: torch.nn.functional.linear(states, weight), args.device)
                reduce, _ = timed(lambda logits=logits: entropy(logits), args.device)
                times[rows][0].append(project)
                times[rows][1].append(reduce)
    print(f"{args.device}, {args.dtype}, H={args.hidden}, V={args.vocab}, {torch.get_num_threads()} threads")
    print(f"{'rows':>6}{'head ms':>10}{'entropy ms':>12}{'ms per row':>12}")
    for rows, (project, reduce) in times.items():
        head, rest = statistics.median(project[1:]), statistics.median(reduce[1:])  # the first round warms up
        print(f"{rows:6}{head:10.2f}{rest:12.2f}{(head + rest) / rows:12.3f}")


if __name__ == "__main__":
    main()
