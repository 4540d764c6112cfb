"""What a request may do to its own distribution, and what its logprobs describe, in every ``logprobs_mode``.

Penalties, biases, bans and truncations apply to the selected layer's logits; which layer that is, is decided by the
distributions before them. Each of the 512 values that come back is compared with transformers and the definitions in
processors.py.
"""

import numpy as np
import pytest
import torch
from conftest import greedy, on, tiny_engine
from oracle import TransformersOracle

from plugin.checks import TIE, first_difference, follow
from plugin.processors import log_softmax, processed

pytestmark = pytest.mark.engine

PROMPTS = [torch.randint(7, 512, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (9, 14, 21)]
EVERY_OTHER = list(range(8, 512, 2))
TOKENS = 16
SAMPLED = {"temperature": 0.8, "seed": 3}
CONTROLS = {
    "plain": {},
    "logit_bias": {"logit_bias": {token: 0.75 if token % 3 else -8.0 for token in range(0, 512, 5)}},
    "allowed_token_ids": {"allowed_token_ids": list(range(40, 240, 3))},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": 0.9},
    "repetition_penalty": {"repetition_penalty": 1.6},
    "min_tokens": {"min_tokens": 9, "stop_token_ids": EVERY_OTHER},
    "bad_words": {"bad_words": ["hu", "co", " d", "ls ", "h)", "cl", "em", "nO"]},
    "temperature": SAMPLED,
    "top_k": {**SAMPLED, "top_k": 20},
    "top_p": {**SAMPLED, "top_p": 0.4},
    "min_p": {**SAMPLED, "min_p": 0.3},
    "all": {
        **SAMPLED,
        "logit_bias": {50: 1.5, 60: -2.0},
        "allowed_token_ids": list(range(40, 400)),
        "presence_penalty": 0.4,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.2,
        "min_tokens": 4,
        "stop_token_ids": [44, 45],
        "top_k": 60,
        "top_p": 0.8,
        "min_p": 0.05,
    },
}
MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
PAIRS = [(name, prompt) for name in CONTROLS for prompt in PROMPTS]


def options(name):
    return greedy(TOKENS, **{"detokenize": name == "bad_words", **CONTROLS[name]})


@pytest.fixture(scope="module")
def oracle(tiny_text):
    return TransformersOracle(tiny_text, torch.float32)


@pytest.fixture(scope="module")
def words(tiny_text):
    """Tokens of the bad words without a space before them, and with one if they are as many then (vLLM's rule)."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_text)
    found = []
    for word in CONTROLS["bad_words"]["bad_words"]:
        bare = word.lstrip()
        given, spaced = (tokenizer(text, add_special_tokens=False).input_ids for text in (bare, f" {bare}"))
        found += [given] + [spaced] * (len(spaced) == len(given) and spaced != given)
    return found


@pytest.fixture(scope="module")
def results(run_engines, tiny_text):
    """By mode, by control: the answers to the three prompts, all of them in one batch."""
    sampling = [{**options(name), "logprobs": -1} for name, _ in PAIRS]
    call = {"prompts": [prompt for _, prompt in PAIRS], "sampling": sampling}
    # All prompts in one step: stock vLLM 0.32 fails on the CPU where a prompt of a seeded request is cut in two.
    sizes = {"max_num_seqs": 64, "max_num_batched_tokens": 1024, "skip_tokenizer_init": False}
    jobs = [{"engine": tiny_engine(tiny_text, on(), logprobs_mode=mode, **sizes), "calls": [call]} for mode in MODES]
    found = {}
    for mode, result in zip(MODES, run_engines(jobs), strict=True):
        tokens, scores = (result["calls"][0][key] for key in ("tokens", "logprobs"))
        for (name, prompt), (ids,), (values,) in zip(PAIRS, tokens, scores, strict=True):
            found.setdefault((mode, name), []).append((prompt, ids, values))
    return found


def bans(name, words):
    return words if name == "bad_words" else ()


@pytest.mark.parametrize("name", CONTROLS)
@pytest.mark.parametrize("mode", MODES)
def test_every_value_is_of_the_selected_layer(mode, name, results, oracle, words):
    depths, compared = set(), 0
    for prompt, generated, scores in results[mode, name]:
        rows = oracle.select([*prompt, *generated[:-1]], len(prompt) - 1, window=5)
        for position, ((logits, depth, gap, _), found) in enumerate(zip(rows, scores, strict=True)):
            if gap < TIE:
                continue
            expected = logits
            if mode.startswith("processed"):
                expected = processed(logits, options(name), prompt, generated[:position], bans(name, words))
            if mode.endswith("logprobs"):
                expected = log_softmax(expected)
            values = np.full(len(logits), np.nan)
            values[[token for token, _ in found]] = [value for _, value in found]
            np.testing.assert_allclose(values, expected, atol=3e-4, rtol=0)
            depths.add(depth)
            compared += 1
    assert compared > 20
    assert len(depths) > 2, "too easy"


@pytest.mark.parametrize("name", [name for name in CONTROLS if "temperature" not in CONTROLS[name]])
def test_greedy_tokens_are_the_best_of_what_is_left(name, results, oracle, words):
    changed = np.zeros(2, dtype=int)
    for mode in MODES:
        for prompt, generated, _ in results[mode, name]:

            def process(logits, so_far, prompt=prompt):
                return processed(logits, options(name), prompt, so_far, bans(name, words))

            assert follow(oracle, prompt, generated, process, window=5) is None, "a near tie: choose another seed"
            changed += [
                first_difference(oracle, prompt, generated, window=5) is not None,
                first_difference(oracle, prompt, generated, process, window=0) is not None,
            ]
    of_control, of_layer = changed
    assert of_control >= len(MODES) or name == "plain", "the control did not matter"
    assert of_layer >= len(MODES), "the layer did not matter"


def test_min_tokens_are_generated_and_then_it_stops(results):
    for mode in MODES:
        for _, generated, _ in results[mode, "min_tokens"]:
            assert 9 < len(generated) < TOKENS
            assert not set(generated[:9]) & set(EVERY_OTHER)
            assert generated[-1] in EVERY_OTHER


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p", "all"])
def test_sampled_tokens_are_drawn_from_what_is_left(name, results, oracle):
    """And a request's seed draws the same tokens, whatever its logprobs are of."""
    by_mode = [[generated for _, generated, _ in results[mode, name]] for mode in MODES]
    assert by_mode == [by_mode[0]] * len(MODES)
    for prompt, generated, _ in results["raw_logits", name]:
        rows = oracle.select([*prompt, *generated[:-1]], len(prompt) - 1, window=5)
        for position, (logits, *_) in enumerate(rows):
            left = processed(logits, options(name), prompt, generated[:position])
            assert left[generated[position]] > -np.inf
        assert first_difference(oracle, prompt, generated, window=5) is not None, "nothing was drawn"
