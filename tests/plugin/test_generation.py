"""How an engine is used: several samples, beams, streams, aborts, caches, preemption, sleep; with the switch on.

Each answer is compared with transformers, or with what the same request gives when it is asked alone. One engine for
all that needs no option of its own.
"""

import numpy as np
import pytest
import torch
from conftest import greedy, on, tiny_engine
from oracle import TransformersOracle

from plugin.beams import search
from plugin.checks import TIE, first_difference, follow
from plugin.processors import log_softmax

pytestmark = pytest.mark.engine

TOKENS = 24
PROMPTS = [torch.randint(7, 512, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (5, 9, 13, 22, 30)]
SHARED = torch.randint(7, 512, (70,), generator=torch.Generator().manual_seed(70)).tolist()
ON_ONE_PREFIX = [[*SHARED, *prompt[:number]] for number, prompt in enumerate(PROMPTS, 1)]
MANY = [*PROMPTS, *([*prompt[::-1], 9] for prompt in PROMPTS)]
WIDTH, BEAM_TOKENS = 3, 6
GREEDY = greedy(TOKENS, logprobs=2, detokenize=True)
MIXING = {"extra_args": {"confident_p": 0.5}}
SAMPLES = {"temperature": 0.9, "max_tokens": TOKENS, "ignore_eos": True, "detokenize": False}
SEED, COUNT = 11, 4
CALLS = {
    "alone": [{"prompts": [prompt], "sampling": GREEDY} for prompt in PROMPTS],
    "several": {"prompts": PROMPTS[:1], "sampling": {**SAMPLES, "seed": SEED, "n": COUNT, "logprobs": -1}},
    "single": {"prompts": PROMPTS[:1] * COUNT, "sampling": [{**SAMPLES, "seed": SEED + i} for i in range(COUNT)]},
    "several, mixing": {"prompts": PROMPTS[:1], "sampling": {**SAMPLES, **MIXING, "seed": SEED, "n": COUNT}},
    "single, mixing": {
        "prompts": PROMPTS[:1] * COUNT,
        "sampling": [{**SAMPLES, **MIXING, "seed": SEED + i} for i in range(COUNT)],
    },
    "beams": {"do": "beams", "with": {"prompts": PROMPTS[:3], "width": WIDTH, "max_tokens": BEAM_TOKENS}},
    "stream": {"do": "stream", "with": {"prompts": PROMPTS, "sampling": [GREEDY] * len(PROMPTS)}},
    "aborted": {
        "do": "stream",
        "with": {"prompts": PROMPTS, "sampling": [GREEDY] * len(PROMPTS), "abort": [0, 3], "after": 7},
    },
    "after the abort": {"prompts": PROMPTS, "sampling": GREEDY},
    "one prefix": {"prompts": ON_ONE_PREFIX, "sampling": GREEDY},
    "many": {"prompts": MANY, "sampling": GREEDY},
    "many, mixing": {"prompts": MANY, "sampling": [greedy(TOKENS, seed=i, **MIXING) for i in range(len(MANY))]},
    "asleep 1": {"do": "sleep_and_wake", "with": {"level": 1}},
    "asleep 2": {"do": "sleep_and_wake", "with": {"level": 2}},
    "awake": {"prompts": PROMPTS, "sampling": GREEDY},
    "changed": {
        "do": "change_configuration",
        "with": {"keys": {"p": 0.0, "select_method": "last-m2", "enable_multi_layer_entropy_selection": False}},
    },
    "after the change": {"prompts": PROMPTS, "sampling": GREEDY},
}


@pytest.fixture(scope="module")
def oracle(tiny_text):
    return TransformersOracle(tiny_text, torch.float32)


@pytest.fixture(scope="module")
def engines(run_engines, tiny_text):
    """Results of each engine; those of the one without options by the names of ``CALLS``."""
    flat = [(name, call) for name, calls in CALLS.items() for call in (calls if isinstance(calls, list) else [calls])]
    cached = {"enable_prefix_caching": True, "block_size": 32, "disable_log_stats": False}
    # Ten requests of 30 to 55 tokens in 8 blocks of 32: some are preempted and computed again.
    scarce = {"num_gpu_blocks_override": 9, "block_size": 32, "disable_log_stats": False}
    by_p = {"prompts": ON_ONE_PREFIX[1:], "sampling": greedy(TOKENS, extra_args={"confident_p": 0})}
    jobs = {
        "plain": ({}, [call for _, call in flat]),
        "prefix cache": (cached, [{"prompts": ON_ONE_PREFIX[:1], "sampling": GREEDY}, by_p, CALLS["one prefix"]]),
        "few blocks": (scarce, [CALLS["many"], CALLS["many, mixing"]]),
        "asynchronous": (
            {"async_scheduling": True},
            [{"do": "setting", "with": {"path": "scheduler_config.async_scheduling"}}, CALLS["after the abort"]],
        ),
        "sleeping": ({"enable_sleep_mode": True}, []),
    }
    results = run_engines(
        [
            {
                "engine": tiny_engine(tiny_text, on(), skip_tokenizer_init=False, **options),
                "calls": calls,
                "counters": "disable_log_stats" in options,
                "may_fail": name == "sleeping",
            }
            for name, (options, calls) in jobs.items()
        ]
    )
    found = dict(zip(jobs, results, strict=True))
    by_call = {}
    for (name, _), result in zip(flat, found["plain"]["calls"], strict=True):
        by_call.setdefault(name, []).append(result)
    found["plain"] = {name: results if name == "alone" else results[0] for name, results in by_call.items()}
    return found


@pytest.fixture(scope="module")
def plain(engines):
    return engines["plain"]


@pytest.fixture(scope="module")
def alone(plain):
    """Tokens, text and logprobs of each greedy request, asked alone."""
    return [{key: call[key][0][0] for key in ("tokens", "texts", "logprobs")} for call in plain["alone"]]


def tokens_of(call):
    return [samples[0] for samples in call["tokens"]]


def test_alone_is_the_oracles(alone, oracle):
    """What the rest of this file compares with; and it is neither standard decoding nor another window."""
    for prompt, answer in zip(PROMPTS, alone, strict=True):
        assert follow(oracle, prompt, answer["tokens"], window=5) is None, "a near tie: choose another seed"
        for other in ({"window": 0}, {"window": 1}):
            assert first_difference(oracle, prompt, answer["tokens"], **other) is not None


def test_several_samples_are_those_of_single_requests_with_the_seeds_that_vllm_derives(plain):
    for suffix in ("", ", mixing"):
        (several,) = plain[f"several{suffix}"]["tokens"]
        single = tokens_of(plain[f"single{suffix}"])
        assert several == single
        assert len({tuple(tokens) for tokens in several}) == COUNT
    assert plain["several"]["tokens"] != plain["several, mixing"]["tokens"]


def test_each_of_several_samples_has_the_selected_layers_distribution(plain, oracle):
    """Every value of the vocabulary, along each sample's own tokens."""
    depths = set()
    for generated, scores in zip(*(plain["several"][key][0] for key in ("tokens", "logprobs")), strict=True):
        rows = oracle.select([*PROMPTS[0], *generated[:-1]], len(PROMPTS[0]) - 1, window=5)
        for (logits, depth, gap, _), found in zip(rows, scores, strict=True):
            if gap > TIE:
                values = np.array([value for _, value in sorted(map(tuple, found))])
                np.testing.assert_allclose(values, log_softmax(logits), atol=2e-4, rtol=0)
                depths.add(depth)
    assert len(depths) > 2


def test_beams_are_those_of_the_selected_layers(plain, oracle):
    for prompt, found in zip(PROMPTS, plain["beams"], strict=False):
        expected, closest = search(oracle, prompt, WIDTH, BEAM_TOKENS, window=5)
        assert closest > 1e-3, "a near tie: choose another seed"
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-3)
        assert search(oracle, prompt, WIDTH, BEAM_TOKENS, window=0)[0][0][0] != expected[0][0], (
            "standard decoding has the same beams"
        )


def together(deltas):
    """Tokens, text and logprobs of a stream."""
    parts = [part for step in deltas for part in step]
    return {
        "tokens": [token for _, tokens, _, _ in parts for token in tokens],
        "texts": "".join(text for _, _, text, _ in parts),
        "logprobs": [at for *_, logprobs in parts for at in logprobs],
    }


def without_scores(answer):
    return {key: answer[key] for key in ("tokens", "texts")}


def test_streams_add_up_to_the_answer(plain, alone):
    for deltas, expected in zip(plain["stream"]["deltas"], alone, strict=True):
        assert len(deltas) == TOKENS, "one token a step"
        streamed = together(deltas)
        assert without_scores(streamed) == without_scores(expected)
        for found, at in zip(streamed["logprobs"], expected["logprobs"], strict=True):
            assert dict(map(tuple, found)) == pytest.approx(dict(map(tuple, at)), abs=1e-4)


def test_aborted_requests_leave_the_others_as_they_are(plain, alone):
    for number, (deltas, expected) in enumerate(zip(plain["aborted"]["deltas"], alone, strict=True)):
        streamed = together(deltas)["tokens"]
        assert streamed == expected["tokens"][: 7 if number in (0, 3) else TOKENS]


@pytest.mark.parametrize("call", ["after the abort", "awake", "after the change"])
def test_what_is_asked_later_is_answered_as_ever(call, plain, alone):
    """After aborted requests; after sleep and wake; after somebody wrote to the configuration, which is read once."""
    assert tokens_of(plain[call]) == [answer["tokens"] for answer in alone]
    assert plain["changed"]["p"] == 0.0, "the change did not arrive"


def test_a_cached_prefix_changes_nothing(engines, plain, oracle):
    """Nor does it matter that requests with another p have filled the cache: keys and values are of the tokens."""
    first, by_p, rest = engines["prefix cache"]["calls"]
    assert engines["prefix cache"]["counters"]["vllm:prefix_cache_hits"] >= 64 * (len(ON_ONE_PREFIX) - 1)
    assert tokens_of(rest) == tokens_of(plain["one prefix"])
    assert tokens_of(first) == tokens_of(plain["one prefix"])[:1]
    for prompt, confident, standard in zip(ON_ONE_PREFIX[1:], tokens_of(rest)[1:], tokens_of(by_p), strict=True):
        assert follow(oracle, prompt, confident, window=5) is None
        assert follow(oracle, prompt, standard, window=0) is None
        assert confident != standard


def test_preempted_requests_are_computed_again_and_answered_as_ever(engines, plain):
    """The mixing of a seeded request too: its draws are by position, and steps are repeated."""
    assert engines["few blocks"]["counters"]["vllm:num_preemptions"] > 5
    for found, name in zip(engines["few blocks"]["calls"], ("many", "many, mixing"), strict=True):
        assert tokens_of(found) == tokens_of(plain[name])
    assert tokens_of(plain["many"]) != tokens_of(plain["many, mixing"])


def test_asynchronous_scheduling_is_not_had_on_the_cpu_and_asking_for_it_changes_nothing(engines, plain):
    """vLLM's CPU engine leaves it off; on a GPU: ``python -m benchmarks.gpu_check asynchronous``."""
    happens, answers = engines["asynchronous"]["calls"]
    assert happens is False
    assert tokens_of(answers) == tokens_of(plain["after the abort"])


def test_sleep_is_not_had_on_the_cpu_and_vllm_says_so(engines, plain):
    """What it does to the plugin's state needs a GPU: ``python -m benchmarks.gpu_check sleep``."""
    assert "Sleep mode is not supported on current platform" in engines["sleeping"]["error"]
    for level in (1, 2):
        assert "sleep mode is not supported on CPU, ignore it." in plain[f"asleep {level}"]
