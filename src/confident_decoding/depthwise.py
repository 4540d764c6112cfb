"""The scan where only whole calls of B plain rows are possible: one head call per candidate.

A LoRA output head takes exactly the rows that the batch samples, and returns finished logits. So each
candidate is a call of its own, and the best logits of each row are kept as the scan goes on. Nothing
here waits for the device, and the number of ``[B, V]`` tensors alive does not grow with the candidates.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from confident_decoding.config import SelectionPlan
from confident_decoding.model_head import ModelHead, Selection
from confident_decoding.selection import RowRules, undo_shifts

_Measured = tuple[Tensor, Tensor | None]
"""`ModelHead.measure` of one depth."""


def select_depthwise(
    packed: Tensor,
    plan: SelectionPlan,
    head: ModelHead,
    rules: RowRules | None = None,
    with_final_entropies: bool = False,
) -> Selection:
    """Choose a layer for each row and return its logits.

    Args:
        packed: ``[B, n*H]``.
        plan: What to select.
        head: The model's norm; ``project`` returns finished logits ``[B, V]`` and is called with all B rows,
            contiguous, each time; ``statistics`` takes those.
        rules: Of the rows; None = ``RowRules.of(plan)``.
        with_final_entropies: Also return ``final_entropies`` where a fixed layer needs none.
    """
    n, rows = len(plan.depths), len(packed)
    rules = rules or RowRules.of(plan)
    states = packed.reshape(rows, n, packed.shape[1] // n)

    def logits_at(place: int) -> Tensor:
        state = states[:, place].contiguous()
        return head.project(head.norm(state.clone()) if place else state)

    if plan.fixed_depth is not None:
        # As in `scan.select`: a row whose layer is not finite keeps the final one.
        finite = states[:, 1].isfinite().all(-1)
        depths = finite.to(torch.int64) * plan.fixed_depth

        def fixed() -> Tensor:
            return head.project(torch.where(finite[:, None], head.norm(states[:, 1].contiguous()), states[:, 0]))

        if isinstance(rules.limits, Tensor):
            depths = torch.where(rules.limits < 0, 0, depths)
        elif plan.p == 1 and not with_final_entropies:
            return Selection(fixed(), depths, None)
        final = logits_at(0)
        depths = depths if plan.p else torch.zeros_like(depths)
        logits = torch.where((depths == 0)[:, None], final, fixed()) if plan.p else final
        return Selection(logits, depths, head.entropies(final) if with_final_entropies else None)
    found = [head.measure(final := logits_at(0))]
    troughs, kept = _scan(plan.window, rules.limits_of(found[0][0]), final, found, logits_at, head.measure)
    entropies = torch.stack([h for h, _ in found])
    depths, kept_back = rules.settle(troughs, entropies, plan.window) if plan.p else torch.zeros_like(troughs), None
    if rules.shifts_rows and plan.p:  # other logits than those that the scan kept
        depths, kept_back = undo_shifts(depths, troughs, states)
        for place, depth in enumerate(plan.depths[1:], start=1):
            shifted = logits_at(place)
            kept = torch.where((depths == depth)[:, None], shifted, kept)
            if head.top_ids and place == len(found):
                found.append(head.measure(shifted))
    logits = torch.where((depths == 0)[:, None], final, kept) if plan.p else final
    top_ids = torch.stack([ids for _, ids in found if ids is not None]) if head.top_ids else None
    return Selection(logits, depths, entropies[0], entropies, top_ids, kept_back)


def _scan(
    window: int,
    limits: Tensor,
    final: Tensor,
    found: list[_Measured],
    logits_at: Callable[[int], Tensor],
    measure: Callable[[Tensor], _Measured],
) -> tuple[Tensor, Tensor]:
    """Troughs ``[B]`` and their logits; appends what is measured of each depth to ``found``."""
    descending = torch.ones_like(limits, dtype=torch.bool)
    troughs, kept = torch.zeros_like(limits), final
    for depth in range(1, window + 1):
        logits = logits_at(depth)
        found.append(measure(logits))
        descending = descending & (found[-1][0] < found[-2][0]) & (depth <= limits)
        troughs = troughs + descending
        kept = torch.where(descending[:, None], logits, kept)
    return troughs, kept
