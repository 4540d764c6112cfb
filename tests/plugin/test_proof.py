"""The startup proof and the capture of reduced streams on a toy model.

What the proof accepts, what it refuses, and that it leaves nothing behind. Real models: tests/models/; real
partial sums under tensor parallelism need a GPU (benchmarks/results/models-h200-0.33.0.jsonl).
"""

from types import SimpleNamespace

import pytest
import torch
import vllm.distributed as vllm_distributed
from torch import nn

from confident_decoding.config import ConfidentDecodingConfig, ConfigError
from confident_decoding.plugin.anatomy import Anatomy
from confident_decoding.plugin.capture import indices_of
from confident_decoding.plugin.families import QUIRKS, Quirks
from confident_decoding.plugin.proof import prove_capture, prove_logits
from confident_decoding.plugin.reduced_streams import capture_reduced_streams

H, N = 8, 5


class Layer(nn.Module):
    def forward(self, positions, x, residual):
        raise AssertionError("the proof runs no layer")


class Inner(nn.Module):
    """vLLM's usual loop; ``form`` is what its layers return."""

    def __init__(self, form="pair", broken=None):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(N))
        self.gain = nn.Parameter(torch.ones(H))
        self.form, self.broken, self.captures = form, broken, (1, 2, 3, 4)

    def norm(self, x):
        return x / x.norm(dim=-1, keepdim=True) * self.gain

    def forward(self, input_ids, positions, intermediate_tensors, inputs_embeds):
        x, residual, states = inputs_embeds, None, [2 * inputs_embeds] if 0 in self.captures else []
        for index, layer in enumerate(self.layers, start=1):
            output = layer(positions, x, residual)
            if self.form == "single":
                x, stream = output, output
            elif self.form == "no residual":
                x, residual = output
                stream = x
            else:
                x, residual, *_ = output
                stream = x + residual
            captured = x if self.broken == "without residual" else stream
            if self.form == "partial sums":  # the all-reduce is left to the next norm, and the capture lacks it
                stream = vllm_distributed.tensor_model_parallel_all_reduce(x.clone()) + residual
            if index in self.captures:
                states.append(captured)
        if self.broken == "late":
            states = [*states[1:], stream]
        final = self.norm(stream)
        final = final * 1.03 if self.broken == "rescaled" else final
        return (final, states) if states else final


def prove(inner, quirks=None, capture=False, indices=None):
    plan = ConfidentDecodingConfig(trough_max_backtrack_layers=-1).resolve(N)
    top = nn.Module()
    top.inner = inner
    parts = Anatomy(top, inner, inner.layers, 0, inner.norm, None, quirks or Quirks())
    if capture:
        inner.captures = ()
        assert capture_reduced_streams(parts, (1, 2, 3, 4))
    prove_capture(parts, indices or indices_of(plan), hidden=H, dtype=torch.float32)


@pytest.mark.parametrize("form", ["pair", "no residual", "single", "triple"])
def test_the_forms_of_layers_in_vllm(form):
    prove(Inner(form))


@pytest.mark.parametrize("broken", ["without residual", "late", "rescaled"])
def test_wrong_states_are_refused(broken):
    with pytest.raises(ConfigError, match="does not return each captured state"):
        prove(Inner(broken=broken))


@pytest.mark.parametrize("returned", [(0, 2, 5), (2, 5), (0, 3, 5), (0, 2, 3, 5)])
def test_states_that_a_drafter_asks_for_are_proven_too(returned):
    inner, asked = Inner(), (0, 2, 5)
    inner.captures = returned
    if returned == asked:
        prove(inner, indices=asked)
        return
    with pytest.raises(ConfigError, match="does not return each captured state"):
        prove(inner, indices=asked)


@pytest.mark.parametrize("broken", [None, "late"])
def test_a_layers_own_forward_is_put_back(broken):
    """Weight offloading replaces ``forward`` on layer instances: without it, layers compute with others' weights."""
    inner = Inner(broken=broken)
    offloaded = lambda *args: pytest.fail("the proof runs no layer")  # noqa: E731
    inner.layers[2].forward = offloaded
    try:
        prove(inner)
    except ConfigError:
        assert broken
    assert inner.layers[2].forward is offloaded
    assert [i for i, layer in enumerate(inner.layers) if "forward" in vars(layer)] == [2]


@pytest.fixture
def three_ranks(monkeypatch):
    """Tensor parallelism of three equal ranks, without processes."""
    monkeypatch.setattr(vllm_distributed, "get_tensor_model_parallel_world_size", lambda: 3)
    monkeypatch.setattr(vllm_distributed, "tensor_model_parallel_all_reduce", lambda x: x.mul_(3))


DEFERRED = Quirks(partial_sums=lambda inner: True)


def test_streams_are_reduced_where_layers_pass_on_partial_sums(three_ranks):
    prove(Inner("partial sums"), DEFERRED, capture=True)


def test_the_models_own_capture_of_partial_sums_is_refused(three_ranks):
    with pytest.raises(ConfigError, match="does not return each captured state"):
        prove(Inner("partial sums"), DEFERRED)


def test_one_rank_has_nothing_to_reduce(monkeypatch):
    monkeypatch.setattr(vllm_distributed, "get_tensor_model_parallel_world_size", lambda: 1)
    inner = Inner()
    parts = Anatomy(nn.Module(), inner, inner.layers, 0, inner.norm, None, DEFERRED)
    assert not capture_reduced_streams(parts, (1, 2))
    assert not any(layer._forward_pre_hooks for layer in inner.layers)
    assert type(inner) is Inner


def test_suppressed_ids_on_each_slice_of_the_vocabulary():
    """Ids 2, 7 and 8 of ten, in slices of four columns: what a rank masks is its own part."""
    model = nn.Module()
    model._suppress_token_ids = [2, 7, 8]
    after, logits = QUIRKS["Gemma4ForConditionalGeneration"].after_logits, torch.zeros(3, 4)
    masked = [(after(model, logits, first)[0] == -torch.inf).nonzero()[:, 0].tolist() for first in (0, 4, 8)]
    assert masked == [[2], [3], [0]]
    assert torch.equal(logits, torch.zeros(3, 4)), "it must not write to its argument"
    model._suppress_token_ids = None
    assert after(model, logits, 0) is logits


class Scaled(nn.Module):
    """A model whose ``compute_logits`` adds to each token's logit what its id says."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, H, generator=torch.Generator().manual_seed(0)))
        self.processor = SimpleNamespace(org_vocab_size=10, soft_cap=None, scale=1.0)

    def compute_logits(self, states):
        logits = self.processor._apply_head(SimpleNamespace(tp_size=1), states, None)
        return logits + torch.arange(10)


class Head:
    def __init__(self, model):
        self.model, self.stock_calls = model, 0

    def __call__(self, lm_head, states, bias):
        self.stock_calls += 1
        return states @ self.model.weight.T


@pytest.mark.parametrize(
    ("after", "holds"),
    [
        (lambda model, logits, first_id: logits + torch.arange(first_id, first_id + logits.shape[1]), True),
        (lambda model, logits, first_id: logits + torch.arange(logits.shape[1]), False),
        (lambda model, logits, first_id: logits + 1, False),
        (None, False),
    ],
    ids=["right", "right on the whole vocabulary alone", "wrong", "missing"],
)
def test_what_follows_the_head_must_hold_on_each_ranks_slice(after, holds):
    model = Scaled()
    parts = Anatomy(model, model, nn.ModuleList(), 0, nn.Identity(), model.processor, Quirks(after_logits=after))
    if holds:
        prove_logits(parts, Head(model), hidden=H, dtype=torch.float32)
        return
    with pytest.raises(ConfigError, match="compute_logits is not a plain output head"):
        prove_logits(parts, Head(model), hidden=H, dtype=torch.float32)
