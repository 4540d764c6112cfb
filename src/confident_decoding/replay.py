"""Scans as CUDA graphs: one launch a call, where launching the kernels would take the host a good part of a step.

A graph has fixed addresses and a fixed number of rows. So calls are rounded up to one of few sizes, of which
the rows beyond the batch are told to stay at the final layer; the packed rows are copied into the graphs' own
memory, and the logits come back in it: they are the caller's until the next call. Where the model's weights are
no longer where they were when a graph was made, its kernels are launched one by one, on the same rows and memory:
whether that is so can differ between tensor-parallel ranks, and what they exchange must not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from confident_decoding.model_head import ModelHead, Selection
from confident_decoding.selection import RowRules

Scan = Callable[[Tensor, Tensor, Tensor, ModelHead], Selection]
"""``(packed [b, n*H], limits [b], logits [b, V/tp], head) -> Selection`` with its logits in the third argument."""

ROWS_OF_ONE_READ = 64
"""Rows up to which a matrix product takes the time of reading its weight (H200, bf16: 0.298 ms for 8, 0.308 for 64)."""


@dataclass(frozen=True)
class Recording:
    """Something that can be done again on the same memory.

    Attributes:
        replay: Does it.
        selection: Where the results are.
    """

    replay: Callable[[], None]
    selection: Selection


def record(work: Callable[[], Selection], pool: Any) -> Recording:
    """A CUDA graph of ``work``, which has run before."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        selection = work()
    return Recording(graph.replay, selection)


class ReplayedScans:
    """Graphs of one scan for some numbers of rows.

    Args:
        most: Largest number of rows.
        width: n*H of a packed row.
        columns: V/tp.
        dtype: Of rows and logits. 16 bits: what vLLM does with such logits after this stream's work is done with
            them is done on copies in fp32.
        device: A CUDA device.
    """

    def __init__(self, most: int, width: int, columns: int, dtype: torch.dtype, device: torch.device) -> None:
        self.sizes = graph_sizes(most)
        self._packed = torch.zeros((most, width), dtype=dtype, device=device)
        self._limits = torch.full((most,), -1, dtype=torch.int32, device=device)
        self._logits = torch.empty((most, columns), dtype=dtype, device=device)
        self._graphs: dict[int, Recording] = {}
        self._weights: tuple[int, ...] = ()
        self._filled: tuple[int, int] | None = None
        self._scan: Scan

    def capture(self, scan: Scan, head: ModelHead) -> None:
        """Make the graphs, the largest first, so that the others fit into its memory."""
        self._scan = scan
        self._weights, pool = _addresses(head), torch.cuda.graph_pool_handle()
        for size in reversed(self.sizes):
            self._limits[:size] = 0
            work = partial(scan, self._packed[:size], self._limits[:size], self._logits[:size], head)
            work()  # compiles kernels, chooses algorithms
            self._graphs[size] = record(work, pool)
            self._limits.fill_(-1)

    def run(self, packed: Tensor, rules: RowRules, head: ModelHead) -> Selection | None:
        """Scan rows ``[B, n*H]``, or None if no graph is for them.

        Args:
            packed: The rows.
            rules: Of the rows. The graphs know limits of each row alone; shifts and thresholds are the plan's.
            head: Of this call.
        """
        rows = len(packed)
        size = next((size for size in self.sizes if size >= rows), None)
        if size not in self._graphs or size is None:
            return None
        if isinstance(rules.shifts, Tensor) or isinstance(rules.thresholds, Tensor):
            return None
        graph = self._graphs[size]
        self._packed[:rows] = packed
        self._fill_limits(rows, size, rules.limits)
        if _addresses(head) == self._weights:
            graph.replay()
            found = graph.selection
        else:
            found = self._scan(self._packed[:size], self._limits[:size], self._logits[:size], head)
        assert found.final_entropies is not None
        assert found.entropies is not None
        return Selection(
            self._logits[:rows],
            found.depths[:rows],
            found.final_entropies[:rows],
            found.entropies[:, :rows],
            None if found.top_ids is None else found.top_ids[:, :rows],
            None if found.kept_back is None else found.kept_back[:rows],
        )

    def _fill_limits(self, rows: int, size: int, limits: Tensor | int) -> None:
        filled = None if isinstance(limits, Tensor) else (rows, limits)
        if filled is not None and filled == self._filled:
            return  # as in the last step
        self._limits[:rows] = limits
        if size > rows:
            self._limits[rows:size] = -1
        self._filled = filled


def graph_sizes(most: int) -> list[int]:
    """Numbers of rows, ascending; ``most`` is the last.

    Up to ROWS_OF_ONE_READ twice the one before: until then a head is as fast for twice the rows. From there on
    at most a quarter more.
    """
    sizes, size = [], 1
    while size < most:
        sizes.append(size)
        size += size if size < ROWS_OF_ONE_READ else 1 << (size.bit_length() - 3)
    return [*sizes, most]


def _addresses(head: ModelHead) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in head.reads)
