"""Entropy of logits, in one rank or over vocabulary shards (pure torch, fp32 accumulation).

A shard is summarised by three numbers per row, which is all that tensor-parallel ranks exchange:
``m = max x``, ``s = sum e^(x-m)``, ``u = sum (x-m) e^(x-m)``. This is the twin and the test oracle
of every kernel that computes the same.
"""

import torch
from torch import Tensor

_WIDE = 1 << 15
"""Columns from which a CPU takes one row at a time: torch sums a wide row differently when it comes
with few others, and a row's entropy must not depend on its neighbours."""
_BLOCK_ELEMENTS = 1 << 20
_GPU_BLOCK_ELEMENTS = 1 << 25
"""fp32 elements per pass: the temporaries stay in a CPU's cache and small on a GPU."""
_LOWEST = -1e4  # stands for -inf: e^-1e4 is 0 in fp32, and -1e4 * 0 is 0 where -inf * 0 is NaN


def shard_statistics(logits: Tensor) -> Tensor:
    """Summarise the columns of one vocabulary shard.

    Args:
        logits: ``[B, V]`` of any floating dtype and any strides; V may be 0 (a rank that holds
            padding only). ``-inf`` contributes nothing.

    Returns:
        ``[B, 3]`` fp32: ``m, s, u``. A row without a finite maximum from below (V = 0 or all
        ``-inf``) is ``(-inf, 0, 0)``; a NaN or ``+inf`` logit makes the row NaN.
    """
    rows, columns = logits.shape
    stats = torch.empty((rows, 3), dtype=torch.float32, device=logits.device)
    if columns == 0:
        stats[:, 0] = -torch.inf
        stats[:, 1:] = 0
        return stats
    if logits.device.type == "cpu":
        block = 1 if columns >= _WIDE else _BLOCK_ELEMENTS // columns
    else:
        block = max(1, _GPU_BLOCK_ELEMENTS // columns)
    for start in range(0, rows, block):
        _block_statistics(logits[start : start + block], stats[start : start + block])
    return stats


def _block_statistics(logits: Tensor, out: Tensor) -> None:
    x = logits.float().contiguous()  # the order of summation must not depend on the caller's layout
    m = x.amax(-1, keepdim=True)
    # A row of -inf alone: subtract 0 instead of -inf, so that it sums to 0 and not to NaN.
    x = (x - m.masked_fill(m == -torch.inf, 0)).clamp_(min=_LOWEST)
    e = x.exp()
    out[:, 0:1] = m
    out[:, 1] = e.sum(-1)
    out[:, 2] = x.mul_(e).sum(-1)


def combine_statistics(stats: Tensor) -> Tensor:
    """Entropy from the statistics of all shards, added up in rank order (so equal on every rank).

    Args:
        stats: ``[R, B, 3]`` fp32, R shards.

    Returns:
        ``[B]`` fp32 nats; NaN where a logit is NaN or ``+inf``, or all are ``-inf``.
    """
    m, s, u = stats.unbind(-1)
    top = m.amax(0)
    # -inf - -inf would be NaN: a shard without a finite logit weighs 0, whatever the others hold.
    offset = torch.where(m == -torch.inf, _LOWEST, m - top).clamp(min=_LOWEST)
    weight = offset.exp()
    total = (s * weight).sum(0)
    return total.log() - ((u + offset * s) * weight).sum(0) / total


def entropy(logits: Tensor) -> Tensor:
    """Entropy ``-sum p log p`` of ``softmax(logits)`` in nats: ``[B, V]`` to ``[B]`` fp32.

    Example:
        >>> entropy(torch.zeros(1, 4)).exp()
        tensor([4.0000])
    """
    return combine_statistics(shard_statistics(logits)[None])
