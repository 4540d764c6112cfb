"""What the functions of the child process need to report."""

from typing import Protocol

from pydantic import ValidationError


class Send(Protocol):
    """Reports an event to the parent: its name, and JSON data."""

    def __call__(self, event: str, **values: object) -> None:
        """Send it now."""


class RefusedError(Exception):
    """What the user asked for is not valid; the message is for the user."""


def text_of(error: Exception) -> str:
    """What an exception says, for the user: its kind and its text, without the frame that pydantic puts around it."""
    if isinstance(error, ValidationError):
        return "; ".join(str(one["msg"]).removeprefix("Value error, ") for one in error.errors())
    return f"{type(error).__name__}: {error}"
