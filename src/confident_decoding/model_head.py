"""What the scan needs of a model, and what it returns."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ModelHead:
    """The model's own operations, on this rank.

    Attributes:
        norm: Final norm, ``[m, H]`` raw residual states to ``[m, H]``.
        project: Output head, ``[m, H]`` normed states to logits ``[m, V/tp]``.
        entropies: Logits ``[m, V/tp]`` to ``[m]`` fp32 nats over the whole vocabulary, of the
            distribution that sampling starts from (soft cap and scale included).
        columns: V/tp, columns of ``project``'s result (for chunking).
        rows_per_read: Rows that ``project`` takes in about the time of reading its weight once, where the
            host may look at results between calls (`planner`); None = project all candidates at once.
    """

    norm: Callable[[Tensor], Tensor]
    project: Callable[[Tensor], Tensor]
    entropies: Callable[[Tensor], Tensor]
    columns: int
    rows_per_read: int | None = None


@dataclass(frozen=True)
class Selection:
    """The result of one call.

    Attributes:
        logits: ``[B, V/tp]`` of the selected layers, as ``project`` returned them; private memory.
        depths: ``[B]`` int64, after mixing.
        final_entropies: ``[B]`` fp32 nats at depth 0, or None where they were not asked for.
        entropies: ``[n, B]`` fp32 nats at each captured depth, NaN where a lazy scan did not look, or None
            for a fixed layer.
    """

    logits: Tensor
    depths: Tensor
    final_entropies: Tensor | None
    entropies: Tensor | None = None
