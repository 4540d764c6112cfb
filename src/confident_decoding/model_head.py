"""What the scan needs of a model, and what it returns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from confident_decoding.entropy import combine_statistics, entropies_of, merge_statistics, top_ids_of


class Statistics(Protocol):
    """Shard statistics of logits, of all vocabulary shards."""

    def __call__(self, logits: Tensor, count: Tensor | None = None) -> Tensor:
        """Statistics ``[R, m, 3]`` or ``[R, m, 4]`` fp32 (`entropy.shard_statistics`) of R shards, in rank order.

        Args:
            logits: ``[m, V/tp]`` as the head returned them. Soft cap and scale are applied here, and
                vocabulary padding is left out: the entropy is that of what sampling starts from.
            count: One int32 on the device: rows from it on may hold anything and need no result.
        """
        ...


@dataclass(frozen=True)
class RmsNorm:
    """An RMS norm that a kernel may compute beside reading the states.

    Attributes:
        weight: ``[H]``.
        eps: Added to the mean square.
        plus_one: Multiplies by ``1 + weight`` in fp32 (Gemma), not by ``weight`` in its dtype.
    """

    weight: Tensor
    eps: float
    plus_one: bool = False


@dataclass(frozen=True)
class ModelHead:
    """The model's own operations, on this rank.

    Attributes:
        norm: Final norm, ``[m, H]`` raw residual states to ``[m, H]``; may write to its argument.
        project: Output head, ``[m, H]`` normed states to logits ``[m, V/tp]``.
        statistics: Of ``project``'s logits.
        columns: V/tp, columns of ``project``'s result (for chunking).
        rows_per_read: Rows that ``project`` takes in about the time of reading its weight once (`planner`);
            None = project all candidates at once.
        counts_on_host: Whether the host may read how many rows are still scanning; if not, lazy rounds keep
            their counts on the device and need ``weight``.
        weight: ``[V/tp, H]``, the head as a plain matrix, or None if it is anything else.
        fused_norm: What ``norm`` computes if it is exactly that, else None.
        top_ids: Whether ``statistics`` says which ids have the largest logits (for metrics).
        reads: Every weight that ``norm`` and ``project`` read, where scans may be CUDA graphs: they hold addresses.
    """

    norm: Callable[[Tensor], Tensor]
    project: Callable[[Tensor], Tensor]
    statistics: Statistics
    columns: int
    rows_per_read: int | None = None
    counts_on_host: bool = True
    weight: Tensor | None = None
    fused_norm: RmsNorm | None = None
    top_ids: bool = False
    reads: tuple[Tensor, ...] = ()

    def entropies(self, logits: Tensor) -> Tensor:
        """Entropies ``[m]`` fp32 nats of ``project``'s logits, over the whole vocabulary."""
        return combine_statistics(self.statistics(logits))

    def measure(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """`entropies`, and with ``top_ids`` the ids ``[m]`` int32 of the largest logits."""
        merged = merge_statistics(self.statistics(logits))
        return entropies_of(merged), top_ids_of(merged) if self.top_ids else None


@dataclass(frozen=True)
class Selection:
    """The result of one call.

    Attributes:
        logits: ``[B, V/tp]`` of the selected layers, as ``project`` returned them. The caller's memory; of a replayed
            scan (`replay`) until the next call.
        depths: ``[B]`` int64, after mixing.
        final_entropies: ``[B]`` fp32 nats at depth 0, or None where they were not asked for.
        entropies: ``[n, B]`` fp32 nats at each captured depth, NaN where a lazy scan did not look, or None
            for a fixed layer.
        top_ids: ``[n, B]`` int32, ids of the largest logits at depth 0, at ``depths`` and wherever else the scan
            looked; None where they were not asked for (`ModelHead.top_ids`) and for a fixed layer.
        kept_back: ``[B]`` bool, rows that keep their trough because a shift asked for a state that is not finite;
            None where nothing shifts, and of a dense scan on a device without ``top_ids`` (nobody counts them).
    """

    logits: Tensor
    depths: Tensor
    final_entropies: Tensor | None
    entropies: Tensor | None = None
    top_ids: Tensor | None = None
    kept_back: Tensor | None = None
