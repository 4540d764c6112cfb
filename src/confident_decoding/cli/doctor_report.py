"""The report of ``doctor`` for people."""

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from confident_decoding.plugin.compat import RANGE

CAPTURE = {
    "captures": "{inner}, by vLLM's own capture",
    "ours": "{inner}, by the plugin's capture",
    "text model": "decided by the text model in the checkpoint, when it loads",
    "none": "none: {inner} does not return intermediate states",
    "not importable": "not known: the model's module cannot be imported ({inner})",
}
"""`survey.Kind` in words."""
Rows = Iterator[tuple[str, str]]
"""``(name, what)``."""


def show(report: dict[str, Any]) -> None:
    """Print it: the machine, the model, warnings, problems with their remedies."""
    console = Console(highlight=False)
    _part(console, f"confident-decoding {report['packages']['confident-decoding']}")
    _table(console, machine_rows(report))
    if report["model"]:
        _part(console, report["name"])
        _table(console, model_rows(report))
    for warning in report["warnings"]:
        console.print(Text.assemble(("warning: ", "bold yellow"), warning))
    for problem in report["problems"]:
        console.print(Text.assemble(("problem: ", "bold red"), problem["what"]))
        console.print(Text.assemble(("    do: ", "bold"), problem["remedy"]))
    if not report["problems"]:
        console.print(Text("No problem found.", "bold green"))


def _part(console: Console, title: str) -> None:
    console.print(Text(title, "bold"))


def _table(console: Console, rows: Rows) -> None:
    """Two columns without trailing spaces, which a paste would keep."""
    lines = list(rows)
    width = 4 + max(len(name) for name, _ in lines)
    for name, what in lines:
        first = f"  {name}".ljust(width)
        text = textwrap.fill(
            what, max(40, console.width), initial_indent=first, subsequent_indent=" " * width, break_on_hyphens=False
        )
        console.print(Text(text), soft_wrap=True)
    console.print()


def machine_rows(report: dict[str, Any]) -> Rows:
    """What does not depend on a model."""
    others = {name: version for name, version in report["packages"].items() if name != "confident-decoding"}
    yield "Python", f"{report['python']}, {report['platform']}"
    yield "packages", ", ".join(f"{name} {version}" for name, version in others.items()) or "none"
    yield "supported", f"vLLM {RANGE}"
    if device := report["device"]:
        yield "device", "; ".join([device["type"], *device["names"]])
    if report["environment"]:
        yield "environment", " ".join(f"{name}={value}" for name, value in report["environment"].items())
    if report["plugin"] is not None:
        yield "plugin", "loaded by vLLM in a child process" if report["plugin"] else "NOT loaded by vLLM"


def model_rows(report: dict[str, Any]) -> Rows:
    """What is about the model."""
    model = report["model"]
    quantised = f", {model['quantization']}" if model["quantization"] else ""
    yield "settings", json.dumps(report["additional_config"])
    yield "architecture", f"{model['architecture']}: {model['verdict']}"
    yield "capture", CAPTURE[model["capture"]].format(**model)
    yield (
        "shape",
        f"{model['layers']} decoder layers, hidden size {model['hidden']}, vocabulary {model['vocabulary']}, "
        f"{model['dtype']}{quantised}",
    )
    if "plan" not in model:
        return
    plan, layers = model["plan"], model["candidate_layers"]
    scan = "no scan" if plan["fixed_depth"] is not None else f"the scan goes {plan['window']} layers back at most"
    yield "method", f"{model['select_method']}, p={plan['p']:g}; {scan}"
    yield "candidates", f"{len(layers)}: layers {', '.join(map(str, layers))} of 0 to {model['layers'] - 1}"
    if serving := model.get("serving"):
        size, tokens = f"{model['packed_bytes'] / 2**20:.1f} MiB", serving["max_num_batched_tokens"]
        also = "the captured states as much while a forward ends"
        yield "memory", f"packed rows add {size} at max_num_batched_tokens={tokens}, and {also}"
        yield "cost", " ".join(filter(None, [model["expected_cost"], model.get("measured")]))
