"""The model is the user's: what a call leaves behind, and what it lets others see."""

import copy
import functools
import threading

import pytest
import torch
import transformers

import confident_decoding.hf
from hf.common import PROMPTS, UNLIMITED, confident, greedy, load, padded


def test_the_model_is_as_before_afterwards_and_after_an_exception(model):
    def state():
        modules = list(model.modules())
        return [
            (list(m._forward_hooks), list(m._forward_pre_hooks), sorted(k for k in vars(m) if k == "forward"))
            for m in modules
        ]

    before, stock = state(), model.generate(**padded(PROMPTS), **greedy(5))

    class Fail(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores):
            raise KeyError("mine")

    head = model.lm_head.forward
    confident(model)
    assert state() == before
    with pytest.raises(KeyError, match="mine"):
        confident(model, logits_processor=transformers.LogitsProcessorList([Fail()]))
    assert state() == before

    # An exception in the head, while a candidate goes through the model's own forward.
    calls = []

    def third(states):
        calls.append(1)
        if len(calls) == 3:
            raise KeyError("head")
        return head(states)

    model.lm_head.forward = third
    with pytest.raises(KeyError, match="head"):
        confident(model)
    del model.lm_head.forward
    assert state() == before
    assert torch.equal(model.generate(**padded(PROMPTS), **greedy(5)), stock)
    confident(model)


def test_other_threads_see_the_model_as_it_is(model):
    """Standard decoding in one thread while another selects; a second selection at once is refused."""
    expected, selected = model.generate(**padded(PROMPTS), **greedy(10)), confident(model)
    assert not torch.equal(expected, selected)
    found = {}

    class Meanwhile(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores):
            if not found:
                found["stock"] = None
                thread = threading.Thread(target=self.elsewhere)
                thread.start()
                thread.join()
            return scores

        def elsewhere(self):
            found["stock"] = model.generate(**padded(PROMPTS), **greedy(10))
            try:
                confident(model)
            except RuntimeError as error:
                found["error"] = str(error)

    out = confident(model, logits_processor=transformers.LogitsProcessorList([Meanwhile()]))
    assert torch.equal(out, selected)
    assert torch.equal(found["stock"], expected)
    assert "already generating" in found["error"]


def test_hooks_of_the_user_stay_in_place(model):
    seen = []
    handle = model.register_forward_hook(lambda *_: seen.append(1))
    confident(model)
    handle.remove()
    assert len(seen) == 10, "one call of the model per token, whatever the candidates"


def test_a_forward_replaced_on_the_instance_is_kept(checkpoint):
    """As accelerate does for models that are spread over devices."""
    model = load(checkpoint)
    expected = confident(model)
    calls = []

    def counted(forward):
        @functools.wraps(forward)
        def call(*args, **kwargs):
            calls.append(1)
            return forward(*args, **kwargs)

        return call

    model.forward, model.model.forward = counted(model.forward), counted(model.model.forward)
    replaced = model.model.forward
    assert torch.equal(confident(model), expected)
    assert model.model.forward is replaced
    assert calls


def test_a_generation_config_is_not_changed(model):
    config = copy.deepcopy(model.generation_config)
    config.update(do_sample=False, max_new_tokens=10, eos_token_id=None)
    before = config.to_dict()
    out = model.generate(
        **padded(PROMPTS),
        generation_config=config,
        custom_generate=confident_decoding.hf.generate,
        confident_config=UNLIMITED,
        eos_token_id=None,
    )
    assert out.shape[1] > max(map(len, PROMPTS))
    assert config.to_dict() == before
