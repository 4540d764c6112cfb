"""Weights that change in place while the engine lives: the selection follows, because nothing of them is kept.

Single tensors, as trainers push them, through the model's `load_weights`: norms, because vLLM's CPU engine packs the
weights of linear layers and of the head when it loads them (on a GPU: ``python -m benchmarks.gpu_check update``). Whole
checkpoints, with another head or other layers, through vLLM's `reload_weights`.
"""

import shutil
from pathlib import Path

import pytest
import torch
from conftest import greedy, on, tiny_engine
from models.checkpoints import build
from oracle import TransformersOracle

from plugin.checks import first_difference

pytestmark = pytest.mark.engine

PROMPTS = [torch.randint(7, 512, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (6, 11, 17)]
STANDARD = {"extra_args": {"confident_p": 0}}
ASK = {
    "prompts": [*PROMPTS, *PROMPTS],
    "sampling": [*[greedy(16)] * len(PROMPTS), *[greedy(16, **STANDARD)] * len(PROMPTS)],
}
NORMS = tuple(f"layers.{n}.{kind}_layernorm" for n in range(6) for kind in ("input", "post_attention"))
PARTS = {
    "the final norm": ("model.norm",),
    "norms of layers": NORMS,
    "the head": ("lm_head",),
    "the last layers": ("layers.4.", "layers.5."),
}
SINGLE = ["the final norm", "norms of layers"]
WHOLE = ["the head", "the last layers", "first", "other"]
STATES = ["first", *SINGLE, *WHOLE]


@pytest.fixture(scope="module")
def checkpoints(tiny, tmp_path_factory):
    """By state: the first checkpoint, another one, and the first with part after part of the other."""
    from safetensors.torch import load_file, save_file

    first = Path(tiny("LlamaForCausalLM"))
    folder = tmp_path_factory.mktemp("updates")
    made = {"first": first, "other": build("LlamaForCausalLM", folder / "other", seed=1)}
    tensors, new = (load_file(path / "model.safetensors") for path in made.values())
    for number, (part, names) in enumerate(PARTS.items()):
        # One after another: each update comes on top of those before it.
        tensors |= {name: tensor for name, tensor in new.items() if any(each in name for each in names)}
        path = shutil.copytree(first, folder / str(number))
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        made[part] = path
    return made


@pytest.fixture(scope="module")
def tied(tiny, tmp_path_factory):
    """Two checkpoints whose head is their embeddings."""
    tag = "LlamaForCausalLM-tied"
    return Path(tiny(tag)), build(tag, tmp_path_factory.mktemp("tied-update") / "other", seed=1)


@pytest.fixture(scope="module")
def answers(run_engines, checkpoints, tied):
    """Answers after each change, in the order of ``STATES``; with a tied head, before and after one, off and on."""
    calls = [ASK]
    for part in SINGLE:
        calls += [{"do": "load_tensors", "with": {"path": str(checkpoints["other"]), "names": PARTS[part]}}, ASK]
    for state in WHOLE:
        calls += [{"do": "reload_weights", "with": {"path": str(checkpoints[state])}}, ASK]
    jobs = [{"engine": tiny_engine(str(checkpoints["first"]), on(), enable_prefix_caching=True), "calls": calls}]
    reload = [ASK, {"do": "reload_weights", "with": {"path": str(tied[1])}}, ASK]
    jobs += [{"engine": tiny_engine(str(tied[0]), config), "calls": reload} for config in ({}, on())]
    return [result["calls"] for result in run_engines(jobs)]


def tokens_of(calls):
    return [[samples[0] for samples in call["tokens"]] for call in calls if isinstance(call, dict)]


def test_the_selection_is_that_of_the_weights_of_the_moment(answers, checkpoints):
    before = None
    for state, tokens in zip(STATES, tokens_of(answers[0]), strict=True):
        oracle = TransformersOracle(checkpoints[state], torch.float32)
        changed = []
        for number, (prompt, generated) in enumerate(zip(ASK["prompts"], tokens, strict=True)):
            window = 5 if number < len(PROMPTS) else 0
            left = first_difference(oracle, prompt, generated, window=window)
            assert left is None, f"{state}, request {number}: not these weights, or a near tie: {left}"
            changed.append(before is None or first_difference(before, prompt, generated, window=window) is not None)
        assert any(changed[: len(PROMPTS)]), f"{state} did not matter"
        before = oracle


def test_the_tensors_arrived(answers):
    assert [len(call) for call in answers[0] if isinstance(call, list)] == [1, len(NORMS)]


def test_a_tied_head_follows_as_far_as_vllm_itself_follows(answers):
    """vLLM 0.32's CPU engine goes on with the packed head of the old embeddings, with the switch off too."""
    off, switched_on = (tokens_of(calls) for calls in answers[1:])
    half = len(PROMPTS)
    assert [tokens[half:] for tokens in switched_on] == [tokens[half:] for tokens in off]
    assert off[0] != off[1]
    assert [tokens[:half] for tokens in switched_on] != [tokens[half:] for tokens in switched_on]
