"""Several ranks: tensor and pipeline parallelism, decode context parallelism, experts; run by benchmarks.gpu_check.

Where there are fewer GPUs than ranks, the ranks share one (`benchmarks.one_gpu`).
"""

import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.gpu_engine import INVARIANT, PROMPTS, RUNNERS, on, report, run, same
from benchmarks.gpu_lifecycle import apart
from benchmarks.one_gpu import places
from benchmarks.shapes import LAYERS, small_checkpoint
from demo.server import free_port


def first_tokens(result):
    """Of each answer: those whose step is the same batch every time."""
    return [answer[:1] for answer in result["tokens"] or []]


def close(found, expected):
    """``(whether, how far apart)`` of first tokens that only float32 rounds."""
    if not (found["tokens"] and expected["tokens"]):
        return False, "no answer"
    nats = max(apart(found, expected, 1))
    return nats < 1e-3, f"logprobs differ by at most {nats:.6f} nats; all tokens: {same(found, expected)[0]}"


def kept(result):
    """``(tokens at the final layer, tokens)`` by the log lines of an engine."""
    found = re.findall(r"kept_at_final=(\d+)/(\d+)", result["log"])
    return sum(int(a) for a, _ in found), sum(int(b) for _, b in found)


def parallel(model):
    """Tensor and pipeline parallelism, two ranks each."""
    several, env, where = places(2)
    config, fits = on(p=0.7, trough_log_interval=8), on(trough_max_backtrack_layers=LAYERS // 2)
    shared = {"tokens": 24, "enforce_eager": True}
    # Ranks of tensor parallelism add up partial sums: in bfloat16 that rounds rows onto other layers.
    wide = {**shared, "env": env, "dtype": "float32"}
    exact = {**shared, "env": {**INVARIANT, **env}}
    tensor, stages = ({f"{kind}_parallel_size": 2, **several} for kind in ("tensor", "pipeline"))
    with ThreadPoolExecutor(3) as pool:

        def start(config, **options):
            return pool.submit(run, model, config, **options)

        one, two = start(config, **wide), start(config, **wide, **tensor)
        graphs = [
            start(config, env={**env, "VLLM_USE_V2_MODEL_RUNNER": number}, tokens=24, **tensor) for number in RUNNERS
        ]
        fitting = start(fits, **exact), start(fits, **exact, **stages)
        many = start({}, **exact), start(on(), **exact, **stages)
        one, two = one.result(), two.result()
        graphs, fitting, many = ([answer.result() for answer in answers] for answers in (graphs, fitting, many))

    report(f"TP=2, {where}, float32: first tokens as with one", *close(two, one))
    steps, alone = (re.findall(r"\[trough-decoding\] step=(\d+)", result["log"]) for result in (two, one))
    report("one rank logs", 0 < len(steps) == len(set(steps)), f"steps {steps}, TP=1 {alone}")
    for result in graphs:
        at_final, tokens = kept(result)
        name = f"TP=2, {where}: CUDA graphs, {result['runner']} runner, selects"
        report(name, 0 < at_final < tokens, f"{at_final} of {tokens} stay")
    text, equal = same(*fitting)
    report(f"PP=2, {where}: candidates on the last stage: as one GPU", equal, text)
    text, equal = same(*many)
    report("PP=2, too many candidates: standard decoding", equal, text)
    report("and one warning", many[1]["log"].count("confident-decoding is not active") == 1)


def context(_):
    """One KV head, which both ranks of tensor parallelism would hold; here each holds half of its tokens instead.

    In bfloat16, as vLLM's attention of float32 knows no context parallelism; so first tokens are all that is compared.
    """
    several, env, where = places(2)
    with tempfile.TemporaryDirectory() as folder:
        model = small_checkpoint(Path(folder) / "model", kv_heads=1)
        shared = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2, "env": env, "tokens": 24, **several}
        with ThreadPoolExecutor(4) as pool:
            found = [pool.submit(run, model, c, **shared) for c in ({}, on(p=0.0), on(trough_log_interval=8))]
            found.append(pool.submit(run, model, on(), tokens=24))
        off, p0, p1, one = (answer.result() for answer in found)
    at_final, tokens = kept(p1)
    report(f"decode context parallel 2, {where}: selects", 0 < at_final < tokens, f"{at_final} of {tokens} stay")
    equal = first_tokens(off) == first_tokens(p0) != []
    report("first tokens of p=0 are those of off", equal, f"all tokens: {same(off, p0)[0]}")
    equal = [] != first_tokens(one) == first_tokens(p1) != first_tokens(off) != []
    report("first tokens are those of one GPU, and not those of off", equal, f"all tokens: {same(one, p1)[0]}")


def experts(_):
    """vLLM's sequence-parallel experts: two data-parallel ranks of two tensor-parallel ones, experts over all four."""
    sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests")]
    from models.checkpoints import CHECKPOINTS, build

    several, env, where = places(4)
    prompts = [[token % 500 for token in prompt] for prompt in PROMPTS]
    for tag in ("Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM-mha"):
        row = CHECKPOINTS[tag]
        with tempfile.TemporaryDirectory() as folder:
            model = str(build(tag, Path(folder) / "model", all_experts=True))  # rounding cannot flip a choice
            shared = {"prompts": prompts, "max_model_len": 128, "dtype": "float32", "tokens": 16, **row.options}
            spread = {"tensor_parallel_size": 2, "enable_expert_parallel": True, **several}
            configs = ({}, on(p=0.0), on(trough_log_interval=8))
            with ThreadPoolExecutor(5) as pool:
                wide = [pool.submit(on_two, model, c, {**env, **row.env}, {**shared, **spread}) for c in configs]
                single = [pool.submit(run, model, config, env=row.env, **shared) for config in (on(), {})]
            found, (one, one_off) = ([answer.result() for answer in answers] for answers in (wide, single))
        name = f"{tag}, sequence-parallel experts, {where}"
        at_final, tokens = map(sum, zip(*(kept(rank) for rank in found[-1]), strict=True))
        report(f"{name}: selects", 0 < at_final < tokens, f"{at_final} of {tokens} stay")
        chose = [rank.get("sequence_parallel_experts") for rank in found[-1]]
        report("  vLLM has chosen sequence-parallel experts", chose == [True, True], str(chose))
        for rank, (off, p0, p1) in enumerate(zip(*found, strict=True)):
            equal = first_tokens(off) == first_tokens(p0) == first_tokens(one_off) != []
            report(f"data-parallel rank {rank}: first tokens of p=0 and off are one GPU's", equal, same(off, p0)[0])
            equal = [] != first_tokens(p1) == first_tokens(one) != first_tokens(one_off) != []
            report("  first tokens with the switch on too, and others", equal, f"all tokens: {same(p1, one)[0]}")


def on_two(model, config, env, options):
    """The answers of two data-parallel ranks, an engine each, which take their steps together."""
    port = str(free_port())

    def rank(number):
        own = {"VLLM_DP_RANK": str(number), "VLLM_DP_RANK_LOCAL": str(number), "VLLM_DP_SIZE": "2"}
        return run(
            model, config, env={**env, **own, "VLLM_DP_MASTER_IP": "127.0.0.1", "VLLM_DP_MASTER_PORT": port}, **options
        )

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(rank, range(2)))
