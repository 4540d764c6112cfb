"""The analysis of the embedded model that is shown in the documentation."""

import pytest

from confident_decoding.analysis.texts import visible
from tools import analysis_doc
from tools.marked import filled, result


@pytest.mark.parametrize("page", [analysis_doc.FIGURES, analysis_doc.TABLE], ids=lambda page: page.name)
def test_the_page_is_up_to_date(page):
    assert page.read_text() == filled(page, analysis_doc.MAKERS)


def test_the_figure_is_of_the_tokens_that_its_caption_names():
    text, drawn = analysis_doc.FIGURES.read_text(), (analysis_doc.IMAGES / "single-tokens.svg").read_text()
    for token in result("analysis-smollm2")["typical"].values():
        assert f"<code>{visible(token['final']['text'])}</code>" in text
        assert f": {visible(token['final']['text'])}" in drawn


def test_the_numbers_written_by_hand_are_those_of_the_analysis():
    text, summary = analysis_doc.TABLE.read_text(), result("analysis-smollm2")
    kinds = {name: f"{100 * part['replaced']:.1f} %" for name, part in summary["by_kind"].items()}
    depths = {w["window"]: f"{w['mean_depth']:.2f}" for w in summary["windows"]}
    certain = sum(b["tokens"] for b in summary["by_final_entropy"] if b["to"] and b["to"] <= 0.1)
    assert f"({summary['tokens']:,} tokens" in text
    assert f"{kinds['content']} of content tokens, {kinds['function']} of function words" in text
    assert f"mean depth {depths[10]} at K = 10 and at K = 20, {depths[4]} at K = 4" in text
    assert depths[10] == depths[20]
    assert f"Under 0.1 nats ({certain} tokens)" in text


def test_a_block_that_nothing_makes_is_an_error(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- one analysis-smollm2 -->\n1\n<!-- end -->\n<!-- noe analysis-smollm2 -->\n1\n<!-- end -->\n")
    with pytest.raises(ValueError, match="2 blocks end, and 1 begin"):
        filled(page, {"one": lambda _: "1"})
