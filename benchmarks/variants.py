"""What benchmarks change on a running worker: forced depths, a dense scan, the plain recipe; no part of the product.

Random weights make entropies tie, so the depth of each row can be forced to follow a histogram: before each
decision the candidates' statistics are overwritten by some whose entropies fall to the wanted depth and rise
after it. That costs one more kernel a round.
"""

import dataclasses
import gzip
import json
import statistics
from collections import defaultdict
from itertools import pairwise

import torch

HISTOGRAMS = {
    "paper": [0.885, 0.08, 0.02, 0.01, *[0.005 / 6] * 6],
    "smollm2": [0.418, 0.140, 0.158, 0.147, 0.055, 0.018, 0.037, 0.013, 0.004, 0.010],
}
"""Shares of depth 0 to 9: as the paper reports for large models, and as measured on SmolLM2."""
STEPS, ROWS = 64, 2048
LEAST_GAP_US = 4
"""Idle time that is more than the GPU's own between two kernels of a stream."""
UNDER = 0.005
"""Final entropy (nats) of rows that a threshold of 0.01 keeps."""


def selecting_head(worker):
    """The `SelectingHead` of a worker's model."""
    from confident_decoding.plugin.anatomy import logits_processor

    return logits_processor(worker.model_runner.get_model())._apply_head


class Forced:
    """Depths for each step and row, and the kernel that makes statistics say so."""

    def __init__(self, histogram, under, device):
        import triton
        import triton.language as tl

        generator = torch.Generator().manual_seed(0)
        share = torch.tensor(HISTOGRAMS[histogram], dtype=torch.float64)
        depths = torch.multinomial(share, STEPS * ROWS, replacement=True, generator=generator).to(torch.int32)
        # `under` of all rows have a low final entropy; they are among those that stay at the final layer.
        low = torch.rand(STEPS * ROWS, generator=generator) < under / float(share[0])
        depths[(depths == 0) & low] = -1
        self.table = depths.view(STEPS, ROWS).to(device)
        self.step = torch.zeros(1, dtype=torch.int32, device=device)  # on the device: steps may be graphs

        @triton.jit(do_not_specialize=["batch", "ahead", "capacity"])
        def force(
            statistics,
            rows,
            work,
            table,
            step,
            batch,
            ahead,
            capacity,
            under,
            SHARDS: tl.constexpr,
            NUMBERS: tl.constexpr,
            FIRST: tl.constexpr,
        ):
            table += tl.load(step) * 2048
            number = tl.program_id(0) * 128 + tl.arange(0, 128)
            m, first, total = batch, 0, batch * ahead
            if not FIRST:
                m, first, total = tl.load(work), tl.load(work + 1), tl.load(work + 3)
            held = number < total
            row, depth = number % tl.maximum(m, 1), first + number // tl.maximum(m, 1)
            if not FIRST:
                row = tl.load(rows + row, mask=held, other=0)
            wanted = tl.load(table + row, mask=held, other=0)
            h = tl.where(depth <= wanted, 10.0 - depth, 20.0 + depth)
            h = tl.where((wanted < 0) & (depth == 0), under, h)
            for shard in tl.static_range(SHARDS):
                place = statistics + (shard * capacity + number) * NUMBERS
                tl.store(place, 0.0 if shard == 0 else -float("inf"), mask=held)
                tl.store(place + 1, 1.0 if shard == 0 else 0.0, mask=held)
                tl.store(place + 2, -h if shard == 0 else h * 0.0, mask=held)

        self._kernel = force

    def __call__(self, statistics, candidates):
        """Overwrite the first three of the numbers ``[R, m, 3]`` or ``[R, m, 4]``."""
        from confident_decoding.kernels.types import FirstCandidates

        first = isinstance(candidates, FirstCandidates)
        if first:
            self.step.add_(1).remainder_(STEPS)
        shards, capacity, numbers = statistics.shape
        self._kernel[((candidates.capacity + 127) // 128,)](
            statistics,
            statistics if first else candidates.rows,
            statistics if first else candidates.work,
            self.table,
            self.step,
            candidates.batch if first else 0,
            candidates.ahead if first else 0,
            capacity,
            UNDER,
            SHARDS=shards,
            NUMBERS=numbers,
            FIRST=first,
        )


def apply_variant(worker, variant):
    """Make the worker's next steps a variant.

    Keys: ``p``, ``min_entropy``, ``dense`` (no rounds), ``eager`` (no CUDA graphs), ``plain`` (`plain_recipe`),
    ``final`` (`final_only`), ``histogram`` and ``under`` (`Forced`), ``metrics`` (of an engine with
    ``trough_metrics``; else off).
    """
    from confident_decoding import planner
    from confident_decoding.kernels import triton_operations

    head = selecting_head(worker)
    if not hasattr(worker, "_unchanged"):
        worker._unchanged = head._plan, planner.rows_per_read, triton_operations.decide, head._graphs
    plan, per_read, decide, graphs = worker._unchanged
    head._plan = dataclasses.replace(plan, p=variant.get("p", 1.0), min_entropy=variant.get("min_entropy", 0.0))
    planner.rows_per_read = (lambda *args, **kwargs: None) if variant.get("dense") else per_read
    head._graphs = graphs and not variant.get("eager")
    head.metrics = bool(variant.get("metrics"))
    head._plain = plain_recipe(head) if variant.get("plain") else final_only(head) if variant.get("final") else None
    type(head).__call__ = dispatch
    triton_operations.decide = decide
    if variant.get("histogram"):
        forced = Forced(variant["histogram"], variant.get("under", 0.0), worker.device)

        def forced_decide(statistics, candidates, *rest):
            forced(statistics, candidates)
            return decide(statistics, candidates, *rest)

        triton_operations.decide = forced_decide
    if head._plain is None:
        head._warm, head._replays = False, None
        rows = worker.vllm_config.scheduler_config.max_num_seqs
        width = len(plan.depths) * head._hidden
        _dummy_sampler_run(worker, torch.zeros(rows, width, device=worker.device, dtype=worker.model_config.dtype))


def _dummy_sampler_run(worker, packed):
    """By its name a warm-up: kernels are compiled and graphs made again."""
    with torch.inference_mode():
        worker.model_runner.get_model().compute_logits(packed)


def delay_head(worker, ms):
    """Keep the host busy for so long in each head call of a stock engine: is its time on the critical path?"""
    import time

    from confident_decoding.plugin.anatomy import logits_processor

    processor = logits_processor(worker.model_runner.get_model())
    stock = type(processor)._apply_head.__get__(processor)

    def delayed(*args):
        end = time.perf_counter() + ms / 1000
        while time.perf_counter() < end:
            pass
        return stock(*args)

    processor._apply_head = delayed


def dispatch(head, *args):
    """`SelectingHead.__call__`, or what stands in its place."""
    if head._plain is not None and args[1].shape[-1] != head._hidden:
        return head._plain(*args)
    return STOCK_CALL(head, *args)


def plain_recipe(head):
    """The documented recipe, written plainly: every candidate's logits in full, softmax in fp32, entropy, pick.

    Under tensor parallelism all candidates' logits are gathered, as a recipe that wants probabilities must.
    """

    def call(lm_head, packed, bias):
        n, processor = len(head._plan.depths), head._processor
        states = packed.view(len(packed), n, -1)
        every = [states[:, 0], *(head._final_state(states[:, d].contiguous()) for d in range(1, n))]
        logits = torch.stack([head._stock(lm_head, state.contiguous(), bias) for state in every])
        whole = logits
        if lm_head.tp_size > 1:
            from vllm.distributed import tensor_model_parallel_all_gather

            whole = tensor_model_parallel_all_gather(logits)
        probabilities = torch.softmax(whole[..., : processor.org_vocab_size].float(), -1)
        entropies = -(probabilities * torch.log(probabilities + 1e-10)).sum(-1)
        descends = (entropies[1:] < entropies[:-1]).long().cumprod(0).sum(0)
        return logits.gather(0, descends[None, :, None].expand(1, -1, logits.shape[-1]))[0]

    return call


def final_only(head):
    """The final layer's logits and no scan: what capturing and packing cost."""

    def call(lm_head, packed, bias):
        return head._stock(lm_head, packed[:, : head._hidden].contiguous(), bias)

    return call


def _stock_call():
    from confident_decoding.plugin.head import SelectingHead

    return SelectingHead.__call__


STOCK_CALL = _stock_call()


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
