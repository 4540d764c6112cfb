"""One head call by itself: the planner's choice against dense, over batch sizes, on this GPU.

    python -m benchmarks.scan --out benchmarks/results/scan-h200.json

Times the head call of stock (one matrix product of B rows), the dense scan and the lazy scan with depths forced
to a histogram: on the device (a CUDA graph's replay), and what launching it takes of the host.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from benchmarks.forced import HISTOGRAMS, Forced
from benchmarks.timing import graph_ms, machine
from confident_decoding import device_scan, planner
from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.kernels import statistics_of_finished
from confident_decoding.model_head import ModelHead, RmsNorm
from confident_decoding.scan import select

BATCHES = (1, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512)


class Watched:
    """The kernels, with forced decisions; remembers the rounds of the last call."""

    def __init__(self, operations, forced):
        self._operations, self._forced, self.rounds = operations, forced, []

    def __getattr__(self, name):
        return getattr(self._operations, name)

    def decide(self, statistics, candidates, following, *rest):
        """The kernel's, after the statistics have been overwritten."""
        if self._forced is not None:
            self._forced(statistics, candidates)
        if following is not None:
            self.rounds.append(following.work)
        return self._operations.decide(statistics, candidates, following, *rest)


def host_ms(work, repeats=20):
    """Ms of the host to launch ``work``; the device is waited for outside."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times)[repeats // 2]


def profile(work):
    """Functions that take most of the host's time in launching ``work``."""
    import cProfile
    import pstats

    profiler = cProfile.Profile()
    for _ in range(50):
        torch.cuda.synchronize()
        profiler.runcall(work)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--per-read", type=int, nargs="+", help="rows per reading, instead of the planner's")
    parser.add_argument("--under", type=float, default=0.0, help="share of rows under a trough_min_entropy of 0.01")
    parser.add_argument("--profile", type=int, help="only show where the host's time goes at this batch size")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    from confident_decoding.kernels import triton_operations

    torch.manual_seed(0)
    device, dtype, hidden, n = torch.device("cuda"), torch.bfloat16, args.hidden, 10
    weight = (torch.randn(args.vocab, hidden, device=device) * 3 / hidden**0.5).to(dtype)
    planned = planner.rows_per_read(device, hidden, args.vocab, dtype, plain=True)
    threshold = 0.01 if args.under else 0.0
    plan = ConfidentDecodingConfig(trough_max_backtrack_layers=n, trough_min_entropy=threshold).resolve(36)
    norm = RmsNorm(torch.ones(hidden, device=device, dtype=dtype), 1e-6)
    lines = []
    for batch in [args.profile] if args.profile else args.batch:
        packed = torch.randn(batch, n * hidden, device=device).to(dtype)
        final = packed[:, :hidden].contiguous()
        stock = graph_ms(lambda x=final: x @ weight.T)
        for per_read in [None, *(args.per_read or [planned])]:
            head = ModelHead(
                lambda x: x, lambda x: x @ weight.T, statistics_of_finished, args.vocab, per_read, False, weight, norm
            )
            for histogram in HISTOGRAMS if per_read else ["any"]:
                forced = Forced(device, args.under) if per_read else None
                if forced is not None:
                    forced.choose(histogram)
                watched = Watched(triton_operations, forced)
                device_scan.operations = lambda device, watched=watched: watched

                def call(packed=packed, head=head):
                    return select(packed, plan, head)

                watched.rounds.clear()
                call()
                if args.profile:
                    profile(call)
                    continue
                rounds = [work.tolist()[:3] for work in watched.rounds]
                ms, launching = graph_ms(call, repeats=8), host_ms(call)
                lines.append(
                    {
                        "batch": batch,
                        "scan": "dense" if per_read is None else f"lazy {per_read}",
                        "histogram": histogram,
                        "ms": ms,
                        "stock_ms": stock,
                        "host_ms": launching,
                    }
                )
                name = lines[-1]["scan"]
                print(
                    f"B={batch:<4} {name:9} {histogram:8} stock {stock:6.3f}  +{ms - stock:6.3f} ms  "
                    f"host {launching:.3f}  rounds (rows, first, ahead) {rounds}",
                    flush=True,
                )
    if args.out:
        shape = {"hidden": hidden, "vocab": args.vocab, "depths": n, "under": args.under}
        args.out.write_text(json.dumps({"machine": machine(), "shape": shape, "calls": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
