"""Signs of life on a terminal: one spinner and one bar for all commands, gone when the work is done.

Nothing moves where nobody watches (a pipe, a file), and nothing where vLLM's own lines are shown: they would tear it
apart.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.spinner import Spinner
from rich.table import Column
from rich.text import Text

# rich would print on this console what others write to sys.stdout and sys.stderr: what `output_aside` puts aside.
_LIVE: dict[str, Any] = {"transient": True, "redirect_stdout": False, "redirect_stderr": False}


def terminal(verbose: bool, **options: Any) -> Console:
    """Standard error (or ``file``) as a console; with ``verbose`` as one that is no terminal."""
    return Console(**{"stderr": True, **options}, highlight=False, force_terminal=False if verbose else None)


@contextlib.contextmanager
def spinner(console: Console, doing: str) -> Iterator[None]:
    """A sign of life on a terminal, and one line elsewhere."""
    if not console.is_terminal:
        console.print(doing, markup=False, soft_wrap=True)
        yield
        return
    with Live(Spinner("dots", Text(doing, overflow="ellipsis", no_wrap=True)), console=console, **_LIVE):
        yield


def bar(console: Console) -> Progress:
    """A bar of what is done of a total; a long description is cut, so that it stays one line."""
    return Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        console=console,
        expand=True,
        disable=not console.is_terminal,
        **_LIVE,
    )
