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


SHARDED = types.SimpleNamespace(pipeline_parallel_size=1, enable_batch_sharded_sampling=True)
PLAIN = types.SimpleNamespace(pipeline_parallel_size=1)
STAGES = types.SimpleNamespace(pipeline_parallel_size=16)
ADAPTIVE = types.SimpleNamespace(pipeline_parallel_size=1)
"""With drafts of which not all are verified."""


@pytest.mark.parametrize(
    ("p", "parallel", "problem", "params", "says"),
    [
        (0.5, PLAIN, None, {"seed": 1}, None),
        (0.5, SHARDED, None, {"seed": 1}, "a seed, which would decide where p=0.5 mixes, here: with enable_batch"),
        (0.5, PLAIN, "renamed", {"seed": 1}, r"a seed, .* cannot tell requests apart \(renamed\)"),
        (0.5, SHARDED, None, {"seed": None}, None),
        (1.0, SHARDED, "renamed", {"seed": 1}, None),
        (0.5, STAGES, None, {"seed": 1}, None),  # not active there
        (0.5, PLAIN, None, {"seed": 1, "prompt_logprobs": 1}, None),
        (1.0, SHARDED, None, {"extra_args": {"confident_p": 0}}, r"confident_\* arguments here: with enable_batch"),
        (0.5, ADAPTIVE, None, {"seed": 1}, "a seed, .* with enable_adaptive_verification"),
        (1.0, ADAPTIVE, None, {"extra_args": {"confident_p": 0}}, r"confident_\* .* with enable_adaptive_verification"),
        (1.0, ADAPTIVE, None, {"seed": 1}, None),
        (1.0, STAGES, None, {"extra_args": {"confident_p": 0}}, "not active on this server"),
        (1.0, PLAIN, None, {"extra_args": {"confident_p": 0}, "prompt_logprobs": 0}, "prompt_logprobs is of the"),
        (
            1.0,
            PLAIN,
            None,
            {"extra_args": {"confident_p": 0}, "prompt_logprob_token_ids": [[3]]},
            "prompt_logprob_token_ids is of the server's settings",
        ),
        (1.0, PLAIN, None, {"extra_args": {"confident_p": 0}, "prompt_logprobs": None}, None),
    ],
)
def test_what_a_request_cannot_have_is_refused_and_never_ignored(p, parallel, problem, params, says, monkeypatch):
    config = ConfidentDecodingConfig(p=p)
    monkeypatch.setattr(runner, "problem", lambda: problem)
    request = types.SimpleNamespace(**params)
    drafts = types.SimpleNamespace(enable_adaptive_verification=True) if parallel is ADAPTIVE else None

    def validate():
        given = config_with(parallel_config=parallel, speculative_config=drafts)
        front_end.validate_request(request, given, config, config.resolve(30))

    if says is None:
        validate()
        return
    with pytest.raises(ValueError, match=says):
        validate()
