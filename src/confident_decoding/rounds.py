"""The lazy scan: project a candidate only for rows whose scan has reached it.

Depth d+1 matters only for rows whose entropy still fell at depth d. Rows are worked on in *rounds*:
each projects, for the rows that are still descending, as many further depths as one reading of the
head's weight pays for, keeps the best logits of each row, and drops rows whose scan has ended. The
number of rows in a round is read by the host, so this form is for devices where that costs nothing
(the CPU). Depths are those of the dense scan.
"""

import torch
from torch import Tensor

from confident_decoding.config import SelectionPlan
from confident_decoding.entropy import combine_top_ids
from confident_decoding.model_head import ModelHead, Selection
from confident_decoding.selection import RowRules, undo_shifts


def scan_in_rounds(
    packed: Tensor, plan: SelectionPlan, head: ModelHead, rules: RowRules, rows_per_read: int
) -> Selection:
    """Scan rows ``[B, n*H]`` in rounds of about ``rows_per_read`` projected candidates.

    Args:
        packed: Packed rows.
        plan: What to select; not a fixed layer.
        head: The model's norm, head and entropy.
        rules: Of the rows. Those that are kept at the final layer are not scanned.
        rows_per_read: See `planner`.

    Returns:
        As of the dense scan, but that ``entropies`` are NaN where the scan did not look.
    """
    scan = _Scan(packed, plan, head, rules)
    wanted = (scan.limits > 0).nonzero()[:, 0]
    # A threshold on the final layer's entropy must be known before any candidate is projected.
    depth = 0 if rules.holds_rows else min(_ahead(rows_per_read, wanted), plan.window)
    scanning = scan.start(wanted, depth)
    while depth < plan.window and len(scanning):
        ahead = min(_ahead(rows_per_read, scanning), plan.window - depth)
        scanning = scan.descend(scanning, depth + 1, ahead)
        depth += ahead
    depths, kept_back = rules.settle(scan.depths, scan.entropies, plan.window), None
    if rules.shifts_rows:
        depths, kept_back = undo_shifts(depths, scan.depths, scan.states)
    # p = 0 is the regression setting: its scan runs, and the caller returns the stock logits.
    logits = scan.logits_at(depths) if plan.p else scan.logits
    return Selection(logits, depths, scan.entropies[0], scan.entropies, scan.top_ids, kept_back)


def _ahead(rows_per_read: int, rows: Tensor) -> int:
    """Depths that one reading of the head's weight pays for, for each of ``rows``."""
    return max(1, rows_per_read // max(1, len(rows)))


class _Scan:
    """What is known of each row so far.

    Entropies and top ids ``[n, B]``, the trough ``[B]``, its logits ``[B, V/tp]``; the states ``[B, n, H]``.
    """

    def __init__(self, packed: Tensor, plan: SelectionPlan, head: ModelHead, rules: RowRules) -> None:
        self.states = packed.reshape(len(packed), len(plan.depths), packed.shape[1] // len(plan.depths))
        self._head, self._rules = head, rules
        shape, device = (len(plan.depths), len(packed)), packed.device
        self.entropies = torch.full(shape, torch.nan, dtype=torch.float32, device=device)
        self.top_ids = torch.full(shape, -1, dtype=torch.int32, device=device) if head.top_ids else None
        self.logits = packed.new_empty(0, 0)
        self.depths = torch.zeros(len(packed), dtype=torch.int64, device=packed.device)
        self.limits = rules.limits_of(self.depths).clamp(max=plan.window)

    def start(self, wanted: Tensor, ahead: int) -> Tensor:
        """Project depth 0 of all rows and, in the same reading of the weight, depths ``1 .. ahead`` of ``wanted``.

        Returns:
            Rows whose scan goes on.
        """
        rows, final = len(self.depths), self.states[:, 0]
        shares = ahead > 0 and len(wanted) > 0
        states = torch.cat([final, self._normed(wanted, 1, ahead)]) if shares else final.contiguous()
        logits = self._head.project(states)
        found, ids = self._head.measure(logits)
        self.entropies[0] = found[:rows]
        if self.top_ids is not None and ids is not None:
            self.top_ids[0] = ids[:rows]
        self.logits = logits[:rows].clone() if shares else logits
        if shares:
            return self._take(wanted, 1, logits[rows:], found[rows:], None if ids is None else ids[rows:])
        return wanted[~self._rules.held(self.entropies[0])[wanted]]

    def descend(self, scanning: Tensor, depth: int, ahead: int) -> Tensor:
        """Project depths ``depth .. depth+ahead-1`` of the rows ``scanning``; returns those that go on."""
        logits = self._head.project(self._normed(scanning, depth, ahead))
        return self._take(scanning, depth, logits, *self._head.measure(logits))

    def logits_at(self, depths: Tensor) -> Tensor:
        """Logits ``[B, V/tp]`` at ``depths``: those that were kept, projected anew where a shift asks for others."""
        moved = (depths != self.depths).nonzero()[:, 0]
        if len(moved):
            states = self.states[moved, depths[moved]]
            normed = self._head.norm(states.clone())
            self.logits[moved] = self._head.project(torch.where((depths[moved] == 0)[:, None], states, normed))
            if self.top_ids is not None:
                statistics = self._head.statistics(self.logits[moved])
                self.top_ids[depths[moved], moved] = combine_top_ids(statistics)
        return self.logits

    def _normed(self, rows: Tensor, depth: int, ahead: int) -> Tensor:
        raw = self.states[rows, depth : depth + ahead].transpose(0, 1)
        return self._head.norm(raw.reshape(-1, raw.shape[-1]).contiguous())

    def _take(self, rows: Tensor, depth: int, logits: Tensor, found: Tensor, ids: Tensor | None) -> Tensor:
        """Advance ``rows`` through ``found`` and ``ids`` ``[a * m]`` of ``logits``, of depths from ``depth`` on."""
        found = found.view(-1, len(rows))
        self.entropies[depth : depth + len(found), rows] = found
        if self.top_ids is not None and ids is not None:
            self.top_ids[depth : depth + len(found), rows] = ids.view(-1, len(rows))
        before = torch.cat([self.entropies[depth - 1, rows][None], found[:-1]])
        within = torch.arange(depth, depth + len(found))[:, None] <= self.limits[rows]
        steps = ((found < before) & within).to(torch.int64).cumprod(0).sum(0)
        moved = steps.nonzero()[:, 0]
        self.logits[rows[moved]] = logits[(steps[moved] - 1) * len(rows) + moved]
        self.depths[rows] += steps
        return rows[(steps == len(found)) & (self.limits[rows] >= depth + len(found))]
