"""What tells our stand-in for a method of vLLM from the method, so that none is wrapped twice."""

from collections.abc import Callable
from typing import Any

_MARK = "_confident_decoding_wrapped"


def mark(stand_in: Callable[..., Any]) -> None:
    """Say that a function is ours."""
    setattr(stand_in, _MARK, True)


def is_wrapped(method: object) -> bool:
    """Whether ``method`` is ours already."""
    return getattr(method, _MARK, False)
