"""How far an engine is with the requests of a call."""

import io
from collections.abc import Callable
from typing import Any


def counting(report: Callable[[int, int], None]) -> type:
    """A bar for vLLM's ``use_tqdm`` that draws nothing and reports finished requests.

    Args:
        report: Is called with the number of those done, and of all.
    """
    from tqdm import tqdm

    class Counting(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            # Not switched off: vLLM divides by the time that it shows.
            super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})

        def update(self, n: float = 1) -> None:
            super().update(n)
            if self.iterable is None:  # else prompts are being read
                report(int(self.n), int(self.total))

    return Counting
