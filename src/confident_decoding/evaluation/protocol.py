"""What the functions of the child process need to report."""

from typing import Protocol


class Send(Protocol):
    """Reports an event to the parent: its name, and JSON data."""

    def __call__(self, event: str, **values: object) -> None:
        """Send it now."""
