"""Drafters that read the target model's hidden states (EAGLE, MTP) get the final ones, not packed rows."""

import functools
import sys
from typing import Any

from torch import Tensor

from confident_decoding.plugin import contracts
from confident_decoding.plugin.wrapping import is_wrapped, mark


def problem() -> str | None:
    """Why a drafter of this process would get packed rows, or None."""
    here = [contract for contract in contracts.PROPOSERS if contract.module in sys.modules]
    if not here:
        return "none of vLLM's own proposers is in this process"
    found = (contracts.check_live(contract, sys.modules[contract.module]) for contract in here)
    return next(filter(None, found), None)


def unpack_for_drafter(runner: Any, width: int, hidden: int) -> None:
    """Make what ``runner`` drafts with see the final states ``[T, H]`` of packed rows ``[T, n*H]``; idempotent.

    The first H elements of a packed row are the final normed state, which is what a standard server hands on.
    Both model runners pass it to ``propose`` (``spec_decode/llm_base_proposer.py``, ``gpu/spec_decode/speculator.py``).

    Args:
        runner: A model runner of either kind.
        width: n*H.
        hidden: H.
    """
    drafter: Any = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
    propose = getattr(drafter, "propose", None)
    if width == hidden or propose is None or is_wrapped(propose):
        return
    if hasattr(runner, "drafter") and runner.use_aux_hidden_state_outputs:
        return  # this one gets captured states alone, side by side; they can be as wide as a packed row

    def final(value: Any) -> Any:
        states = isinstance(value, Tensor) and value.is_floating_point()  # a table of tokens may be as wide
        packed = states and value.ndim == 2 and value.shape[1] == width
        return value[:, :hidden].contiguous() if packed else value

    @functools.wraps(propose)
    def unpacked(*args: Any, **kwargs: Any) -> Any:
        return propose(*map(final, args), **{name: final(value) for name, value in kwargs.items()})

    mark(unpacked)
    drafter.propose = unpacked  # of this instance
