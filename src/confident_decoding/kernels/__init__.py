"""The device operations of the scan: Triton kernels, and their twins in torch.

Every operation takes how many rows it is to work on from the device, so nothing waits for the host and no
shape depends on data. `twins` says what each computes; the other modules compute it on a GPU.
"""

from typing import Protocol

import torch
from torch import Tensor

from confident_decoding.kernels import twins
from confident_decoding.kernels.types import Candidates, Round, Rule
from confident_decoding.model_head import RmsNorm, Selection
from confident_decoding.planner import has_kernels
from confident_decoding.selection import RowRules


class Operations(Protocol):
    """What `twins` and `triton_operations` both offer; documented there."""

    def statistics(
        self,
        logits: Tensor,
        count: Tensor | None = None,
        soft_cap: float | None = None,
        scale: float = 1.0,
        first_id: int | None = None,
    ) -> Tensor: ...

    def merge(self, parts: Tensor, count: Tensor | None = None) -> Tensor: ...

    def gather(
        self, packed: Tensor, n: int, candidates: Round, norm: RmsNorm | None, depths: Tensor | None = None
    ) -> Tensor: ...

    def project(self, states: Tensor, weight: Tensor, candidates: Candidates) -> Tensor: ...

    def decide(
        self,
        statistics: Tensor,
        candidates: Round,
        following: Candidates | None,
        entropies: Tensor,
        depths: Tensor,
        rule: Rule,
        top_ids: Tensor | None = None,
    ) -> Tensor: ...

    def relocate(self, troughs: Tensor, entropies: Tensor, moved: Candidates, rule: Rule) -> Tensor: ...

    def name_moved(self, statistics: Tensor, moved: Candidates, depths: Tensor, top_ids: Tensor) -> None: ...

    def keep(self, logits: Tensor, source: Tensor, candidates: Round, result: Tensor) -> None: ...

    def count(
        self,
        counters: Tensor,
        mirror: Tensor | None,
        prompt: bool,
        selection: Selection,
        rules: RowRules,
        window: int | None,
    ) -> None: ...


def operations(device: torch.device) -> Operations:
    """The operations for tensors on ``device``."""
    if not has_kernels(device):
        return twins
    from confident_decoding.kernels import triton_operations

    return triton_operations


def statistics_of_finished(logits: Tensor, count: Tensor | None = None, first_id: int | None = None) -> Tensor:
    """`model_head.Statistics` of logits ``[m, V]`` that are whole, capped and scaled."""
    return operations(logits.device).statistics(logits, count, first_id=first_id)
