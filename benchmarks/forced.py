"""Depths that follow a histogram, forced: random weights make entropies tie, so no scan of them is like a model's.

Before each decision the candidates' statistics are overwritten by some whose entropies fall to the wanted depth and
rise after it. That costs one more kernel a round. No part of the product.
"""

import torch

from benchmarks.histograms import HISTOGRAMS

STEPS, ROWS = 64, 2048
UNDER = 0.005
"""Final entropy (nats) of rows that a threshold of 0.01 keeps."""


def wanted_depths(histogram, under):
    """``[STEPS, ROWS]`` int32: the depth that each row of a step shall have; -1 = 0, and under the threshold.

    Args:
        histogram: One of `HISTOGRAMS`.
        under: Share of all rows that are under the threshold; they are among those of depth 0.
    """
    generator = torch.Generator().manual_seed(0)
    share = torch.tensor(HISTOGRAMS[histogram], dtype=torch.float64)
    depths = torch.multinomial(share, STEPS * ROWS, replacement=True, generator=generator).to(torch.int32)
    low = torch.rand(STEPS * ROWS, generator=generator) < under / float(share[0])
    depths[(depths == 0) & low] = -1
    return depths.view(STEPS, ROWS)


class Forced:
    """The kernel that makes statistics say what `wanted_depths` wants.

    Which histogram that is, and the step, are numbers on the device: a CUDA graph that holds the kernel obeys them.
    """

    def __init__(self, device, under=0.0):
        import triton
        import triton.language as tl

        self._tables = torch.stack([wanted_depths(histogram, under) for histogram in HISTOGRAMS]).to(device)
        self._chosen = torch.full((1,), -1, dtype=torch.int64, device=device)
        self._step = torch.zeros(1, dtype=torch.int32, device=device)

        @triton.jit(do_not_specialize=["batch", "ahead", "capacity"])
        def force(
            statistics,
            rows,
            work,
            tables,
            chosen,
            step,
            batch,
            ahead,
            capacity,
            under,
            SHARDS: tl.constexpr,
            NUMBERS: tl.constexpr,
            FIRST: tl.constexpr,
        ):
            histogram = tl.load(chosen)
            table = tables + (tl.maximum(histogram, 0) * 64 + tl.load(step)) * 2048
            number = tl.program_id(0) * 128 + tl.arange(0, 128)
            m, first, total = batch, 0, batch * ahead
            if not FIRST:
                m, first, total = tl.load(work), tl.load(work + 1), tl.load(work + 3)
            held = (number < total) & (histogram >= 0)
            row, depth = number % tl.maximum(m, 1), first + number // tl.maximum(m, 1)
            if not FIRST:
                row = tl.load(rows + row, mask=held, other=0)
            wanted = tl.load(table + row, mask=held, other=0)
            h = tl.where(depth <= wanted, 10.0 - depth, 20.0 + depth)
            h = tl.where((wanted < 0) & (depth == 0), under, h)
            for shard in tl.static_range(SHARDS):
                place = statistics + (shard * capacity + number) * NUMBERS
                tl.store(place, 0.0 if shard == 0 else -float("inf"), mask=held)
                tl.store(place + 1, 1.0 if shard == 0 else 0.0, mask=held)
                tl.store(place + 2, -h if shard == 0 else h * 0.0, mask=held)

        self._kernel = force

    def choose(self, histogram):
        """From now on depths follow this one of `HISTOGRAMS`; None: they are what they are."""
        with torch.inference_mode():  # as when it was made
            self._chosen.fill_(-1 if histogram is None else list(HISTOGRAMS).index(histogram))

    def __call__(self, statistics, candidates):
        """Overwrite the first three of the numbers ``[R, m, 3]`` or ``[R, m, 4]``."""
        from confident_decoding.kernels.types import FirstCandidates

        first = isinstance(candidates, FirstCandidates)
        if first:
            self._step.add_(1).remainder_(STEPS)
        shards, capacity, numbers = statistics.shape
        self._kernel[((candidates.capacity + 127) // 128,)](
            statistics,
            statistics if first else candidates.rows,
            statistics if first else candidates.work,
            self._tables,
            self._chosen,
            self._step,
            candidates.batch if first else 0,
            candidates.ahead if first else 0,
            capacity,
            UNDER,
            SHARDS=shards,
            NUMBERS=numbers,
            FIRST=first,
        )
