"""The startup proof on a toy model: what it accepts, what it refuses, and that it leaves nothing behind."""

import pytest
import torch
from torch import nn

from confident_decoding.config import ConfidentDecodingConfig, ConfigError
from confident_decoding.plugin.anatomy import Anatomy
from confident_decoding.plugin.families import Quirks
from confident_decoding.plugin.proof import prove_capture

H, N = 8, 5


class Layer(nn.Module):
    def forward(self, x):
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
        x, states = inputs_embeds, []
        for index, layer in enumerate(self.layers, start=1):
            output = layer(x)
            if self.form == "single":
                x, stream = output, output
            elif self.form == "no residual":
                x, residual = output
                stream = x
            else:
                x, residual, *_ = output
                stream = x + residual
            if index in self.captures:
                states.append(x if self.broken == "without residual" else stream)
        if self.broken == "late":
            states = [*states[1:], stream]
        final = self.norm(stream)
        return (final * 1.03 if self.broken == "rescaled" else final), states


def prove(inner):
    plan = ConfidentDecodingConfig(trough_max_backtrack_layers=-1).resolve(N)
    top = nn.Module()
    top.inner = inner
    parts = Anatomy(top, inner, inner.layers, inner.norm, None, Quirks())
    prove_capture(parts, plan, hidden=H, dtype=torch.float32)


@pytest.mark.parametrize("form", ["pair", "no residual", "single", "triple"])
def test_the_forms_of_layers_in_vllm(form):
    prove(Inner(form))


@pytest.mark.parametrize("broken", ["without residual", "late", "rescaled"])
def test_wrong_states_are_refused(broken):
    with pytest.raises(ConfigError, match="does not return each captured state"):
        prove(Inner(broken=broken))


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
