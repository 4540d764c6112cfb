"""The result of ``compare`` for people: in the terminal, and as one HTML page."""

import json
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from confident_decoding.cli.pairs import Pair, Spans

# Answers are printed by a model: no control character reaches the terminal.
_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_VISIBLE = _CONTROLS | dict.fromkeys(range(0x7F, 0xA0), 0xFFFD)


def show(result: dict[str, Any], pairs: Sequence[Pair]) -> None:
    """Print the answers side by side, changed parts in colour, and the numbers."""
    console = Console(highlight=False)
    for number, pair in enumerate(pairs, 1):
        console.print(Rule(Text(f"{number}. {_shortened(_visible(question(pair)))}", "bold"), align="left"))
        table = Table(box=box.SIMPLE_HEAD, expand=True, padding=(0, 1))
        for name, answer in (("standard", pair.standard), ("confident", pair.confident)):
            table.add_column(f"{name}, {len(answer.token_ids)} tokens", ratio=1, overflow="fold")
        table.add_row(_coloured(pair.spans[0], "red"), _coloured(pair.spans[1], "green"))
        console.print(table)
        console.print(Text(sentence(pair)), "")
    console.print(Rule(align="left"))
    console.print(Text(overall(result["summary"])))


def question(pair: Pair) -> str:
    """What was asked: the prompt, or the last message."""
    if pair.prompt.messages is None:
        return pair.prompt.prompt or ""
    content = pair.prompt.messages[-1]["content"]
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def sentence(pair: Pair) -> str:
    """The numbers of one prompt."""
    found = pair.difference
    if found.first is None:
        return f"The answers are equal ({len(pair.standard.token_ids)} tokens)."
    first = " against ".join("its end" if text is None else repr(text) for text in pair.first_tokens)
    return (
        f"First difference after {found.first} equal tokens: {first}. "
        f"Changed: {found.by_position:.0%} by position, {found.aligned:.0%} aligned."
    )


def overall(numbers: dict[str, Any]) -> str:
    """The numbers over all prompts."""
    return (
        f"{numbers['prompts_changed']} of {numbers['prompts']} answers changed. Of all tokens "
        f"({numbers['tokens_standard']} standard, {numbers['tokens_confident']} confident) changed: "
        f"{numbers['changed_by_position']:.1%} by position, {numbers['changed_aligned']:.1%} aligned."
    )


def page(result: dict[str, Any], pairs: Sequence[Pair]) -> str:
    """The HTML page: no script, nothing fetched, everything escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("confident_decoding.cli"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    cards = [{"question": question(pair), "sentence": sentence(pair), "pair": pair} for pair in pairs]
    settings = {"model": result["model"], "additional_config": json.dumps(result["additional_config"])}
    settings |= {name: str(value) for name, value in result["sampling"].items()}
    return environment.get_template("compare.html").render(
        settings=settings, overall=overall(result["summary"]), cards=cards
    )


def _visible(text: str) -> str:
    return text.translate(_VISIBLE)


def _shortened(text: str, width: int = 200) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def _coloured(spans: Spans, colour: str) -> Text:
    return Text.assemble(*((_visible(text), f"bold {colour}" if changed else "") for text, changed in spans))
