"""Gather the states of a round's candidates and norm them; the twin is `twins.gather`."""

import triton
import triton.language as tl
from torch import Tensor

from confident_decoding.kernels.launching import Kernel, wide
from confident_decoding.kernels.types import Candidates, FirstCandidates, Round
from confident_decoding.model_head import RmsNorm


def _gather(
    packed,
    rows,
    work,
    depths,
    weight,
    result,
    batch,
    stride,
    hidden,
    eps,
    FIRST_ROUND: tl.constexpr,
    OWN_DEPTHS: tl.constexpr,
    NORMED: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    number = tl.program_id(0)
    m, first, total = batch, 0, tl.num_programs(0)
    if not FIRST_ROUND:
        m, first, total = tl.load(work), tl.load(work + 1), tl.load(work + 3)
    if number < total:
        depth = first + number // m
        row = number % m
        if not FIRST_ROUND:
            row = tl.load(rows + row)
        if OWN_DEPTHS:
            depth = tl.load(depths + row).to(tl.int32)
        column = tl.arange(0, WIDTH)
        held = column < hidden
        x = tl.load(packed + wide(row) * stride + depth * hidden + column, mask=held, other=0.0)
        if NORMED:
            y = x.to(tl.float32)
            y = y * tl.rsqrt(tl.sum(y * y, 0) / hidden + eps)
            w = tl.load(weight + column, mask=held, other=0.0)
            if PLUS_ONE:
                y = y * (1.0 + w.to(tl.float32))
            else:
                y = y.to(w.dtype).to(tl.float32) * w.to(tl.float32)
                y = y.to(w.dtype)
            x = tl.where(depth == 0, x, y.to(x.dtype))
        tl.store(result + wide(number) * hidden + column, x, mask=held)


_gather_kernel = Kernel(_gather, ("batch",))


def gather(packed: Tensor, n: int, candidates: Round, norm: RmsNorm | None, depths: Tensor | None = None) -> Tensor:
    """See `twins.gather`."""
    hidden = packed.shape[1] // n
    result = packed.new_empty(candidates.capacity, hidden)
    rows, work = (candidates.rows, candidates.work) if isinstance(candidates, Candidates) else (packed, packed)
    _gather_kernel(
        (candidates.capacity,),
        packed,
        rows,
        work,
        packed if depths is None else depths,
        packed if norm is None else norm.weight,
        result,
        len(packed),
        packed.stride(0),
        hidden,
        0.0 if norm is None else norm.eps,
        num_warps=8 if hidden > 2048 else 4,
        FIRST_ROUND=isinstance(candidates, FirstCandidates),
        OWN_DEPTHS=depths is not None,
        NORMED=norm is not None,
        PLUS_ONE=norm is not None and norm.plus_one,
        WIDTH=triton.next_power_of_2(hidden),
    )
    return result
