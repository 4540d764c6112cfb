"""Fills the tables of docs/transformers.md and docs/limits.md from what was measured on a CPU, in benchmarks/results.

python -m tools.measured_doc
"""

from typing import Any

from tools.marked import ROOT, filled
from tools.performance_doc import described

PAGES = [ROOT / "docs/transformers.md", ROOT / "docs/limits.md"]
NAMES = {"stock": "standard", "trough": "`trough`, 10 candidates", "last-m8": "`last-m8`", "DoLa": 'DoLa, `"high"`'}


def ratio(cell: dict[str, float]) -> str:
    """Median and range."""
    return f"{cell['ratio']:.2f}x ({cell['least']:.2f} to {cell['most']:.2f})"


def in_transformers(data: Any) -> str:
    """Time per token of each way of decoding."""
    median, about = data["median"], data["arguments"]
    batches = list(median["stock"])
    lines = ["| | " + " | ".join(f"batch {batch}" for batch in batches) + " |", "|---" * (1 + len(batches)) + "|"]
    for name, row in median.items():
        cells = [f"{row[b]['ms']:.0f} ms" + ("" if name == "stock" else f", {ratio(row[b])}") for b in batches]
        lines.append(f"| {NAMES[name]} | " + " | ".join(cells) + " |")
    host, rounds = data["machine"], len(data["rounds"])
    what = (
        f"Time per token, SmolLM2-135M, {about['dtype']}, {about['threads']} core(s) of {host['cpu']}; transformers "
        f"{host['transformers']}, torch {host['torch']}; commit {host['commit']}, median of {rounds} rounds "
        "(range in brackets)."
    )
    return "\n".join([what, "", *lines])


def adapters(data: Any) -> str:
    """What the selection costs beside each kind of adapter."""
    median = data["median"]
    batches = list(next(iter(median.values()))["on"])
    titles = " | ".join(f"{batch} request{'s' * (int(batch) > 1)}" for batch in batches)
    lines = [f"| a step with the selection, beside one without | {titles} |", "|---" * (1 + len(batches)) + "|"]
    for case, row in median.items():
        lines.append(f"| {case} | " + " | ".join(ratio(row["on"][batch]) for batch in batches) + " |")
    return "\n".join([described(data), "", *lines])


MAKERS = {"in-transformers": in_transformers, "adapters": adapters}

if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page, MAKERS))
