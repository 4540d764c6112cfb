"""From packed rows to selected logits: chunks of rows, the two scans, fixed layers.

A packed row ``[n*H]`` holds the final *normed* state, then the raw residual states of the other
n-1 captured depths. What the scans need of the model is passed in (`ModelHead`).
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from confident_decoding import planner
from confident_decoding.config import SelectionPlan
from confident_decoding.device_scan import scan_on_device
from confident_decoding.model_head import ModelHead, Selection
from confident_decoding.replay import ReplayedScans
from confident_decoding.rounds import scan_in_rounds
from confident_decoding.selection import RowRules

CHUNK_ELEMENTS = 1 << 27
"""Logits that one chunk of rows may hold over all candidates (256 MiB in bf16). Prompt rows come by
the thousands; with chunks the peak does not grow with the number of candidates."""
LAZY_CHUNK_ELEMENTS = 1 << 28
"""The same for a lazy scan on a GPU: three logits a row, what vLLM's sampler holds of a row too (its logits, and
them in fp32), so that sampled rows need not be cut into chunks, each of which reads the weight again."""


def select(
    packed: Tensor,
    plan: SelectionPlan,
    head: ModelHead,
    rules: RowRules | None = None,
    with_final_entropies: bool = False,
    replays: ReplayedScans | None = None,
) -> Selection:
    """Choose a layer for each row and return its logits.

    Args:
        packed: ``[B, n*H]``, any strides, n = ``len(plan.depths)``; B may be 0.
        plan: What to select.
        head: The model's norm, head and entropy.
        rules: Of the rows; None = ``RowRules.of(plan)``.
        with_final_entropies: Also return ``final_entropies`` where a fixed layer needs none.
        replays: Graphs of this plan's scan; where they are used, the result is theirs until the next call.
    """
    n, rows = len(plan.depths), len(packed)
    if n == 1 or rows == 0:
        logits = head.project(packed[:, : packed.shape[1] // n].contiguous())
        depths = torch.zeros(rows, dtype=torch.int64, device=packed.device)
        return Selection(logits, depths, head.entropies(logits) if with_final_entropies else None)
    rules = rules or RowRules.of(plan)
    # p=0 is the regression setting: the scan runs, and the logits are those of the stock call.
    stock = head.project(packed[:, : packed.shape[1] // n].contiguous()) if plan.p == 0 else None
    chunk = _chunk_rows(plan, head)

    def part(rows: slice) -> Selection:
        some, own = packed[rows], rules[rows]
        if plan.fixed_depth is not None:
            return _fixed(some, plan, head, own, with_final_entropies)
        if head.rows_per_read is not None and head.counts_on_host:
            most = max(1, CHUNK_ELEMENTS // max(1, head.columns) - chunk)  # beside the final layer of a chunk
            selected = scan_in_rounds(some, plan, head, own, min(head.rows_per_read, most))
        else:
            # A second chunk would overwrite what a graph has returned for the first.
            known = replays.run(some, own, head) if replays is not None and len(packed) <= chunk else None
            selected = known or scan_on_device(some, plan, head, _schedule(len(some), plan, head), own)
        # With p = 0 every row is at the final layer, whatever the scan has found.
        return replace(selected, depths=torch.zeros_like(selected.depths), kept_back=None) if plan.p == 0 else selected

    if rows <= chunk:
        whole = part(slice(None))
        return whole if stock is None else replace(whole, logits=stock)
    result = stock
    all_depths: list[Tensor] = []
    final_entropies: list[Tensor | None] = []
    entropies: list[Tensor | None] = []
    top_ids: list[Tensor | None] = []
    kept_back: list[Tensor | None] = []
    for start in range(0, rows, chunk):
        selected = part(slice(start, start + chunk))
        if stock is None:
            if result is None:
                result = selected.logits.new_empty(rows, selected.logits.shape[1])
            result[start : start + chunk] = selected.logits
        all_depths.append(selected.depths)
        final_entropies.append(selected.final_entropies)
        entropies.append(selected.entropies)
        top_ids.append(selected.top_ids)
        kept_back.append(selected.kept_back)
        del selected  # its logits; the next chunk's are as large
    assert result is not None
    parts = (_join(found) for found in (final_entropies, entropies, top_ids, kept_back))
    return Selection(result, torch.cat(all_depths), *parts)


def warm_up(
    plan: SelectionPlan, head: ModelHead, row: Tensor, then: Callable[[Selection, RowRules], None] = lambda *_: None
) -> None:
    """Run every kernel in every form that a call may need.

    Args:
        plan: What to select.
        head: The model's operations.
        row: A packed row ``[1, n*H]``.
        then: What follows each call.
    """
    for rows in planner.warm_up_sizes(len(plan.depths), head.rows_per_read):
        packed = row.repeat(rows, 1)
        limits = torch.zeros(rows, dtype=torch.int32, device=row.device)
        for rules in (
            RowRules.of(replace(plan, p=1.0)),
            RowRules(plan.candidates, limits, plan.shift, plan.min_entropy),
            RowRules(plan.candidates, limits, limits, limits.float()),
        ):
            then(select(packed, replace(plan, p=1.0), head, rules, with_final_entropies=True), rules)


def replayed(plan: SelectionPlan, head: ModelHead, most: int, width: int, dtype: torch.dtype) -> ReplayedScans | None:
    """Graphs of the scan of up to ``most`` rows of ``width``, or None where the plan has no scan.

    Args:
        plan: What to select.
        head: With its ``weight``, whose device and number of columns count.
        most: B, of which no more than one chunk.
        width: n*H.
        dtype: Of the rows.
    """
    if plan.fixed_depth is not None or len(plan.depths) == 1 or head.weight is None:
        return None
    device = head.weight.device
    graphs = ReplayedScans(min(most, _chunk_rows(plan, head)), width, head.columns, dtype, device)

    def scan(packed: Tensor, limits: Tensor, logits: Tensor, head: ModelHead) -> Selection:
        rules = replace(RowRules.of(replace(plan, p=1.0)), limits=limits)
        return scan_on_device(packed, plan, head, _schedule(len(packed), plan, head), rules, logits)

    graphs.capture(scan, head)
    return graphs


def _schedule(rows: int, plan: SelectionPlan, head: ModelHead) -> planner.Schedule:
    return planner.schedule(rows, len(plan.depths), plan.window, head.rows_per_read)


def _join(pieces: list[Tensor | None]) -> Tensor | None:
    known = [piece for piece in pieces if piece is not None]
    return torch.cat(known, -1) if known else None


def _chunk_rows(plan: SelectionPlan, head: ModelHead) -> int:
    """Rows that are worked on at a time."""
    columns = max(1, head.columns)
    if plan.fixed_depth is not None:
        return max(1, CHUNK_ELEMENTS // (len(plan.depths) * columns))
    if head.rows_per_read is None:
        return _kernel_rows(CHUNK_ELEMENTS // (len(plan.depths) * columns))
    # A lazy scan holds a row's best logits and those of one round (at least two candidates).
    if head.counts_on_host:
        return max(1, CHUNK_ELEMENTS // (3 * columns))
    return _kernel_rows(LAZY_CHUNK_ELEMENTS // (3 * columns))


def _kernel_rows(rows: int) -> int:
    """As many as kernels take in one call; multiples of 4, so that int32 of the next chunk are aligned to 16 bytes."""
    return max(1, min(planner.MOST_ROWS, rows if rows < 4 else rows // 4 * 4))


def _fixed(
    packed: Tensor, plan: SelectionPlan, head: ModelHead, rules: RowRules, with_final_entropies: bool
) -> Selection:
    """``last-mK``: projects that layer, and the final one only where it can be returned or is logged.

    Rows whose layer is not finite keep the final one, whose state then takes the place of that layer's.
    """
    hidden = packed.shape[1] // 2
    final = None
    if isinstance(rules.limits, Tensor) or with_final_entropies:
        final = head.project(packed[:, :hidden].contiguous())
    entropies = head.entropies(final) if with_final_entropies and final is not None else None
    assert plan.fixed_depth is not None
    finite = packed[:, hidden:].isfinite().all(-1)
    depths = finite.to(torch.int64) * plan.fixed_depth
    normed = head.norm(packed[:, hidden:].contiguous())
    logits = head.project(torch.where(finite[:, None], normed, packed[:, :hidden]))
    if isinstance(rules.limits, Tensor) and final is not None:
        kept = rules.limits < 0
        depths = torch.where(kept, 0, depths)
        logits = torch.where(kept[:, None], final, logits)
    return Selection(logits, depths if plan.p else torch.zeros_like(depths), entropies)
