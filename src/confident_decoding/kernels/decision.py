"""What a round's entropies decide: which rows go on, and at which candidate each has arrived. Twins of the same names.

A call has at most 1024 rows (`planner.MOST_ROWS`), so one program sees them all and can number those that
go on.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from confident_decoding import planner
from confident_decoding.kernels.launching import Kernel, is_nan, own
from confident_decoding.kernels.types import Candidates, FirstCandidates, Round, Rule

_FEW, _MANY = 64, planner.MOST_ROWS
_ENTROPY_TILE = 1024


@triton.jit
def _entropies(statistics, number, held, shards, capacity, SHARDS: tl.constexpr, NUMBERS: tl.constexpr):
    """`entropy.combine_statistics` of the candidates ``number``."""
    shard = tl.arange(0, SHARDS)[None, :]
    known = held[:, None] & (shard < shards)
    place = statistics + (shard * capacity + number[:, None]) * NUMBERS
    m = tl.load(place, mask=known, other=-float("inf"))
    s = tl.load(place + 1, mask=known, other=0.0)
    u = tl.load(place + 2, mask=known, other=0.0)
    offset = tl.where(m == -float("inf"), -1e4, m - tl.max(m, 1)[:, None])
    offset = tl.where(offset < -1e4, -1e4, offset)
    weight = tl.exp(offset)
    total = tl.sum(s * weight, 1)
    return tl.log(total) - tl.sum((u + offset * s) * weight, 1) / total


@triton.jit
def _top_ids(statistics, number, held, shards, capacity, SHARDS: tl.constexpr):
    """`entropy.combine_top_ids` of the candidates ``number``."""
    shard = tl.arange(0, SHARDS)[None, :]
    known = held[:, None] & (shard < shards)
    place = statistics + (shard * capacity + number[:, None]) * 4
    m = tl.load(place, mask=known, other=-float("inf"))
    ids = tl.load(place + 3, mask=known, other=float("inf"))
    return tl.min(tl.where(m == tl.max(m, 1)[:, None], ids, float("inf")), 1).to(tl.int32)


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
        h = _entropies(statistics, number, counts, shards, capacity, SHARDS, NUMBERS)
        row = number % m
        if not FIRST_ROUND:
            row = tl.load(rows + row, mask=counts, other=0)
        place = (first + number // m) * batch + row
        tl.store(entropies + place, h, mask=counts)
        if NUMBERS == 4:
            tl.store(top_ids + place, _top_ids(statistics, number, counts, shards, capacity, SHARDS), mask=counts)
    tl.debug_barrier()  # what these threads wrote, others read


@triton.jit
def _settle(trough, final_entropy, entropies, batch, row, here, window, limit, shift, threshold, candidates):
    """`RowRules.settle`."""
    would_go_on = here & (trough < tl.minimum(limit, window))
    following = tl.load(entropies + (trough + 1) * batch + row, mask=would_go_on, other=0.0)
    fell_back = would_go_on & (is_nan(following) | is_nan(final_entropy))
    shift = tl.where(fell_back, 0, shift)
    depth = tl.minimum(tl.maximum(trough + shift, 0), candidates - 1)
    depth = tl.where((threshold > 0) & (final_entropy <= threshold), 0, depth)
    return tl.where(limit < 0, 0, depth)


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
        trough = _settle(
            trough, final, entropies, batch, row, here, window, own_limit, own_shift, own_threshold, candidates
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
        least = tl.where(first == 1, 1, 2)
        some = tl.minimum(tl.maximum(least, per_read // tl.maximum(left, 1)), remaining)
        ahead = tl.where(left * remaining <= 2 * per_read, remaining, some)
        ahead = tl.where(left > 0, ahead, 0)
        tl.store(next_work, left)
        tl.store(next_work + 1, first)
        tl.store(next_work + 2, ahead)
        tl.store(next_work + 3, left * ahead)


def _rows_arguments(rule: Rule, unused: Tensor) -> tuple[list[Tensor], tuple[int, int, float]]:
    """Tensors of what each row has (``unused`` where all share it), and what all share (0 where each has its own)."""
    values = rule.rows.limits, rule.rows.shifts, rule.rows.thresholds
    limit, shift, threshold = (0 if isinstance(value, Tensor) else value for value in values)
    tensors = [value if isinstance(value, Tensor) else unused for value in values]
    return tensors, (int(limit), int(shift), float(threshold))


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
    assert batch <= _MANY
    source = torch.empty(batch, dtype=torch.int32, device=depths.device)
    ahead = candidates.ahead if isinstance(candidates, FirstCandidates) else 0
    rows, work = (candidates.rows, candidates.work) if isinstance(candidates, Candidates) else (source, source)
    shards = len(statistics)
    owns, (limit, shift, threshold) = _rows_arguments(rule, source)
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
        num_warps=2 if batch <= _FEW else 8,
        SHARDS=triton.next_power_of_2(shards),
        NUMBERS=3 if top_ids is None else 4,
        PAIRS=max(1, _ENTROPY_TILE // triton.next_power_of_2(shards)),
        FIRST_ROUND=isinstance(candidates, FirstCandidates),
        FOLLOWED=following is not None,
        OWN_LIMITS=isinstance(rule.rows.limits, Tensor),
        OWN_SHIFTS=isinstance(rule.rows.shifts, Tensor),
        OWN_THRESHOLDS=isinstance(rule.rows.thresholds, Tensor),
        SETTLES=ahead == len(entropies),
        BLOCK=_FEW if batch <= _FEW else _MANY,
    )
    return source


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
    depth = _settle(trough, final, entropies, batch, row, here, window, own_limit, own_shift, own_threshold, candidates)
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
    assert batch <= _MANY
    owns, (limit, shift, threshold) = _rows_arguments(rule, troughs)
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
        num_warps=2 if batch <= _FEW else 8,
        OWN_LIMITS=isinstance(rule.rows.limits, Tensor),
        OWN_SHIFTS=isinstance(rule.rows.shifts, Tensor),
        OWN_THRESHOLDS=isinstance(rule.rows.thresholds, Tensor),
        BLOCK=_FEW if batch <= _FEW else _MANY,
    )
    return result
