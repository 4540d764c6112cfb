"""Entropy of logits, in one rank or over vocabulary shards (pure torch, fp32 accumulation).

A shard is summarised by three numbers per row, which is all that tensor-parallel ranks exchange:
``m = max x``, ``s = sum e^(x-m)``, ``u = sum (x-m) e^(x-m)``; on request a fourth says which id m belongs to.
This is the twin and the test oracle of every kernel that computes the same.
"""

import torch
from torch import Tensor
from torch.nn.functional import threshold

_CPU_BLOCK_ELEMENTS = 1 << 18
_GPU_BLOCK_ELEMENTS = 1 << 25
"""fp32 elements per pass: the temporaries stay in a CPU's cache and small on a GPU."""
_SEGMENT = 1 << 10
"""Columns that are reduced at a time. torch may split one long sum over threads, differently when a row
comes with few others; a row's entropy must not depend on its neighbours."""
_NEGLIGIBLE = -80.0
"""e^-80 is below what fp32 can add to a sum of at least 1. From about e^-87 on numbers are denormal, which
makes arithmetic on a CPU several times slower, so lower ones are made 0."""
_NOTHING = -1e4  # e^-1e4 is 0 in fp32, and -1e4 * 0 is 0 where -inf * 0 is NaN


def shard_statistics(logits: Tensor, first_id: int | None = None) -> Tensor:
    """Summarise the columns of one vocabulary shard.

    Args:
        logits: ``[B, V]`` of any floating dtype and any strides; V may be 0 (a rank that holds
            padding only). ``-inf`` contributes nothing.
        first_id: Id of the first column; if given, the id of the largest logit is found too.

    Returns:
        ``[B, 3]`` fp32: ``m, s, u``. A row without a finite maximum from below (V = 0 or all
        ``-inf``) is ``(-inf, 0, 0)``; a NaN or ``+inf`` logit makes the row NaN. With ``first_id`` ``[B, 4]``: also
        the lowest id whose logit is m (exact below 2**24; any id where the row has no entropy).
    """
    rows, columns = logits.shape
    stats = torch.empty((rows, 3 if first_id is None else 4), dtype=torch.float32, device=logits.device)
    if columns == 0:
        stats[:, 0] = -torch.inf
        stats[:, 1:] = 0
        return stats
    block = max(1, (_CPU_BLOCK_ELEMENTS if logits.device.type == "cpu" else _GPU_BLOCK_ELEMENTS) // columns)
    maxima = [
        _block_statistics(logits[start : start + block], stats[start : start + block])
        for start in range(0, rows, block)
    ]
    if first_id is not None and rows:
        stats[:, 3] = first_id + _places_of_maxima(logits, torch.cat(maxima))
    return stats


def _block_statistics(logits: Tensor, out: Tensor) -> Tensor:
    """Fills ``out``; returns the maximum of each segment of columns."""
    x = logits.float().contiguous()  # the order of summation must not depend on the caller's layout
    maxima = _segment_maxima(x)
    m = maxima.amax(-1, keepdim=True)
    # A row of -inf alone: subtract 0 instead of -inf, so that it sums to 0 and not to NaN. (A NaN stays in m.)
    x = threshold(x - m.masked_fill(m == -torch.inf, 0), _NEGLIGIBLE, _NOTHING, inplace=True)
    e = x.exp()
    out[:, 0:1] = m
    out[:, 1] = _row_sums(e)
    out[:, 2] = _row_sums(x.mul_(e))
    return maxima


def _segment_maxima(x: Tensor) -> Tensor:
    whole = x.shape[1] // _SEGMENT * _SEGMENT
    if not whole:
        return x.amax(-1, keepdim=True)
    maxima = x[:, :whole].reshape(len(x), whole // _SEGMENT, _SEGMENT).amax(-1)
    return maxima if whole == x.shape[1] else torch.cat([maxima, x[:, whole:].amax(-1, keepdim=True)], 1)


def _places_of_maxima(logits: Tensor, maxima: Tensor) -> Tensor:
    """First column ``[B]`` of each row's maximum. An argmax over all columns takes a CPU as long as all the rest."""
    width = min(_SEGMENT, logits.shape[1])
    start = (maxima.argmax(-1) * _SEGMENT).clamp_(max=logits.shape[1] - width)
    segment = logits.unfold(1, width, 1)[torch.arange(len(logits), device=logits.device), start]
    return start + segment.float().max(-1).indices  # in 16 bits a CPU takes far longer


def _row_sums(x: Tensor) -> Tensor:
    """Sums ``[B]`` of contiguous ``[B, V]``, in the same order whatever B is."""
    whole = x.shape[1] // _SEGMENT * _SEGMENT
    rest = x[:, whole:].sum(-1)
    if not whole:
        return rest
    return x[:, :whole].reshape(len(x), whole // _SEGMENT, _SEGMENT).sum(-1).sum(-1) + rest


def merge_statistics(stats: Tensor) -> Tensor:
    """The statistics of all columns from those of shards, added up in order: ``[R, B, 3]`` to ``[B, 3]`` fp32.

    With ids, ``[R, B, 4]`` to ``[B, 4]``.
    """
    if len(stats) == 1:
        return stats[0]
    m, s, u = stats[..., :3].unbind(-1)
    top = m.amax(0)
    # -inf - -inf would be NaN: a shard without a finite logit weighs 0, whatever the others hold.
    offset = torch.where(m == -torch.inf, _NOTHING, m - top).clamp(min=_NOTHING)
    weight = offset.exp()
    merged = [top, (s * weight).sum(0), ((u + offset * s) * weight).sum(0)]
    if stats.shape[-1] == 4:
        merged.append(stats[..., 3].gather(0, m.argmax(0)[None])[0])
    return torch.stack(merged, -1)


def combine_statistics(stats: Tensor) -> Tensor:
    """Entropy from the statistics of all shards, added up in rank order (so equal on every rank).

    Args:
        stats: ``[R, B, 3]`` or ``[R, B, 4]`` fp32, R shards.

    Returns:
        ``[B]`` fp32 nats; NaN where a logit is NaN or ``+inf``, or all are ``-inf``.
    """
    return entropies_of(merge_statistics(stats))


def combine_top_ids(stats: Tensor) -> Tensor:
    """Ids of the largest logits, the lowest of several, from the statistics of all shards.

    Args:
        stats: ``[R, B, 4]`` fp32, R shards in the order of their ids.

    Returns:
        ``[B]`` int32; any number where the entropy is NaN.
    """
    return top_ids_of(merge_statistics(stats))


def entropies_of(merged: Tensor) -> Tensor:
    """`combine_statistics` after `merge_statistics`."""
    s, u = merged[:, 1], merged[:, 2]
    return s.log() - u / s


def top_ids_of(merged: Tensor) -> Tensor:
    """`combine_top_ids` after `merge_statistics`."""
    return merged[:, 3].to(torch.int32)


def entropy(logits: Tensor) -> Tensor:
    """Entropy ``-sum p log p`` of ``softmax(logits)`` in nats: ``[B, V]`` to ``[B]`` fp32.

    Example:
        >>> entropy(torch.zeros(1, 4)).exp()
        tensor([4.0000])
    """
    return combine_statistics(shard_statistics(logits)[None])
