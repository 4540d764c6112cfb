"""Proof of one architecture at a time: a real engine with the plugin against transformers.

    python -m models.prove OUT.jsonl TAG ...        (from tests/)

Appends one line of evidence per tag, or the error. The tests read the lines; on a GPU the same command
runs by hand (benchmarks/results/).
"""

import argparse
import gc
import json
import math
import os
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import oracle as definitions

from models import recorder
from plugin.checks import first_difference
from models.checkpoints import CHECKPOINTS, build

TOLERANCE = 1e-3  # nats, and absolute in states and logits, in float32
NEW_TOKENS = 8
ENV = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # collective_rpc of a function
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
}
SWITCH = {"enable_multi_layer_entropy_selection": True, "trough_max_backtrack_layers": -1}


def prompts(vocab):
    """Three prompts of ids below ``vocab``."""
    generator = np.random.default_rng(0)
    return [generator.integers(3, vocab, length).tolist() for length in (5, 17, 40)]


def with_engine(work, folder, made, dtype, additional_config, **options):
    """``work(llm)``; no reference to the engine outlives it, so the next one finds a clean process."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(
        model=str(folder),
        dtype=dtype,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        max_logprobs=-1,
        gpu_memory_utilization=0.3,
        additional_config=additional_config,
        **{**made.options, **options},
    )
    try:
        return work(llm)
    finally:
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def generate(llm, inputs, **sampling):
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False, **sampling)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in inputs], params, use_tqdm=False)
    return outputs


def plain(outputs):
    """Tokens and logprobs, to be compared to the bit."""
    rows = []
    for out in outputs:
        at = [*(out.prompt_logprobs or []), *out.outputs[0].logprobs]
        rows.append((out.outputs[0].token_ids, [at and {t: v.logprob for t, v in at.items()} for at in at]))
    return rows


def by_position(calls):
    """The records of one request, in the order of its tokens: prompt rows, then sampled rows."""
    ordered = [c for c in calls if c["rows"] == "prompt"] + [c for c in calls if c["rows"] == "sampled"]
    return {
        key: np.concatenate([c[key] for c in ordered], axis=0 if key == "depths" else 1)
        for key in ("states", "logits", "depths", "entropies")
    }


def agreement(entropies, depths, tolerance):
    """Rows whose depth is decided by more than ``tolerance``: ``(compared, equal)``."""
    window, compared, equal = len(entropies) - 1, 0, 0
    for row, depth in enumerate(depths):
        h = entropies[:, row]
        expected = definitions.trough(h, window)
        decisive = min((abs(h[i + 1] - h[i]) for i in range(min(expected + 1, window))), default=math.inf)
        if decisive > tolerance:
            compared, equal = compared + 1, equal + int(expected == depth)
    return compared, equal


def entropies_of(logits):
    return np.array([[definitions.entropy(row) for row in depth] for depth in logits])


def prove(tag, folder, dtype, **options):
    """Evidence for one architecture; raises AssertionError where it fails."""
    import torch
    import vllm

    made = CHECKPOINTS[tag]
    served = build(tag, folder)
    reference = definitions.TransformersOracle(folder, getattr(torch, dtype))
    n, exact = reference.num_layers, dtype == "float32"

    inputs = prompts(reference.config.vocab_size - 8)  # the ids at the vocabulary's end mark images

    def recorded(llm):
        requests, stream_error = [], 0.0
        for ids in inputs:
            llm.collective_rpc(recorder.start)
            try:
                (output,) = generate(llm, [ids], prompt_logprobs=0, logprobs=5)
                stream_error = max(stream_error, *llm.collective_rpc(recorder.last_stream_error))
            finally:
                record = llm.collective_rpc(recorder.fetch)[0]
            requests.append(([*ids, *output.outputs[0].token_ids[:-1]], by_position(record)))
        return requests, stream_error, [out.outputs[0].token_ids for out in generate(llm, inputs)]

    def logprobs(llm):
        return plain(generate(llm, inputs, prompt_logprobs=2, logprobs=5))

    requests, stream_error, batched = with_engine(recorded, served, made, dtype, SWITCH, **options)
    stock = with_engine(logprobs, served, made, dtype, {}, **options)
    regression = with_engine(logprobs, served, made, dtype, {**SWITCH, "p": 0}, **options)

    worst = {"state": 0.0, "logits": 0.0, "entropy": 0.0}
    relative = np.zeros(n)
    compared = equal = own_compared = own_equal = 0
    all_depths = []
    pairs = []
    for ids, record in requests:
        states, logits = reference.candidates(ids)
        pairs.append((entropies_of(logits), record))
        worst["state"] = max(worst["state"], np.abs(record["states"] - states).max())
        finite = np.isfinite(logits)
        assert (finite == np.isfinite(record["logits"])).all()
        worst["logits"] = max(worst["logits"], np.abs(record["logits"] - logits, where=finite, out=np.zeros_like(logits)).max())
        worst["entropy"] = max(worst["entropy"], np.abs(record["entropies"] - pairs[-1][0]).max())
        error = np.linalg.norm(record["states"] - states, axis=-1) / np.linalg.norm(states, axis=-1)
        relative = np.maximum(relative, error.mean(axis=1))
        own = agreement(entropies_of(record["logits"]), record["depths"], TOLERANCE)
        own_compared, own_equal = own_compared + own[0], own_equal + own[1]
        all_depths += record["depths"].tolist()
    # bfloat16 moves entropies by more than 1e-3: rows are compared where the gap exceeds that error twice over.
    tolerance = TOLERANCE if exact else 2 * worst["entropy"]
    for entropies, record in pairs:
        some = agreement(entropies, record["depths"], tolerance)
        compared, equal = compared + some[0], equal + some[1]

    result = {
        "tag": tag,
        "architecture": made.architecture,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "vllm": vllm.__version__,
        "dtype": dtype,
        "layers": n,
        "rows": len(all_depths),
        "depths_seen": sorted(set(all_depths)),
        "state_error": float(worst["state"]),
        "logit_error": float(worst["logits"]),
        "entropy_error": float(worst["entropy"]),
        "relative_error_by_depth": [float(f"{e:.2g}") for e in relative],
        "last_stream_error": stream_error,
        "depths": {"gap": tolerance, "compared": compared, "equal": equal},
        "depths_from_own_logits": {"gap": TOLERANCE, "compared": own_compared, "equal": own_equal},
        "p0_bit_equal": regression == stock,
        "options": {**made.options, **options},
    }
    if exact:
        result["batched"] = follow_all(reference, inputs, batched)
    return result


def follow_all(reference, inputs, generated):
    """Batched greedy tokens against the oracle: sequences, and the decision at which one left it, if any."""
    first = [
        first_difference(reference, ids, tokens, window=reference.num_layers - 1)
        for ids, tokens in zip(inputs, generated, strict=True)
    ]
    return {"sequences": len(first), "left_at": [decision for decision in first if decision is not None]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("tags", nargs="+")
    parser.add_argument("--dtype", help="instead of the dtype that the CPU engine needs")
    args = parser.parse_args()
    for name, value in ENV.items():
        os.environ.setdefault(name, value)
    for tag in args.tags:
        made = CHECKPOINTS[tag]
        os.environ.update(made.env)
        with tempfile.TemporaryDirectory() as folder:
            try:
                line = prove(tag, Path(folder), args.dtype or made.dtype)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                line = {"tag": tag, "error": "".join(traceback.format_exception(error))[-4000:]}
                traceback.print_exc()
        with args.out.open("a") as out:
            out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
