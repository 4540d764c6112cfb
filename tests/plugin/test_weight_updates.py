"""Weights that change in place while the engine lives: the selection follows, because nothing of them is kept.

Single tensors through the model's `load_weights`: of the output head, of the final norm, of layers' norms (a linear
layer's cannot be loaded that way on the CPU, where vLLM packs them). Whole checkpoints, other layers among them,
through vLLM's `reload_weights`. With a head of its own and with one tied to the embeddings.
"""

import shutil
from pathlib import Path

import pytest
import torch
from conftest import greedy, on, tiny_engine
from oracle import TransformersOracle

from plugin.checks import first_difference, follow

pytestmark = pytest.mark.engine

PROMPTS = [torch.randint(7, 512, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (6, 11, 17)]
STANDARD = {"extra_args": {"confident_p": 0}}
ASK = {
    "prompts": [*PROMPTS, *PROMPTS],
    "sampling": [*[greedy(16)] * len(PROMPTS), *[greedy(16, **STANDARD)] * len(PROMPTS)],
}
TAGS = ("LlamaForCausalLM", "LlamaForCausalLM-tied")
PARTS = {
    "the head": ("lm_head",),
    "the final norm": ("model.norm",),
    "norms of layers": ("layers.4.post_attention_layernorm", "layers.5.input_layernorm"),
    "the last layers": ("layers.4.", "layers.5."),
}
SINGLE = list(PARTS)[:3]
WHOLE = ["the last layers", "first", "other"]
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
        for number, (prompt, generated) in enumerate(zip(ASK["prompts"], tokens, strict=True)):
            window = 5 if number < len(PROMPTS) else 0
            assert follow(oracle, prompt, generated, window=window) is None, (state, "a near tie: choose another seed")
            if before is not None and changes(tag, state):
                assert first_difference(before, prompt, generated, window=window) is not None, f"{state} did not matter"
        before = oracle


def changes(tag, state):
    """A tied head is the embeddings: the checkpoint has no tensor of that name."""
    return not (state == "the head" and tag.endswith("tied"))


@pytest.mark.parametrize("tag", TAGS)
def test_the_tensors_arrived(tag, answers):
    loaded = [call for call in answers[tag] if isinstance(call, list)]
    assert [bool(names) for names in loaded] == [changes(tag, state) for state in SINGLE]
