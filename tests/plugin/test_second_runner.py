"""vLLM's second model runner, end to end on the CPU; on a GPU: `python -m benchmarks.gpu_check`.

Its Triton kernels run in Triton's interpreter (conftest.py). Answers must be those of the first model runner, which
other modules hold against transformers and against servers of each request's settings.
"""

import pytest
import torch
from conftest import greedy, on, tiny_engine
from oracle import TransformersOracle

from plugin.checks import follow
from plugin.test_requests import BAD, MANY, NGRAM, TOKENS, asked, mixing, mixture

pytestmark = pytest.mark.engine

SCORED = {"prompts": MANY, "sampling": greedy(TOKENS, logprobs=3, prompt_logprobs=1)}
PLAIN = {"prompts": MANY, "sampling": greedy(TOKENS, logprobs=3)}
MIXTURE = mixture()[1]
MIXING = {"prompts": MANY, "sampling": [mixing(seed) for seed in range(len(MANY))]}
PREEMPTION = {"num_gpu_blocks_override": 9, "block_size": 32, "disable_log_stats": False}


@pytest.fixture(scope="module")
def path(tiny):
    return tiny("LlamaForCausalLM")


@pytest.fixture(scope="module")
def first(run_engines, path):
    """The first model runner's answers."""
    job = {"engine": tiny_engine(path, on(trough_log_interval=1)), "calls": [SCORED, MIXTURE, MIXING]}
    return run_engines([job])[0]


@pytest.fixture(scope="module")
def second(run_engines, path, second_runner):
    """The second one's, by engine."""
    jobs = {
        "default": {
            "engine": tiny_engine(path, on(trough_log_interval=1)),
            "calls": [SCORED, MIXTURE, MIXING],
            "refused": [asked(arguments) for arguments in BAD.values()],
        },
        "preemption": {"engine": tiny_engine(path, on(), **PREEMPTION), "calls": [MIXTURE], "counters": True},
        "off": {"engine": tiny_engine(path), "calls": [SCORED]},
        "p zero": {"engine": tiny_engine(path, on(p=0.0)), "calls": [SCORED]},
    }
    return dict(zip(jobs, run_engines(list(jobs.values()), env=second_runner), strict=True))


def test_it_is_the_second_runner(first, second):
    assert "(vLLM" in first["lines"][0]
    assert "V1 model runner" in first["lines"][0]
    assert "V2 model runner" in second["default"]["lines"][0]


def test_tokens_are_the_oracles(second, path):
    oracle = TransformersOracle(path, torch.float32)
    for prompt, (generated,) in zip(MANY, second["default"]["calls"][0]["tokens"], strict=True):
        assert follow(oracle, prompt, generated, window=5) is None, "a near tie: choose another seed"


def test_scores_of_prompts_and_answers_are_the_first_runners(first, second):
    one, two = first["calls"][0], second["default"]["calls"][0]
    for a, b in zip(one["prompt_logprobs"], two["prompt_logprobs"], strict=True):
        assert (a[0], b[0]) == (None, None)
        for row_a, row_b in zip(a[1:], b[1:], strict=True):
            assert dict(row_a) == pytest.approx(dict(row_b), abs=1e-4)
    for a, b in zip(one["logprobs"], two["logprobs"], strict=True):
        for row_a, row_b in zip(a[0], b[0], strict=True):
            assert dict(row_a) == pytest.approx(dict(row_b), abs=1e-4)


@pytest.mark.parametrize("engine", ["default", "preemption"])
def test_every_request_is_answered_by_its_own_settings(engine, first, second):
    place = second[engine]["calls"][1 if engine == "default" else 0]
    assert place["tokens"] == first["calls"][1]["tokens"]


def test_requests_were_preempted(second):
    assert second["preemption"]["counters"]["vllm:num_preemptions"] > 5


def test_seeded_requests_mix_as_in_the_first_runner(first, second):
    mixed = second["default"]["calls"][2]["tokens"]
    assert mixed == first["calls"][2]["tokens"]
    assert mixed != second["default"]["calls"][0]["tokens"]


def test_requests_that_are_not_valid_are_refused_by_name(second):
    for words, message in zip(BAD, second["default"]["refusals"], strict=True):
        assert words in message


def test_p_zero_is_bit_equal_to_off(second):
    zero, off = (second[engine]["calls"][0] for engine in ("p zero", "off"))
    assert (zero["tokens"], zero["logprobs"], zero["prompt_logprobs"]) == (
        off["tokens"],
        off["logprobs"],
        off["prompt_logprobs"],
    )
    assert off["tokens"] != second["default"]["calls"][0]["tokens"]


def test_statistics_are_the_first_runners(first, second):
    """But for the sample, the first rows: the runners have rows in other orders."""
    one, two = (
        [line.split(" sample=")[0] for line in result["lines"] if "[trough-decoding]" in line]
        for result in (first, second["default"])
    )
    assert len(one) > 3 * TOKENS
    assert one == two


@pytest.mark.slow
def test_verified_rows_of_drafts(run_engines, path, first, second_runner):
    """In a process of its own: ngram speculation imports numba."""
    engine = tiny_engine(path, on(), speculative_config=NGRAM, disable_log_stats=False)
    (result,) = run_engines([{"engine": engine, "calls": [MIXTURE], "counters": True}], env=second_runner)
    assert result["calls"][0]["tokens"] == first["calls"][1]["tokens"]
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 0


@pytest.mark.slow
def test_batch_sharded_sampling(run_engines, path, first, second_runner):
    """Each of two ranks samples some of the requests, from rows that it has asked for."""
    options = {"tensor_parallel_size": 2, "enable_batch_sharded_sampling": True, "max_logprobs": 5}
    options["worker_extension_cls"] = "gathered_integers.GatheredIntegers"
    job = {
        "engine": tiny_engine(path, on(), **options),
        "calls": [PLAIN],
        "refused": [asked({"confident_p": 0})],
    }
    (result,) = run_engines([job], env=second_runner)
    assert "Batch-sharded sampling enabled." in result["log"]
    assert result["calls"][0]["tokens"] == first["calls"][0]["tokens"]
    assert "enable_batch_sharded_sampling" in result["refusals"][0]
