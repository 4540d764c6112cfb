"""The operations of the scan in torch: what the Triton kernels compute, and where those cannot run, the operations.

Fixed shapes and no synchronisation, like the kernels. Rows of a tensor beyond a round's count are
unspecified, here and there.
"""

import torch
from torch import Tensor

from confident_decoding import entropy
from confident_decoding.kernels.types import AHEAD, FIRST, ROWS, TOTAL, Candidates, FirstCandidates, Round, Rule
from confident_decoding.model_head import RmsNorm, Selection
from confident_decoding.selection import RowRules


def sampled_distribution(logits: Tensor, soft_cap: float | None, scale: float) -> Tensor:
    """Soft cap and scale by vLLM's own steps in the dtype of the logits, without touching them.

    Source: ``model_executor/layers/logits_processor.py``, ``LogitsProcessor.forward``.
    """
    if soft_cap is not None:
        logits = torch.tanh(logits / soft_cap) * soft_cap
    return logits if scale == 1.0 else logits * scale


def statistics(
    logits: Tensor,
    count: Tensor | None = None,
    soft_cap: float | None = None,
    scale: float = 1.0,
    first_id: int | None = None,
) -> Tensor:
    """Statistics ``[R, m, 3]`` (`entropy.shard_statistics`) of the sampled distribution of ``[m, V]`` logits.

    Args:
        logits: This rank's columns of the true vocabulary, unit stride along them.
        count: ``[1]`` int32: rows that need a result; None = all.
        soft_cap: See `sampled_distribution`.
        scale: As well.
        first_id: Of these columns; if given, the result is ``[R, m, 4]``, with the ids of the largest logits.

    Returns:
        R shards of the columns, however many suit the device; here one.
    """
    del count  # the other rows cost time, and nothing else
    return entropy.shard_statistics(sampled_distribution(logits, soft_cap, scale), first_id)[None]


def merge(parts: Tensor, count: Tensor | None = None) -> Tensor:
    """One shard ``[1, m, 3]`` from several ``[R, m, 3]`` (or 4 numbers each): what ranks exchange."""
    del count
    return entropy.merge_statistics(parts)[None]


def gather(packed: Tensor, n: int, candidates: Round, norm: RmsNorm | None, depths: Tensor | None = None) -> Tensor:
    """States ``[capacity, H]`` of the candidates.

    Args:
        packed: ``[B, n*H]``, unit stride along a row.
        n: Depths in a row.
        candidates: Which.
        norm: Applied to states that are not final (depth 0 is normed already); None = as they are.
        depths: ``[B]`` int64: take each row's state at its own depth here, whatever ``candidates`` says.
    """
    m, first, _, total = _work(candidates, packed.device)
    number = torch.arange(candidates.capacity, device=packed.device)
    number = torch.where(number < total, number, 0)
    row = _row_numbers(candidates, len(packed), packed.device)[number % m.clamp(min=1)]
    depth = depths[row] if depths is not None else (first + number // m.clamp(min=1)).clamp(max=n - 1)
    raw = packed.view(len(packed), n, packed.shape[1] // n)[row, depth]
    return raw if norm is None else torch.where((depth == 0)[:, None], raw, rms_norm(raw, norm))


def rms_norm(x: Tensor, norm: RmsNorm) -> Tensor:
    """``[m, H]`` normed in fp32 and rounded where vLLM's ``RMSNorm`` and ``GemmaRMSNorm`` round."""
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + norm.eps)
    if norm.plus_one:
        return (y * (1 + norm.weight.float())).to(x.dtype)
    return (y.to(norm.weight.dtype) * norm.weight).to(x.dtype)


def project(states: Tensor, weight: Tensor, candidates: Candidates) -> Tensor:
    """Logits ``[capacity, V]`` of ``[capacity, H]`` states under ``weight`` ``[V, H]``, fp32 accumulation."""
    del candidates  # the other rows cost time, and nothing else
    return torch.nn.functional.linear(states, weight)


def decide(
    statistics: Tensor,
    candidates: Round,
    following: Candidates | None,
    entropies: Tensor,
    depths: Tensor,
    rule: Rule,
    top_ids: Tensor | None = None,
) -> Tensor:
    """Advance the scan of a round's rows through its candidates.

    Args:
        statistics: ``[R, capacity, 3]`` of the candidates' logits, R shards.
        candidates: The round.
        following: Filled with the rows whose scan goes on and the depths that come next; None = no round follows.
        entropies: ``[n, B]`` fp32; those of the candidates are written, those before them are read.
        depths: ``[B]`` int64; the trough so far of the round's rows is written. A first round of all n depths
            settles them (`RowRules.settle`).
        rule: What ends a scan.
        top_ids: ``[n, B]`` int32; those of the candidates are written. ``statistics`` then has a fourth number.

    Returns:
        ``[B]`` int32: for the i-th row of the round, the candidate whose logits it now keeps, or -1 if none of
        them; beyond the round's rows unspecified.
    """
    device = depths.device
    m, first, ahead, _ = _work(candidates, device)
    rows = _row_numbers(candidates, len(depths), device)
    slot = torch.arange(len(depths), device=device)
    here = slot < m
    window = rule.rows.limits_of(depths)[rows].clamp(max=rule.window)
    found = entropy.combine_statistics(statistics)
    ids = None if top_ids is None else entropy.combine_top_ids(statistics)
    before = torch.where(first > 0, entropies[(first - 1).clamp(min=0), rows], torch.inf)
    steps, goes_on = torch.zeros_like(rows), here
    for a in range(len(entropies)):
        looked, depth = here & (a < ahead), (first + a).clamp(max=len(entropies) - 1)
        candidate = (a * m + slot).clamp(max=len(found) - 1)
        h = found[candidate]
        entropies[depth, rows] = torch.where(looked, h, entropies[depth, rows])
        if top_ids is not None and ids is not None:
            top_ids[depth, rows] = torch.where(looked, ids[candidate], top_ids[depth, rows])
        goes_on = goes_on & (~looked | ((h < before) & (first + a <= window)))
        steps += looked & goes_on
        if isinstance(candidates, FirstCandidates) and a == 0:
            goes_on = goes_on & ~rule.rows.held(h)
        before = torch.where(looked, h, before)
    trough = (first - 1 + steps).clamp(min=0)
    source = torch.where(steps > 0, (steps - 1) * m + slot, torch.where(first == 0, slot, -1))
    if isinstance(candidates, FirstCandidates) and candidates.ahead == len(entropies):
        trough = rule.rows.settle(trough, entropies, rule.window, complete=True)
        source = trough * m + slot
    depths[rows] = torch.where(here, trough, depths[rows])
    if following is not None:
        first = first + ahead
        _compact(following, rows, goes_on & (first <= window))
        _look_ahead(following, len(depths), first, rule)
    return source.to(torch.int32)


def relocate(troughs: Tensor, entropies: Tensor, moved: Candidates, rule: Rule) -> Tensor:
    """Settled depths ``[B]`` int64; ``moved`` lists the rows for which that is not the trough.

    Args:
        troughs: ``[B]`` int64, whose logits are kept so far.
        entropies: ``[n, B]``.
        moved: Filled; one candidate a row.
        rule: Of the rows.
    """
    depths = rule.rows.settle(troughs, entropies, rule.window)
    _compact(moved, torch.arange(len(depths), device=depths.device), depths != troughs)
    moved.work[FIRST] = 0
    moved.work[AHEAD] = 1
    moved.work[TOTAL] = moved.work[ROWS]
    return depths


def name_moved(statistics: Tensor, moved: Candidates, depths: Tensor, top_ids: Tensor) -> None:
    """Write the top ids of moved rows to their depths, at which the scan need not have looked.

    Args:
        statistics: ``[R, capacity, 4]`` of the moved rows' logits.
        moved: As `relocate` has filled it.
        depths: ``[B]`` int64, settled.
        top_ids: ``[n, B]`` int32, written.
    """
    ids, batch = entropy.combine_top_ids(statistics), len(depths)
    slots = torch.arange(batch, device=depths.device)
    rows = torch.where(slots < moved.work[ROWS], moved.rows, batch).long()  # the others: beyond the last
    wanted = torch.full((batch + 1,), -1, dtype=ids.dtype, device=ids.device).scatter_(0, rows, ids)[:batch]
    known = top_ids.gather(0, depths[None])[0]
    top_ids.scatter_(0, depths[None], torch.where(wanted >= 0, wanted, known)[None])


def keep(logits: Tensor, source: Tensor, candidates: Round, result: Tensor) -> None:
    """Copy the logits that rows keep: candidate ``source[i]`` of ``logits`` to ``result[rows[i]]``, if not -1."""
    rows = _row_numbers(candidates, len(result), result.device)
    m, *_ = _work(candidates, result.device)
    takes = (torch.arange(len(result), device=result.device) < m) & (source >= 0)
    taken = logits[torch.where(takes, source, 0).long()]
    result[rows] = torch.where(takes[:, None], taken, result[rows])


def count(
    counters: Tensor,
    mirror: Tensor | None,
    prompt: bool,
    selection: Selection,
    rules: RowRules,
    window: int | None,
) -> None:
    """Add one call to the counters (`stats.new_counters`), in place and on their device.

    Args:
        counters: ``[2, cells]`` int64.
        mirror: The same on the host, pinned where the device is a GPU, brought up to date when the device comes to
            it; None = there is none.
        prompt: Whether the rows are prompt rows.
        selection: Its depths and, where they are there, entropies (rows that fell back) and top ids (rows whose
            top id changed).
        rules: Of the rows.
        window: Largest depth of any scan; None = a fixed layer, where rows at the final one that no rule keeps there
            fell back.
    """
    depths, entropies, ids = selection.depths, selection.entropies, selection.top_ids
    if len(depths) == 0:
        return
    device, places = depths.device, counters.shape[1] - 2
    by_depth = (depths == torch.arange(places, device=device)[:, None]).sum(1)
    changed = fell_back = torch.zeros(1, dtype=torch.int64, device=device)
    if ids is not None:
        changed = (ids.gather(0, depths[None])[0] != ids[0]).sum(0, keepdim=True)
    if window is None:
        fell_back = ((depths == 0) & (rules.limits_of(depths) >= 0)).sum(0, keepdim=True)
    elif entropies is not None:
        troughs = (entropies[1:] < entropies[:-1]).long().cumprod(0).sum(0)  # or beyond, where a limit came first
        fell_back = rules.fell_back(troughs, entropies, window).sum(0, keepdim=True)
    counters[int(prompt)] += torch.cat([by_depth, changed, fell_back])
    if mirror is not None:
        mirror.copy_(counters, non_blocking=True)


def _work(candidates: Round, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """m, first, ahead and their number, int64 scalars on the device."""
    if isinstance(candidates, Candidates):
        m, first, ahead, total = candidates.work.long().unbind()
        return m, first, ahead, total
    m, ahead = (torch.full((), value, device=device) for value in (candidates.batch, candidates.ahead))
    return m, torch.zeros_like(m), ahead, m * ahead


def _row_numbers(candidates: Round, batch: int, device: torch.device) -> Tensor:
    """``[B]`` int64 row numbers: the round's, then the others, so that each may be written to once."""
    number = torch.arange(batch, device=device)
    if isinstance(candidates, FirstCandidates):
        return number
    m = candidates.work[ROWS]
    listed = number < m
    rows = torch.where(listed, candidates.rows, 0).long()
    taken = torch.zeros_like(number).scatter_add_(0, rows, listed.long()) > 0
    others = torch.argsort(taken, stable=True)  # those that the round does not list come first
    return torch.where(listed, rows, others[(number - m).clamp(min=0)])


def _compact(candidates: Candidates, rows: Tensor, chosen: Tensor) -> None:
    """List the chosen rows in order, and how many they are."""
    candidates.rows.copy_(rows[torch.argsort(~chosen, stable=True)])
    candidates.work[ROWS] = chosen.sum()


def _look_ahead(following: Candidates, batch: int, first: Tensor, rule: Rule) -> None:
    """`planner.look_ahead` for the rows that ``following`` lists."""
    m, remaining = following.work[ROWS], rule.window - first + 1
    rows, per_read = m.clamp(min=1), rule.rows_per_read
    scanned = (rule.rows.limits_of(following.rows).clamp(max=rule.window) >= 1).sum()
    most = (first == 1) & (5 * m > 4 * scanned)
    least, paid = torch.where(most, 1, 2), torch.where(most, (2 * per_read + rows) // (2 * rows), per_read // rows)
    some = torch.minimum(torch.maximum(least, paid), remaining)
    ends = (m * remaining <= 2 * per_read) | (4 * batch * remaining <= 13 * per_read)
    ahead = torch.where(ends, remaining, some)
    following.work[FIRST] = first
    following.work[AHEAD] = torch.where(m > 0, ahead, 0)
    following.work[TOTAL] = m * following.work[AHEAD]
