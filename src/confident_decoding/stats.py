"""Selection statistics: added up on the device, copied out at the log interval, never waited for."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import sub

import torch
from torch import Tensor

from confident_decoding.config import SelectionPlan

SAMPLE_ROWS = 4


def new_counters(largest: int, device: torch.device) -> Tensor:
    """Counters ``[2, largest + 3]`` int64 of rows since the start; sampled rows, then prompt rows.

    Rows at depth 0, ..., at ``largest``; rows whose largest logit is another than at the final layer; rows that fell
    back (`RowRules.fell_back`). `kernels.twins.count` adds to them.
    """
    return torch.zeros((2, largest + 3), dtype=torch.int64, device=device)


@dataclass(frozen=True)
class Totals:
    """One row of the counters on the host.

    Attributes:
        by_depth: Rows at each depth from 0 on.
        changed: Rows whose largest logit is another than at the final layer.
        fell_back: Rows that a candidate which is no distribution has kept from going on.
    """

    by_depth: tuple[int, ...]
    changed: int
    fell_back: int

    @classmethod
    def of(cls, counters: Sequence[int]) -> "Totals":
        """From one row of the counters."""
        *by_depth, changed, fell_back = counters
        return cls(tuple(by_depth), changed, fell_back)

    def since(self, before: "Totals") -> "Totals":
        """What has come since ``before``."""
        by_depth = tuple(map(sub, self.by_depth, before.by_depth))
        return Totals(by_depth, self.changed - before.changed, self.fell_back - before.fell_back)

    @property
    def tokens(self) -> int:
        """Rows."""
        return sum(self.by_depth)

    @property
    def kept_at_final(self) -> int:
        """Rows at depth 0."""
        return self.by_depth[0]

    @property
    def depth_sum(self) -> int:
        """Sum of all depths."""
        return sum(depth * rows for depth, rows in enumerate(self.by_depth))

    @property
    def depth_max(self) -> int:
        """Largest depth; 0 without rows."""
        return max((depth for depth, rows in enumerate(self.by_depth) if rows), default=0)


@dataclass(frozen=True)
class Snapshot:
    """Counters on the host, of sampled rows.

    Attributes:
        step: Head calls with sampled rows since the start.
        totals: Since the start.
        sample: Up to 4 ``(depth, final layer's entropy in nats)`` of the last call.
    """

    step: int
    totals: Totals
    sample: tuple[tuple[int, float], ...]


class PendingSnapshot:
    """A snapshot on its way to the host: `ready` never blocks.

    Args:
        step: The step it was taken at.
        counters: As of `new_counters`; the sampled half is copied.
        depths: ``[B]`` of the last call.
        final_entropies: ``[B]`` fp32 nats of the last call.
    """

    def __init__(self, step: int, counters: Tensor, depths: Tensor, final_entropies: Tensor) -> None:
        self._step = step
        self._host = [_to_host(counters[0]), _to_host(depths[:SAMPLE_ROWS]), _to_host(final_entropies[:SAMPLE_ROWS])]
        self._event: torch.cuda.Event | None = None
        if counters.is_cuda:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def ready(self) -> bool:
        """True once the values have arrived."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def read(self) -> Snapshot:
        """The values (call it when `ready`)."""
        counts, depths, entropies = (tensor.tolist() for tensor in self._host)
        return Snapshot(self._step, Totals.of(counts), tuple(zip(depths, entropies, strict=True)))


def _to_host(values: Tensor) -> Tensor:
    if values.device.type == "cpu":
        return values.clone()
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    return host.copy_(values, non_blocking=True)


class LogLines:
    """The log lines of one model: snapshots on their way, and what the last line has told.

    Args:
        plan: For `format_line`.
        select_method: As well.
    """

    def __init__(self, plan: SelectionPlan, select_method: str) -> None:
        self._plan, self._select_method = plan, select_method
        self._pending: deque[PendingSnapshot] = deque()
        self._told = Totals((0,) * (plan.depths[-1] + 1), 0, 0)

    def take(self, step: int, counters: Tensor, depths: Tensor, final_entropies: Tensor) -> None:
        """A line is due: see `PendingSnapshot`."""
        self._pending.append(PendingSnapshot(step, counters, depths, final_entropies))

    def arrived(self) -> Iterator[str]:
        """Lines whose numbers have arrived. On a GPU that is while later steps are queued."""
        while self._pending and self._pending[0].ready():
            snapshot = self._pending.popleft().read()
            yield format_line(snapshot, self._told, self._plan, self._select_method)
            self._told = snapshot.totals


def format_line(snapshot: Snapshot, before: Totals, plan: SelectionPlan, select_method: str) -> str:
    """The log line, of the rows since ``before``.

    Layers are counted inside the candidates, the final one being ``layers - 1``.
    """
    layers, rows = plan.candidates, snapshot.totals.since(before)
    mean = rows.depth_sum / rows.tokens if rows.tokens else 0.0
    sample: Sequence[str] = [f"({layers - 1 - d}, {h:.2f})" for d, h in snapshot.sample]
    return (
        f"[trough-decoding] step={snapshot.step} tokens={rows.tokens} layers={layers} "
        f"select_method={select_method} p={plan.p:.2f} avg_selected_layer={layers - 1 - mean:.2f} "
        f"min_selected_layer={layers - 1 - rows.depth_max} avg_backtrack_depth={mean:.2f} "
        f"max_backtrack_depth={rows.depth_max} "
        f"tokens_kept_at_final={rows.kept_at_final}/{rows.tokens} sample=[{', '.join(sample)}]"
    )
