"""What a request may ask for, on servers that capture different things."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.plugin.request_settings import RequestSettings, request_settings

N = 12


def ask(extra_args, **server):
    config = ConfidentDecodingConfig(**server)
    return request_settings(extra_args, config.resolve(N), config.select_method)


def test_requests_without_ours_have_none():
    for extra_args in (None, {}, {"kv_transfer_params": {"a": 1}, "top_n_sigma": 2}):
        assert ask(extra_args) is None


def test_what_is_not_asked_for_is_the_servers():
    server = {"p": 0.5, "select_method": "trough-m1", "trough_min_entropy": 0.25}
    assert ask({"confident_p": 1}, **server) == RequestSettings(1.0, 9, 1, 0.25)
    assert ask({"confident_min_entropy": 0}, **server) == RequestSettings(0.5, 9, 1, 0.0)
    assert ask({"confident_max_backtrack_layers": 10}, **server) == RequestSettings(0.5, 9, 1, 0.25)
    assert ask({"confident_select_method": "trough"}, **server) == RequestSettings(0.5, 9, 0, 0.25)
    assert ask({"confident_select_method": "trough-p2"}, **server) == RequestSettings(0.5, 9, -2, 0.25)


def test_a_fixed_layer_is_no_scan_and_a_shift():
    assert ask({"confident_select_method": "last-m4"}) == RequestSettings(1.0, 0, 4, 0.0)
    assert ask({"confident_select_method": "last-m9"}).shift == 9
    assert ask({"confident_select_method": "last-m4"}, trough_min_entropy=0.5).threshold == 0, "as a server of last-m4"


def test_a_server_of_one_fixed_layer_mixes_per_request():
    server = {"select_method": "last-m4"}
    assert ask({"confident_p": 0.25}, **server).p == 0.25
    assert ask({"confident_select_method": "last-m4"}, **server).p == 1.0
    for arguments in (
        {"confident_select_method": "trough"},
        {"confident_max_backtrack_layers": 2},
        {"confident_min_entropy": 0.5},
    ):
        with pytest.raises(ValueError, match="last-m4"):
            ask(arguments, **server)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"confident_p": 1.5}, "confident_p=1.5"),
        ({"confident_p": -0.1}, "confident_p"),
        ({"confident_p": "0.5"}, "confident_p='0.5' (str)"),
        ({"confident_p": float("nan")}, "confident_p"),
        ({"confident_p": True}, "confident_p"),
        ({"confident_min_entropy": -1}, "confident_min_entropy"),
        ({"confident_max_backtrack_layers": 0}, "confident_max_backtrack_layers"),
        ({"confident_max_backtrack_layers": 2.5}, "confident_max_backtrack_layers"),
        ({"confident_max_backtrack_layers": 11}, "10 candidate layers"),
        ({"confident_select_method": "deepest"}, "last-mK"),
        ({"confident_select_method": 3}, "confident_select_method"),
        ({"confident_select_method": "last-m10"}, "captures 9"),
        ({"confident_select_method": "last-m8", "confident_max_backtrack_layers": 2}, "max_backtrack_layers=2"),
        ({"confident_select_method": "last-m8", "confident_min_entropy": 0.1}, "confident_min_entropy=0.1"),
        ({"confident_select_method": "trough-m1", "confident_max_backtrack_layers": 3}, "max_backtrack_layers=3"),
        ({"confident_P": 0.5}, "did you mean 'confident_p'"),
        ({"confident_min_entrop": 0.5}, "did you mean 'confident_min_entropy'"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match="confident-decoding") as caught:
        ask(arguments)
    assert words in str(caught.value)


def test_a_shallow_window_captures_no_shifted_layers():
    """A ratio may scan fewer layers than are candidates; the layers beyond are not captured."""
    server = {"trough_backtrack_ratio": 0.5}  # 6 candidates, window 3: depths 0 to 3
    assert ask({"confident_select_method": "trough-p1"}, **server).shift == -1
    with pytest.raises(ValueError, match="captures 3"):
        ask({"confident_select_method": "trough-m1"}, **server)


@given(
    layers=st.integers(1, 10),
    method=st.sampled_from(["trough", "trough-m1", "trough-m5", "trough-p3", "last-m1", "last-m9"]),
    ratio=st.sampled_from([None, 0.3, 0.5, 1.0]),
)
def test_whatever_is_accepted_stays_within_what_is_captured(layers, method, ratio):
    config = ConfidentDecodingConfig(trough_backtrack_ratio=ratio)
    plan = config.resolve(N)
    arguments = {"confident_select_method": method, "confident_max_backtrack_layers": min(layers, plan.candidates)}
    try:
        found = request_settings(arguments, plan, "trough")
    except ValueError:
        return
    for trough in range(found.limit + 1):
        assert min(max(trough + found.shift, 0), plan.candidates - 1) < len(plan.depths)
