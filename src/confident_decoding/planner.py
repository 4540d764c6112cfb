"""How far a scan looks ahead: from one reading of the head's weight to rounds.

Projecting m rows takes about ``max(read, m * row)``: reading the weight once, or multiplying, whichever
is longer. Up to ``rows_per_read`` rows a further candidate is nearly free; beyond, one that the scan does
not need is a loss. What follows from that one number:

- Where all candidates of all rows fit into one and a half readings, they are projected at once (*dense*): a second
  round would mostly cost more.
- Otherwise depth d+1 is projected for the rows whose scan has reached d, in *rounds* that look ahead about as
  far as one reading pays for, or to the end where two readings pay for that (or three and a quarter for all B rows).

docs/performance.md has the measurements.
"""

import importlib.util
from dataclasses import dataclass
from functools import cache

import torch

CPU_ROWS_PER_READ = 32
"""``python -m benchmarks.head_rows`` on two AVX-512 cores, H=576, V=49,152, bf16: head and entropy take 4.8 ms
for 1 row, 4.9 for 8, 6.3 for 16, 8.4 for 32, 15 for 80; so about 30 further rows cost what a reading does."""

GPU_BYTES_PER_SECOND = 4.1e12
GPU_FLOPS = 670e12
GPU_ROUND_SECONDS = 12e-6
"""One H200 (``python -m benchmarks.kernels``): copying, 16-bit matrix products of the head's shape, and the
launches of a round. Other GPUs differ less in the ratio of the first two than in either."""
MOST_ROWS = 1024
"""Rows of one scan on a GPU: one program decides about all of them. A power of two."""


def rows_per_read(device: torch.device, hidden: int, columns: int, dtype: torch.dtype, plain: bool) -> int | None:
    """Rows whose projection takes as long as a round costs; None where the scan must be dense.

    Args:
        device: Where the states are.
        hidden: H.
        columns: V/tp of the head.
        dtype: Of the states.
        plain: Whether the head is a matrix of that dtype and nothing else.
    """
    if device.type == "cpu":
        return CPU_ROWS_PER_READ
    lazy = plain and dtype in (torch.bfloat16, torch.float16) and hidden % 64 == 0 and has_kernels(device)
    if not lazy or columns == 0:
        return None
    read = hidden * columns * dtype.itemsize / GPU_BYTES_PER_SECOND
    row = 2 * hidden * columns / GPU_FLOPS
    return min(MOST_ROWS, int((read + GPU_ROUND_SECONDS) / row))


@cache
def has_kernels(device: torch.device) -> bool:
    """Whether the Triton kernels can run on ``device``."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


@dataclass(frozen=True)
class Schedule:
    """Rounds of one call of B rows, with sizes that do not depend on what the rows hold.

    Attributes:
        first: Depths ``1 .. first`` are projected beside depth 0, for all rows, by the model's own head.
        rounds: Rounds after that; with nothing left to do they end at once.
        capacity: Most candidates of one of those rounds.
        rows_per_read: See `look_ahead`.
    """

    first: int
    rounds: int = 0
    capacity: int = 0
    rows_per_read: int = 0


def look_ahead(batch: int, rows: int, depth: int, remaining: int, per_read: int, scanned: int | None = None) -> int:
    """Depths that a round projects for each of ``rows`` that are still descending.

    Args:
        batch: B, rows of the call.
        rows: At least 1.
        depth: The first depth of the round.
        remaining: Depths from there to the window's end, at least 1.
        per_read: Rows per reading of the weight.
        scanned: How many of the B rows their limits let leave depth 0 at all; None = all.
    """
    # A round more is launched whether it has rows or not. Most rows have ended by now, so even if all might go on
    # it is cheaper to be done here, as long as that would not take many readings.
    if rows * remaining <= 2 * per_read or 4 * batch * remaining <= 13 * per_read:
        return remaining
    # Nearly all rows end by depth 1 or go on for some: one depth at a time would need as many rounds. Rows that a
    # threshold has left over are more likely to go on.
    nearly_all = 5 * rows > 4 * (batch if scanned is None else scanned)
    paid, least = (_nearest(per_read, rows), 1) if depth == 1 and nearly_all else (per_read // rows, 2)
    return min(remaining, max(least, paid))


def _nearest(per_read: int, rows: int) -> int:
    """Depths of ``rows`` that are nearest to one reading: it is not exact, and rows left for later cost more."""
    return (2 * per_read + rows) // (2 * rows)


def dense_rows(depths: int, per_read: int, counts_on_host: bool = False) -> int:
    """Most rows B that are scanned at once, at least 1.

    Between one reading and two it depends on the rows: where few go far back, a round more is rarely run; where many
    do, it costs more than it spares. At 3/2 the losses are alike for the paper's depths and for a small model's.

    Args:
        depths: n, captured depths.
        per_read: Rows per reading of the weight.
        counts_on_host: The scan is `rounds`, which projects depth 0 by itself, and looks ahead one reading at most.
    """
    if counts_on_host:
        return max(1, per_read // max(1, depths - 1))
    return max(1, 3 * per_read // (2 * depths))


def schedule(rows: int, depths: int, window: int, per_read: int | None) -> Schedule:
    """Rounds for B rows.

    Args:
        rows: B.
        depths: n, captured depths.
        window: Largest depth of the scan.
        per_read: Rows per reading of the weight, or None for a dense scan.
    """
    if per_read is None or rows <= dense_rows(depths, per_read):
        return Schedule(depths - 1)
    # Depth 1 is needed for every row, so it shares the first reading, unless depth 0 alone fills that. A threshold
    # that spares most rows changes nothing: their products cost less than the further reading that the others need.
    least = 0 if rows >= per_read else 1
    first = min(window, max(least, _nearest(per_read, rows) - 1))
    depth, rounds, capacity = first + 1, 0, 0
    while depth <= window:  # with all rows still descending; fewer rows look further ahead
        remaining = window - depth + 1
        ahead = look_ahead(rows, rows, depth, remaining, per_read)
        # Fewer rows may have come to other depths by then, and look ahead as far as `look_ahead` lets them.
        most = max(
            rows * min(remaining, max(ahead, 2)),
            min(rows * remaining, 2 * per_read),
            rows * min(remaining, 13 * per_read // (4 * rows)),
        )
        depth, rounds, capacity = depth + ahead, rounds + 1, max(capacity, most)
    return Schedule(first, rounds, capacity, per_read)


def warm_up_sizes(depths: int, per_read: int | None) -> list[int]:
    """Numbers of rows that between them run every kernel in every form that a call may need."""
    if per_read is None:
        return [1, 64, 65]
    lazy = dense_rows(depths, per_read) + 1
    # Few and many rows for the kernel that decides; depth 0 sharing the first reading, and apart.
    return sorted({1, 64, 65, lazy, max(65, lazy), per_read})
