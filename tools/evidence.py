"""Writes what ``confident-decoding doctor`` says of models and cost, from the results in benchmarks/results.

python -m tools.evidence            writes src/confident_decoding/cli/evidence.json
python -m tools.evidence --check    fails if it is not what the results say
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
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
    result = json.loads((RESULTS / f"{name}.json").read_text())
    row = result["median"][setting]
    return {
        "machine": result["machine"]["gpu"] or f"{result['machine']['cores']} CPU cores",
        "model": result["arguments"]["model"],
        "candidates": result["arguments"]["layers"][0],
        "ratios": {batch: round(cell["ratio"], 2) for batch, cell in row.items() if batch.isdigit()},
    }


def text() -> str:
    """The file."""
    measured = {device: overhead(*source) for device, source in OVERHEAD.items()}
    return json.dumps({"architectures": architectures(), "overhead": measured}, indent=1) + "\n"


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        if FILE.read_text() != text():
            print(f"{FILE.name} is not what the results say: run python -m tools.evidence", file=sys.stderr)
            return 1
        return 0
    FILE.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
