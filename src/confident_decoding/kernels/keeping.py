"""Copy the logits that rows keep; the twin is `twins.keep`."""

import triton
import triton.language as tl
from torch import Tensor

from confident_decoding.kernels.launching import Kernel, processors, wide
from confident_decoding.kernels.types import Candidates, FirstCandidates, Round

_COPIED = 4096
"""Columns that a program copies at a time."""


def _keep(logits, source, rows, work, result, batch, columns, stride, FIRST_ROUND: tl.constexpr, WIDTH: tl.constexpr):
    m = batch
    if not FIRST_ROUND:
        m = tl.load(work)
    blocks = tl.cdiv(columns, WIDTH)
    for item in range(tl.program_id(0), m * blocks, tl.num_programs(0)):
        slot = item // blocks
        taken = tl.load(source + slot)
        if taken >= 0:
            row = slot
            if not FIRST_ROUND:
                row = tl.load(rows + slot)
            column = (item % blocks) * WIDTH + tl.arange(0, WIDTH)
            x = tl.load(logits + wide(taken) * stride + column, mask=column < columns)
            tl.store(result + wide(row) * columns + column, x, mask=column < columns)


_keep_kernel = Kernel(_keep, ("batch",))


def keep(logits: Tensor, source: Tensor, candidates: Round, result: Tensor) -> None:
    """See `twins.keep`."""
    batch, columns = result.shape
    rows, work = (candidates.rows, candidates.work) if isinstance(candidates, Candidates) else (source, source)
    programs = min(8 * processors(result.device), batch * triton.cdiv(columns, _COPIED))
    _keep_kernel(
        (programs,),
        logits,
        source,
        rows,
        work,
        result,
        batch,
        columns,
        logits.stride(0),
        num_warps=4,
        FIRST_ROUND=isinstance(candidates, FirstCandidates),
        WIDTH=_COPIED,
    )
