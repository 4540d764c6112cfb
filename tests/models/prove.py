"""Proof of one architecture at a time: a real engine with the plugin against transformers.

    python -m models.prove OUT.jsonl TAG ...        (from tests/)

Appends one line of evidence per tag, or the error. The tests read the lines; on a GPU the same command
runs by hand (benchmarks/results/).
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
import tempfile
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import oracle as definitions
from plugin.checks import first_difference

from models import images, recorder
from models.checkpoints import CHECKPOINTS, VOCAB, build
from models.engines import ENV, isolated, with_engine
from models.parallel import run_parallel

TOLERANCE = 1e-3  # nats, and absolute in states and logits, in float32
NEW_TOKENS = 8
SWITCH = {"enable_multi_layer_entropy_selection": True, "trough_max_backtrack_layers": -1}


def prompts(vocab):
    """Three prompts of ids below ``vocab``."""
    generator = np.random.default_rng(0)
    return [generator.integers(3, vocab, length).tolist() for length in (5, 17, 40)]


def generate(llm, inputs, **sampling):
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False, **sampling)
    prompts = [given if isinstance(given, dict) else {"prompt_token_ids": given} for given in inputs]
    return llm.generate(prompts, params, use_tqdm=False)


def plain(outputs):
    """Tokens and logprobs, to be compared to the bit."""
    rows = []
    for out in outputs:
        at = [*(out.prompt_logprobs or []), *out.outputs[0].logprobs]
        rows.append((out.outputs[0].token_ids, [at and {t: v.logprob for t, v in at.items()} for at in at]))
    return rows


def same_depths(mine, others):
    return all(np.array_equal(a["depths"], b["depths"]) for a, b in zip(mine, others, strict=True))


def by_position(calls, prompt_length):
    """The records of one request, a row per position: the prompt's but its last, then the sampled ones."""
    joined = {}
    for key, axis in {"states": 1, "logits": 1, "entropies": 1, "depths": 0}.items():
        prompt, sampled = (
            np.concatenate([np.moveaxis(c[key], axis, 0) for c in calls if c["rows"] == kind])
            for kind in ("prompt", "sampled")
        )
        # The V2 model runner also asks for the last prompt token's row here.
        joined[key] = np.moveaxis(np.concatenate([prompt[: prompt_length - 1], sampled]), 0, axis)
    return {**joined, "eps": calls[0]["eps"]}


def difference_from_returned(output, record):
    """Largest difference of the logprobs that the engine returned from those of the layers that it chose."""
    worst, completion = 0.0, output.outputs[0]
    first = len(output.prompt_token_ids) - 1
    for step, at in enumerate(completion.logprobs):
        logits = record["logits"][record["depths"][first + step], first + step].astype(np.float64)
        logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        worst = max(worst, *(abs(logprobs[token] - value.logprob) for token, value in at.items()))
    return float(worst)


def agreement(entropies, depths, tolerance):
    """Of each row whose depth is decided: by how many nats, and whether it is that one.

    Args:
        entropies: ``[n, rows]`` nats.
        depths: ``[rows]``.
        tolerance: Nats, broadcast to ``[n-1, rows]``: how far apart two neighbours must be to be told apart.
    """
    window, decided = len(entropies) - 1, []
    gaps = abs(np.diff(entropies, axis=0))
    clear = gaps > np.broadcast_to(tolerance, gaps.shape)
    for row, depth in enumerate(depths):
        expected = definitions.trough(entropies[:, row], window)
        looked = min(expected + 1, window)
        if clear[:looked, row].all():
            decided.append((float(gaps[:looked, row].min(initial=math.inf)), bool(expected == depth)))
    return decided


def entropies_of(logits):
    return np.array([[definitions.entropy(row) for row in depth] for depth in logits])


def rounding(logits, eps):
    """``[n-1, rows]`` nats: two standard deviations of the difference of neighbours.

    A head call on other rows adds in another order, so that each logit ``[n, rows, V]`` may be one unit in the last
    place off, ``eps`` of the power of two below it. An entropy then moves by ``sum p (log p + H) dx``.
    """
    x = logits.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    logp = x - np.log(np.exp(x).sum(-1, keepdims=True))
    p, logp = np.exp(logp), np.where(np.isfinite(logp), logp, 0.0)
    entropy = -(p * logp).sum(-1, keepdims=True)
    unit = 2.0 ** (np.floor(np.log2(np.maximum(abs(np.where(np.isfinite(logits), logits, 1.0)), 1e-9)))) * eps
    variance = ((p * (logp + entropy) * unit) ** 2).sum(-1)
    return 2 * np.sqrt(variance[1:] + variance[:-1])


def compare(reference, ids, record, **inputs):
    """The reference's entropies, and the largest differences from it."""
    states, logits = reference.candidates(ids, **inputs)
    assert states.shape == record["states"].shape, "one row per position"
    finite, entropies = np.isfinite(logits), entropies_of(logits)
    assert (finite == np.isfinite(record["logits"])).all()
    relative = np.linalg.norm(record["states"] - states, axis=-1) / np.linalg.norm(states, axis=-1)
    return entropies, {
        "state_error": float(np.abs(record["states"] - states).max()),
        "logit_error": float(np.abs(record["logits"] - logits)[finite].max()),
        # A lazy scan does not look at every depth.
        "entropy_error": float(np.nanmax(np.abs(record["entropies"] - entropies))),
        "relative_error_by_depth": [float(f"{error:.2g}") for error in relative.mean(axis=1)],
    }


def total(agreements, gap):
    decided = [row for rows in agreements for row in rows]
    others = sorted(by for by, equal in decided if not equal)
    found = {"gap": gap, "compared": len(decided), "equal": len(decided) - len(others)}
    return {**found, "others_decided_by": others} if others else found


def prove(tag, folder, dtype, with_image=False, isolate=False, **options):
    """Evidence for one architecture; raises AssertionError where it fails."""
    import torch
    import vllm

    made = CHECKPOINTS[tag]
    served = build(tag, folder, all_experts=dtype != "float32")
    reference = definitions.TransformersOracle(folder, getattr(torch, dtype))
    n, exact = reference.num_layers, dtype == "float32"

    inputs = prompts(reference.config.vocab_size - 8)  # the ids at the vocabulary's end mark images
    if with_image:
        images.add_processor(tag, served)
        picture, _, model_inputs = images.inputs(tag, served)

    def recorded(llm):
        # Module hooks run in eager mode only.
        requests, stream_error, returned_error = [], None if "enforce_eager" in options else 0.0, 0.0
        for given in [*inputs, *([picture] if with_image else [])]:
            llm.collective_rpc(recorder.start)
            try:
                (output,) = generate(llm, [given], prompt_logprobs=0, logprobs=5)
                if stream_error is not None:
                    stream_error = max(stream_error, *llm.collective_rpc(recorder.last_stream_error))
            finally:
                record, *others = llm.collective_rpc(recorder.fetch)
            assert all(same_depths(record, other) for other in others), "tensor-parallel ranks chose differently"
            ids, record = output.prompt_token_ids, by_position(record, len(output.prompt_token_ids))
            returned_error = max(returned_error, difference_from_returned(output, record))
            requests.append(([*ids, *output.outputs[0].token_ids[:-1]], record))
        batched = [out.outputs[0].token_ids for out in generate(llm, inputs)]
        found = {
            "last_stream_error": stream_error,
            "returned_logprob_error": returned_error,
            "head_is_a_matrix": all(llm.collective_rpc(recorder.head_is_a_matrix)),
        }
        return requests, found, batched, all(llm.collective_rpc(recorder.draft_untouched))

    def logprobs(llm):
        return plain(generate(llm, inputs, prompt_logprobs=2, logprobs=5))

    def stock_run(llm):
        return logprobs(llm), all(llm.collective_rpc(recorder.untouched))

    def run(work, additional_config, **more):
        arguments = (work, served, made, dtype, additional_config, {**options, **more})
        if not isolate:
            return with_engine(*arguments)
        import cloudpickle

        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(isolated, cloudpickle.dumps(arguments)).result()

    requests, found, batched, draft = run(recorded, SWITCH, **(images.ENGINE if with_image else {}))
    image_request = requests.pop() if with_image else None
    stock, off = run(stock_run, {})
    regression = run(logprobs, {**SWITCH, "p": 0})

    records = [record for _, record in requests]
    entropies, errors = zip(*(compare(reference, *request) for request in requests), strict=True)
    worst = {key: np.max([error[key] for error in errors], axis=0).tolist() for key in errors[0]}
    # bfloat16 moves entropies by more than 1e-3: rows are compared where the gap exceeds that error twice over.
    tolerance = TOLERANCE if exact else 2 * worst["entropy_error"]
    decided = [agreement(h, r["depths"], tolerance) for h, r in zip(entropies, records, strict=True)]
    units = [np.maximum(TOLERANCE, rounding(record["logits"], record["eps"])) for record in records]
    decided_by_own = [
        agreement(entropies_of(r["logits"]), r["depths"], unit) for r, unit in zip(records, units, strict=True)
    ]
    all_depths = [depth for record in records for depth in record["depths"].tolist()]

    result = {
        "tag": tag,
        "architecture": tag.split("-")[0],
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "vllm": vllm.__version__,
        "dtype": dtype,
        "layers": n,
        "rows": len(all_depths),
        "depths_seen": sorted(set(all_depths)),
        **worst,
        **found,
        "depths": total(decided, tolerance),
        "depths_from_own_logits": total(
            decided_by_own, float(np.median(np.concatenate([np.ravel(unit) for unit in units])))
        ),
        "p0_bit_equal": regression == stock,
        "untouched": {"switched_off": off, "draft_of_the_same_class": draft},
        "options": {**made.options, **options},
    }
    if exact:
        result["batched"] = follow_all(reference, inputs, batched)
    if with_image:
        ids, record = image_request
        images.record_entering_streams(reference.model)
        result["image"] = compare(reference, ids, record, **model_inputs(ids))[1]
        result["image"]["image_tokens"] = ids.count(VOCAB - 1)
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
    parser.add_argument("tags", nargs="*", default=list(CHECKPOINTS))
    parser.add_argument("--dtype", help="instead of the dtype that the CPU engine needs")
    parser.add_argument("--compiled", action="store_true", help="torch.compile, and CUDA graphs on a GPU")
    parser.add_argument("--images", action="store_true", help="also one request with an image")
    parser.add_argument("--isolate", action="store_true", help="a process for each engine")
    parser.add_argument("--option", action="append", default=[], help="NAME=JSON, of vllm.LLM, for every tag")
    parser.add_argument("--jobs", type=int, help="processes at a time; a log of each is left beside OUT")
    args = parser.parse_intermixed_args()
    for name, value in ENV.items():
        os.environ.setdefault(name, value)
    if args.jobs:
        return run_parallel(args, args.jobs)
    compiled = {"enforce_eager": False, "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]}}
    options = {name: json.loads(value) for name, _, value in (option.partition("=") for option in args.option)}
    options |= compiled if args.compiled else {}
    for tag in args.tags:
        with tempfile.TemporaryDirectory() as folder:
            try:
                dtype = args.dtype or CHECKPOINTS[tag].dtype
                line = prove(tag, Path(folder), dtype, args.images and tag in images.FAMILIES, args.isolate, **options)
            except Exception as error:
                line = {"tag": tag, "error": "".join(traceback.format_exception(error))[-4000:]}
                traceback.print_exc()
        with args.out.open("a") as out:
            out.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
