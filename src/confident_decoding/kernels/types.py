"""What the operations of a round share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from confident_decoding.selection import RowRules

ROWS, FIRST, AHEAD, TOTAL = range(4)
"""Places in `Candidates.work`."""


@dataclass(frozen=True)
class Candidates:
    """The candidates of a round: depths ``first .. first+ahead-1`` of m rows, depth by depth.

    Candidate ``a * m + i`` of the ``m * ahead`` is depth ``first + a`` of row ``rows[i]``.

    Attributes:
        capacity: Most candidates; the number of rows of the tensors that hold their states and logits.
        rows: ``[B]`` int32, row numbers, of which the first m count.
        work: ``[4]`` int32 on the device: m, first, ahead, ``m * ahead``.
    """

    capacity: int
    rows: Tensor
    work: Tensor

    @property
    def count(self) -> Tensor:
        """``[1]`` int32: how many there are."""
        return self.work[TOTAL:]

    @classmethod
    def empty(cls, rounds: int, capacity: int, rows: int, device: torch.device) -> "list[Candidates]":
        """Room for the candidates of rounds of at most ``rows`` rows, in one piece of memory."""
        # Both tensors of a round begin at addresses that kernels may take to be multiples of 16.
        held = torch.empty((rounds, 4 + (rows + 3) // 4 * 4), dtype=torch.int32, device=device)
        return [cls(capacity, one[4 : 4 + rows], one[:4]) for one in held]


@dataclass(frozen=True)
class FirstCandidates:
    """The candidates of the first round: depths ``0 .. ahead-1`` of all rows in order, known to the host.

    Attributes:
        batch: B.
        ahead: Depths, the final one included.
    """

    batch: int
    ahead: int

    @property
    def capacity(self) -> int:
        """How many there are."""
        return self.batch * self.ahead

    count = None
    """All of them need a result."""


Round = FirstCandidates | Candidates


@dataclass(frozen=True)
class Rule:
    """What ends the scan of a call's rows.

    Attributes:
        window: Largest depth that any row's scan may reach.
        rows_per_read: For the following round (`planner.look_ahead`).
        rows: What each row may do.
    """

    window: int
    rows_per_read: int
    rows: RowRules
