"""Where a step's time on the GPU goes: parts of it by events, kernels and idle time by a profile; peak memory.

Functions that are sent to the workers of an engine (`benchmarks.engine`).
"""

import gzip
import json
import statistics
from collections import defaultdict
from itertools import pairwise

import torch

LEAST_GAP_US = 4
"""Idle time that is more than the GPU's own between two kernels of a stream."""


def split_steps(worker):
    """Mark the GPU's stream before and after each forward and head call from now on; see `step_parts`."""
    from confident_decoding.plugin.anatomy import logits_processor

    worker.marks, worker.unmarked = [], []
    graphs = getattr(worker.model_runner, "cudagraph_manager", None)  # the V2 model runner's
    if hasattr(graphs, "run_fullgraph"):
        mark(worker, graphs, "run_fullgraph")
    mark(worker, logits_processor(worker.model_runner.get_model()), "_apply_head")


def mark(worker, owner, name):
    """Events around each call of ``owner.name``."""
    whole = getattr(owner, name)

    def marked(*args):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        result = whole(*args)
        after.record()
        worker.marks.append((name, before, after))
        return result

    setattr(owner, name, marked)
    worker.unmarked.append((owner, name, whole))


def step_parts(worker):
    """Median ms of each part of a step, of the second half of the steps since `split_steps`."""
    torch.cuda.synchronize()
    for owner, name, whole in worker.unmarked:
        setattr(owner, name, whole)
    parts = defaultdict(list)
    for (name, before, after), (following, start, _) in pairwise(worker.marks[len(worker.marks) // 2 :]):
        parts[name].append(before.elapsed_time(after))
        parts[f"{name} to {following}"].append(after.elapsed_time(start))
    return {name: statistics.median(times) for name, times in parts.items()}


def start_profile(worker):
    """Record the kernels of this worker's next steps."""
    worker.profiler_of_kernels = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    worker.profiler_of_kernels.start()


def stop_profile(worker, path):
    """``{kernel: (calls, ms)}`` since `start_profile`, and ``{"a -> b": (times, ms, late)}`` of the GPU's idle time.

    Idle between the end of ``a`` and the start of ``b``; ``late`` is how often ``b`` was launched after ``a`` ended,
    so that the host is to blame. The trace itself, for Perfetto, is written to ``path`` (``.json.gz``).
    """
    torch.cuda.synchronize()
    worker.profiler_of_kernels.stop()
    worker.profiler_of_kernels.export_chrome_trace(path)
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    launches = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    work = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    kernels, gaps = defaultdict(lambda: [0, 0.0]), defaultdict(lambda: [0, 0.0, 0])
    end, last = None, ""
    for event in sorted(work, key=lambda event: event["ts"]):
        count(kernels[event["name"]], event["dur"] / 1000)
        if end is not None and event["ts"] - end > LEAST_GAP_US:
            gap = gaps[f"{last[:40]} -> {event['name'][:40]}"]
            count(gap, (event["ts"] - end) / 1000)
            gap[2] += launches.get(event["args"].get("correlation"), 0) > end
        if end is None or event["ts"] + event["dur"] > end:
            end, last = event["ts"] + event["dur"], event["name"]
    return dict(kernels), dict(gaps)


def count(place, ms):
    """One more, of so many ms."""
    place[0] += 1
    place[1] += ms


def peak_memory(worker, reset):
    """Peak bytes that torch has allocated on this worker's GPU since the last reset, and those allocated now."""
    torch.cuda.synchronize()
    peak, now = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return peak, now
