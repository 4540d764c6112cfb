"""The recorder: while the selecting head chooses, keep what every candidate of every row is.

It lets `scan.select` run in its dense form, and listens where the head's entropies are computed, so what is
recorded is what was chosen from. Nothing is projected twice.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confident_decoding import scan
from confident_decoding.config import SelectionPlan
from confident_decoding.entropy import merge_statistics
from confident_decoding.model_head import ModelHead, Selection
from confident_decoding.plugin.rows import Rows
from confident_decoding.selection import RowRules

TOPS = 5
"""Best tokens that are kept of each candidate, where any are."""
_BLOCK = 1 << 10


@dataclass(frozen=True)
class Seen:
    """What was recorded of B rows at n depths, on the host.

    Attributes:
        entropies: ``[B, n]`` fp32 nats.
        best: ``[B, n]`` int32, the most probable token at each depth (the smallest id of equals).
        depths: ``[B]`` int16, what the head selected.
        top_tokens: ``[B', n, 5]`` int32, of the first B' rows only (`Recorder.tops_left`).
        top_probabilities: ``[B', n, 5]`` fp32, descending.
    """

    entropies: NDArray[np.float32]
    best: NDArray[np.int32]
    depths: NDArray[np.int16]
    top_tokens: NDArray[np.int32]
    top_probabilities: NDArray[np.float32]


class Recorder:
    """Stands in for the scan of a `plugin.head.SelectingHead` (its ``recorder``); for one rank that holds the head.

    Attributes:
        wanted: The kind of rows that are recorded; None = none, and the head works as ever.
        tops_left: Rows whose best tokens are still to be kept.
    """

    def __init__(self) -> None:
        self.wanted: Rows | None = None
        self.tops_left = 0
        self._seen: list[Seen] = []
        self._project: Callable[[Tensor], Tensor] | None = None
        self._like: Tensor | None = None

    def wants(self, rows: Rows | None) -> bool:
        """Whether calls of such rows are recorded."""
        return rows is not None and rows == self.wanted

    def select(
        self,
        packed: Tensor,
        model_head: ModelHead,
        finish: Callable[[Tensor], Tensor],
        plan: SelectionPlan,
        rules: RowRules,
        with_final_entropies: bool,
    ) -> Selection:
        """Select for rows ``[B, n*H]``, B > 0, n > 1, as the head would, and record them.

        Args:
            packed: Packed rows.
            model_head: The model's operations.
            finish: The head's logits to what sampling starts from: columns of the true vocabulary, cap, scale.
            plan: What to select; not a fixed layer.
            rules: Of the rows.
            with_final_entropies: They always are returned.
        """
        n = len(plan.depths)
        tap = _Tap(model_head, finish, n, min(self.tops_left, len(packed)))
        # All candidates at once. On a CPU the model's own norm, which is what the rounds there use.
        fused = model_head.fused_norm if packed.is_cuda else None
        dense = replace(model_head, rows_per_read=None, statistics=tap, fused_norm=fused)
        selection = scan.select(packed, plan, dense, rules, with_final_entropies)
        assert selection.entropies is not None
        self.tops_left -= tap.tops
        self._seen.append(tap.seen(selection.entropies, selection.depths))
        self._project, self._like = model_head.project, packed.new_empty(0, packed.shape[1] // n)
        return selection

    def take(self) -> Seen:
        """What was recorded since the last time, in the order of the rows.

        Raises:
            RuntimeError: Nothing was.
        """
        if not self._seen:
            raise RuntimeError("confident-decoding: no row reached the recorder")
        seen, self._seen = self._seen, []
        return Seen(*(np.concatenate([getattr(part, name) for part in seen]) for name in Seen.__dataclass_fields__))

    def head_flops_per_second(self, states: int, repeats: int = 3) -> float:
        """The rate of the output head's matrix product alone, on this machine, now.

        Args:
            states: Rows of the product, ``[states, H]``.
            repeats: The median of so many.

        Raises:
            RuntimeError: Nothing has been recorded, so the head is not known.
        """
        if self._project is None or self._like is None:
            raise RuntimeError("confident-decoding: no row reached the recorder")
        x = torch.randn(states, self._like.shape[1], device=self._like.device).to(self._like.dtype)
        seconds = []
        with torch.inference_mode():
            columns = self._project(x[:1]).shape[1]
            for _ in range(repeats):
                _wait(x)
                start = time.perf_counter()
                self._project(x)
                _wait(x)
                seconds.append(time.perf_counter() - start)
        return 2 * states * x.shape[1] * columns / float(np.median(seconds))


@dataclass
class _Tap:
    """Statistics of one call, that keep what the logits say: chunk after chunk of ``[n * m, V]``, depth by depth.

    Attributes:
        head: Whose statistics they are.
        finish: See `Recorder.select`.
        n: Depths.
        tops: Rows, from the first on, whose best tokens are kept.
    """

    head: ModelHead
    finish: Callable[[Tensor], Tensor]
    n: int
    tops: int
    _rows: int = 0
    _best: list[Tensor] = field(default_factory=list)
    _top_tokens: list[Tensor] = field(default_factory=list)
    _top_probabilities: list[Tensor] = field(default_factory=list)

    def __call__(self, logits: Tensor, count: Tensor | None = None) -> Tensor:
        parts = self.head.statistics(logits, count)
        x = self.finish(logits)
        rows = len(x) // self.n
        self._best.append(_argmax(x).view(self.n, rows).T)
        wanted = max(0, min(rows, self.tops - self._rows))
        if wanted:
            m, s, _ = merge_statistics(parts).view(self.n, rows, 3)[:, :wanted].unbind(-1)
            values, tokens = x.view(self.n, rows, -1)[:, :wanted].topk(TOPS)
            probabilities = (values.float() - m[..., None]).exp() / s[..., None]
            self._top_tokens.append(tokens.transpose(0, 1))
            self._top_probabilities.append(probabilities.transpose(0, 1))
        self._rows += rows
        return parts

    def seen(self, entropies: Tensor, depths: Tensor) -> Seen:
        """All rows of the call: its entropies ``[n, B]`` and depths ``[B]`` beside what was kept."""
        empty = torch.empty(0, self.n, TOPS)
        return Seen(
            _numpy(entropies.T, np.float32),
            _numpy(torch.cat(self._best), np.int32),
            _numpy(depths, np.int16),
            _numpy(torch.cat(self._top_tokens or [empty]), np.int32),
            _numpy(torch.cat(self._top_probabilities or [empty]), np.float32),
        )


def _argmax(x: Tensor) -> Tensor:
    """``x.argmax(-1)`` of ``[m, V]``, the first of equals: in two steps, because torch's maximum is vectorised on a CPU
    and its argmax is not (here 0.02 ms a row instead of 0.12)."""
    whole = x.shape[1] // _BLOCK * _BLOCK
    if x.device.type != "cpu" or not whole:
        return x.argmax(-1)
    tops = x[:, :whole].reshape(len(x), -1, _BLOCK).amax(-1)
    if whole < x.shape[1]:
        tops = torch.cat([tops, x[:, whole:].amax(-1, keepdim=True)], 1)
    block = tops.argmax(-1)
    columns = (block[:, None] * _BLOCK + torch.arange(_BLOCK)).clamp(max=x.shape[1] - 1)
    best = columns.gather(1, x.gather(1, columns).argmax(-1, keepdim=True))
    return best[:, 0]


def _numpy(values: Tensor, dtype: Any) -> NDArray[Any]:
    return values.cpu().numpy().astype(dtype)


def _wait(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
