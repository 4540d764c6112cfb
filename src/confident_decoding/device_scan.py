"""The scan where the host may not look: sizes are fixed before, counts stay on the device.

The first round projects depth 0, and as many further depths as `planner.schedule` says, by the model's own
head call: all of them (*dense*), or few. The rounds that follow project candidates of the rows that are still
descending; what they find decides which rows and depths the next one works on. A round with nothing left
costs the launch of its kernels.
"""

import torch
from torch import Tensor

from confident_decoding.config import SelectionPlan
from confident_decoding.kernels import Operations, operations
from confident_decoding.kernels.types import ROWS, Candidates, FirstCandidates, Round, Rule
from confident_decoding.model_head import ModelHead, Selection
from confident_decoding.planner import Schedule
from confident_decoding.selection import RowRules


def scan_on_device(
    packed: Tensor,
    plan: SelectionPlan,
    head: ModelHead,
    schedule: Schedule,
    rules: RowRules,
    logits: Tensor | None = None,
) -> Selection:
    """Scan rows ``[B, n*H]``, B > 0.

    Args:
        packed: Packed rows.
        plan: What to select; not a fixed layer.
        head: The model's operations; ``weight`` is needed if the schedule has rounds.
        schedule: `planner.schedule` for these rows.
        rules: Of the rows, which the plan's ``p``, shift and threshold have become part of.
        logits: ``[B, V/tp]`` to be filled with the result, or None for new memory.

    Returns:
        As of `scan.select`.
    """
    return _Scan(packed, plan, head, schedule, rules).run(logits)


class _Scan:
    """One call."""

    def __init__(
        self, packed: Tensor, plan: SelectionPlan, head: ModelHead, schedule: Schedule, rules: RowRules
    ) -> None:
        self._packed, self._plan, self._head, self._schedule = packed, plan, head, schedule
        self._operations: Operations = operations(packed.device)
        self._rule = Rule(plan.window, schedule.rows_per_read, rules)
        shape, device = (len(plan.depths), len(packed)), packed.device
        self._entropies = torch.full(shape, torch.nan, dtype=torch.float32, device=device)
        self._top_ids = torch.full(shape, -1, dtype=torch.int32, device=device) if head.top_ids else None
        self._depths = torch.empty(shape[1], dtype=torch.int64, device=device)
        self._kept_back: Tensor | None = None

    def run(self, result: Tensor | None) -> Selection:
        """The whole scan; its logits are in ``result`` if that is given."""
        schedule = self._schedule
        rounds = self._rooms(schedule.rounds, schedule.capacity)
        logits = self._first_round(rounds[0] if rounds else None, result)
        for number, candidates in enumerate(rounds):
            states = self._gather(candidates)
            found = self._project(states if self._head.fused_norm else self._head.norm(states), candidates)
            following = rounds[number + 1] if number + 1 < len(rounds) else None
            source = self._decide(found, candidates, following)
            self._operations.keep(found, source, candidates, logits)
            del found  # the next round's are as large
        if self._rule.rows.shifts_rows:
            if 1 + schedule.first < len(self._plan.depths):
                self._relocate(logits)
            elif self._head.top_ids:  # only metrics ask
                self._kept_back = self._not_shifted()
        if result is not None and logits is not result:
            logits = result.copy_(logits)
        return Selection(logits, self._depths, self._entropies[0], self._entropies, self._top_ids, self._kept_back)

    def _first_round(self, following: Candidates | None, result: Tensor | None) -> Tensor:
        first = FirstCandidates(len(self._packed), 1 + self._schedule.first)
        states = self._first_states(first)
        if result is not None and first.ahead == 1 and self._head.weight is not None:
            projected = torch.mm(states, self._head.weight.T, out=result)  # no copy at the end
        else:
            projected = self._head.project(states)
        source = self._decide(projected, first, following)
        if first.ahead == 1:
            return projected
        logits = projected.new_empty(first.batch, projected.shape[1]) if result is None else result
        self._operations.keep(projected, source, first, logits)
        return logits

    def _first_states(self, first: FirstCandidates) -> Tensor:
        if first.ahead == 1:
            return self._packed[:, : self._packed.shape[1] // len(self._plan.depths)].contiguous()
        states = self._gather(first)
        if self._head.fused_norm is not None:
            return states
        return torch.cat([states[: first.batch], self._head.norm(states[first.batch :].contiguous())])

    def _gather(self, candidates: Round, depths: Tensor | None = None) -> Tensor:
        return self._operations.gather(self._packed, len(self._plan.depths), candidates, self._head.fused_norm, depths)

    def _project(self, states: Tensor, candidates: Candidates) -> Tensor:
        """Logits ``[capacity, V/tp]`` of a later round's candidates."""
        assert self._head.weight is not None
        return self._operations.project(states, self._head.weight, candidates)

    def _decide(self, logits: Tensor, candidates: Round, following: Candidates | None) -> Tensor:
        statistics = self._head.statistics(logits, candidates.count)
        return self._operations.decide(
            statistics, candidates, following, self._entropies, self._depths, self._rule, self._top_ids
        )

    def _not_shifted(self) -> Tensor:
        """Rows of a dense scan that were not shifted because the entropy there is NaN."""
        rules, entropies, window = self._rule.rows, self._entropies, self._rule.window
        falls = (entropies[1:] < entropies[:-1]).long().cumprod(0).sum(0)
        troughs = torch.minimum(falls, rules.limits_of(falls).clamp(0, window))
        troughs = torch.where(rules.held(entropies[0]), 0, troughs)
        return rules.settle(troughs, entropies, window) != self._depths

    def _relocate(self, logits: Tensor) -> None:
        """Project the rows whose method asks for another depth than the trough that the scan has kept."""
        batch, troughs = len(self._packed), self._depths
        (moved,) = self._rooms(1, batch)
        depths = self._operations.relocate(troughs, self._entropies, moved, self._rule)
        slots = torch.arange(batch, dtype=torch.int32, device=logits.device)
        states = self._gather(moved, depths)
        # As `selection.undo_shifts`. The normed state is finite where the state is.
        finite = states.isfinite().all(-1)
        undone = torch.where((slots < moved.work[ROWS]) & ~finite, moved.rows, batch).long()
        kept_back = torch.zeros(batch + 1, dtype=torch.bool, device=logits.device).scatter_(0, undone, True)[:batch]
        if self._head.fused_norm is None:
            rows = torch.where(slots < moved.work[ROWS], moved.rows, 0)
            final = depths[rows] == 0
            states = torch.where(final[:, None], states, self._head.norm(states.clone()))
        found = self._project(states, moved)
        self._operations.keep(found, torch.where(finite, slots, -1), moved, logits)
        if self._top_ids is not None:
            statistics = self._head.statistics(found, moved.count)
            self._operations.name_moved(statistics, moved, depths, self._top_ids)
        self._depths, self._kept_back = torch.where(kept_back, troughs, depths), kept_back

    def _rooms(self, rounds: int, capacity: int) -> list[Candidates]:
        return Candidates.empty(rounds, capacity, len(self._packed), self._packed.device) if rounds else []
