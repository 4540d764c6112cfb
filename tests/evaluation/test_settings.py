"""Settings as the command line gives them."""

import pytest
from conftest import SWITCH

from confident_decoding.evaluation.settings import (
    STANDARD,
    SettingError,
    ablation_of_layers,
    ablation_of_p,
    parse_setting,
    settings_for,
)

N = 30


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("trough", {"select_method": "trough"}),
        ("last-m1", {"select_method": "last-m1"}),
        ("p=1,window=10", {"p": 1.0, "trough_max_backtrack_layers": 10}),
        (" trough-p1 , p = 0.5 ", {"select_method": "trough-p1", "p": 0.5}),
        ("method=trough-m2,window=all", {"select_method": "trough-m2", "trough_max_backtrack_layers": -1}),
        ("ratio=0.5,min_entropy=0.01", {"trough_backtrack_ratio": 0.5, "trough_min_entropy": 0.01}),
        ("last-m8,p=0.25", {"select_method": "last-m8", "p": 0.25}),
    ],
)
def test_a_setting_is_a_servers_configuration(text, keys):
    assert parse_setting(text).additional_config() == {SWITCH: True, **keys}


def test_standard_decoding_is_a_server_without_configuration():
    assert parse_setting("standard").additional_config() == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["''", "a setting is 'standard', or parts"]),
        ("through", ["'through'", "'trough'", "'last-mK'"]),
        ("last-p2", ["'last-p2'", "'last-mK'"]),
        ("p=2", ["'p=2'", "a number from 0 to 1"]),
        ("p=nan", ["'p=nan'", "a number from 0 to 1"]),
        ("p=", ["'p='", "p (0 to 1)"]),
        ("window=0", ["'window=0'", "from 1, or 'all'"]),
        ("window=2.5", ["'window=2.5'", "whole number"]),
        ("ratio=0", ["'ratio=0'", "above 0"]),
        ("min_entropy=-1", ["'min_entropy=-1'", "nats from 0"]),
        ("windows=3", ["'windows=3'", "min_entropy (nats"]),
        ("window", ["'window'", "key"]),
        ("p=1,p=0.5", ["gives p twice"]),
        ("trough,method=last-m1", ["gives method twice"]),
        ("trough,,p=1", ["''"]),
        ("standard,p=1", ["'standard'"]),
        ("last-m2,window=3", ["last-m2 scans nothing", "window"]),
        ("window=3,ratio=0.5", ["window and ratio exclude each other"]),
    ],
)
def test_what_is_not_valid_is_named_with_what_is(text, words):
    with pytest.raises(SettingError) as refused:
        parse_setting(text)
    for word in [repr(text), *words]:
        assert word in str(refused.value)


def test_standard_comes_first_and_once():
    settings, same = settings_for(["trough", "standard", "last-m2"], N)
    assert [setting.name for setting in settings] == [STANDARD, "trough", "last-m2"]
    assert same == []


def test_standard_by_another_name_is_told_and_left_out():
    settings, same = settings_for(["p=0", "window=1", "trough"], N)
    assert [setting.name for setting in settings] == [STANDARD, "trough"]
    assert same == ["p=0", "window=1"]


def test_two_settings_of_one_meaning_are_refused():
    with pytest.raises(SettingError, match=r"'trough' and 'p=1,window=10' mean the same"):
        settings_for(["trough", "p=1,window=10"], N)
    assert len(settings_for(["trough", "p=1,window=11"], N)[0]) == 3
    with pytest.raises(SettingError, match="mean the same"):
        settings_for(["window=all", "window=30"], N)


def test_a_layer_that_the_model_does_not_have_is_refused():
    with pytest.raises(SettingError, match=r"'last-m30'.*'last-m1' to 'last-m29'"):
        settings_for(["last-m30"], N)


def test_ablations():
    assert ablation_of_p("0.25, 0.5") == ["p=0.25", "p=0.5"]
    assert ablation_of_layers("1-3, 8,2") == ["last-m1", "last-m2", "last-m3", "last-m8"]
    for text in ("", "3-1", "0", "1-", "a", "1,,2"):
        with pytest.raises(SettingError, match="'1-4,8'"):
            ablation_of_layers(text)
