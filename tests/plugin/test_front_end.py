"""The front-end process's hook, without an engine."""

import types

import pytest

from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.plugin import front_end, metrics, runner
from plugin.configs import config_with


@pytest.mark.parametrize(
    ("metrics_on", "stages", "offered"), [(True, 1, 1), (False, 1, 0), (True, 2, 1), (True, 16, 0)]
)
def test_only_with_metrics_on_does_the_front_end_offer_a_folder(metrics_on, stages, offered, monkeypatch):
    """Nor where pipeline stages keep Confident Decoding off: of 16 stages of 30 layers, the last has one or two."""
    config = ConfidentDecodingConfig(trough_metrics=metrics_on)
    monkeypatch.setattr(front_end, "validate", lambda _: (config, config.resolve(30)))
    monkeypatch.setattr(runner, "problem", lambda: None)
    offers = []
    monkeypatch.setattr(metrics, "offer", offers.append)
    space = {}
    exec(
        "class InputProcessor:\n"
        "    def __init__(self, vllm_config, renderer): self.built = vllm_config\n"
        "    def process_inputs(self, request_id, prompt, params): ...",
        space,
    )
    module = types.SimpleNamespace(InputProcessor=space["InputProcessor"])
    front_end.wrap_input_processor(module)
    vllm_config = config_with(parallel_config=types.SimpleNamespace(pipeline_parallel_size=stages))
    assert module.InputProcessor(vllm_config, None).built is vllm_config
    assert offers == [vllm_config] * offered
