"""What the pages name in backticks is there: files and folders, and the names that contributors are sent to."""

import re
from fnmatch import fnmatch
from functools import cache

import pytest
from docs.blocks import PAGES, ROOT

FOLDERS = ("src", "tests", "benchmarks", "demo", "docs", "examples", "requirements", "tools")
ENDS = (".py", ".md", ".sh", ".toml", ".json", ".txt", ".yml", ".ipynb", ".html", ".js", ".css", ".parquet", ".png")
WRITTEN = {"*.png", "answers/TASK--SETTING--*.json"}
"""Patterns of files that commands write; plain names of those are looked up in the source of the package."""
FOR_CONTRIBUTORS = ("architecture.md", "adding-a-model.md", "how-it-works.md", "design.md", "CONTRIBUTING.md")


@cache
def tree():
    """All files and folders of the repository, from its root; folders end with a slash."""
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        found += [ROOT / folder, *(ROOT / folder).rglob("*")]
    paths = [f"{path.relative_to(ROOT)}{'/' * path.is_dir()}" for path in found]
    return [path for path in paths if "__pycache__" not in path]


@cache
def sources():
    files = [path for folder in ("src", "tests", "tools") for path in (ROOT / folder).rglob("*.py")]
    return {path: path.read_text() for path in [*files, ROOT / "Makefile", ROOT / "pyproject.toml"]}


def quoted(page):
    """What stands in backticks, outside of blocks."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return set(re.findall(r"`([^`\n]+)`", text))


def is_there(name):
    """Whether a file or folder's path is ``name`` or ends with it, or the package writes a file of that name."""
    pattern = f"*/{name}" if not name.endswith("/") else f"*/{name.rstrip('/')}/"
    if any(fnmatch(f"/{path}", pattern) or fnmatch(f"/{path}", f"{pattern}/") for path in tree()):
        return True
    return name in WRITTEN or any(f'"{name}"' in text for path, text in sources().items() if "/src/" in str(path))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "tests/README.md"], ids=lambda page: page.name)
def test_files_that_are_named_exist(page):
    paths = [name for name in quoted(page) if re.fullmatch(r"[\w.*-][\w./*-]*", name)]
    for name in paths:
        if "/" in name or name.endswith(ENDS):
            assert is_there(name), f"{page.name}: `{name}`"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name in FOR_CONTRIBUTORS], ids=lambda page: page.name)
def test_names_that_contributors_are_sent_to_exist(page):
    for name in quoted(page):
        if re.fullmatch(r"[A-Za-z_]\w+", name):
            word = re.compile(rf"\b{name}\b")
            assert any(word.search(text) for text in sources().values()), f"{page.name}: `{name}`"
