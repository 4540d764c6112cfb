"""Messages that the documentation explains are those of the source."""

import ast
import re

import pytest
from docs.blocks import ROOT

PLUGIN = ROOT / "src/confident_decoding"


def texts():
    """All texts in the source, with ``...`` where a value is put in."""
    for path in [*PLUGIN.glob("*.py"), *PLUGIN.glob("plugin/*.py"), *PLUGIN.glob("hf/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(p.value) if isinstance(p, ast.Constant) else "..." for p in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def quoted():
    """``(page, message)`` of the first columns of tables of messages, and of headings in quotes."""
    for page in ("adding-a-model.md", "troubleshooting.md"):
        text = (ROOT / "docs" / page).read_text()
        for table in re.findall(r"^\| the message(?: says)?\b.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE):
            for row in table.splitlines():
                yield from ((page, part.strip()) for part in re.split(r"\.\.\.,?", row.split("|")[1]) if part.strip())
        for heading in re.findall(r"^## (.*)$", text, re.MULTILINE):
            yield from ((page, part) for part in re.findall(r'"([^"]+)"', heading))


@pytest.mark.parametrize(("page", "message"), list(quoted()))
def test_a_message_that_is_explained_is_one_of_ours(page, message):
    parts = [re.escape(part.strip()) for part in re.sub(r"\d+", "...", message).split("...") if part.strip()]
    said = re.compile(r".*".join(parts), re.DOTALL)
    assert any(said.search(text) for text in texts()), message


def test_there_are_such_messages():
    assert len(list(quoted())) > 15
