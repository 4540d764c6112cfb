"""vLLM's releases and options: supported, refused by name, or warned of."""

import types

import pytest
from vllm.config import ParallelConfig

from confident_decoding.config import ConfigError
from confident_decoding.plugin import compat
from plugin.configs import config_with


@pytest.mark.parametrize(
    ("version", "refused", "warned"),
    [
        ("0.25.1", True, False),
        ("0.19.1", True, False),
        ("0.26.0", False, False),
        ("0.32.0", False, False),
        ("0.32.0+cpu", False, False),
        ("0.33.1", False, False),
        ("0.34.0", False, True),
        ("0.34.0rc1", False, True),
        ("1.0.0", False, True),
        ("dev", False, True),
        ("0.0.0", False, True),
        ("0.1.dev1+gabc123", False, True),
    ],
)
def test_versions(version, refused, warned):
    refusal, warning = compat.version_problem(version)
    assert (refusal is not None, warning is not None) == (refused, warned)
    assert version in (refusal or warning or version)
    if refused:
        assert "0.26 to 0.33" in refusal


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"speculative_config": types.SimpleNamespace(method=m)}, m)
        for m in ("medusa", "ngram_gpu", "dflash", "dspark", "mlp_speculator", "extract_hidden_states", "custom_class")
    ]
    + [
        ({"cache_config": types.SimpleNamespace(kv_sharing_fast_prefill=True)}, "--kv-sharing-fast-prefill"),
        ({"compilation_config": types.SimpleNamespace(pass_config=types.SimpleNamespace(enable_sp=True))}, "enable_sp"),
        ({"parallel_config": types.SimpleNamespace(prefill_context_parallel_size=2)}, "prefill context"),
        ({"parallel_config": ParallelConfig(ubatch_size=2)}, "--enable-dbo"),
        ({"parallel_config": ParallelConfig(enable_dbo=True)}, "--enable-dbo"),
    ],
)
def test_each_unsupported_combination_is_named(changes, named):
    (problem,) = compat.unsupported_combinations(config_with(**changes))
    assert named in problem


def test_all_are_refused_in_one_message_that_says_what_to_do():
    config = config_with(
        speculative_config=types.SimpleNamespace(method="medusa"),
        cache_config=types.SimpleNamespace(kv_sharing_fast_prefill=True),
    )
    with pytest.raises(ConfigError) as caught:
        compat.refuse_unsupported(config)
    first, *named, remedy = str(caught.value).splitlines()
    assert first == "confident-decoding cannot start:"
    assert ["medusa" in named[0], "--kv-sharing-fast-prefill" in named[1], len(named)] == [True, True, 2]
    assert remedy.strip() == "Leave them out, or set enable_multi_layer_entropy_selection to false."
    compat.refuse_unsupported(config_with())


@pytest.mark.parametrize("method", ["ngram", "suffix", "draft_model", "eagle", "eagle3", "mtp"])
def test_speculation_whose_drafter_gets_what_it_reads_is_allowed(method):
    assert (
        list(compat.unsupported_combinations(config_with(speculative_config=types.SimpleNamespace(method=method))))
        == []
    )


@pytest.mark.parametrize(("value", "refused"), [("1", True), ("0", False), ("", False)])
def test_a_front_end_without_our_hook_is_refused(value, refused, monkeypatch):
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", value)
    assert [("Rust" in problem) for problem in compat.unsupported_combinations(config_with())] == [True] * refused
