"""Packed rows in one launch; the twin is `twins.pack`.

A kernel of its own because ``torch.cat`` passes its list of tensors as 3 KB of arguments. A CUDA graph that holds
such a launch runs all its other kernels with longer gaps between them: 0.2 ms more for the 500 kernels of an 8B
model on an H200 (docs/performance.md).
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from confident_decoding.kernels import twins
from confident_decoding.kernels.launching import Kernel, wide

_STATES = 16
"""Tensors of one launch."""
_COLUMNS = 1024


@triton.jit
def _copy(state, result, row, column, hidden, stride, NUMBER: tl.constexpr):
    held = column < hidden
    x = tl.load(state + wide(row) * hidden + column, mask=held)
    tl.store(result + wide(row) * stride + NUMBER * hidden + column, x, mask=held)


def _pack(
    s0,
    s1,
    s2,
    s3,
    s4,
    s5,
    s6,
    s7,
    s8,
    s9,
    s10,
    s11,
    s12,
    s13,
    s14,
    s15,
    result,
    hidden,
    stride,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    states = (s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15)
    for number in tl.static_range(COUNT):
        _copy(states[number], result, row, column, hidden, stride, number)


_pack_kernel = Kernel(_pack)


def pack(states: Sequence[Tensor]) -> Tensor:
    """See `twins.pack`."""
    first, n = states[0], len(states)
    rows, hidden = first.shape
    alike = all(s.shape == first.shape and s.dtype == first.dtype and s.is_contiguous() for s in states)
    if not alike or first.numel() == 0:
        return twins.pack(states)
    result = first.new_empty(rows, n * hidden)
    for start in range(0, n, _STATES):
        some = states[start : start + _STATES]
        _pack_kernel(
            (rows, triton.cdiv(hidden, _COLUMNS)),
            *some,
            *[first] * (_STATES - len(some)),
            result[:, start * hidden :],
            hidden,
            n * hidden,
            num_warps=4,
            COUNT=len(some),
            WIDTH=_COLUMNS,
        )
    return result
