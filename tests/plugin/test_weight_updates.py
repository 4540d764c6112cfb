"""Weights that change in place while the engine lives: the selection follows, because nothing of them is kept.

Single tensors, as trainers push them, through the model's `load_weights`: norms, because vLLM's CPU engine packs the
weights of linear layers and of the head when it loads them (on a GPU: ``python -m benchmarks.gpu_check update``). Whole
checkpoints, with another head or other layers, through vLLM's `reload_weights`. With a head of its own and with one
tied to the embeddings.
"""

import shutil
from pathlib import Path

import pytest
import torch
from conftest import greedy, on, tiny_engine
from oracle import TransformersOracle

from plugin.checks import first_difference

pytestmark = pytest.mark.engine

PROMPTS = [torch.randint(7, 512, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (6, 11, 17)]
STANDARD = {"extra_args": {"confident_p": 0}}
ASK = {
    "prompts": [*PROMPTS, *PROMPTS],
    "sampling": [*[greedy(16)] * len(PROMPTS), *[greedy(16, **STANDARD)] * len(PROMPTS)],
}
TAGS = ("LlamaForCausalLM", "LlamaForCausalLM-tied")
PARTS = {
    "the final norm": ("model.norm",),
    "norms of layers": tuple(f"layers.{n}.{kind}_layernorm" for n in range(6) for kind in ("input", "post_attention")),
    "the head": ("lm_head", "embed_tokens"),
    "the last layers": ("layers.4.", "layers.5."),
}
SINGLE = ["the final norm", "norms of layers"]
WHOLE = ["the head", "the last layers", "first", "other"]
STATES = ["first", *SINGLE, *WHOLE]


@pytest.fixture(scope="module")
def checkpoints(tiny, tmp_path_factory):
    """By tag: the first checkpoint, another one, and, by part, the first with that part of the other."""
    from models.checkpoints import build
    from safetensors.torch import load_file, save_file

    made = {}
    for tag in TAGS:
        first = Path(tiny(tag))
        folder = tmp_path_factory.mktemp(f"{tag}-updates")
        other = build(tag, folder / "other", seed=1)
        made[tag] = {"first": first, "other": other}
        tensors = load_file(first / "model.safetensors")
        new = load_file(other / "model.safetensors")
        for number, (part, names) in enumerate(PARTS.items()):
            # One after another: each update comes on top of those before it.
            tensors |= {name: tensor for name, tensor in new.items() if any(each in name for each in names)}
            path = shutil.copytree(first, folder / str(number))
            save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
            made[tag][part] = path
    return made


@pytest.fixture(scope="module")
def answers(run_engines, checkpoints):
    """By tag: answers after each change, in the order of ``STATES``."""
    jobs = []
    for tag in TAGS:
        first, other = (str(checkpoints[tag][key]) for key in ("first", "other"))
        calls = [ASK]
        for part in SINGLE:
            calls += [{"do": "load_tensors", "with": {"path": other, "names": PARTS[part]}}, ASK]
        for state in WHOLE:
            calls += [{"do": "reload_weights", "with": {"path": str(checkpoints[tag][state])}}, ASK]
        jobs.append({"engine": tiny_engine(first, on(), enable_prefix_caching=True), "calls": calls})
    return dict(zip(TAGS, (result["calls"] for result in run_engines(jobs)), strict=True))


@pytest.mark.parametrize("tag", TAGS)
def test_the_selection_is_that_of_the_weights_of_the_moment(tag, answers, checkpoints):
    asked = [call for call in answers[tag] if isinstance(call, dict)]
    before = None
    for state, call in zip(STATES, asked, strict=True):
        oracle = TransformersOracle(checkpoints[tag][state], torch.float32)
        tokens = [samples[0] for samples in call["tokens"]]
        changed = []
        for number, (prompt, generated) in enumerate(zip(ASK["prompts"], tokens, strict=True)):
            window = 5 if number < len(PROMPTS) else 0
            left = first_difference(oracle, prompt, generated, window=window)
            assert left is None, f"{state}, request {number}: not these weights, or a near tie: {left}"
            changed.append(before is None or first_difference(before, prompt, generated, window=window) is not None)
        assert any(changed[: len(PROMPTS)]), f"{state} did not matter"
        before = oracle


@pytest.mark.parametrize("tag", TAGS)
def test_the_tensors_arrived(tag, answers):
    assert [len(call) for call in answers[tag] if isinstance(call, list)] == [1, 12]
