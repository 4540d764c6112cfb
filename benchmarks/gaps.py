"""Gaps between the kernels of a CUDA graph, before and after each thing that a scan does to its process.

    python -m benchmarks.gaps

An engine with the plugin on runs the forward's CUDA graph of stock vLLM's kernels with gaps of 0.5 microseconds
between them where stock has 0.04 (H200, vLLM 0.32; `benchmarks.overhead --profile`): 0.2 ms a step of an 8B
model, and the same whether a scan runs or not. Here a graph of small kernels is timed, the things that the
plugin does when an engine starts are done one by one, and it is timed again, as it is and captured anew.
"""

import torch

from benchmarks.timing import machine
from confident_decoding import planner, scan
from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.kernels import statistics_of_finished, triton_operations
from confident_decoding.kernels.types import Candidates, FirstCandidates, Rule
from confident_decoding.model_head import ModelHead, RmsNorm
from confident_decoding.selection import RowRules

HIDDEN, VOCAB, DEPTHS, KERNELS = 4096, 151_936, 10, 500


class Probe:
    """A graph of many small kernels, like the forward of one row."""

    def __init__(self):
        self._weights = [torch.randn(HIDDEN, HIDDEN, device="cuda").bfloat16() / 64 for _ in range(8)]
        self._row = torch.randn(1, HIDDEN, device="cuda").bfloat16()
        self._graph = self._capture()

    def _forward(self):
        y = self._row
        for number in range(KERNELS // 2):
            y = torch.relu(y @ self._weights[number % 8])
        return y

    def _capture(self):
        self._forward()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._kept = self._forward()
        return graph

    def show(self, after):
        """Microseconds a kernel: of the first graph, of one captured now, of launches that are not a graph's."""
        first, new, eager = self._us(self._graph.replay), self._us(self._capture().replay), self._us(self._eager)
        print(f"{after:44} {first:7.3f} {new:7.3f} {eager:7.3f} us a kernel", flush=True)

    def _eager(self):
        for _ in range(20):
            self._row.relu_()

    @staticmethod
    def _us(work):
        count = 20 if getattr(work, "__name__", "") == "_eager" else KERNELS
        times = []
        for _ in range(20):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(2_000_000)  # so that all launches are queued before the first kernel starts
            start.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(1000 * start.elapsed_time(end) / count)
        return sorted(times)[10]


def graph_of(work):
    """Capture ``work`` after it has run once."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = work()
    graph.replay()
    torch.cuda.synchronize()
    return graph, kept


@torch.inference_mode()
def main():
    print(machine())
    probe, kept = Probe(), []
    probe.show("start")
    probe.show("again")
    device, dtype, ops = torch.device("cuda"), torch.bfloat16, triton_operations
    weight = torch.randn(VOCAB, HIDDEN, device=device).to(dtype) / 64
    norm = RmsNorm(torch.ones(HIDDEN, device=device, dtype=dtype), 1e-6)
    packed = torch.randn(256, DEPTHS * HIDDEN, device=device).to(dtype)
    plan = ConfidentDecodingConfig(trough_max_backtrack_layers=DEPTHS).resolve(36)
    logits = torch.randn(512, VOCAB, device=device).to(dtype)
    result, depths = torch.empty_like(logits[:256]), torch.empty(64, dtype=torch.int64, device=device)
    whole, two = FirstCandidates(64, DEPTHS), FirstCandidates(64, 2)
    (some,) = Candidates.empty(1, 256, 256, device)
    some.rows.copy_(torch.arange(256, dtype=torch.int32))
    some.work.copy_(torch.tensor([64, 1, 1, 64], dtype=torch.int32))
    source = torch.arange(64, dtype=torch.int32, device=device)
    stats, entropies = torch.rand(1, 640, 3, device=device), torch.empty(DEPTHS, 64, device=device)
    rule = Rule(DEPTHS - 1, 169, RowRules(DEPTHS, DEPTHS - 1))
    steps = {
        "torch.cat of ten states": lambda: torch.cat(packed[:1].view(1, DEPTHS, HIDDEN).unbind(1), -1),
        "cuBLAS, ten rows": lambda: packed[:1].view(DEPTHS, HIDDEN) @ weight.T,
        "cuBLAS, 256 rows": lambda: packed[:, :HIDDEN].contiguous() @ weight.T,
        "torch.full": lambda: torch.full((DEPTHS, 64), torch.nan, device=device),
        "gather": lambda: ops.gather(packed[:64], DEPTHS, whole, norm),
        "statistics": lambda: ops.statistics(logits),
        "statistics, counted": lambda: ops.statistics(logits[:256], some.count),
        "decide": lambda: ops.decide(stats, whole, None, entropies, depths, rule),
        "keep": lambda: ops.keep(logits, source, two, result[:64]),
        "our head kernel": lambda: ops.project(packed[:, :HIDDEN].contiguous(), weight, some),
        "a large copy": lambda: result.copy_(logits[:256]),
    }
    for name, work in steps.items():
        work()
        torch.cuda.synchronize()
        probe.show(f"{name}, run")
        kept.append(graph_of(work))
        probe.show(f"{name}, in a graph")
    head = ModelHead(
        lambda x: x,
        lambda x: x @ weight.T,
        statistics_of_finished,
        VOCAB,
        planner.rows_per_read(device, HIDDEN, VOCAB, dtype, plain=True),
        False,
        weight,
        norm,
        (weight, norm.weight),
    )
    scan.warm_up(plan, head, packed[:1])
    probe.show("scan.warm_up")
    kept.append(scan.replayed(plan, head, 256, DEPTHS * HIDDEN, dtype))
    probe.show("scan.replayed")
    kept.clear()
    probe.show("graphs gone")


if __name__ == "__main__":
    main()
