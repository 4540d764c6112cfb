"""The dashboard and the page on metrics name what is really exported."""

import json
import re
from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.plugin.metrics import Publisher
from confident_decoding.stats import new_counters

DOCS = Path(__file__).parent.parent / "docs"
BOARD = json.loads((DOCS / "grafana/confident-decoding.json").read_text())
NAME = re.compile(r"confident_decoding_[a-z_]+")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """``{sample name: its labels}`` of a scrape."""
    folder = tmp_path_factory.mktemp("metrics")
    plan = ConfidentDecodingConfig().resolve(36)
    Publisher(folder, {"model_name": "m", "engine": "0"}, plan, new_counters(9, torch.device("cpu")))
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))
    return {sample.name: set(sample.labels) for family in registry.collect() for sample in family.samples}


def expressions():
    panels = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
    variables = [v["query"]["query"] for v in BOARD["templating"]["list"] if v["type"] == "query"]
    page = re.findall(r"```promql\n(.*?)```", (DOCS / "metrics.md").read_text(), re.S)
    assert len(page) == 6
    return panels, variables, page


def test_every_name_and_label_in_an_expression_is_exported(exported):
    for expression in [e for group in expressions() for e in group]:
        names = NAME.findall(expression)
        assert names
        assert set(names) <= set(exported), expression
        for name, selector in re.findall(r"(confident_decoding_[a-z_]+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)=", selector)) <= exported[name]
        for grouping in re.findall(r"by \(([^)]*)\)", expression):
            assert set(grouping.split(", ")) <= set.union(*(exported[name] for name in names))
        assert expression.count("(") == expression.count(")")


def test_the_dashboard_shows_and_the_page_explains_every_metric(exported):
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported}
    panels, _, _ = expressions()
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in NAME.findall(" ".join(panels))}
    assert shown == families
    table = set(re.findall(r"^\| `(confident_decoding_\w+)` \|", (DOCS / "metrics.md").read_text(), re.M))
    assert table == families


def test_the_dashboard_is_one_that_grafana_imports():
    """What its importer asks for: identifiers, a place for each panel, known data sources and variables."""
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", BOARD["uid"])
    assert BOARD["title"]
    assert BOARD["schemaVersion"] >= 36
    assert "id" not in BOARD, "a number of the Grafana that it was exported from"
    assert "__inputs" not in BOARD, "the data source is a variable"
    variables = {v["name"]: v for v in BOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        assert panel["type"] in ("stat", "timeseries", "heatmap")
        assert panel["title"]
        assert panel["description"]
        place = panel["gridPos"]
        assert 0 <= place["x"] <= 24 - place["w"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in [panel, *panel["targets"]]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    used = set(re.findall(r"\$\{?([a-z_]+)\}?", json.dumps(BOARD)))
    assert used - {"__all", "__rate_interval"} == set(variables)
