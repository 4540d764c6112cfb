"""Count what a call has selected, in one launch; the twin is `twins.count`."""

import triton
import triton.language as tl
from torch import Tensor

from confident_decoding.kernels.launching import Kernel, is_nan, own
from confident_decoding.model_head import Selection
from confident_decoding.selection import RowRules

_TILE = 2048
"""Places times rows that the one program looks at in a step."""


@triton.jit
def _fell_back(entropies, row, here, depths, stride, window, limit, threshold, PLACES: tl.constexpr):
    """`RowRules.fell_back`, of rows whose scan is followed once more."""
    depth = tl.arange(0, PLACES)[:, None]
    limit = tl.minimum(limit, window)
    looked = here[None, :] & (depth < depths) & (depth <= limit[None, :])
    h = tl.load(entropies + depth * stride + row[None, :], mask=looked, other=0.0)
    before = tl.load(entropies + (depth - 1) * stride + row[None, :], mask=looked & (depth > 0), other=0.0)
    ends = tl.min(tl.where((depth == 0) | (looked & (h < before)), PLACES, depth), 0)
    nan_there = tl.max(((depth == ends[None, :]) & looked & is_nan(h)).to(tl.int32), 0) > 0
    final = tl.load(entropies + row, mask=here, other=0.0)
    held = (threshold > 0) & (final <= threshold)
    return here & (limit > 0) & (held == 0) & (nan_there | is_nan(final))


def _count(
    depths,
    entropies,
    top_ids,
    limits,
    thresholds,
    counters,
    mirror,
    prompt,
    batch,
    looked_at,
    stride,
    window,
    limit,
    threshold,
    DEPTHS: tl.constexpr,
    SCANNED: tl.constexpr,
    FIXED: tl.constexpr,
    NAMED: tl.constexpr,
    OWN_LIMITS: tl.constexpr,
    OWN_THRESHOLDS: tl.constexpr,
    MIRRORED: tl.constexpr,
    PLACES: tl.constexpr,
    ROWS: tl.constexpr,
):
    place = tl.arange(0, PLACES)
    found = tl.zeros((PLACES,), tl.int32)
    for start in range(0, batch, ROWS):
        row = start + tl.arange(0, ROWS)
        here = row < batch
        depth = tl.load(depths + row, mask=here, other=-1).to(tl.int32)
        found += tl.sum((place[:, None] == depth[None, :]).to(tl.int32), 1)
        if NAMED:
            final = tl.load(top_ids + row, mask=here, other=0)
            selected = tl.load(top_ids + depth * stride + row, mask=here, other=0)
            found += tl.where(place == DEPTHS, tl.sum((final != selected).to(tl.int32), 0), 0)
        if SCANNED or FIXED:
            own_limit = own(limits, limit, row, here, OWN_LIMITS)
        if FIXED:
            fell = here & (depth == 0) & (own_limit >= 0)
            found += tl.where(place == DEPTHS + 1, tl.sum(fell.to(tl.int32), 0), 0)
        elif SCANNED:
            own_threshold = own(thresholds, threshold, row, here, OWN_THRESHOLDS)
            fell = _fell_back(entropies, row, here, looked_at, stride, window, own_limit, own_threshold, PLACES)
            found += tl.where(place == DEPTHS + 1, tl.sum(fell.to(tl.int32), 0), 0)
    held = place < DEPTHS + 2
    cell = prompt * (DEPTHS + 2) + place
    total = tl.load(counters + cell, mask=held, other=0) + found
    tl.store(counters + cell, total, mask=held)
    if MIRRORED:
        tl.store(mirror + cell, total, mask=held)


_count_kernel = Kernel(_count, ("prompt", "batch", "looked_at", "stride", "window", "limit"))


def count(
    counters: Tensor,
    mirror: Tensor | None,
    prompt: bool,
    selection: Selection,
    rules: RowRules,
    window: int | None,
) -> None:
    """See `twins.count`. A mirror must be pinned: the kernel writes to it."""
    depths, entropies, ids = selection.depths, selection.entropies, selection.top_ids
    if len(depths) == 0:
        return
    limit, threshold = rules.limits, rules.thresholds
    places = triton.next_power_of_2(counters.shape[1])
    matrix = ids if entropies is None else entropies
    _count_kernel(
        (1,),
        depths,
        depths if entropies is None else entropies,
        depths if ids is None else ids,
        limit if isinstance(limit, Tensor) else depths,
        threshold if isinstance(threshold, Tensor) else depths,
        counters,
        counters if mirror is None else mirror,
        int(prompt),
        len(depths),
        0 if entropies is None else len(entropies),
        0 if matrix is None else matrix.stride(0),
        window or 0,
        0 if isinstance(limit, Tensor) else limit,
        0.0 if isinstance(threshold, Tensor) else float(threshold),
        num_warps=4,
        DEPTHS=counters.shape[1] - 2,
        SCANNED=entropies is not None,
        FIXED=window is None,
        NAMED=ids is not None,
        OWN_LIMITS=isinstance(limit, Tensor),
        OWN_THRESHOLDS=isinstance(threshold, Tensor),
        MIRRORED=mirror is not None,
        PLACES=places,
        ROWS=max(16, _TILE // places),
    )
