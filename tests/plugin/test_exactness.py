"""bf16: p=0 is standard decoding to the last bit, eager and compiled; and so is an absent plugin."""

import pytest
from conftest import greedy, on, smol_engine

pytestmark = pytest.mark.engine
PROMPTS, NEW_TOKENS = 20, 128


def run(run_engines, smollm2, prompts, configs, *arguments, **options):
    call = {"prompts": prompts[:PROMPTS], "sampling": greedy(NEW_TOKENS, logprobs=5)}
    jobs = [
        {"engine": smol_engine(smollm2, config, dtype="bfloat16", **options), "calls": [call]} for config in configs
    ]
    return [result["calls"][0] for result in run_engines(jobs, *arguments)]


@pytest.fixture(scope="module", params=["eager", "compiled"])
def runs(request, run_engines, smollm2, prompts):
    options = {"enforce_eager": request.param == "eager"}
    off, p0, p1 = run(run_engines, smollm2, prompts, [{}, on(p=0.0), on()], **options)
    (absent,) = run(run_engines, smollm2, prompts, [{}], "--hide-plugin", **options)
    return {"off": off, "p0": p0, "p1": p1, "absent": absent}


@pytest.mark.parametrize("other", ["off", "absent"])
def test_p_zero_is_bit_equal(runs, other):
    assert len(runs["p0"]["tokens"]) == PROMPTS
    assert all(len(tokens[0]) == NEW_TOKENS for tokens in runs["p0"]["tokens"])
    assert runs["p0"]["tokens"] == runs[other]["tokens"]
    assert runs["p0"]["logprobs"] == runs[other]["logprobs"]


def test_p_one_is_not(runs):
    """The comparison can fail: with p=1 hardly a text is the same."""
    same = sum(a == b for a, b in zip(runs["p1"]["tokens"], runs["off"]["tokens"], strict=True))
    assert same < PROMPTS / 2
