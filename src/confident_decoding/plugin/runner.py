"""The runner hooks: both model runners tell which rows of a step belong to which request, and what they draft with.

Only requests with settings of their own need the first (`request_rows`). Where a runner is not what we know, those
requests are refused by the front end, and all others are served. Drafters need the second (`drafting`).
"""

import functools
import importlib
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from confident_decoding.plugin import borrowed, contracts
from confident_decoding.plugin.drafting import unpack_for_drafter
from confident_decoding.plugin.request_rows import RequestRows, Sampled, sent
from confident_decoding.plugin.wrapping import is_wrapped, mark

ATTRIBUTE = "confident_decoding_installed"
"""Where a model instance of ours keeps its `Installed`."""


@dataclass(frozen=True)
class Installed:
    """What the runner of a model instance of ours must know.

    Attributes:
        rows: Told about each step.
        width: n*H of a packed row.
        hidden: H.
    """

    rows: RequestRows
    width: int
    hidden: int


@functools.cache
def problem() -> str | None:
    """Why requests cannot have settings of their own with this vLLM, or None. Imports both runners (a second)."""
    for contract in contracts.RUNNERS:
        try:
            module = importlib.import_module(contract.module)
        except ImportError as error:
            return f"{contract.module} cannot be imported: {error}"
        if found := contracts.check_live(contract, module):
            return found
    return None


def wrap_runners() -> str | None:
    """Wrap the ``GPUModelRunner`` classes of this process; idempotent. Called once a model of ours is loaded.

    Returns:
        Why requests and drafters go without, or None.
    """
    modules = [sys.modules[name] for name in dict.fromkeys(c.module for c in contracts.RUNNERS) if name in sys.modules]
    if not modules:
        return "none of vLLM's own model runners is in this process"
    for contract in contracts.RUNNERS:
        module = sys.modules.get(contract.module)
        if module is not None and (found := contracts.check_live(contract, module)):
            return found
    for module in modules:
        runner = module.GPUModelRunner
        second = hasattr(runner, "sample")
        _wrap(runner, "execute_model", _begin_second if second else _begin_first)
        if second:
            _wrap(runner, "sample", _sample)
    return None


def _wrap(cls: Any, name: str, before: Callable[..., None]) -> None:
    original = getattr(cls, name)
    if is_wrapped(original):
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        installed = _installed(self)
        if installed is not None:
            unpack_for_drafter(self, installed.width, installed.hidden)
            before(self, installed.rows, *args, **kwargs)
        return original(self, *args, **kwargs)

    mark(method)
    borrowed.put(cls, name, method)


def _installed(runner: Any) -> Installed | None:
    model = getattr(runner, "model", None)
    return None if model is None else getattr(runner.get_model(), ATTRIBUTE, None)


def _begin_first(runner: Any, rows: RequestRows, scheduler_output: Any, *_: Any, **__: Any) -> None:
    """V1: rows are in the order of the runner's persistent batch, which is settled by the time it samples."""

    def order() -> Sampled:
        ids = runner.input_batch.req_ids
        drafts = scheduler_output.scheduled_spec_decode_tokens
        counts = [1 + len(drafts.get(request_id, ())) for request_id in ids]

        def positions() -> Tensor:
            """Tokens are in the order of the batch; a request's last ones are sampled."""
            ends = itertools.accumulate(scheduler_output.num_scheduled_tokens[request_id] for request_id in ids)
            places = [end - count + row for end, count in zip(ends, counts, strict=True) for row in range(count)]
            held: Tensor = runner.positions
            return held[sent(torch.tensor(places), held.device)]

        return Sampled(ids, counts, positions)

    rows.begin(scheduler_output, order)


def _begin_second(_: Any, rows: RequestRows, scheduler_output: Any, *__: Any, **___: Any) -> None:
    """V2: the batch is known when it samples."""
    rows.begin(scheduler_output, None)


def _sample(runner: Any, rows: RequestRows, _: Any, input_batch: Any, *__: Any, **___: Any) -> None:
    if getattr(runner, "batch_sharder", None) is not None:  # it samples rows in another order
        return
    if getattr(runner, "adaptive_verification", None) is not None:  # the host's counts are upper bounds
        return

    def order() -> Sampled:
        cumulated = input_batch.cu_num_logits_np[: len(input_batch.req_ids) + 1]
        counts = (cumulated[1:] - cumulated[:-1]).tolist()
        return Sampled(
            input_batch.req_ids, counts, lambda: input_batch.positions[input_batch.logits_indices[: sum(counts)]]
        )

    rows.order = order
