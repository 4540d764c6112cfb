"""Configuration: what is accepted, what is refused and with which words, and the window table."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confident_decoding.config import ConfidentDecodingConfig, ConfigError, Method

ON = {"enable_multi_layer_entropy_selection": True}


def read(**keys):
    return ConfidentDecodingConfig.from_additional_config({**ON, **keys})


@pytest.mark.parametrize("additional", [{}, None, {"enable_multi_layer_entropy_selection": False}, object(), {"x": 1}])
def test_off_by_default(additional):
    assert not ConfidentDecodingConfig.from_additional_config(additional).enable_multi_layer_entropy_selection


def test_defaults_are_the_papers():
    config = read()
    assert (config.select_method, config.p, config.trough_log_interval) == ("trough", 1.0, 0)
    plan = config.resolve(36)
    assert (plan.candidates, plan.window, plan.depths) == (10, 9, tuple(range(10)))


def test_integers_are_numbers():
    assert read(p=1).p == 1.0
    assert read(p=0, trough_backtrack_ratio=1).trough_backtrack_ratio == 1.0


def test_null_means_unset():
    assert read(trough_max_backtrack_layers=None, trough_backtrack_ratio=None).resolve(36).candidates == 10


# (keys, N) -> (L, window); docs/configuration.md, by hand.
WINDOWS = [
    ({}, 30, 10, 9),
    ({}, 4, 4, 3),
    ({"trough_max_backtrack_layers": 10}, 30, 10, 9),
    ({"trough_max_backtrack_layers": 1}, 30, 1, 0),
    ({"trough_max_backtrack_layers": 99}, 30, 30, 29),
    ({"trough_max_backtrack_layers": -1}, 30, 30, 29),
    ({"trough_max_backtrack_layers": -7, "trough_backtrack_ratio": 0.1}, 30, 30, 29),
    ({"trough_max_backtrack_layers": 5, "trough_backtrack_ratio": 0.9}, 30, 5, 4),
    ({"trough_backtrack_ratio": 0.5}, 30, 15, 7),
    ({"trough_max_backtrack_layers": 0, "trough_backtrack_ratio": 0.5}, 30, 15, 7),
    ({"trough_backtrack_ratio": 1.0}, 30, 30, 29),
    ({"trough_backtrack_ratio": 0.25}, 36, 9, 2),
    ({"trough_backtrack_ratio": 0.01}, 30, 1, 0),
    ({"trough_backtrack_ratio": 0.34}, 3, 2, 0),
    ({"trough_max_backtrack_layers": 0}, 30, 1, 0),
    ({"trough_backtrack_ratio": 0.0}, 30, 1, 0),
    ({"trough_max_backtrack_layers": 0, "trough_backtrack_ratio": 0.0}, 30, 1, 0),
    ({}, 1, 1, 0),
]


@pytest.mark.parametrize(("keys", "n", "candidates", "window"), WINDOWS)
def test_window_table(keys, n, candidates, window):
    plan = read(**keys).resolve(n)
    assert (plan.candidates, plan.window) == (candidates, window)
    assert plan.depths == tuple(range(window + 1))
    assert plan.selects_nothing == (window == 0)


@given(n=st.integers(1, 200), ratio=st.floats(0.001, 1), k=st.integers(-3, 250))
def test_window_rules(n, ratio, k):
    plan = read(trough_max_backtrack_layers=k, trough_backtrack_ratio=ratio).resolve(n)
    if k > 0:
        expected = (min(n, k), min(n, k) - 1)
    elif k < 0:
        expected = (n, n - 1)
    else:
        layers = max(1, math.ceil(n * ratio))
        expected = (layers, min(layers - 1, int(layers * ratio)))
    assert (plan.candidates, plan.window) == expected


@pytest.mark.parametrize(
    ("method", "keys", "depths"),
    [
        ("trough-m1", {"trough_max_backtrack_layers": 10}, tuple(range(10))),
        ("trough-m2", {"trough_backtrack_ratio": 0.5}, tuple(range(10))),  # window 7, shift 2, L 15
        ("trough-m20", {"trough_backtrack_ratio": 0.5}, tuple(range(15))),  # clamped to L
        ("trough-p1", {"trough_max_backtrack_layers": 10}, tuple(range(10))),
        ("trough-m1", {"trough_max_backtrack_layers": 1}, (0,)),
        ("last-m3", {"trough_max_backtrack_layers": 2}, (0, 3)),
    ],
)
def test_only_reachable_depths_are_captured(method, keys, depths):
    assert read(select_method=method, **keys).resolve(30).depths == depths


@pytest.mark.parametrize(
    ("text", "family", "shift", "fixed"),
    [
        ("trough", "trough", 0, None),
        ("trough-m1", "trough", 1, None),
        ("trough-m2", "trough", 2, None),
        ("trough-p1", "trough", -1, None),
        ("trough-p2", "trough", -2, None),
        ("trough-p3", "trough", -3, None),
        ("last-m1", "last", 0, 1),
        ("last-m2", "last", 0, 2),
        ("last-m4", "last", 0, 4),
        ("last-m8", "last", 0, 8),
        ("last-m3", "last", 0, 3),
        ("last-m12", "last", 0, 12),
    ],
)
def test_methods(text, family, shift, fixed):
    assert Method.parse(text) == Method(family, shift, fixed)
    assert read(select_method=text).method == Method(family, shift, fixed)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Trough",
        "trough-",
        "trough-m",
        "trough-m0",
        "trough-m01",
        "trough-x1",
        "trough-m-1",
        "last",
        "last-p1",
        "last-m0",
        "last_m1",
        "lastm1",
        "trough-m1 ",
        "entropy",
        "trough-m1.5",
        "last-m9999999",
    ],
)
def test_unknown_methods_are_refused_with_the_valid_forms(text):
    with pytest.raises(ConfigError) as error:
        read(select_method=text)
    assert "select_method" in str(error.value)
    assert repr(text) in str(error.value)
    assert "trough-mK" in str(error.value)
    assert "last-mK" in str(error.value)


BAD = [
    ("enable_multi_layer_entropy_selection", "false", "JSON boolean"),
    ("enable_multi_layer_entropy_selection", "true", "JSON boolean"),
    ("enable_multi_layer_entropy_selection", 1, "JSON boolean"),
    ("enable_multi_layer_entropy_selection", None, "JSON boolean"),
    ("p", 1.5, "0"),
    ("p", -0.1, "0"),
    ("p", "0.5", "number"),
    ("p", True, "number"),
    ("p", None, "number"),
    ("p", math.nan, "number"),
    ("p", math.inf, "number"),
    ("trough_backtrack_ratio", 1.01, "0 to 1"),
    ("trough_backtrack_ratio", -0.5, "0 to 1"),
    ("trough_backtrack_ratio", "half", "number"),
    ("trough_max_backtrack_layers", 2.5, "whole number"),
    ("trough_max_backtrack_layers", "10", "whole number"),
    ("trough_max_backtrack_layers", True, "whole number"),
    ("trough_max_backtrack_layers", [10], "whole number"),
    ("trough_log_interval", -1, "from 0"),
    ("trough_min_entropy", -0.1, "nats from 0"),
    ("trough_min_entropy", "0.1", "nats from 0"),
    ("trough_min_entropy", float("nan"), "nats from 0"),
    ("trough_log_interval", 1.5, "whole number"),
    ("trough_metrics", "true", "true or false"),
    ("trough_metrics", 1, "true or false"),
    ("select_method", 3, "trough"),
    ("select_method", None, "trough"),
]


@pytest.mark.parametrize(("key", "value", "valid"), BAD)
def test_bad_values_name_key_value_and_what_is_valid(key, value, valid):
    with pytest.raises(ConfigError) as error:
        read(**{key: value})
    message = str(error.value)
    assert f"{key}={value!r}" in message
    assert valid in message
    assert type(value).__name__ in message


def test_one_message_names_every_problem():
    with pytest.raises(ConfigError) as error:
        read(p=2, trough_log_interval="x", trough_max_backtrack_layer=10)
    for part in ("p=2", "trough_log_interval='x'", "trough_max_backtrack_layer'", "'trough_max_backtrack_layers'"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("trough_max_backtrack_layer", "trough_max_backtrack_layers"),
        ("trough-max-backtrack-layers", "trough_max_backtrack_layers"),
        ("Trough_Log_Interval", "trough_log_interval"),
        ("trough_interval", "trough_log_interval"),
        ("trough_metric", "trough_metrics"),
        ("Trough-Metrics", "trough_metrics"),
        ("selectmethod", "select_method"),
        ("select_methods", "select_method"),
        ("P", "p"),
        ("trough_ratio", "trough_backtrack_ratio"),
        ("enable_multi_layer_entropy", "enable_multi_layer_entropy_selection"),
    ],
)
def test_misspelt_keys_are_refused_and_the_nearest_is_named(key, meant):
    with pytest.raises(ConfigError) as error:
        read(**{key: 1})
    assert f"unknown key {key!r}" in str(error.value)
    assert f"did you mean {meant!r}" in str(error.value)


@pytest.mark.parametrize(
    "key",
    [
        "enable_multi_layer_entropy_selecton",
        "enable-multi-layer-entropy-selection",
        "ENABLE_MULTI_LAYER_ENTROPY_SELECTION",
        "enable_multilayer_entropy_selection",
        "enable_multi_layer_entropy",
        "enable_multi_layer",
    ],
)
def test_a_misspelt_switch_is_an_error_although_the_switch_is_off(key):
    with pytest.raises(ConfigError, match="did you mean 'enable_multi_layer_entropy_selection'"):
        ConfidentDecodingConfig.from_additional_config({key: True})


def test_with_the_switch_off_nothing_else_is_looked_at():
    config = ConfidentDecodingConfig.from_additional_config(
        {"enable_multi_layer_entropy_selection": False, "p": "many", "trough_max_backtrack_layer": 1, "selectmethod": 2}
    )
    assert not config.enable_multi_layer_entropy_selection


@pytest.mark.parametrize(
    "key",
    [
        "my_plugin",
        "enable_profiling",
        "select",
        "method",
        "top_p",
        "ratio",
        "log_interval",
        "max_layers",
        "selection",
        "ascend_scheduler_config",
        "q",
        "_p",
        7,
    ],
)
def test_keys_of_other_plugins_are_left_alone(key):
    assert ConfidentDecodingConfig.from_additional_config({**ON, key: object()}) == read()


@given(st.text(max_size=30))
def test_any_text_is_a_method_or_refused(text):
    try:
        Method.parse(text)
    except ValueError:
        with pytest.raises(ConfigError):
            read(select_method=text)


def test_last_mk_needs_k_below_n():
    assert read(select_method="last-m29").resolve(30).depths == (0, 29)
    for k in (30, 31, 1000):
        with pytest.raises(ConfigError, match=rf"last-m{k}.*30.*last-m29"):
            read(select_method=f"last-m{k}").resolve(30)
    with pytest.raises(ConfigError, match="one layer"):
        read(select_method="last-m1").resolve(1)


def test_settings_cannot_change_after_the_start():
    with pytest.raises(ValueError):
        read().p = 0.5
