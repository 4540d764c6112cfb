"""Each kernel of the scan against what its bytes and operations must take on this GPU.

    python -m benchmarks.kernels --out benchmarks/results/kernels-h200.json

The floor of a kernel is the larger of its bytes over the speed of a device-to-device copy (read plus
written) and its operations over the rate of a large matrix product, both measured in the same run.
"""

import argparse
import json
from pathlib import Path

import torch

from benchmarks.timing import graph_ms, machine
from confident_decoding.kernels import twins
from confident_decoding.kernels.types import Candidates, FirstCandidates, Rule
from confident_decoding.model_head import RmsNorm
from confident_decoding.selection import RowRules

ROWS = (1, 8, 32, 64, 96, 128, 160, 192, 256, 320, 384, 512)
DENSE = 2560


def listed(rows, first, ahead, batch, capacity, device="cuda"):
    (result,) = Candidates.empty(1, capacity, batch, torch.device(device))
    result.rows.copy_(torch.arange(batch, dtype=torch.int32))
    result.work.copy_(torch.tensor([rows, first, ahead, rows * ahead], dtype=torch.int32))
    return result


class Bench:
    """Measured times with their floors."""

    def __init__(self):
        size = 1 << 30
        x, y = torch.randn(size // 4, device="cuda"), torch.empty(size // 4, device="cuda")
        # By a kernel: in a graph, a copy would be one of the copy engines' and slower.
        self.bandwidth = 2 * size / graph_ms(lambda: torch.mul(x, 1, out=y)) * 1e3
        a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
        self.flops = 2 * 8192**3 / graph_ms(lambda: a @ b) * 1e3
        self.lines = []
        print(f"copy {self.bandwidth / 1e12:.2f} TB/s, bf16 matrix product {self.flops / 1e12:.0f} TFLOP/s")

    def add(self, name, work, moved=0, operations=0):
        """Time ``work``, which moves and computes at least so much."""
        ms = graph_ms(work)
        floor = 1e3 * max(moved / self.bandwidth, operations / self.flops)
        self.lines.append({"kernel": name, "ms": ms, "floor_ms": floor, "share_of_floor": floor / ms})
        print(f"{name:58} {ms:8.4f} ms   floor {floor:8.4f}   {100 * floor / ms:5.1f}%", flush=True)
        return ms


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--depths", type=int, default=10)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    from confident_decoding.kernels import triton_operations as ops

    torch.manual_seed(0)
    hidden, vocab, n, dtype = args.hidden, args.vocab, args.depths, getattr(torch, args.dtype)
    bench, size = Bench(), dtype.itemsize
    weight = (torch.randn(vocab, hidden, device="cuda") * 3 / hidden**0.5).to(dtype)
    states = torch.randn(max(ROWS), hidden, device="cuda").to(dtype)
    for rows in ROWS:
        some = states[:rows]
        least = size * (hidden * vocab + rows * (hidden + vocab))
        work = 2 * rows * hidden * vocab
        bench.add(f"head by cuBLAS, {rows} rows", lambda some=some: some @ weight.T, least, work)
        some_of = listed(rows, 1, 1, max(ROWS), max(ROWS))
        bench.add(f"head by our kernel, {rows} rows", lambda c=some_of: ops.project(states, weight, c), least, work)
    nothing = listed(0, 1, 0, max(ROWS), max(ROWS))
    bench.add("head by our kernel, no rows", lambda: ops.project(states, weight, nothing))
    for rows in (8, 80, 256, 512, DENSE):
        logits = torch.randn(rows, vocab, device="cuda").to(dtype)
        bytes_read = logits.numel() * size
        bench.add(f"statistics, {rows} rows", lambda x=logits: ops.statistics(x), bytes_read)
        name = f"statistics and largest ids (metrics), {rows} rows"
        bench.add(name, lambda x=logits: ops.statistics(x, first_id=0), bytes_read)
        if rows == 512:
            for count in (0, 64, 256):
                number = torch.tensor([count], dtype=torch.int32, device="cuda")
                name = f"statistics, {count} counted of {rows} rows"
                bench.add(name, lambda x=logits, c=number: ops.statistics(x, c), bytes_read * count // rows)
        if rows == 80:
            bench.add("statistics by the torch twin, 80 rows", lambda x=logits: twins.statistics(x), bytes_read)
    norm = RmsNorm(torch.ones(hidden, device="cuda").to(dtype), 1e-6)
    for batch in (8, 64, 256):
        packed = torch.randn(batch, n * hidden, device="cuda").to(dtype)
        whole = FirstCandidates(batch, n)
        bench.add(
            f"gather and norm, {n} depths of {batch} rows",
            lambda p=packed, c=whole: ops.gather(p, n, c, norm),
            2 * packed.numel() * size,
        )
        logits = torch.randn(2 * batch, vocab, device="cuda").to(dtype)
        result = torch.empty(batch, vocab, device="cuda", dtype=dtype)
        source = torch.arange(batch, dtype=torch.int32, device="cuda") + batch
        two = FirstCandidates(batch, 2)
        bench.add(
            f"keep, {batch} rows",
            lambda x=logits, s=source, c=two, r=result: ops.keep(x, s, c, r),
            2 * result.numel() * size,
        )
        stats = torch.rand(1, batch * n, 3, device="cuda")
        entropies = torch.empty(n, batch, device="cuda")
        depths = torch.empty(batch, dtype=torch.int64, device="cuda")
        rule = Rule(n - 1, 160, RowRules(n, n - 1))
        bench.add(
            f"decide, {n} depths of {batch} rows",
            lambda s=stats, c=whole, e=entropies, d=depths, r=rule: ops.decide(s, c, None, e, d, r),
        )
    if args.out:
        result = {
            "machine": machine(),
            "shape": {"hidden": hidden, "vocab": vocab, "depths": n, "dtype": args.dtype},
            "copy_bytes_per_second": bench.bandwidth,
            "matrix_flops": bench.flops,
            "kernels": bench.lines,
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
