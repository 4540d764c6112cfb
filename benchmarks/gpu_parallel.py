"""Tensor parallelism on a machine with several GPUs: equal depths on every rank, and what is sent between them.

    python -m benchmarks.gpu_parallel --tensor-parallel-size 2 --steps 500

A small random model whose outputs vary generates; every rank's depths are recorded, and compared with each other,
with the scan of one GPU on the same rows, and with float64. Bytes that the head call gathers are counted. Where there
are too few GPUs the ranks share one (`benchmarks.one_gpu`).
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.depths import decided, exact_entropies
from benchmarks.gpu_engine import PROMPTS, SWITCH
from benchmarks.one_gpu import places
from benchmarks.shapes import LAYERS, small_checkpoint
from benchmarks.timing import machine
from benchmarks.variants import selecting_head

KEPT_ROWS = 400
MANY = [[*prompt, 5 + k] for k in range(14) for prompt in PROMPTS]
"""Enough rows that the scan has rounds."""


def start_recording(worker):
    """Keep the depths of every call of this rank, and some of its packed rows; count what it gathers."""
    import vllm.distributed
    from vllm.model_executor.layers import logits_processor

    from confident_decoding.plugin import head as plugin_head

    worker.recorded = {"depths": [], "packed": [], "statistics": 0, "logits": 0, "calls": 0}
    select = plugin_head.scan.select

    def recording(packed, *args, **kwargs):
        result = select(packed, *args, **kwargs)
        worker.recorded["depths"].append(result.depths.cpu())
        if sum(map(len, worker.recorded["packed"])) < KEPT_ROWS:
            worker.recorded["packed"].append(packed.cpu())
        worker.recorded["calls"] += 1
        return result

    plugin_head.scan = type(sys)("scan")
    plugin_head.scan.select = recording
    plugin_head.scan.replayed = None  # made already

    def counted(gather, what):
        def call(tensor, *args, **kwargs):
            worker.recorded[what] += tensor.numel() * tensor.element_size()
            return gather(tensor, *args, **kwargs)

        return call

    # Statistics are gathered by the package's name, logits by the module's own.
    for module, name in (
        (vllm.distributed, "tensor_model_parallel_all_gather"),
        (logits_processor, "tensor_model_parallel_all_gather"),
        (logits_processor, "tensor_model_parallel_gather"),
    ):
        setattr(module, name, counted(getattr(module, name), "statistics" if module is vllm.distributed else "logits"))


def without_graphs(worker):
    """Python sees every collective again."""
    selecting_head(worker)._replays = None
    worker.recorded.update(statistics=0, logits=0, calls=0)


def graph_count(worker):
    """How many graphs this rank has made."""
    replays = selecting_head(worker)._replays
    return 0 if replays is None else len(replays._graphs)


def recorded(worker):
    """What this rank has recorded."""
    r = worker.recorded
    return {
        "depths": torch.cat(r["depths"]).tolist(),
        "packed": torch.cat(r["packed"])[:KEPT_ROWS].float().tolist() if worker.rank == 0 else None,
        "statistics": r["statistics"],
        "logits": r["logits"],
        "calls": r["calls"],
    }


def engine(spec):
    """In a process of its own: generate, then what the ranks recorded."""
    from vllm import LLM, SamplingParams

    llm = LLM(**spec["engine"])

    def generate(tokens):
        params = SamplingParams(temperature=0.7, seed=3, max_tokens=tokens, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": p} for p in MANY], params, use_tqdm=False)
        return [list(o.outputs[0].token_ids) for o in outputs]

    if not spec["record"]:
        return {"tokens": generate(spec["steps"])}
    llm.collective_rpc(start_recording)
    graphs = llm.collective_rpc(graph_count)
    tokens = generate(spec["steps"])
    ranks = llm.collective_rpc(recorded)
    llm.collective_rpc(without_graphs)
    generate(16)
    eager = llm.collective_rpc(recorded)
    return {"tokens": tokens, "graphs": graphs, "ranks": ranks, "eager": eager}


def run(options, steps, record=True):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        spec = {"engine": options, "steps": steps, "record": record, "out": str(out)}
        code = os.spawnve(
            os.P_WAIT,
            sys.executable,
            [sys.executable, "-m", "benchmarks.gpu_parallel", "--child", json.dumps(spec)],
            {
                **os.environ,
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
                "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
            },
        )
        if code:
            sys.exit(f"the engine ended with {code}")
        return json.loads(out.read_text())


def one_gpu(rows, folder, layers):
    """Depths and entropies of one GPU's scan on the same rows, and float64 entropies with their rounding."""
    from safetensors.torch import load_file

    from confident_decoding.config import ConfidentDecodingConfig
    from confident_decoding.kernels import statistics_of_finished
    from confident_decoding.model_head import ModelHead, RmsNorm
    from confident_decoding.scan import select

    tensors = load_file(str(Path(folder) / "model.safetensors"))
    weight, gain = tensors["lm_head.weight"].cuda(), tensors["model.norm.weight"].cuda()
    plan = ConfidentDecodingConfig(trough_max_backtrack_layers=layers).resolve(LAYERS)
    packed = torch.tensor(rows).bfloat16().cuda()
    norm = RmsNorm(gain, 1e-6)
    head = ModelHead(None, lambda x: x @ weight.T, statistics_of_finished, len(weight), None, False, weight, norm)
    depths = select(packed, plan, head).depths.cpu()
    return depths, *exact_entropies(packed, weight, gain, layers)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensor-parallel-size", type=int, default=2)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        spec = json.loads(args.child)
        Path(spec["out"]).write_text(json.dumps(engine(spec)))
        return
    folder = small_checkpoint(Path(tempfile.gettempdir()) / "confident-decoding-check")
    several, env, where = places(args.tensor_parallel_size)
    options = {
        "model": folder,
        "skip_tokenizer_init": True,
        "max_model_len": 1024,
        "enable_prefix_caching": False,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2048,
        "kv_cache_memory_bytes": 2_000_000_000,
        "compilation_config": {"cudagraph_capture_sizes": [1, 8, 64, 112, 128]},
        "additional_config": {SWITCH: True},
        "tensor_parallel_size": args.tensor_parallel_size,
        **several,
    }
    os.environ.update(env)
    found = run(options, args.steps)
    ranks = [torch.tensor(rank["depths"]) for rank in found["ranks"]]
    mean = float(ranks[0].float().mean())
    equal = all(torch.equal(rank, ranks[0]) for rank in ranks)
    print(f"graphs on each rank: {found['graphs']}")
    print(
        f"{'PASS' if equal and mean > 0 else 'FAIL'}  ranks' depths equal: {len(ranks[0])} rows, mean depth {mean:.2f}"
    )
    layers = min(10, LAYERS)
    rows = found["ranks"][0]["packed"]
    depths, exact, rounding = one_gpu(rows, folder, layers)
    expected, sure = decided(exact, rounding, layers - 1)
    mine = ranks[0][: len(rows)]
    agreement = {}
    for name, other in (("one GPU", depths), ("float64", expected)):
        same, same_sure = int((mine == other).sum()), int((mine == other)[sure].sum())
        ok = same_sure == int(sure.sum()) > 0
        key = f"as_{name.replace(' ', '_').lower()}"
        agreement |= {key: same, f"{key}_where_rounding_cannot_turn": [same_sure, int(sure.sum())]}
        print(
            f"{'PASS' if ok else 'FAIL'}  depths as of {name}: {same}/{len(rows)} rows, "
            f"{same_sure}/{int(sure.sum())} where rounding cannot turn the scan"
        )
    eager = found["eager"][0]
    sent = {what: eager[what] / eager["calls"] for what in ("statistics", "logits")}
    print(f"bytes that a rank gives to each gather, per call of up to {len(MANY)} rows: {sent}")
    if args.out:  # before the second engine, which a time limit may not let start
        result = {
            "machine": machine(),
            "steps": args.steps,
            "tensor_parallel_size": args.tensor_parallel_size,
            "where": where,
            "equal": equal,
            "rows": len(ranks[0]),
            "mean_depth": mean,
            "bytes": sent,
            "rows_looked_at": len(rows),
            **agreement,
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    sharded = run({**options, "enable_batch_sharded_sampling": True}, 64, record=False)
    same = sum(a[:64] == b for a, b in zip(found["tokens"], sharded["tokens"], strict=True))
    print(f"with enable_batch_sharded_sampling: {same}/{len(MANY)} sequences of 64 tokens equal")


if __name__ == "__main__":
    main()
