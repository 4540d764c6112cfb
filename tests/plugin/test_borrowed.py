"""What is put on vLLM's classes goes when the last model of ours does (in real engines: test_untouched.py)."""

import gc
import sys
import types

import pytest
import torch

from confident_decoding.plugin import borrowed, loader, missing_capture, runner


class Model(torch.nn.Module):
    """Gone when nobody refers to it."""


def a_class():
    class Base:
        def inherited(self):
            return "base"

    class Owner(Base):
        def own(self):
            return "own"

    return Owner


def test_given_back_when_the_model_is_gone():
    cls, model = a_class(), Model()
    own = cls.own
    borrowed.in_use_by(model)
    borrowed.put(cls, "own", lambda self: "ours")
    borrowed.put(cls, "inherited", lambda self: "ours")
    assert (cls().own(), cls().inherited()) == ("ours", "ours")
    del model
    gc.collect()
    assert cls.own is own
    assert "inherited" not in vars(cls)


def test_not_while_another_model_is_there():
    cls, first, second = a_class(), Model(), Model()
    borrowed.in_use_by(first)
    borrowed.put(cls, "own", lambda self: "ours")
    borrowed.in_use_by(second)
    del first
    gc.collect()
    assert cls().own() == "ours"
    del second
    gc.collect()
    assert cls().own() == "own"


def test_put_twice_ends_as_it_was():
    cls, model = a_class(), Model()
    borrowed.in_use_by(model)
    borrowed.put(cls, "own", lambda self: "first")
    borrowed.put(cls, "own", lambda self: "second")
    del model
    gc.collect()
    assert cls().own() == "own"


def test_what_somebody_else_has_put_on_top_stays():
    cls, model = a_class(), Model()
    borrowed.in_use_by(model)
    borrowed.put(cls, "own", lambda self: "ours")

    def theirs(self):
        return "theirs"

    cls.own = theirs
    del model
    gc.collect()
    assert cls.own is theirs


def test_a_load_that_fails_leaves_nothing(monkeypatch):
    """The four classes' capture is put before the model is built."""
    monkeypatch.setattr(missing_capture, "KNOWN_FORWARDS", {"MixtralModel": {"known"}})
    monkeypatch.setattr(missing_capture, "source_hash", lambda _: "known")
    name = "vllm.model_executor.models.mixtral"
    module = types.ModuleType(name)
    module.MixtralModel = type("MixtralModel", (), {"forward": lambda self: None})
    before = dict(vars(module.MixtralModel))
    monkeypatch.setitem(sys.modules, name, module)
    finders, seen = list(sys.meta_path), []
    monkeypatch.setattr(loader.front_end, "validate", lambda _: (None, None))
    monkeypatch.setattr(loader, "mark_compile_cache", lambda *_: None)
    config = types.SimpleNamespace(
        model_config=object(), parallel_config=types.SimpleNamespace(pipeline_parallel_size=1)
    )

    def failing(vllm_config, model_config):
        seen.append(module.MixtralModel.aux_hidden_state_layers)
        raise MemoryError

    with pytest.raises(MemoryError):
        loader._load(failing, (config, config.model_config), {})
    assert seen == [()]
    assert dict(vars(module.MixtralModel)) == before
    assert sys.meta_path == finders


def test_a_runner_is_wrapped_again_for_the_next_engine(monkeypatch):
    name = "vllm.v1.worker.gpu_model_runner"
    module = types.ModuleType(name)
    module.GPUModelRunner = type("GPUModelRunner", (), {"execute_model": lambda self, scheduler_output: None})
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "vllm.v1.worker.gpu.model_runner", raising=False)
    original = module.GPUModelRunner.execute_model
    for _ in range(2):
        model = Model()
        borrowed.in_use_by(model)
        assert runner.wrap_runners() is None
        assert module.GPUModelRunner.execute_model is not original
        del model
        gc.collect()
        assert module.GPUModelRunner.execute_model is original
