"""The output head of as many rows as the device says; the twin is `twins.project`.

Programs stay on their multiprocessor and take one tile after another, row tiles of the same weights in
succession, so that the weights come from memory once. With no rows they end at once.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from confident_decoding.kernels.launching import Kernel, has_tensor_maps, processors
from confident_decoding.kernels.types import Candidates

_ROWS, _COLUMNS, _DEPTH = 64, 256, 64
"""A tile of logits, and the hidden elements of a step. On an H200 at H=4096, V=151,936 within 4% of cuBLAS up to
128 rows, 10% at 192 and 256, 17% at 320 (`python -m benchmarks.kernels`)."""


def _project(
    states,
    weight,
    result,
    count,
    capacity,
    columns,
    hidden,
    MAPPED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    end = tl.load(count)
    row_tiles = tl.cdiv(end, ROWS)
    for tile in tl.range(tl.program_id(0), row_tiles * tl.cdiv(columns, COLUMNS), tl.num_programs(0), flatten=True):
        row, column = (tile % row_tiles) * ROWS, (tile // row_tiles) * COLUMNS
        rows, cols = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
        sums = tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in range(0, hidden, DEPTH):
            if MAPPED:
                x = states.load([row, k])
                w = weight.load([column, k])
            else:
                ks = k + tl.arange(0, DEPTH)
                x = tl.load(states + tl.minimum(rows, capacity - 1)[:, None] * hidden + ks[None, :])
                w = tl.load(weight + tl.minimum(cols, columns - 1)[:, None].to(tl.int64) * hidden + ks[None, :])
            sums = tl.dot(x, w.T, sums)
        held = (rows < end)[:, None] & (cols < columns)[None, :]
        place = result + rows[:, None].to(tl.int64) * columns + cols[None, :]
        tl.store(place, sums.to(result.dtype.element_ty), mask=held)


_project_kernel = Kernel(_project, ("capacity",))


@cache
def _stages(device: torch.device) -> int:
    """As many as fit into a multiprocessor's shared memory, beside 24 KiB for the rest; five on an H200."""
    if device.type != "cuda":
        return 2
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return int(max(2, min(5, (properties["max_shared_mem"] - 24 * 1024) // (2 * (_ROWS + _COLUMNS) * _DEPTH))))


def project(states: Tensor, weight: Tensor, candidates: Candidates) -> Tensor:
    """See `twins.project`. H must be a multiple of 64."""
    capacity, hidden = states.shape
    columns = len(weight)
    result = states.new_empty(capacity, columns)
    mapped = has_tensor_maps(states.device)
    operands = (states, weight)
    if mapped:
        operands = (
            TensorDescriptor.from_tensor(states, [_ROWS, _DEPTH]),
            TensorDescriptor.from_tensor(weight, [_COLUMNS, _DEPTH]),
        )
    _project_kernel(
        (processors(states.device),),
        *operands,
        result,
        candidates.count,
        capacity,
        columns,
        hidden,
        num_warps=4,
        num_stages=_stages(states.device),
        MAPPED=mapped,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        DEPTH=_DEPTH,
    )
    return result
