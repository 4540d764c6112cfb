"""What becomes of the times: medians of ratios, and what they were measured on."""

import importlib.metadata
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Times = dict[str, dict[Any, float]]
"""Of one round: setting to column (number of requests) to ms."""


def medians(rounds: Sequence[Times]) -> dict[str, dict[Any, dict[str, float]]]:
    """Median ms and median ratio to ``"stock"`` of the same round, with the ratios' range.

    Example:
        >>> medians([{"stock": {1: 10.0}, "mine": {1: 11.0}}])["mine"][1]["ratio"]
        1.1
    """
    table: dict[str, dict[Any, dict[str, float]]] = {}
    for name in rounds[0]:
        table[name] = {}
        for column in rounds[0][name]:
            ratios = [r[name][column] / r["stock"][column] for r in rounds]
            table[name][column] = {
                "ms": statistics.median(r[name][column] for r in rounds),
                "ratio": statistics.median(ratios),
                "least": min(ratios),
                "most": max(ratios),
            }
    return table


def machine() -> dict[str, Any]:
    """Hardware and versions."""
    import torch

    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: version(name) for name in ("triton", "vllm", "confident-decoding")},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())


def version(distribution: str) -> str | None:
    """Of an installed distribution or its CPU build."""
    for name in (distribution, f"{distribution}-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
