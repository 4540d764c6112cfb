"""The capture that four inner models lack: only where it belongs, and only on a forward that we know."""

import sys
import types

import pytest
import torch

from confident_decoding.plugin import missing_capture
from confident_decoding.plugin.capture import forward_captures

MODULE = "vllm.model_executor.models.mixtral"


class Layer(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, positions, stream, residual, scale=1.0):
        residual = stream if residual is None else stream + residual
        return stream * 0.5 + self.number * scale, residual


class ToyModel(torch.nn.Module):
    """The four models' structure; its forward is the stock one of this test."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(n) for n in range(5))
        self.start_layer, self.end_layer = 0, 5

    def embed_input_ids(self, input_ids):
        return input_ids.float()[:, None].repeat(1, 4)

    def norm(self, stream, residual):
        return (stream + residual) * 2, stream + residual

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **layer_arguments):
        stream, residual = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds, None
        for layer in self.layers:
            stream, residual = layer(positions, stream, residual, **layer_arguments)
        return self.norm(stream, residual)[0]


def module_with(cls):
    module = types.ModuleType(MODULE)
    module.MixtralModel = cls
    return module


@pytest.fixture
def patched(monkeypatch):
    cls = type("MixtralModel", (ToyModel,), {"forward": ToyModel.forward})
    monkeypatch.setitem(missing_capture.KNOWN_FORWARDS, "MixtralModel", {missing_capture.source_hash(ToyModel.forward)})
    missing_capture._add_capture(module_with(cls))
    return cls


def test_no_op_when_nothing_is_captured(patched):
    ids = torch.tensor([3, 4])
    assert torch.equal(patched()(ids, None), ToyModel()(ids, None))
    assert forward_captures(patched)


def test_on_the_last_pipeline_stage_it_starts_from_what_the_stage_before_sends(patched):
    whole, stage, ids = patched(), patched(), torch.tensor([3, 4])
    whole.aux_hidden_state_layers = stage.aux_hidden_state_layers = (3, 4)
    stream, residual = whole.embed_input_ids(ids), None
    for layer in whole.layers[:2]:
        stream, residual = layer(None, stream, residual)
    stage.start_layer = 2
    stage.layers[0] = stage.layers[1] = torch.nn.Identity()
    final, states = stage(None, None, {"hidden_states": stream, "residual": residual})
    expected, others = whole(ids, None)
    assert torch.equal(final, expected)
    assert all(map(torch.equal, states, others))
    assert len(states) == len(others) == 2


def test_captures_the_stream_entering_each_layer(patched):
    model, ids = patched(), torch.tensor([3, 4])
    model.aux_hidden_state_layers = (2, 4, 5)
    final, states = model(ids, None, scale=3.0)
    assert torch.equal(final, ToyModel()(ids, None, scale=3.0))
    stream, residual, expected = model.embed_input_ids(ids), None, []
    for layer in model.layers:
        stream, residual = layer(None, stream, residual, scale=3.0)
        expected.append(stream + residual)
    assert [torch.equal(a, expected[i - 1]) for a, i in zip(states, (2, 4, 5), strict=True)] == [True] * 3
    assert torch.equal(states[-1] * 2, final), "norm(stream after the last layer) is the final state"


def test_embeddings_may_be_given(patched):
    model = patched()
    model.aux_hidden_state_layers = (5,)
    embeds = torch.ones(3, 4)
    assert torch.equal(model(None, None, inputs_embeds=embeds)[0], ToyModel()(None, None, inputs_embeds=embeds))


def test_an_unknown_forward_is_left_alone_and_counts_as_no_capture():
    cls = type("MixtralModel", (ToyModel,), {"forward": ToyModel.forward})
    missing_capture._add_capture(module_with(cls))
    assert cls.forward is ToyModel.forward
    assert not hasattr(cls, "aux_hidden_state_layers")
    assert not forward_captures(cls)


def test_a_vllm_with_its_own_capture_is_left_alone(monkeypatch):
    monkeypatch.setitem(missing_capture.KNOWN_FORWARDS, "MixtralModel", {missing_capture.source_hash(ToyModel.forward)})
    cls = type("MixtralModel", (ToyModel,), {"forward": ToyModel.forward, "aux_hidden_state_layers": (1,)})
    missing_capture._add_capture(module_with(cls))
    assert cls.forward is ToyModel.forward
    assert cls.aux_hidden_state_layers == (1,)


def test_the_signature_is_the_stock_one(patched):
    """vLLM's compile decorator reads it."""
    import inspect

    assert inspect.signature(patched.forward) == inspect.signature(ToyModel.forward)


def test_the_real_classes_are_patched_when_they_are_imported():
    import subprocess

    code = """
import sys
from confident_decoding.plugin import missing_capture
missing_capture.add_missing_captures(); missing_capture.add_missing_captures()
assert not any(m in sys.modules for m in missing_capture.WITHOUT_CAPTURE)
import importlib
for module, name in missing_capture.WITHOUT_CAPTURE.items():
    cls = getattr(importlib.import_module(module), name)
    assert cls.aux_hidden_state_layers == (), name
    assert cls.forward.__wrapped__.__qualname__ == name + ".forward"
    assert not hasattr(cls.forward.__wrapped__, "__wrapped__"), "wrapped once"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
