"""Entropies and top ids of candidates from the statistics of all shards, inside other kernels."""

import triton
import triton.language as tl


@triton.jit
def entropies_of(statistics, number, held, shards, capacity, SHARDS: tl.constexpr, NUMBERS: tl.constexpr):
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
def top_ids_of(statistics, number, held, shards, capacity, SHARDS: tl.constexpr):
    """`entropy.combine_top_ids` of the candidates ``number``."""
    shard = tl.arange(0, SHARDS)[None, :]
    known = held[:, None] & (shard < shards)
    place = statistics + (shard * capacity + number[:, None]) * 4
    m = tl.load(place, mask=known, other=-float("inf"))
    ids = tl.load(place + 3, mask=known, other=float("inf"))
    return tl.min(tl.where(m == tl.max(m, 1)[:, None], ids, float("inf")), 1).to(tl.int32)
