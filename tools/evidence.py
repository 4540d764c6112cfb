"""Writes what ``confident-decoding doctor`` says of models and cost, from the results in benchmarks/results.

python -m tools.evidence            writes src/confident_decoding/cli/evidence.json
"""

import json
from typing import Any

from benchmarks.floor import step_ms
from tools.marked import RESULTS, ROOT, result

FILE = ROOT / "src/confident_decoding/cli/evidence.json"
OVERHEAD = {"cuda": ("overhead-h200-tp1", "planned, paper"), "cpu": ("overhead-cpu", "planned")}
"""Device to the result that stands for it, and its setting."""


def architectures() -> dict[str, dict[str, str]]:
    """Architecture to device to the vLLM releases with which it was proven there."""
    found: dict[str, dict[str, set[str]]] = {}
    for path in sorted(RESULTS.glob("models-*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            devices = found.setdefault(line["tag"].split("-")[0], {})
            devices.setdefault(line["device"].removeprefix("NVIDIA "), set()).add(line["vllm"].split("+")[0])
    return {
        name: {d: ", ".join(sorted(v)) for d, v in sorted(devices.items())} for name, devices in sorted(found.items())
    }


def overhead(name: str, setting: str) -> dict[str, Any]:
    """Ratios of a decode step to stock, by the number of requests, and what they were measured on."""
    measured = result(name)
    if parts := measured.get("parts"):  # the GPU's own time
        ratios = {batch: step_ms(cases[setting]) / step_ms(cases["stock"]) for batch, cases in parts.items()}
    else:
        row = measured["median"][setting]
        ratios = {batch: cell["ratio"] for batch, cell in row.items() if batch.isdigit()}
    return {
        "machine": measured["machine"]["gpu"] or f"{measured['machine']['cores']} CPU cores",
        "model": measured["arguments"]["model"],
        "candidates": measured["arguments"]["layers"][0],
        "ratios": {batch: round(ratio, 2) for batch, ratio in ratios.items()},
    }


def text() -> str:
    """The file."""
    measured = {device: overhead(*source) for device, source in OVERHEAD.items()}
    return json.dumps({"architectures": architectures(), "overhead": measured}, indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
