"""Selection statistics: added up on the device, copied out at the log interval, never waited for."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from confident_decoding.config import SelectionPlan

SAMPLE_ROWS = 4
_TOKENS, _KEPT, _DEPTH_SUM, _DEPTH_MAX = range(4)
COUNTERS = 4


def new_counters(device: torch.device) -> Tensor:
    """Counters ``[2, 4]`` int64, sampled rows then prompt rows: tokens, kept at final, depth sum, depth max."""
    return torch.zeros((2, COUNTERS), dtype=torch.int64, device=device)


def count(counters: Tensor, depths: Tensor, prompt: bool) -> None:
    """Add the depths ``[B]`` of one call to the counters, in place and on their device."""
    if len(depths) == 0:
        return
    row = counters[int(prompt)]
    row[_TOKENS] += len(depths)
    row[_KEPT] += (depths == 0).sum()
    row[_DEPTH_SUM] += depths.sum()
    row[_DEPTH_MAX] = torch.maximum(row[_DEPTH_MAX], depths.max())


@dataclass(frozen=True)
class Snapshot:
    """Counters on the host, of sampled rows since the previous snapshot.

    Attributes:
        step: Head calls with sampled rows since the start.
        tokens: Rows among them.
        kept_at_final: Rows at depth 0.
        depth_sum: Sum of all depths.
        depth_max: Largest depth.
        sample: Up to 4 ``(depth, final layer's entropy in nats)`` of the last call.
    """

    step: int
    tokens: int
    kept_at_final: int
    depth_sum: int
    depth_max: int
    sample: tuple[tuple[int, float], ...]


class PendingSnapshot:
    """A snapshot on its way to the host: `ready` never blocks.

    Args:
        step: The step it was taken at.
        counters: ``[2, 4]`` device counters; the sampled half is reset here.
        depths: ``[B]`` of the last call.
        final_entropies: ``[B]`` fp32 nats of the last call.
    """

    def __init__(self, step: int, counters: Tensor, depths: Tensor, final_entropies: Tensor) -> None:
        self._step = step
        self._host = [_to_host(counters[0]), _to_host(depths[:SAMPLE_ROWS]), _to_host(final_entropies[:SAMPLE_ROWS])]
        counters[0].zero_()
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
        return Snapshot(
            self._step,
            counts[_TOKENS],
            counts[_KEPT],
            counts[_DEPTH_SUM],
            counts[_DEPTH_MAX],
            tuple(zip(depths, entropies, strict=True)),
        )


def _to_host(values: Tensor) -> Tensor:
    if values.device.type == "cpu":
        return values.clone()
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    return host.copy_(values, non_blocking=True)


def format_line(snapshot: Snapshot, plan: SelectionPlan, select_method: str) -> str:
    """The log line; layers are counted inside the candidates, the final one being ``layers - 1``."""
    layers, tokens = plan.candidates, snapshot.tokens
    mean = snapshot.depth_sum / tokens if tokens else 0.0
    sample: Sequence[str] = [f"({layers - 1 - d}, {h:.2f})" for d, h in snapshot.sample]
    return (
        f"[trough-decoding] step={snapshot.step} tokens={tokens} layers={layers} "
        f"select_method={select_method} p={plan.p:.2f} avg_selected_layer={layers - 1 - mean:.2f} "
        f"min_selected_layer={layers - 1 - snapshot.depth_max} avg_backtrack_depth={mean:.2f} "
        f"max_backtrack_depth={snapshot.depth_max} "
        f"tokens_kept_at_final={snapshot.kept_at_final}/{tokens} sample=[{', '.join(sample)}]"
    )
