"""What a round's entropies decide: which rows go on, and at which candidate each has arrived. Twins of the same names.

A call has at most 1024 rows (`planner.MOST_ROWS`), so one program sees them all and can number those that
go on.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from confident_decoding.kernels.combining import entropies_of, top_ids_of
from confident_decoding.kernels.launching import Kernel, own
from confident_decoding.kernels.settling import FEW, MANY, rows_arguments, settle
from confident_decoding.kernels.types import Candidates, FirstCandidates, Round, Rule

_ENTROPY_TILE = 1024


@triton.jit
def _record(
    statistics,
    rows,
    entropies,
    top_ids,
    m,
    first,
    ahead,
    batch,
    shards,
    capacity,
    SHARDS: tl.constexpr,
    NUMBERS: tl.constexpr,
    PAIRS: tl.constexpr,
    FIRST_ROUND: tl.constexpr,
):
    """Write the entropies, and the top ids, of a round's candidates to their places."""
    for start in range(0, m * ahead, PAIRS):
        number = start + tl.arange(0, PAIRS)
        counts = number < m * ahead
        h = entropies_of(statistics, number, counts, shards, capacity, SHARDS, NUMBERS)
        row = number % m
        if not FIRST_ROUND:
            row = tl.load(rows + row, mask=counts, other=0)
        place = (first + number // m) * batch + row
        tl.store(entropies + place, h, mask=counts)
        if NUMBERS == 4:
            tl.store(top_ids + place, top_ids_of(statistics, number, counts, shards, capacity, SHARDS), mask=counts)
    tl.debug_barrier()  # what these threads wrote, others read


def _decide(
    statistics,
    rows,
    work,
    next_rows,
    next_work,
    entropies,
    top_ids,
    depths,
    limits,
    shifts,
    thresholds,
    source,
    batch,
    capacity,
    first_ahead,
    shards,
    window,
    limit,
    shift,
    candidates,
    per_read,
    threshold,
    SHARDS: tl.constexpr,
    NUMBERS: tl.constexpr,
    PAIRS: tl.constexpr,
    FIRST_ROUND: tl.constexpr,
    FOLLOWED: tl.constexpr,
    OWN_LIMITS: tl.constexpr,
    OWN_SHIFTS: tl.constexpr,
    OWN_THRESHOLDS: tl.constexpr,
    SETTLES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    slot = tl.arange(0, BLOCK)
    m, first, ahead, row = batch, 0, first_ahead, slot
    if not FIRST_ROUND:
        m, first, ahead = tl.load(work), tl.load(work + 1), tl.load(work + 2)
    _record(
        statistics, rows, entropies, top_ids, m, first, ahead, batch, shards, capacity,
        SHARDS, NUMBERS, PAIRS, FIRST_ROUND,
    )  # fmt: skip
    here = slot < m
    if not FIRST_ROUND:
        row = tl.load(rows + slot, mask=here, other=0)
    own_limit = tl.minimum(own(limits, limit, row, here, OWN_LIMITS), window)
    own_threshold = own(thresholds, threshold, row, here, OWN_THRESHOLDS)
    before = tl.full((BLOCK,), float("inf"), tl.float32)
    if not FIRST_ROUND:
        before = tl.load(entropies + (first - 1) * batch + row, mask=here & (first > 0), other=float("inf"))
    final = before
    steps = tl.zeros((BLOCK,), tl.int32)
    goes_on = here.to(tl.int32)
    for a in range(ahead):
        h = tl.load(entropies + (first + a) * batch + row, mask=here, other=0.0)
        # Depth 0 is where every row begins, also one that stays there by its limit.
        descends = (h < before) & (first + a <= tl.maximum(own_limit, 0))
        goes_on = goes_on * descends.to(tl.int32)
        steps += goes_on
        if FIRST_ROUND:
            final = tl.where(a == 0, h, final)
            goes_on = tl.where((a == 0) & (own_threshold > 0) & (h <= own_threshold), 0, goes_on)
        before = h
    trough = tl.maximum(first - 1 + steps, 0)
    kept = tl.where(steps > 0, (steps - 1) * m + slot, tl.where(first == 0, slot, -1))
    if SETTLES:
        own_shift = own(shifts, shift, row, here, OWN_SHIFTS)
        trough = settle(
            trough, final, entropies, batch, row, here, window, own_limit, own_shift, own_threshold, candidates, True
        )
        kept = trough * m + slot
    tl.store(depths + row, trough.to(tl.int64), mask=here)
    tl.store(source + slot, kept, mask=here)
    if FOLLOWED:
        first = first + ahead
        goes_on = tl.where(here & (first <= own_limit), goes_on, 0)
        tl.store(next_rows + tl.cumsum(goes_on, 0) - 1, row, mask=goes_on > 0)
        left = tl.sum(goes_on, 0)
        remaining = window - first + 1
        scanned = tl.sum(tl.where(here & (own_limit >= 1), 1, 0), 0)  # of all rows, where depth 1 is next
        rows_left, most = tl.maximum(left, 1), (first == 1) & (5 * left > 4 * scanned)
        least = tl.where(most, 1, 2)
        paid = tl.where(most, (2 * per_read + rows_left) // (2 * rows_left), per_read // rows_left)
        some = tl.minimum(tl.maximum(least, paid), remaining)
        ends = (left * remaining <= 2 * per_read) | (4 * batch * remaining <= 13 * per_read)
        ahead = tl.where(ends, remaining, some)
        ahead = tl.where(left > 0, ahead, 0)
        tl.store(next_work, left)
        tl.store(next_work + 1, first)
        tl.store(next_work + 2, ahead)
        tl.store(next_work + 3, left * ahead)


_VARYING = ("batch", "capacity", "first_ahead", "shards", "window", "limit", "shift", "candidates", "per_read")
_decide_kernel = Kernel(_decide, _VARYING)


def decide(
    statistics: Tensor,
    candidates: Round,
    following: Candidates | None,
    entropies: Tensor,
    depths: Tensor,
    rule: Rule,
    top_ids: Tensor | None = None,
) -> Tensor:
    """See `twins.decide`."""
    batch = len(depths)
    assert batch <= MANY
    source = torch.empty(batch, dtype=torch.int32, device=depths.device)
    ahead = candidates.ahead if isinstance(candidates, FirstCandidates) else 0
    rows, work = (candidates.rows, candidates.work) if isinstance(candidates, Candidates) else (source, source)
    shards = len(statistics)
    owns, (limit, shift, threshold) = rows_arguments(rule, source)
    _decide_kernel(
        (1,),
        statistics,
        rows,
        work,
        source if following is None else following.rows,
        source if following is None else following.work,
        entropies,
        source if top_ids is None else top_ids,
        depths,
        *owns,
        source,
        batch,
        statistics.shape[1],
        ahead,
        shards,
        rule.window,
        limit,
        shift,
        rule.rows.candidates,
        rule.rows_per_read,
        threshold,
        num_warps=2 if batch <= FEW else 8,
        SHARDS=triton.next_power_of_2(shards),
        NUMBERS=3 if top_ids is None else 4,
        PAIRS=max(1, _ENTROPY_TILE // triton.next_power_of_2(shards)),
        FIRST_ROUND=isinstance(candidates, FirstCandidates),
        FOLLOWED=following is not None,
        OWN_LIMITS=isinstance(rule.rows.limits, Tensor),
        OWN_SHIFTS=isinstance(rule.rows.shifts, Tensor),
        OWN_THRESHOLDS=isinstance(rule.rows.thresholds, Tensor),
        SETTLES=ahead == len(entropies),
        BLOCK=FEW if batch <= FEW else MANY,
    )
    return source
