"""From troughs to selected depths: each row's limit, shift and threshold, and mixing (pure torch)."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from confident_decoding.config import SelectionPlan

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB


@dataclass(frozen=True)
class RowRules:
    """How the rows of one call are selected: numbers where all rows are alike, tensors ``[B]`` where they differ.

    Attributes:
        candidates: L, depths ``0 .. L-1`` may be selected.
        limits: Largest depth that the scan of a row may reach (int32). 0 = no scan; -1 = the final layer, whatever
            the shift.
        shifts: Added to the trough (+ = farther back, int32), then clamped to ``[0, L-1]``.
        thresholds: Rows whose final entropy (fp32 nats) is at or under it stay at the final layer; 0 = none.
    """

    candidates: int
    limits: Tensor | int
    shifts: Tensor | int = 0
    thresholds: Tensor | float = 0.0

    @classmethod
    def of(cls, plan: SelectionPlan, draws: Tensor | None = None) -> "RowRules":
        """The plan's rules for all rows; with ``0 < plan.p < 1``, rows are kept at the final layer by ``draws``.

        With p = 0, the regression setting, rows are scanned like any others: the caller discards the result.

        Args:
            plan: The method.
            draws: ``[B]`` float64 in ``[0, 1)``.

        Raises:
            ValueError: ``0 < plan.p < 1`` without draws.
        """
        rules = cls(plan.candidates, plan.window, plan.shift, plan.min_entropy)
        return rules.mixed(draws, plan.p) if 0 < plan.p < 1 else rules

    def mixed(self, draws: Tensor | None, p: Tensor | float) -> "RowRules":
        """Keep each row with probability 1 - p at the final layer: selected if its draw ``u < p``.

        Args:
            draws: ``[B]`` float64 in ``[0, 1)``.
            p: Of all rows, or ``[B]`` float64.

        Raises:
            ValueError: There are no draws.
        """
        if draws is None:
            raise ValueError("mixing with 0 < p < 1 needs one draw a row")
        return replace(self, limits=torch.where(draws < p, self.limits, -1).to(torch.int32))

    @property
    def holds_rows(self) -> bool:
        """Whether some rows may end at depth 0 by a threshold."""
        return isinstance(self.thresholds, Tensor) or self.thresholds > 0

    @property
    def shifts_rows(self) -> bool:
        """Whether some rows may select another depth than their trough."""
        return isinstance(self.shifts, Tensor) or self.shifts != 0

    def __getitem__(self, rows: slice) -> "RowRules":
        """The rules of some of the rows."""

        def some(value: Any) -> Any:
            return value[rows] if isinstance(value, Tensor) else value

        return replace(self, limits=some(self.limits), shifts=some(self.shifts), thresholds=some(self.thresholds))

    def limits_of(self, like: Tensor) -> Tensor:
        """`limits` as a tensor ``[B]`` int64 beside ``like`` ``[B]``."""
        if isinstance(self.limits, Tensor):
            return self.limits.long()
        return torch.full_like(like, self.limits, dtype=torch.int64)  # no copy from the host, which would wait

    def held(self, final_entropies: Tensor) -> Tensor:
        """``[B]`` bool: rows that their final entropies keep at the final layer (a NaN keeps none)."""
        if isinstance(self.thresholds, Tensor):
            return (self.thresholds > 0) & (final_entropies <= self.thresholds)
        if self.thresholds == 0:
            return torch.zeros_like(final_entropies, dtype=torch.bool)
        return final_entropies <= self.thresholds

    def fell_back(self, troughs: Tensor, entropies: Tensor, window: int) -> Tensor:
        """``[B]`` bool: rows whose scan ended where it did because a candidate's entropy is NaN.

        Args:
            troughs: ``[B]`` int64, where the scans ended.
            entropies: ``[n, B]`` fp32 nats; NaN also where nothing has looked, which is beyond where a scan ends.
            window: Largest depth of any scan.
        """
        following = entropies.gather(0, (troughs + 1).clamp(max=len(entropies) - 1)[None])[0]
        limits = self.limits.clamp(max=window) if isinstance(self.limits, Tensor) else min(self.limits, window)
        ended = (troughs < limits) & (entropies[0].isnan() | following.isnan())
        return ended & ~self.held(entropies[0]) if self.holds_rows else ended

    def settle(self, troughs: Tensor, entropies: Tensor, window: int, complete: bool = False) -> Tensor:
        """From troughs to the depths that are selected, ``[B]`` int64: shifts, thresholds, and rows that are kept.

        Rows that fell back are not shifted: that could select the very candidate that is no distribution.

        Args:
            troughs: See `fell_back`.
            entropies: As well.
            window: As well.
            complete: All entropies are known, so that no row is shifted to where one is NaN. Elsewhere `undo_shifts`
                sees to that.
        """
        depths = troughs
        if self.shifts_rows:
            shifts = torch.where(self.fell_back(troughs, entropies, window), 0, self.shifts)
            depths = (depths + shifts).clamp(0, self.candidates - 1)
            if complete:
                depths = torch.where(entropies.gather(0, depths[None])[0].isnan(), troughs, depths)
        if self.holds_rows:
            depths = torch.where(self.held(entropies[0]), 0, depths)
        return torch.where(self.limits < 0, 0, depths) if isinstance(self.limits, Tensor) else depths


def undo_shifts(depths: Tensor, troughs: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """Keep rows at their trough whose shift asks for a layer that the scan may not have looked at, and is not finite.

    Args:
        depths: ``[B]`` int64, after `RowRules.settle`.
        troughs: ``[B]`` int64.
        states: ``[B, n, H]``.

    Returns:
        Depths, and which rows were kept back (``[B]`` bool).
    """
    asked = states.gather(1, depths[:, None, None].expand(-1, 1, states.shape[2]))
    kept_back = (depths != troughs) & ~asked[:, 0].isfinite().all(-1)
    return torch.where(kept_back, troughs, depths), kept_back


def hashed_draws(rows: Tensor, *keys: int | Tensor) -> Tensor:
    """Uniform draws that depend on nothing but their keys: equal on every rank, no generator.

    Chained splitmix64 finalisers (Steele, Lea, Flood 2014) over the keys, then over ``rows``.

    Args:
        rows: ``[B]`` int64, what tells the draws of one call apart.
        keys: Whole numbers that tell calls apart, such as a seed and a call counter; and then ``[B]`` int64, one a row.

    Returns:
        ``[B]`` float64 in ``[0, 1)``, multiples of 2**-53.
    """
    state = _GOLDEN
    for key in keys:
        if not isinstance(key, Tensor):
            state = _finalise(state ^ (key & _MASK64))
    own = [key for key in keys if isinstance(key, Tensor)]
    bits = torch.full_like(rows, as_int64(state))
    for values in (*own, rows):
        bits = _finalise_tensor(values ^ bits)
    return _shift_right(bits, 11).to(torch.float64) * 2.0**-53


def _finalise(z: int) -> int:
    z = (z + _GOLDEN) & _MASK64
    z = ((z ^ (z >> 30)) * _MIX_A) & _MASK64
    z = ((z ^ (z >> 27)) * _MIX_B) & _MASK64
    return z ^ (z >> 31)


def _finalise_tensor(z: Tensor) -> Tensor:
    # int64 multiplication and addition wrap, as the 64-bit definition wants.
    z = z + as_int64(_GOLDEN)
    z = (z ^ _shift_right(z, 30)) * as_int64(_MIX_A)
    z = (z ^ _shift_right(z, 27)) * as_int64(_MIX_B)
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's ``>>`` on int64 is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def as_int64(value: int) -> int:
    """The int64 whose bits are the lowest 64 of a whole number."""
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value
