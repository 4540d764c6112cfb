"""From troughs to the depths that are selected, and the rows for which that is another. Twins of the same names."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from confident_decoding import planner
from confident_decoding.kernels.combining import top_ids_of
from confident_decoding.kernels.launching import Kernel, is_nan, own
from confident_decoding.kernels.types import Candidates, Rule

FEW, MANY = 64, planner.MOST_ROWS
"""Rows that one program takes: it decides about a whole call, in one of two sizes."""
_NAMED = 1024


@triton.jit
def settle(
    trough,
    final_entropy,
    entropies,
    batch,
    row,
    here,
    window,
    limit,
    shift,
    threshold,
    candidates,
    COMPLETE: tl.constexpr,
):
    """`RowRules.settle`."""
    would_go_on = here & (trough < tl.minimum(limit, window))
    following = tl.load(entropies + (trough + 1) * batch + row, mask=would_go_on, other=0.0)
    fell_back = would_go_on & (is_nan(following) | is_nan(final_entropy))
    shift = tl.where(fell_back, 0, shift)
    depth = tl.minimum(tl.maximum(trough + shift, 0), candidates - 1)
    if COMPLETE:
        depth = tl.where(is_nan(tl.load(entropies + depth * batch + row, mask=here, other=0.0)), trough, depth)
    depth = tl.where((threshold > 0) & (final_entropy <= threshold), 0, depth)
    return tl.where(limit < 0, 0, depth)


def rows_arguments(rule: Rule, unused: Tensor) -> tuple[list[Tensor], tuple[int, int, float]]:
    """Tensors of what each row has (``unused`` where all share it), and what all share (0 where each has its own)."""
    values = rule.rows.limits, rule.rows.shifts, rule.rows.thresholds
    limit, shift, threshold = (0 if isinstance(value, Tensor) else value for value in values)
    tensors = [value if isinstance(value, Tensor) else unused for value in values]
    return tensors, (int(limit), int(shift), float(threshold))


def _relocate(
    troughs,
    entropies,
    limits,
    shifts,
    thresholds,
    result,
    rows,
    work,
    batch,
    window,
    limit,
    shift,
    candidates,
    threshold,
    OWN_LIMITS: tl.constexpr,
    OWN_SHIFTS: tl.constexpr,
    OWN_THRESHOLDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.arange(0, BLOCK)
    here = row < batch
    trough = tl.load(troughs + row, mask=here, other=0).to(tl.int32)
    final = tl.load(entropies + row, mask=here, other=0.0)
    own_limit = own(limits, limit, row, here, OWN_LIMITS)
    own_shift = own(shifts, shift, row, here, OWN_SHIFTS)
    own_threshold = own(thresholds, threshold, row, here, OWN_THRESHOLDS)
    depth = settle(
        trough, final, entropies, batch, row, here, window, own_limit, own_shift, own_threshold, candidates, False
    )
    moved = (here & (depth != trough)).to(tl.int32)
    tl.store(result + row, depth.to(tl.int64), mask=here)
    tl.store(rows + tl.cumsum(moved, 0) - 1, row, mask=moved > 0)
    total = tl.sum(moved, 0)
    tl.store(work, total)
    tl.store(work + 1, 0)
    tl.store(work + 2, 1)
    tl.store(work + 3, total)


_relocate_kernel = Kernel(_relocate, ("batch", "window", "limit", "shift", "candidates"))


def relocate(troughs: Tensor, entropies: Tensor, moved: Candidates, rule: Rule) -> Tensor:
    """See `twins.relocate`."""
    batch, result = len(troughs), torch.empty_like(troughs)
    assert batch <= MANY
    owns, (limit, shift, threshold) = rows_arguments(rule, troughs)
    _relocate_kernel(
        (1,),
        troughs,
        entropies,
        *owns,
        result,
        moved.rows,
        moved.work,
        batch,
        rule.window,
        limit,
        shift,
        rule.rows.candidates,
        threshold,
        num_warps=2 if batch <= FEW else 8,
        OWN_LIMITS=isinstance(rule.rows.limits, Tensor),
        OWN_SHIFTS=isinstance(rule.rows.shifts, Tensor),
        OWN_THRESHOLDS=isinstance(rule.rows.thresholds, Tensor),
        BLOCK=FEW if batch <= FEW else MANY,
    )
    return result


def _name_moved(
    statistics, rows, work, depths, top_ids, batch, shards, capacity, SHARDS: tl.constexpr, PAIRS: tl.constexpr
):
    m = tl.load(work)
    for start in range(0, m, PAIRS):
        number = start + tl.arange(0, PAIRS)
        counts = number < m
        ids = top_ids_of(statistics, number, counts, shards, capacity, SHARDS)
        row = tl.load(rows + number, mask=counts, other=0)
        depth = tl.load(depths + row, mask=counts, other=0).to(tl.int32)
        tl.store(top_ids + depth * batch + row, ids, mask=counts)


_name_moved_kernel = Kernel(_name_moved, ("batch", "shards", "capacity"))


def name_moved(statistics: Tensor, moved: Candidates, depths: Tensor, top_ids: Tensor) -> None:
    """See `twins.name_moved`."""
    shards, capacity, _ = statistics.shape
    width = triton.next_power_of_2(shards)
    _name_moved_kernel(
        (1,),
        statistics,
        moved.rows,
        moved.work,
        depths,
        top_ids,
        len(depths),
        shards,
        capacity,
        num_warps=4,
        SHARDS=width,
        PAIRS=max(1, _NAMED // width),
    )
