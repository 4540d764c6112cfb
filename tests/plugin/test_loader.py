"""The wrapped loaders: which loads are installed on, and what goes into the compile cache's key."""

import types

import pytest

from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.plugin import loader
from confident_decoding.plugin.fingerprint import KEY, mark_compile_cache
from plugin.configs import config_with


class FakeLoads:
    """A loader's ``load_model`` and the configurations that it is called with."""

    def __init__(self, additional_config, runner_type="generate"):
        self.model_config = types.SimpleNamespace(runner_type=runner_type, get_total_num_hidden_layers=lambda: 30)
        self.vllm_config = config_with(additional_config=additional_config, model_config=self.model_config)
        self.calls = []

    def load_model(self, vllm_config, model_config, prefix=""):
        self.calls.append((vllm_config, model_config, prefix))
        return "the model"


@pytest.mark.parametrize(
    "case",
    ["off", "no keys", "draft", "pooling"],
)
def test_other_loads_pass_through_untouched(case, monkeypatch):
    """Switch off, a drafter's own model configuration, a pooling engine: nothing is installed or changed."""
    monkeypatch.setattr(loader, "install", lambda *args: pytest.fail("installed"))
    on = {"enable_multi_layer_entropy_selection": case in ("draft", "pooling")} if case != "no keys" else {}
    fake = FakeLoads(on, "pooling" if case == "pooling" else "generate")
    model_config = types.SimpleNamespace(runner_type="draft") if case == "draft" else fake.model_config
    result = loader._load(fake.load_model, (fake.vllm_config, model_config), {"prefix": "x"})
    assert result == "the model"
    assert fake.calls == [(fake.vllm_config, model_config, "x")]
    assert fake.vllm_config.additional_config is on


def test_a_loader_that_calls_super_installs_once(monkeypatch):
    installed = []
    monkeypatch.setattr(loader, "install", lambda *args: installed.append(args[0]))
    given = {"enable_multi_layer_entropy_selection": True, "other_plugin": 1}
    fake = FakeLoads(given)
    fake.vllm_config.parallel_config.pipeline_parallel_size = 1

    def outer(vllm_config, model_config):
        return loader._load(fake.load_model, (), {"vllm_config": vllm_config, "model_config": model_config})

    loader._load(outer, (fake.vllm_config, fake.model_config), {})
    assert installed == ["the model"]
    marked = fake.vllm_config.additional_config
    assert marked["_confident_decoding"]["depths"] == list(range(10))
    assert {k: marked[k] for k in given} == given
    assert "_confident_decoding" not in given, "the user's dictionary is not changed"


def test_the_fingerprint_tells_captured_layers_apart():
    marks = []
    for k in (4, 10):
        config = types.SimpleNamespace(additional_config={})
        mark_compile_cache(config, ConfidentDecodingConfig(trough_max_backtrack_layers=k).resolve(30))
        marks.append(config.additional_config[KEY])
    assert marks[0]["depths"] != marks[1]["depths"]
    assert marks[0]["source"] == marks[1]["source"]
    assert len(marks[0]["source"]) == 16
