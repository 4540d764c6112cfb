"""The embedded model against the float64 oracle, token by token, and against the vLLM plugin."""

import oracle
import pytest
import torch
from conftest import greedy as vllm_greedy
from conftest import on, smol_engine
from plugin.checks import follow

import confident_decoding.hf
from hf.common import TIE, greedy, padded

PROMPTS, TOKENS = 8, 64
WINDOW = 9  # the defaults: 10 candidates


@pytest.fixture(scope="module")
def reference(smollm2):
    return oracle.TransformersOracle(smollm2, torch.float32)


@pytest.fixture(scope="module")
def judge(reference):
    """Follow the oracle; the same tokens are judged once."""
    known = {}

    def check(prompt, tokens):
        key = (tuple(prompt), tuple(tokens))
        if key not in known:
            assert len(tokens) == TOKENS
            known[key] = follow(reference, prompt, tokens, window=WINDOW)
        return known[key]

    return check


@pytest.fixture(scope="module")
def batched(reference, prompts):
    """Greedy tokens ``[8][64]`` of one left-padded batch."""
    inputs = padded(prompts[:PROMPTS])
    out = reference.model.generate(**inputs, custom_generate=confident_decoding.hf.generate, **greedy(TOKENS))
    return out[:, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("i", [pytest.param(i, marks=[pytest.mark.slow] if i else []) for i in range(PROMPTS)])
def test_one_prompt_follows_the_oracle(reference, prompts, judge, i):
    out = reference.model.generate(
        **padded([prompts[i]]), custom_generate=confident_decoding.hf.generate, **greedy(TOKENS)
    )
    judge(prompts[i], out[0, len(prompts[i]) :].tolist())


@pytest.mark.parametrize("i", range(PROMPTS))
def test_a_padded_batch_follows_the_oracle(prompts, judge, batched, i):
    judge(prompts[i], batched[i])


def test_depths_are_the_oracles(reference, prompts):
    prompt = prompts[8]
    out = reference.model.generate(
        **padded([prompt]),
        custom_generate=confident_decoding.hf.generate,
        return_dict_in_generate=True,
        output_logits=True,
        output_depths=True,
        **greedy(16),
    )
    tokens = out.sequences[0, len(prompt) :].tolist()
    rows = reference.select([*prompt, *tokens[:-1]], len(prompt) - 1, window=WINDOW)
    decided = [(row, int(d), logits[0]) for row, d, logits in zip(rows, out.confident_depths, out.logits, strict=True)]
    decided = [(row, d, logits) for row, d, logits in decided if row[2] > TIE]
    assert len(decided) > 10
    assert [row[1] for row, _, _ in decided] == [d for _, d, _ in decided]
    assert len({d for _, d, _ in decided}) > 1
    for (expected, *_), _, logits in decided:
        assert torch.allclose(logits.double(), torch.from_numpy(expected), atol=2e-3)


def test_p0_is_standard_decoding_to_the_bit(reference, prompts):
    keys = {"return_dict_in_generate": True, "output_logits": True, **greedy(12)}
    stock = reference.model.generate(**padded(prompts[:2]), **keys)
    ours = reference.model.generate(
        **padded(prompts[:2]), custom_generate=confident_decoding.hf.generate, confident_config={"p": 0.0}, **keys
    )
    assert torch.equal(stock.sequences, ours.sequences)
    assert all(torch.equal(a, b) for a, b in zip(stock.logits, ours.logits, strict=True))


@pytest.mark.engine
def test_the_vllm_plugin_gives_the_same_tokens(smollm2, prompts, run_engines, reference, batched):
    (result,) = run_engines(
        [
            {
                "engine": smol_engine(smollm2, on()),
                "calls": [{"prompts": prompts[:PROMPTS], "sampling": vllm_greedy(TOKENS)}],
            }
        ]
    )
    for prompt, mine, (others,) in zip(prompts[:PROMPTS], batched, result["calls"][0]["tokens"], strict=True):
        if mine != others:
            at = next(i for i, (a, b) in enumerate(zip(mine, others, strict=True)) if a != b)
            row = reference.select([*prompt, *mine[:at]], len(prompt) - 1 + at, window=WINDOW)[0]
            assert min(row[2], row[3]) < TIE, f"differs at {at} without a tie: {row[1:]}"
