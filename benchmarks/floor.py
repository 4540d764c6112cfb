"""The least that an exact scan costs: its matrix products alone, in the cheapest order of rounds.

    python -m benchmarks.floor benchmarks/results/overhead-h200-tp1.json benchmarks/results/kernels-h200.json

A round projects ``a`` further depths for the m rows that are still descending, and takes what the fastest library's
product of ``m*a`` rows takes. How many are left after it follows from the histogram; which they are, no scan knows
before. Norms, entropies, decisions and launches count nothing.
"""

import argparse
import json
import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.histograms import HISTOGRAMS

TOLERATED, CONSTANT = 1.4, 0.01
"""Our aim for any scan: ratio <= 1 + TOLERATED * (floor - 1) + CONSTANT."""


def product_ms(kernels: Any) -> Callable[[float], float]:
    """Ms of the head for any number of rows, from a result of `benchmarks.kernels`."""
    measured: dict[int, float] = {}
    for line in kernels["kernels"]:
        if found := re.fullmatch(r"head by (?:cuBLAS|our kernel), (\d+) rows", line["kernel"]):
            rows = int(found[1])
            measured[rows] = min(line["ms"], measured.get(rows, line["ms"]))
    points = sorted(measured.items())

    def ms(rows: float) -> float:
        if rows <= points[0][0]:
            return points[0][1]
        for (a, before), (b, after) in pairwise(points):
            if rows <= b:
                return before + (after - before) * (rows - a) / (b - a)
        return points[-1][1] * rows / points[-1][0]

    return ms


def least_ms(batch: int, share: list[float], under: float, product: Callable[[float], float]) -> float:
    """Ms that a scan takes more than the head call of stock.

    Args:
        batch: B.
        share: Of rows at each depth.
        under: Share of rows that a threshold keeps before their scan.
        product: See `product_ms`.
    """
    depths, whole = len(share), sum(share)

    def needing(depth: int) -> float:
        """Share of rows that need the logits of ``depth`` >= 1."""
        return 1 - under if depth == 1 else sum(share[depth - 1 :]) / whole

    @cache
    def rest(depth: int) -> float:
        """Of the rounds from ``depth`` on; a round without rows costs nothing."""
        if depth == depths:
            return 0.0
        some = 1 - (1 - needing(depth)) ** batch
        rows = batch * needing(depth) / some
        return min(some * product(rows * a) + rest(depth + a) for a in range(1, depths - depth + 1))

    return min(product(batch * (1 + first)) - product(batch) + rest(1 + first) for first in range(depths))


def floors(overhead: Any, kernels: Any) -> list[dict[str, Any]]:
    """For each scan with forced depths and each number of rows: its ratio by events, the floor, and the aim."""
    product, lines = product_ms(kernels), []
    for batch, cases in overhead["parts"].items():
        stock = step_ms(cases["stock"])
        for case, parts in cases.items():
            setting, _, histogram = case.partition(", ")
            if setting in ("planned", "threshold 0.01") and histogram in HISTOGRAMS:
                share = HISTOGRAMS[histogram]
                under = 0.0 if setting == "planned" else min(0.64, share[0])
                floor = 1 + least_ms(int(batch), share, under, product) / stock
                aim = 1 + TOLERATED * (floor - 1) + CONSTANT
                ratio = step_ms(parts) / stock
                lines.append({"batch": int(batch), "case": case, "ratio": ratio, "floor": floor, "aim": aim})
    return lines


def step_ms(parts: list[dict[str, float]]) -> float:
    """Of the parts of a step, the faster of the times that they were measured."""
    return min(sum(times.values()) for times in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overhead", type=Path, help="result of benchmarks.overhead --split")
    parser.add_argument("kernels", type=Path, help="result of benchmarks.kernels on the same device")
    args = parser.parse_args()
    for line in floors(*(json.loads(path.read_text()) for path in (args.overhead, args.kernels))):
        met = "met" if line["ratio"] <= line["aim"] else "missed"
        print(
            f"B={line['batch']:<4} {line['case']:24} {line['ratio']:.3f}x, floor {line['floor']:.3f}, "
            f"aim {line['aim']:.3f}: {met}"
        )


if __name__ == "__main__":
    main()
