"""Marked blocks of a page, made from results: ``<!-- MAKER RESULT -->`` to ``<!-- end -->``."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
END = "<!-- end -->"


def result(name: str) -> Any:
    """One committed result."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def filled(page: Path, makers: Mapping[str, Callable[[Any], str]]) -> str:
    """The page with its marked blocks made anew.

    Args:
        page: The file.
        makers: From a result to the text of a block, by the first word of the marks.

    Raises:
        ValueError: A block of the page has other marks.
    """
    names = "|".join(map(re.escape, makers))
    mark = re.compile(rf"(<!-- ({names}) ([\w.-]+) -->\n).*?({END})", re.DOTALL)
    text, blocks = mark.subn(lambda m: f"{m[1]}{makers[m[2]](result(m[3]))}\n{m[4]}", page.read_text())
    if blocks != text.count(END):
        raise ValueError(f"{page}: {text.count(END)} blocks end, and {blocks} begin with one of {', '.join(makers)}.")
    return text
