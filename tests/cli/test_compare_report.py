"""Two answers as people see them: in the terminal and as a page."""

import html.parser
import io

import pytest
from rich.console import Console

from confident_decoding.cli import compare_report
from confident_decoding.cli.inputs import Prompt
from confident_decoding.cli.pairs import Answer, Pair, summary

NASTY = "<script>alert(1)</script> & \x1b[2J\x07 [red]markup[/red] {{ 1 + 1 }}"


def decode(ids, skip_special_tokens=False):
    """A tokenizer of characters, whose token 0 is special."""
    return "".join("<end>" if i == 0 else chr(i) for i in ids if i or not skip_special_tokens)


def pair(standard, confident, prompt="Why?", ended=True):
    answers = [
        Answer(text, [*map(ord, text), *([0] if ended else [])], "stop" if ended else "length")
        for text in (standard, confident)
    ]
    return Pair.of(Prompt(1, prompt), *answers, decode)


PAIRS = [pair("cats", "bats"), pair("same", "same"), pair("one", "one more"), pair(NASTY, "x", prompt=NASTY)]
RESULT = {
    "model": "m",
    "additional_config": {"enable_multi_layer_entropy_selection": True},
    "sampling": {"max_tokens": 9, "temperature": 0.0, "seed": 0},
    "summary": summary(PAIRS),
}


def test_a_pair():
    found = pair("cats", "bats")
    assert found.spans == ([("c", True), ("ats", False)], [("b", True), ("ats", False)])
    assert found.first_tokens == ("c", "b")
    plain = found.plain()
    assert plain["prompt"] == "Why?"
    assert "messages" not in plain
    assert plain["standard"] == {"text": "cats", "token_ids": [99, 97, 116, 115, 0], "finish_reason": "stop"}
    assert (plain["first_difference"], plain["changed_by_position"], plain["changed_aligned"]) == (0, 0.2, 0.2)


def test_where_one_answer_ends_first():
    assert pair("one", "one more").first_tokens == ("<end>", " ")
    assert pair("one", "one more", ended=False).first_tokens == (None, " ")
    assert "against ' '" in compare_report.sentence(pair("one", "one more", ended=False))


def test_sums_are_of_tokens():
    numbers = summary([pair("cats", "bats"), pair("s" * 95, "s" * 95, ended=False)])
    assert numbers["prompts_changed"] == 1
    assert numbers["tokens_standard"] == numbers["tokens_confident"] == 100
    assert numbers["changed_by_position"] == pytest.approx(1 / 100)
    assert numbers["changed_aligned"] == pytest.approx(2 / 200)


def shown(monkeypatch, **console):
    file = io.StringIO()
    monkeypatch.setattr(compare_report, "Console", lambda **_: Console(file=file, width=100, **console))
    compare_report.show(RESULT, PAIRS)
    return file.getvalue()


def test_the_terminal_gets_no_control_characters(monkeypatch):
    text = shown(monkeypatch)
    assert set(text) & {chr(c) for c in range(32)} == {"\n"}
    assert "[red]markup[/red]" in text
    assert "3 of 4 answers changed" in text


def test_changed_parts_are_coloured(monkeypatch):
    text = shown(monkeypatch, force_terminal=True, color_system="standard", legacy_windows=False)
    assert "\x1b[1;31mc\x1b[0mats" in text
    assert "\x1b[1;32mb\x1b[0mats" in text
    assert "\x1b[2J" not in text


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.marks, self.text = ["start"], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not any(name in ("src", "href") or name.startswith("on") for name, _ in attrs)

    def handle_data(self, data):
        self.text += data
        if self.tags[-1] == "mark":
            self.marks.append(data)

    def handle_endtag(self, tag):
        self.tags.append("/" + tag)


def test_the_page_shows_all_and_runs_nothing():
    page = Page(compare_report.page(RESULT, PAIRS))
    assert "script" not in page.tags
    assert page.tags.count("article") == len(PAIRS)
    assert page.marks[:2] == ["c", "b"]
    assert page.text.count(NASTY) == 2  # the question and the answer, letter by letter
    assert "3 of 4 answers changed" in page.text


def test_the_page_has_questions_of_messages():
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "é<"}]}]
    asked = Pair.of(Prompt(1, messages=messages), Answer("", [], "stop"), Answer("", [], "stop"), decode)
    page = Page(compare_report.page({**RESULT, "summary": summary([asked])}, [asked]))
    assert '1. [{"type": "text", "text": "é<"}]' in page.text
    assert "The answers are equal (0 tokens)." in page.text
