"""Signs of life: on a terminal, in one line, gone afterwards; nowhere else."""

import contextlib
import io
import os
import sys

import pytest
from rich.console import Console

from confident_decoding.cli.progress import bar, spinner, terminal


@pytest.fixture
def tty():
    """``tty(verbose)``: standard error of a command on a terminal, and what it got."""
    ours, theirs = os.openpty()
    file = os.fdopen(theirs, "w")

    def console(verbose):
        return terminal(verbose, file=file)

    def seen():
        file.flush()
        os.set_blocking(ours, False)
        text = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                text += os.read(ours, 1 << 16)
        return text.decode()

    yield console, seen
    file.close()
    os.close(ours)


def work(console):
    with spinner(console, "Starting ..."):
        print("a line of vLLM", file=sys.stderr)
    with bar(console) as progress:
        print("a line of vLLM")
        task = progress.add_task("answers", total=3)
        progress.advance(task, 2)
        progress.refresh()


def test_a_terminal_shows_a_spinner_and_a_bar_that_go_away(tty):
    console, seen = tty
    work(console(verbose=False))
    text = seen()
    assert "Starting ..." in text
    assert "vLLM" not in text, "what is put aside stays there"
    assert "2/3" in text
    assert text.rsplit("2/3", 1)[1].count("\x1b[2K") >= 1, "the line of the bar is erased"


def test_nothing_moves_where_vllm_itself_is_shown(tty):
    console, seen = tty
    work(console(verbose=True))
    assert seen() == "Starting ...\r\n"


def test_nothing_moves_in_a_pipe():
    file = io.StringIO()
    work(terminal(False, file=file))
    assert file.getvalue() == "Starting ...\n"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_bar_is_one_line(width):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=10)
    progress = bar(console)
    progress.add_task("a task with a long name: trough-m1,p=0.5,window=10,min_entropy=0.125", total=1319)
    rendered = console.render_lines(progress.get_renderable(), pad=False)
    assert len(rendered) == 1
    assert "0/1319" in "".join(segment.text for segment in rendered[0])
