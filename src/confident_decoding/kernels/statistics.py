"""Entropy statistics of logits in one reading; the twins are `twins.statistics` and `twins.merge`.

A row is cut into splits of fixed width, each reduced by one program to ``(m, s, u)`` and, if asked, the id of the
maximum, and splits are combined in order, like vocabulary shards: a row's result does not depend on how many rows come
with it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from confident_decoding.kernels import twins
from confident_decoding.kernels.launching import Kernel, processors, wide

SPLIT = 8192
"""Columns of a program: all of them are held in registers, so that the maximum comes before the sums."""
_MERGED_ROWS = 16


@triton.jit
def _sampled(
    logits,
    row,
    split,
    columns,
    stride,
    soft_cap,
    scale,
    CAPPED: tl.constexpr,
    SCALED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """What is sampled from, of a split of a row's logits (-inf outside), and its columns."""
    column = split * WIDTH + tl.arange(0, WIDTH)
    x = tl.load(logits + wide(row) * stride + column, mask=column < columns, other=-float("inf"))
    # The stock steps round to the dtype of the logits after each.
    if CAPPED:
        y = (x.to(tl.float32) * (1.0 / soft_cap)).to(x.dtype).to(tl.float32)
        e = tl.exp(-2.0 * tl.abs(y))
        y = tl.where(y < 0, e - 1.0, 1.0 - e) / (1.0 + e)
        x = tl.where(column < columns, (y.to(x.dtype).to(tl.float32) * soft_cap).to(x.dtype), x)
    if SCALED:
        x = tl.where(column < columns, (x.to(tl.float32) * scale).to(x.dtype), x)
    return x, column


@triton.jit
def _reduce_split(
    logits,
    result,
    row,
    split,
    rows,
    columns,
    stride,
    soft_cap,
    scale,
    CAPPED: tl.constexpr,
    SCALED: tl.constexpr,
    NUMBERS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    x, _ = _sampled(logits, row, split, columns, stride, soft_cap, scale, CAPPED, SCALED, WIDTH)
    m = tl.max(x, 0).to(tl.float32)
    d = x.to(tl.float32) - tl.where(m == -float("inf"), 0.0, m)
    d = tl.where(d < -1e4, -1e4, d)  # -inf * 0 is NaN; a NaN compares false and stays
    e = tl.exp(d)
    place = result + (wide(split) * rows + row) * NUMBERS
    tl.store(place, m)
    tl.store(place + 1, tl.sum(e, 0))
    tl.store(place + 2, tl.sum(d * e, 0))
    if NUMBERS == 4:
        tl.store(place + 3, float("inf"))


def _split_statistics(
    logits,
    count,
    result,
    rows,
    columns,
    stride,
    soft_cap,
    scale,
    COUNTED: tl.constexpr,
    CAPPED: tl.constexpr,
    SCALED: tl.constexpr,
    NUMBERS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    split, row = tl.program_id(0), tl.program_id(1)
    if COUNTED:
        for some in range(row, tl.load(count), tl.num_programs(1)):
            _reduce_split(
                logits, result, some, split, rows, columns, stride, soft_cap, scale,
                CAPPED, SCALED, NUMBERS, WIDTH,
            )  # fmt: skip
    else:
        _reduce_split(
            logits, result, row, split, rows, columns, stride, soft_cap, scale,
            CAPPED, SCALED, NUMBERS, WIDTH,
        )  # fmt: skip


def _name_largest(
    logits,
    count,
    parts,
    rows,
    columns,
    splits,
    stride,
    soft_cap,
    scale,
    first_id,
    COUNTED: tl.constexpr,
    CAPPED: tl.constexpr,
    SCALED: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """The id of each row's largest logit, in the first split that has it; in the others it is infinite.

    Only that split is read once more: looking for ids in all of them takes a third of what their sums take.
    """
    end = rows
    if COUNTED:
        end = tl.load(count)
    number = tl.arange(0, SPLITS)
    for row in range(tl.program_id(0), end, tl.num_programs(0)):
        place = parts + (number.to(tl.int64) * rows + row) * 4
        m = tl.load(place, mask=number < splits, other=-float("inf"))
        split = tl.min(tl.where(m == tl.max(m, 0), number, splits - 1), 0)
        x, column = _sampled(logits, row, split, columns, stride, soft_cap, scale, CAPPED, SCALED, WIDTH)
        top = tl.min(tl.where((x == tl.max(x, 0)) & (column < columns), column, columns), 0)
        named = tl.where(top < columns, (first_id + top).to(tl.float32), float("inf"))
        tl.store(parts + (wide(split) * rows + row) * 4 + 3, named)


def _merge(
    parts,
    count,
    result,
    rows,
    splits,
    COUNTED: tl.constexpr,
    NUMBERS: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    end = rows
    if COUNTED:
        end = tl.load(count)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    if tl.program_id(0) * ROWS < end:
        split = tl.arange(0, SPLITS)
        held = (row[:, None] < end) & (split[None, :] < splits)
        place = parts + (split[None, :].to(tl.int64) * rows + row[:, None]) * NUMBERS
        m = tl.load(place, mask=held, other=-float("inf"))
        s = tl.load(place + 1, mask=held, other=0.0)
        u = tl.load(place + 2, mask=held, other=0.0)
        top = tl.max(m, 1)
        offset = tl.where(m == -float("inf"), -1e4, m - top[:, None])
        offset = tl.where(offset < -1e4, -1e4, offset)
        weight = tl.exp(offset)
        out = result + row * NUMBERS
        tl.store(out, top, mask=row < end)
        tl.store(out + 1, tl.sum(s * weight, 1), mask=row < end)
        tl.store(out + 2, tl.sum((u + offset * s) * weight, 1), mask=row < end)
        if NUMBERS == 4:
            ids = tl.load(place + 3, mask=held, other=float("inf"))
            tl.store(out + 3, tl.min(tl.where(m == top[:, None], ids, float("inf")), 1), mask=row < end)


_statistics_kernel = Kernel(_split_statistics, ("rows",))
_names_kernel = Kernel(_name_largest, ("rows", "first_id"))
_merge_kernel = Kernel(_merge, ("rows",))


def statistics(
    logits: Tensor,
    count: Tensor | None = None,
    soft_cap: float | None = None,
    scale: float = 1.0,
    first_id: int | None = None,
) -> Tensor:
    """See `twins.statistics`: here one shard for each split of the columns."""
    rows, columns = logits.shape
    if rows == 0 or columns == 0:
        return twins.statistics(logits, first_id=first_id)
    splits = triton.cdiv(columns, SPLIT)
    numbers = 3 if first_id is None else 4
    parts = torch.empty((splits, rows, numbers), dtype=torch.float32, device=logits.device)
    # Where only some rows count, few programs, each with many rows: nothing to do must cost nothing.
    most = rows if count is None else max(1, 8 * processors(logits.device) // splits)
    _statistics_kernel(
        (splits, min(rows, most)),
        logits,
        parts if count is None else count,
        parts,
        rows,
        columns,
        logits.stride(0),
        soft_cap if soft_cap is not None else 1.0,
        float(scale),
        num_warps=4,
        COUNTED=count is not None,
        CAPPED=soft_cap is not None,
        SCALED=scale != 1.0,
        NUMBERS=numbers,
        WIDTH=SPLIT,
    )
    if first_id is not None:
        _names_kernel(
            (min(rows, 8 * processors(logits.device)),),
            logits,
            parts if count is None else count,
            parts,
            rows,
            columns,
            splits,
            logits.stride(0),
            soft_cap if soft_cap is not None else 1.0,
            float(scale),
            first_id,
            num_warps=4,
            COUNTED=count is not None,
            CAPPED=soft_cap is not None,
            SCALED=scale != 1.0,
            WIDTH=SPLIT,
            SPLITS=triton.next_power_of_2(splits),
        )
    return parts


def merge(parts: Tensor, count: Tensor | None = None) -> Tensor:
    """See `twins.merge`."""
    splits, rows, numbers = parts.shape
    result = torch.empty((1, rows, numbers), dtype=torch.float32, device=parts.device)
    if rows:
        _merge_kernel(
            (triton.cdiv(rows, _MERGED_ROWS),),
            parts,
            parts if count is None else count,
            result,
            rows,
            splits,
            num_warps=4,
            COUNTED=count is not None,
            NUMBERS=numbers,
            ROWS=_MERGED_ROWS,
            SPLITS=triton.next_power_of_2(splits),
        )
    return result
