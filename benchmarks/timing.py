"""Timing on a GPU without launch gaps, and what it ran on."""

import importlib.metadata
import os
import platform
import statistics
import subprocess
from pathlib import Path


def graph_ms(work, rounds=7, repeats=4):
    """Median ms of ``work``, replayed from a CUDA graph of several repeats."""
    import torch

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            work()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / repeats)
    return statistics.median(times)


def machine():
    """Hardware, versions and commit, for the head of a result."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    commit = os.environ.get("COMMIT")  # of a copy whose repository is elsewhere, or older
    try:
        git = ["git", "rev-parse", "--short", "HEAD"]
        commit = commit or subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    return {
        "cpu": next((line.split(":")[1].strip() for line in lines if "model name" in line), ""),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: version(name) for name in ("triton", "vllm", "confident-decoding")},
        "commit": commit,
    }


def version(distribution):
    names = (distribution, f"{distribution}-cpu")
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
