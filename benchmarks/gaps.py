"""How long the gaps between the kernels of a CUDA graph are, in a process with more and more streams or graphs.

    python -m benchmarks.gaps

Plain torch, nothing of ours. On an H200 (driver 580.159, torch 2.11) all kernels of the process, those of graphs made
before as well, start 0.6 microseconds later from some number of graphs or used streams on; it is never undone. An
engine that makes graphs again after its start crosses such a number, too: `benchmarks.at_start`.
"""

import argparse
import subprocess
import sys

import torch

from benchmarks.timing import machine

KERNELS, SIZE = 500, 4096


class Probe:
    """A graph of many small kernels, like the forward of one row."""

    def __init__(self):
        self._weights = [torch.randn(SIZE, SIZE, device="cuda").bfloat16() / 64 for _ in range(8)]
        self._row = torch.randn(1, SIZE, device="cuda").bfloat16()
        self._graph, self._kept = captured(self._forward)

    def _forward(self):
        y = self._row
        for number in range(KERNELS // 2):
            y = torch.relu(y @ self._weights[number % 8])
        return y

    def us(self):
        """Microseconds a kernel of the graph, gap included."""
        times = []
        for _ in range(12):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(2_000_000)  # so that all is queued before the first kernel starts
            start.record()
            self._graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(1000 * start.elapsed_time(end) / KERNELS)
        return sorted(times)[6]


def captured(work):
    """A graph of ``work``, and what it returned."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


def used_stream(x):
    """A stream on which something has run."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x.add_(1)
    torch.cuda.synchronize()
    return stream


@torch.inference_mode()
def show(what):
    """One line: the time at the start, and after each of eight further graphs or streams."""
    probe, x = Probe(), torch.zeros(4, device="cuda")
    make = {"graphs": lambda: captured(lambda: x.add_(1)), "streams": lambda: used_stream(x)}[what]
    times, kept = [probe.us()], []
    for _ in range(8):
        kept.append(make())
        times.append(probe.us())
    print(f"{what:8} " + " ".join(f"{us:5.2f}" for us in times), "us a kernel", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["graphs", "streams"], help="default: each in a process of its own")
    args = parser.parse_args()
    if args.what:
        show(args.what)
        return
    print(machine())
    for what in ("graphs", "streams"):
        subprocess.run([sys.executable, "-m", "benchmarks.gaps", what], check=True)


if __name__ == "__main__":
    main()
