"""DoLa against its definition in numpy, float64."""

import doctest

import numpy as np
import pytest
import torch
import transformers
from docs.blocks import program

import confident_decoding.hf
from confident_decoding.hf import dola
from confident_decoding.hf.dola import candidate_layers, contrast
from hf.common import TIE, greedy, load, padded, random_prompts

PROMPTS = random_prompts()


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def divergence(p, q):
    """Jensen-Shannon, nats."""
    m = (p + q) / 2
    return sum(0.5 * float((a[a > 0] * np.log(a[a > 0] / m[a > 0])).sum()) for a in (p, q))


def definition(final, early, relative_top=0.1):
    """Scores ``[V]``, the contrasted candidate, and by how much its divergence is the largest."""
    q = softmax(final)
    js = [divergence(q, softmax(e)) for e in early]
    chosen = int(np.argmax(js))
    lead = js[chosen] - max((d for i, d in enumerate(js) if i != chosen), default=-np.inf)
    plausible = q >= relative_top * q.max()
    scores = np.full_like(q, -np.inf)
    scores[plausible] = np.log(q[plausible]) - np.log(softmax(early[chosen])[plausible])
    return scores, chosen, lead


@pytest.mark.parametrize(
    ("which", "n", "tied", "expected"),
    [  # section 3 and appendix of the paper: LLaMA 7B, 13B, 33B and 65B
        ("low", 32, False, range(0, 16, 2)),
        ("high", 32, False, range(16, 32, 2)),
        ("low", 40, False, range(0, 20, 2)),
        ("high", 40, False, range(20, 40, 2)),
        ("low", 60, False, range(0, 20, 2)),
        ("high", 60, False, range(40, 60, 2)),
        ("high", 80, False, range(60, 80, 2)),
        ("low", 30, True, range(2, 15, 2)),
        ("high", 30, True, range(16, 30, 2)),
        ([5, 1, 5], 6, False, [1, 5]),
    ],
)
def test_candidate_layers(which, n, tied, expected):
    assert candidate_layers(which, n, tied) == tuple(expected)


@pytest.mark.parametrize("which", ["mid", [], [6], [-1], ["2"], [1, "2"], 3, None, "low"])
def test_candidates_that_do_not_exist(which):
    with pytest.raises(ValueError, match=r"names no usable candidates in a model of \d layers. Valid: 'low', 'high'"):
        candidate_layers(which, 2 if which == "low" else 6, tied=which == "low")


@pytest.mark.parametrize("relative_top", [0.1, 0.0, 1.0])
def test_contrast_is_the_definition(relative_top):
    g = torch.Generator().manual_seed(0)
    final, early = torch.randn(5, 64, generator=g) * 3, torch.randn(4, 5, 64, generator=g) * 2
    final[:, 7] = early[:, :, 7] = -torch.inf  # a suppressed id
    logits, chosen = contrast(final, early, relative_top)
    for b in range(5):
        with np.errstate(divide="ignore", invalid="ignore"):
            expected, candidate, _ = definition(final[b].double().numpy(), early[:, b].double().numpy(), relative_top)
        expected[7] = -np.inf
        assert chosen[b] == candidate
        assert torch.allclose(logits[b].double(), torch.from_numpy(expected), atol=1e-4)
    assert (logits.isfinite().sum(-1) == 1).all() == (relative_top == 1.0)


def candidates(model, sequence, layers, norm):
    """Logits of the final layer ``[T, V]`` and of the candidates ``[k, T, V]``, by the class's definition."""
    with torch.inference_mode():
        out = model(torch.tensor([sequence]), output_hidden_states=True)
        states = [out.hidden_states[j] for j in layers]
        cap = getattr(model.config, "final_logit_softcapping", None)
        early = [model.lm_head(model.model.norm(h) if norm else h)[0] for h in states]
        early = torch.stack([torch.tanh(x / cap) * cap if cap else x for x in early])
    return out.logits[0].double().numpy(), early.double().numpy()


@pytest.mark.parametrize(
    ("tag", "options", "layers"),
    [
        ("LlamaForCausalLM", {"dola_layers": "low"}, [0, 2]),
        ("LlamaForCausalLM", {}, [4]),
        (
            "LlamaForCausalLM",
            {"dola_layers": [0, 1, 2, 3, 4, 5], "norm_premature": True, "relative_top": 0.5},
            range(6),
        ),
        ("Gemma2ForCausalLM", {"dola_layers": "low"}, [2]),  # tied embeddings, soft cap
        ("Gemma2ForCausalLM", {"dola_layers": [2, 3, 4]}, [2, 3, 4]),
    ],
)
def test_greedy_tokens_follow_the_definition(tiny, tag, options, layers):
    model = load(tiny(tag))
    inputs = padded(PROMPTS)
    out = model.generate(
        **inputs,
        custom_generate=confident_decoding.hf.dola_generate,
        return_dict_in_generate=True,
        output_logits=True,
        output_depths=True,
        **options,
        **greedy(10),
    )
    judged = 0
    for b, prompt in enumerate(PROMPTS):
        tokens = out.sequences[b, inputs["input_ids"].shape[1] :].tolist()
        final, early = candidates(model, [*prompt, *tokens[:-1]], layers, options.get("norm_premature", False))
        for at, token in enumerate(tokens):
            row = len(prompt) - 1 + at
            scores, chosen, lead = definition(final[row], early[:, row], options.get("relative_top", 0.1))
            if lead < TIE:
                continue
            judged += 1
            assert int(out.premature_depths[at][b]) == 6 - list(layers)[chosen]
            got = out.logits[at][b].double().numpy()
            both = np.isfinite(got) & np.isfinite(scores)
            assert both.sum() >= max(np.isfinite(got).sum(), np.isfinite(scores).sum()) - 1  # one at the threshold
            assert np.abs(got[both] - scores[both]).max() < 1e-3
            assert token == scores.argmax()
    assert judged > 20


def test_sampling_stays_among_plausible_tokens(tiny):
    model = load(tiny("LlamaForCausalLM"))
    torch.manual_seed(0)
    out = model.generate(
        **padded(PROMPTS),
        custom_generate=confident_decoding.hf.dola_generate,
        do_sample=True,
        repetition_penalty=1.2,
        max_new_tokens=8,
        return_dict_in_generate=True,
        output_scores=True,
    )
    for scores, tokens in zip(out.scores, out.sequences[:, -len(out.scores) :].T, strict=True):
        assert scores[torch.arange(3), tokens].isfinite().all()


@pytest.mark.parametrize("share", [1.5, "x", None])
def test_a_threshold_that_is_no_share(tiny, share):
    with pytest.raises(ValueError, match=r"relative_top=\S+ is not a number from 0 to 1"):
        load(tiny("LlamaForCausalLM")).generate(
            **padded(PROMPTS), custom_generate=confident_decoding.hf.dola_generate, relative_top=share, **greedy(1)
        )


@pytest.mark.parametrize("tied", [True, False])
def test_tied_embeddings_of_an_image_text_model(tied):
    """Its configurations say so in more than one place, and not in the same ones for all; the modules show it."""
    text = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "vocab_size": 64,
    }
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**text, num_key_value_heads=2),
        vision_config=transformers.CLIPVisionConfig(**vision, image_size=28, patch_size=14),
        image_token_index=63,
        tie_word_embeddings=tied,
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    out = model.generate(
        torch.tensor([[5, 6, 7]]),
        custom_generate=confident_decoding.hf.dola_generate,
        dola_layers="low",
        output_depths=True,
        return_dict_in_generate=True,
        **greedy(6),
    )
    found = {int(depth) for depth in out.premature_depths}
    assert found <= ({4} if tied else {4, 6})
    assert dola._tied(model) is tied


def test_the_documentations_call(model):
    """With `model` and `inputs` as the page has them before."""
    code, inputs = program("docs/transformers.md", "model.generate("), padded(PROMPTS)
    found = eval(code, {"confident_decoding": confident_decoding, "model": model, "inputs": inputs})
    standard = model.generate(**inputs, max_new_tokens=64)
    assert found.shape == standard.shape
    assert not torch.equal(found, standard)


def test_examples_of_the_docstrings():
    assert doctest.testmod(dola) == (0, 2)
