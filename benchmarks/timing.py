"""Timing on a GPU without launch gaps, and what it ran on."""

import os
import statistics
import subprocess

from confident_decoding.bench import results


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
    commit = os.environ.get("COMMIT")  # of a copy whose repository is elsewhere, or older
    try:
        git = ["git", "rev-parse", "--short", "HEAD"]
        commit = commit or subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    return {**results.machine(), "commit": commit}
