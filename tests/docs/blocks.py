"""Fenced code blocks of the documentation, and the commands in them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: str
    line: int
    language: str
    text: str
    mark: str
    """The path of the test that runs it, if a comment before the block names one: ``<!-- run by tests/x.py -->``."""

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks():
    """Of all pages."""
    for path in PAGES:
        page = path.read_text()
        for match in _FENCE.finditer(page):
            before = page[: match.start()]
            line, mark = before.count("\n") + 1, re.search(r"<!-- run by (\S+) -->\n\s*$", before)
            yield Block(str(path.relative_to(ROOT)), line, match["language"], match["text"], mark[1] if mark else "")


def commands():
    """``(block, words)`` of each command line in bash blocks; comments and continuations are understood."""
    for block in blocks():
        if block.language == "bash":
            for line in block.text.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    yield block, words


def program(page, first_line):
    """The Python program of a page that begins so."""
    (block,) = (b for b in blocks() if b.page == page and b.language == "python" and b.text.startswith(first_line))
    return block.text
