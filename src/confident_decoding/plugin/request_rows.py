"""Which rows of a step belong to which request, and the rules that follow from the requests' settings."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from confident_decoding.config import SelectionPlan
from confident_decoding.plugin.request_settings import RequestSettings, request_settings
from confident_decoding.selection import RowRules, as_int64, hashed_draws

logger = logging.getLogger("vllm.confident_decoding")
_OF_CALLS = 1
"""Key of the draws by calls here; those of a server whose p is the same for all rows have none (head.py)."""


@dataclass(frozen=True)
class Sampled:
    """The B rows of a step's sampling call.

    Attributes:
        ids: Requests, in the order of their rows.
        counts: Rows of each.
        positions: ``[B]`` int64 on the device, each row's place in its sequence. From the model runner's own tensor:
            under asynchronous scheduling the host does not know how many drafts of the last step were accepted.
    """

    ids: Sequence[str]
    counts: Sequence[int]
    positions: Callable[[], Tensor]


Order = Callable[[], Sampled]


@dataclass(frozen=True)
class _Request:
    settings: RequestSettings
    seed: int | None


class RequestRows:
    """Requests that differ from the server's settings, or whose seed matters.

    Args:
        plan: The server's.
        select_method: The server's, as its operator wrote it.
        seed: The engine's.
    """

    def __init__(self, plan: SelectionPlan, select_method: str, seed: int) -> None:
        self._plan, self._select_method, self._seed = plan, select_method, seed
        self._default = RequestSettings(plan.p, plan.window, plan.shift, plan.min_entropy)
        self._requests: dict[str, _Request] = {}
        self._calls = 0
        self.order: Order | None = None

    def begin(self, scheduler_output: Any, order: Order | None) -> None:
        """A step begins: requests arrive and leave.

        Args:
            scheduler_output: vLLM's ``SchedulerOutput``.
            order: Of the rows to be sampled, asked for only where it matters.
        """
        self.order = order
        for request_id in scheduler_output.finished_req_ids:
            self._requests.pop(request_id, None)
        for new in scheduler_output.scheduled_new_reqs:
            params = new.sampling_params
            if params is None:
                continue
            settings = self._settings(new.req_id, params.extra_args)
            if settings is not None or (params.seed is not None and 0 < self._plan.p < 1):
                self._requests[new.req_id] = _Request(settings or self._default, params.seed)
            else:  # the next part of a streaming session comes under the same id
                self._requests.pop(new.req_id, None)

    def _settings(self, request_id: str, extra_args: Any) -> RequestSettings | None:
        try:
            return request_settings(extra_args, self._plan, self._select_method)
        except ValueError:  # the front end refuses these, unless its hook could not be placed
            logger.exception("Request %s is decoded with the server's settings.", request_id)
            return None

    def rules(self, rows: int, device: torch.device) -> RowRules | None:
        """Rules of the rows of this step's sampling call, or None if the server's apply to all.

        Args:
            rows: B.
            device: Where the rules are wanted; nothing waits for it.

        Raises:
            RuntimeError: The step's requests do not add up to that many rows.
        """
        if not self._requests or self.order is None:
            return None
        sampled = self.order()
        ids, counts = sampled.ids, sampled.counts
        if not any(request_id in self._requests for request_id in ids):
            return None
        if sum(counts) != rows:
            raise RuntimeError(
                f"confident-decoding: {rows} rows are to be sampled, and the step's {len(ids)} requests have "
                f"{sum(counts)}. Requests with settings of their own cannot be told apart; please report this."
            )
        default = _Request(self._default, None)
        requests = [self._requests.get(request_id, default) for request_id in ids]
        repeats = torch.tensor(counts)

        def each(values: list[Any], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype).repeat_interleave(repeats)

        settings = [request.settings for request in requests]
        limits = each([one.limit if one.p > 0 else -1 for one in settings], torch.int32)
        rules = RowRules(self._plan.candidates, sent(limits, device), self._plan.shift, self._plan.min_entropy)
        if any(0 < one.p < 1 for one in settings):
            p = sent(each([one.p for one in settings], torch.float64), device)
            rules = rules.mixed(self._draws(rows, requests, each, sampled.positions, device), p)
        if all((one.shift, one.threshold) == (self._plan.shift, self._plan.min_entropy) for one in settings):
            return rules
        # Both or none, so that kernels have few forms.
        shifts = each([one.shift for one in settings], torch.int32)
        thresholds = each([one.threshold for one in settings], torch.float32)
        return replace(rules, shifts=sent(shifts, device), thresholds=sent(thresholds, device))

    def _draws(
        self,
        rows: int,
        requests: list[_Request],
        each: Callable[[list[Any], torch.dtype], Tensor],
        positions: Callable[[], Tensor],
        device: torch.device,
    ) -> Tensor:
        """One draw a row ``[B]`` float64: of the request's seed and the position, or of the engine's and the call."""
        self._calls += 1
        draws = sent(hashed_draws(torch.arange(rows), self._seed, self._calls, _OF_CALLS), device)
        if all(request.seed is None for request in requests):
            return draws
        seeded = sent(each([request.seed is not None for request in requests], torch.bool), device)
        seeds = sent(each([as_int64(request.seed or 0) for request in requests], torch.int64), device)
        return torch.where(seeded, hashed_draws(positions(), seeds), draws)


def sent(values: Tensor, device: torch.device) -> Tensor:
    """A host tensor on its way to the device; the host does not wait."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
