"""Which way packed rows take where vLLM's LoRA wrapper stands before the output head (real engines: test_lora.py)."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from confident_decoding.config import ConfigError
from confident_decoding.plugin import install
from confident_decoding.plugin.adapters import HeadAdapters, problem
from confident_decoding.plugin.capture import CapturedStates
from confident_decoding.plugin.pack import swap_class

HIDDEN, DEPTHS = 4, 3


class Processor(nn.Module):
    """vLLM's, as far as it is asked for rows."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def forward(self, lm_head, states):
        return self._get_logits(states, lm_head, None)

    def _get_logits(self, states, lm_head, bias):
        self.log.append(("processor", states.shape[1], lm_head))
        return states[:, :HIDDEN]


class Wrapper(Processor):
    """vLLM's wrapper takes plain rows alone."""

    def _get_logits(self, states, lm_head, bias):
        assert states.shape[1] == HIDDEN
        self.log.append(("wrapper", states.shape[1], lm_head))
        return states


class Model(nn.Module):
    def __init__(self, log):
        super().__init__()
        self.lm_head = SimpleNamespace(base_layer="the head's weight")
        self.logits_processor = Processor(log)

    def compute_logits(self, states):
        return self.logits_processor(self.lm_head, states)


class Select:
    """The `SelectingHead`, as far as `swap_class` sees it."""

    rows, serving = None, False

    def packed(self, states):
        return states.shape[1] == DEPTHS * HIDDEN

    def select_by_calls(self, packed, logits_of, rows):
        return torch.stack([logits_of(state) for state in packed.split(HIDDEN, dim=1)])[0]


@pytest.fixture
def made():
    """The model, and what its parts were asked for."""
    log = []
    model = Model(log)
    adapters = HeadAdapters(model.logits_processor)
    swap_class(model, CapturedStates((1, 2)), lambda: None, Select(), adapters)
    return model, log


def wrap(model, log, adapters):
    """As vLLM does after loading: ``adapters`` by number, with what each has for the head."""
    model.logits_processor = wrapper = Wrapper(log)
    model.lora_manager = SimpleNamespace(
        modules={"model.layers.0.q_proj": nn.Identity(), "lm_head": wrapper},
        lora_index_to_id=[None] * 2,
        list_adapters=lambda: {
            number: SimpleNamespace(get_lora={"lm_head": weights}.get) for number, weights in adapters.items()
        },
    )


PACKED, PLAIN = torch.ones(2, DEPTHS * HIDDEN), torch.ones(2, HIDDEN)
PAST = [("processor", DEPTHS * HIDDEN, "the head's weight")]


def by_calls(model):
    return [("wrapper", HIDDEN, model.lm_head)] * DEPTHS


def test_without_a_wrapper_rows_take_the_models_own_way(made):
    model, log = made
    model.compute_logits(PACKED)
    assert log == [("processor", DEPTHS * HIDDEN, model.lm_head)]


def test_the_slots_decide_at_every_call(made):
    model, log = made
    wrap(model, log, {7: None, 8: "weights"})
    for slots, way in (
        ([None, None], PAST),
        ([7, None], PAST),
        ([7, 8], by_calls(model)),
        ([8, None], by_calls(model)),
        ([None, 7], PAST),
    ):
        log.clear()
        model.lora_manager.lora_index_to_id = slots
        model.compute_logits(PACKED)
        assert log == way, slots


def test_plain_rows_stay_with_the_wrapper(made):
    model, log = made
    wrap(model, log, {})
    for _ in range(2):
        model.compute_logits(PACKED)
        model.compute_logits(PLAIN)
    assert log == [*PAST, ("wrapper", HIDDEN, model.lm_head)] * 2


@pytest.mark.parametrize("slots", [[None, None], [8, None]])
def test_warm_up_goes_both_ways(made, slots):
    model, log = made
    wrap(model, log, {8: "weights"})
    model.lora_manager.lora_index_to_id = slots

    def _dummy_sampler_run():  # the name tells
        return model.compute_logits(PACKED)

    _dummy_sampler_run()
    assert log == [*by_calls(model), *PAST]


def test_an_error_on_the_way_past_leaves_the_wrapper_in_charge(made):
    model, log = made
    wrap(model, log, {})
    with pytest.raises(TypeError):
        model.compute_logits(PACKED, "an argument that the model does not take")
    model.compute_logits(PLAIN)
    assert log == [("wrapper", HIDDEN, model.lm_head)]


def test_a_wrapper_that_is_another_is_refused_at_the_start(monkeypatch):
    module = ModuleType("vllm.lora.layers.logits_processor")
    module.LogitsProcessorWithLoRA = type("LogitsProcessorWithLoRA", (), {"_get_logits": lambda self, rows: None})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ConfigError, match=r"no way past LoRA's part .*_get_logits takes \['rows'\]"):
        install._adapters(nn.Linear(1, 1), None)


def test_the_wrapper_of_the_installed_vllm_is_the_one_we_know():
    assert problem() is None
