"""Drafters beside the selection, on a GPU; run by benchmarks.gpu_check.

Heads are random, so hardly a draft of theirs is accepted, and what they propose is compared; a target that drafts for
itself has some accepted. Among the requests are seeded ones that mix layers: with asynchronous scheduling the host does
not know how many drafts of the last step were accepted, and their draws must not depend on it.
"""

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.gpu_engine import INVARIANT, PROMPTS, RUNNERS, on, report, run, same
from benchmarks.shapes import LAYERS, small_eagle3_head

TOKENS = 48
"""Of an answer."""
MIXED = [{"logprobs": 8}, {"logprobs": 8, "seed": 5, "extra_args": {"confident_p": 0.5}}] * (len(PROMPTS) // 2)


def eagle3(model):
    layers = (1, LAYERS // 2, LAYERS)  # none of the candidates', one of them, what leaves the last layer
    with tempfile.TemporaryDirectory() as folder:
        head = small_eagle3_head(Path(folder) / "head", layers)
        for number in RUNNERS:
            check(model, number, {"method": "eagle3", "model": head, "num_speculative_tokens": 2})


def drafters(model):
    """With the tiny checkpoints of the tests, and the second runner, which is vLLM's choice here."""
    sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests")]
    from models.checkpoints import CHECKPOINTS, build
    from models.drafters import add_mtp_layer, eagle_head

    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(3) as pool:
        folder = Path(name)
        target = build("LlamaForCausalLM", folder / "llama")
        head = str(eagle_head(Path(target), folder / "eagle"))
        prompts = [[token % 500 for token in prompt] for prompt in PROMPTS]
        tiny = {"prompts": prompts, "max_model_len": 128}
        mtp = add_mtp_layer(Path(build("DeepseekV3ForCausalLM-mha", folder / "mtp")))
        row = CHECKPOINTS["DeepseekV3ForCausalLM-mha"]
        started = [
            pool.submit(check, model, "1", {"method": "draft_model", "model": model, "num_speculative_tokens": 3}),
            pool.submit(
                check, str(target), "1", {"method": "eagle", "model": head, "num_speculative_tokens": 2}, **tiny
            ),
            pool.submit(
                check,
                str(mtp),
                "1",
                {"method": "mtp", "num_speculative_tokens": 1},
                env=row.env,
                **{**tiny, **row.options},
            ),
        ]
        for one in started:
            one.result()


def check(model, number, drafting, prompts=PROMPTS, env=None, **options):
    """Answers are those without drafts, and with p=0 the drafter proposes what it proposes on a standard server."""
    env = {**INVARIANT, "VLLM_USE_V2_MODEL_RUNNER": number, **(env or {})}
    shared = {"env": env, "prompts": prompts, "tokens": TOKENS, **options}
    off, p0 = (run(model, config, speculative_config=drafting, **shared) for config in ({}, on(p=0.0)))
    p1 = run(model, on(), sampling=MIXED, speculative_config=drafting, **shared)
    alone = run(model, on(), sampling=MIXED, **shared)
    method = drafting["method"]
    text, equal = same(alone, p1)
    name = f"{method}: drafts change no token, {p1['runner']} runner, asynchronous: {p1.get('asynchronous')}"
    report(name, equal, text)
    text, equal = same(off, p0)
    report(f"{method}: p=0 bit-equal to off", equal and off["logprobs"] == p0["logprobs"], text)
    # Until the first request may have ended: what is drafted for one that has is nobody's.
    sure = TOKENS // (1 + drafting["num_speculative_tokens"])
    first_off, first_p0, first_p1 = (result["drafts"][:sure] for result in (off, p0, p1))
    differ = [number for number, (a, b) in enumerate(zip(off["drafts"], p0["drafts"], strict=False)) if a != b]
    report(
        f"{method}: the drafter proposes what it proposes on a standard server",
        [] != first_off == first_p0 != first_p1 != [],
        f"{len(first_p0)} of {len(off['drafts'])} and {len(p0['drafts'])} proposals; of all, these differ: {differ}",
    )
