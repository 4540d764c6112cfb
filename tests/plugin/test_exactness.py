"""bf16: p=0 is standard decoding to the last bit, eager and compiled; and so is an absent plugin."""

import pytest
from conftest import greedy, on, smol_engine, tiny_engine

pytestmark = pytest.mark.engine
PROMPTS, NEW_TOKENS = 20, 128


def run(run_engines, smollm2, prompts, configs, *arguments, **options):
    call = {"prompts": prompts[:PROMPTS], "sampling": greedy(NEW_TOKENS, logprobs=5)}
    jobs = [
        {"engine": smol_engine(smollm2, config, dtype="bfloat16", **options), "calls": [call]} for config in configs
    ]
    return [result["calls"][0] for result in run_engines(jobs, *arguments)]


@pytest.fixture(scope="module")
def eager(run_engines, smollm2, prompts):
    off, p0, p1 = run(run_engines, smollm2, prompts, [{}, on(p=0.0), on()])
    return {"off": off, "p0": p0, "p1": p1}


@pytest.fixture(scope="module")
def compiled(run_engines, smollm2, prompts):
    off, p0 = run(run_engines, smollm2, prompts, [{}, on(p=0.0)], enforce_eager=False)
    return {"off": off, "p0": p0}


@pytest.fixture(scope="module")
def small(run_engines, tiny):
    """The same of a tiny random model, which compiles in a tenth of the time."""
    prompts = [[(7 * row + 3 * place) % 500 + 3 for place in range(4 + row)] for row in range(PROMPTS)]
    call = {"prompts": prompts, "sampling": greedy(NEW_TOKENS, logprobs=5)}
    options = {"dtype": "bfloat16", "max_model_len": 256}
    kinds = {"off": {}, "p0": on(p=0.0), "p1": on(), "eager": {}}
    jobs = [
        {
            "engine": tiny_engine(tiny("LlamaForCausalLM"), config, enforce_eager=name == "eager", **options),
            "calls": [call],
        }
        for name, config in kinds.items()
    ]
    return dict(zip(kinds, (result["calls"][0] for result in run_engines(jobs)), strict=True))


def check_bit_equal(a, b):
    assert len(a["tokens"]) == PROMPTS
    assert all(len(tokens[0]) == NEW_TOKENS for tokens in a["tokens"])
    assert a["tokens"] == b["tokens"]
    assert a["logprobs"] == b["logprobs"]


def test_eager_p_zero_is_the_switch_off(eager):
    check_bit_equal(eager["p0"], eager["off"])


def test_eager_p_zero_is_the_plugin_uninstalled(eager, run_engines, smollm2, prompts):
    (absent,) = run(run_engines, smollm2, prompts, [{}], "--hide-plugin")
    check_bit_equal(eager["p0"], absent)


def test_p_one_is_not(eager):
    """The comparison can fail: with p=1 hardly a text is the same."""
    same = sum(a == b for a, b in zip(eager["p1"]["tokens"], eager["off"]["tokens"], strict=True))
    assert same < PROMPTS / 2


def test_compiled_p_zero_is_the_switch_off_in_a_small_model(small):
    check_bit_equal(small["p0"], small["off"])
    assert small["p1"]["tokens"] != small["off"]["tokens"]
    assert small["eager"]["logprobs"] != small["off"]["logprobs"], "or this says nothing of the compiler"


@pytest.mark.slow
def test_compiled_p_zero_is_the_switch_off(compiled):
    check_bit_equal(compiled["p0"], compiled["off"])


@pytest.mark.slow
def test_compiled_is_not_eager(compiled, eager):
    """Otherwise the comparison above would say nothing of the compiler."""
    assert compiled["off"]["logprobs"] != eager["off"]["logprobs"]


@pytest.mark.slow
def test_compiled_p_zero_is_the_plugin_uninstalled(compiled, run_engines, smollm2, prompts):
    (absent,) = run(run_engines, smollm2, prompts, [{}], "--hide-plugin", enforce_eager=False)
    check_bit_equal(compiled["p0"], absent)
