"""The charts show the numbers of a summary, as pictures that any page can hold."""

import base64
import re
import xml.etree.ElementTree as ET

import pytest

from analysis import made
from confident_decoding.analysis import plots
from confident_decoding.analysis.summary import summarise
from confident_decoding.analysis.texts import visible
from confident_decoding.analysis.trace import Trace, TraceWriter


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    path = tmp_path_factory.mktemp("plots") / "trace.parquet"
    writer = TraceWriter(path, made.about(20, 10, num_layers=30))
    for seed, rows in enumerate((60, 200, 20)):
        sequence = made.sequence(rows, 20, seed=seed)
        writer.add(sequence, made.pieces(sequence))
    writer.close()
    return summarise(Trace(path), made.WORDS.__getitem__)


SINGLE = next(chart for chart in plots.CHARTS if chart.name == "single-tokens")


def bars(figure):
    return [bar.get_height() for bar in figure.axes[0].patches]


def lines(figure):
    return [list(line.get_ydata()) for line in figure.axes[0].lines]


@pytest.mark.parametrize("name", ["single-tokens", "entropy-by-layer", "positions", "window-shares", "window-work"])
def test_no_line_touches_the_edge_of_its_chart(name, summary):
    """Also where it is nearly flat, far above 0."""
    flat = {group: [5.6, 5.61, 5.6] for group in summary["entropy_by_depth"]}
    (chart,) = (chart for chart in plots.CHARTS if chart.name == name)
    (axes,) = plots.figure(chart, summary | {"entropy_by_depth": flat}).axes
    low, high = axes.get_ylim()
    highest = max(max(line.get_ydata()) for line in axes.lines if line.get_linestyle() != ":")
    assert low == 0
    assert high == pytest.approx(1.08 * highest)


def test_a_chart_of_no_tokens_is_empty(summary):
    drawn = plots.figure(SINGLE, summary | {"typical": dict.fromkeys(summary["typical"])})
    assert lines(drawn) == []
    assert drawn.axes[0].get_ylim() == (0, 1)


def test_charts_show_the_summary(summary):
    drawn = {chart.name: plots.figure(chart, summary) for chart in plots.CHARTS}
    assert bars(drawn["depths"]) == pytest.approx([n / summary["tokens"] for n in summary["depths"]])
    typical = [token for token in summary["typical"].values() if token]
    assert len(typical) == 3
    curves, rings = lines(drawn["single-tokens"])[::2], lines(drawn["single-tokens"])[1::2]
    assert curves == [token["entropy"][: summary["window"]] for token in typical]
    assert rings == [[token["entropy"][token["depth"]]] for token in typical]
    chosen = [int(line.get_xdata()[0]) for line in drawn["single-tokens"].axes[0].lines[1::2]]
    assert chosen == [summary["layers"] - 1 - token["depth"] for token in typical]
    bins = summary["by_final_entropy"]
    assert bars(drawn["replaced-by-entropy"]) == pytest.approx(
        [b["not_at_final"] or 0 for b in bins] + [b["replaced"] or 0 for b in bins]
    )
    assert lines(drawn["entropy-by-layer"]) == [pytest.approx(x) for x in summary["entropy_by_depth"].values()]
    assert sum(bars(drawn["entropy-drops"])) == pytest.approx(1)
    parts = summary["by_position"]
    assert lines(drawn["positions"]) == [[p["not_at_final"] for p in parts], [p["replaced"] for p in parts]]
    assert bars(drawn["kinds"]) == pytest.approx([part["replaced"] or 0 for part in summary["by_kind"].values()])
    windows = summary["windows"]
    assert lines(drawn["window-shares"])[:2] == [[w[key] for w in windows] for key in ("not_at_final", "replaced")]
    assert lines(drawn["window-work"])[:2] == [[w[key] for w in windows] for key in ("mean_depth", "extra_projections")]


def test_charts_are_proper_images(summary, tmp_path):
    for chart in plots.CHARTS:
        plots.save_png(chart, summary, tmp_path / "a.png")
        assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        uri = plots.data_uri(chart, summary, "light")
        root = ET.fromstring(base64.b64decode(re.sub("^data:image/svg.xml;base64,", "", uri)))
        assert root.tag.endswith("svg")
        assert uri == plots.data_uri(chart, summary, "light"), "the same summary gives the same picture"


@pytest.mark.parametrize("text", ["$x$", "你好", "\n", "\U0001f600", "a_b^c\\"])
def test_any_token_can_be_a_label(text, summary, tmp_path, recwarn):
    token = {**summary["typical"]["replaced"], "final": {"text": text}}
    changed = {**summary, "typical": {**summary["typical"], "replaced": token}}
    plots.save_png(SINGLE, changed, tmp_path / "a.png")
    assert [str(warning.message) for warning in recwarn] == []  # such as a letter that the font lacks
    image = plots.svg(SINGLE, changed)
    expected = {"你好": "\\u4f60\\u597d", "\n": "↵", "\U0001f600": "\\U0001f600"}.get(text, visible(text))
    assert f"replaced: {expected} →" in " ".join("".join(e.itertext()) for e in ET.fromstring(image).iter())


def test_charts_leave_out_groups_without_tokens(summary):
    drawn = plots.figure(SINGLE, {**summary, "typical": {**summary["typical"], "perturbed": None}})
    assert len(lines(drawn)) == 4
