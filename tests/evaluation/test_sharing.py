"""Which engine answers for which setting, and that a request means there what its setting says."""

import numpy as np
import oracle
import pytest
from conftest import on
from hypothesis import given
from hypothesis import strategies as st

from confident_decoding.evaluation.settings import settings_for
from confident_decoding.evaluation.sharing import arrange

N = 30
GENERATIVE, CHOICE = {"words": "generate_until"}, {"choices": "multiple_choice"}


def arranged(texts, tasks, **options):
    return arrange(settings_for(texts, N)[0], tasks, N, **options)


def brief(engines):
    return [(engine.additional_config, [(u.task, u.setting) for u in engine.units]) for engine in engines]


def test_generative_tasks_share_one_engine_with_the_widest_window():
    (engine,) = arranged(["trough", "last-m12", "p=0.5,window=5", "trough-p1", "min_entropy=0.01"], GENERATIVE)
    assert engine.additional_config == on(trough_max_backtrack_layers=13)
    assert {unit.setting: unit.arguments for unit in engine.units} == {
        "standard": {"confident_p": 0.0},
        "trough": {"confident_p": 1.0, "confident_max_backtrack_layers": 10},
        "last-m12": {"confident_p": 1.0, "confident_select_method": "last-m12"},
        "p=0.5,window=5": {"confident_p": 0.5, "confident_max_backtrack_layers": 5},
        "trough-p1": {
            "confident_p": 1.0,
            "confident_select_method": "trough-p1",
            "confident_max_backtrack_layers": 10,
        },
        "min_entropy=0.01": {
            "confident_p": 1.0,
            "confident_max_backtrack_layers": 10,
            "confident_min_entropy": 0.01,
        },
    }


def test_what_a_request_cannot_ask_for_has_an_engine_of_its_own():
    """A layer shallower than the trough is clamped by the server's window, which here is another one."""
    assert brief(arranged(["trough-m1", "window=20"], GENERATIVE)) == [
        (on(trough_max_backtrack_layers=20), [("words", "standard"), ("words", "window=20")]),
        (on(select_method="trough-m1"), [("words", "trough-m1")]),
    ]
    (engine,) = arranged(["trough-m1", "trough"], GENERATIVE)
    assert engine.units[1].arguments == {"confident_p": 1.0, "confident_select_method": "trough-m1"}


def test_a_request_asks_for_the_window_not_the_candidates():
    """Half of 30 layers are 15 candidates, and half of those the window."""
    (engine,) = arranged(["ratio=0.5"], GENERATIVE)
    assert engine.additional_config == on(trough_max_backtrack_layers=8)
    assert engine.units[1].arguments == {"confident_p": 1.0, "confident_max_backtrack_layers": 8}


def test_log_likelihoods_need_an_engine_for_each_setting():
    assert brief(arranged(["trough", "last-m1"], CHOICE)) == [
        ({}, [("choices", "standard")]),
        (on(select_method="trough"), [("choices", "trough")]),
        (on(select_method="last-m1"), [("choices", "last-m1")]),
    ]
    assert all(unit.arguments is None for engine in arranged(["trough"], CHOICE) for unit in engine.units)


def test_an_engine_that_is_there_anyway_is_used():
    assert brief(arranged(["trough", "last-m1"], GENERATIVE | CHOICE)) == [
        (
            on(select_method="trough"),
            [("words", "standard"), ("words", "trough"), ("words", "last-m1"), ("choices", "trough")],
        ),
        ({}, [("choices", "standard")]),
        (on(select_method="last-m1"), [("choices", "last-m1")]),
    ]


def test_prompt_rows_that_mix_have_an_engine_of_each_task():
    """They draw by the engine's count of calls, which must not depend on what was answered before."""
    found = brief(arranged(["p=0.5"], GENERATIVE | CHOICE | {"more": "loglikelihood"}))
    assert found == [
        (on(trough_max_backtrack_layers=10), [("words", "standard"), ("words", "p=0.5")]),
        ({}, [("choices", "standard"), ("more", "standard")]),
        (on(p=0.5), [("choices", "p=0.5")]),
        (on(p=0.5), [("more", "p=0.5")]),
    ]


def test_own_engines():
    found = brief(arranged(["trough", "last-m1"], GENERATIVE | CHOICE, own_engines=True))
    assert found == [
        (config, [("words", name), ("choices", name)])
        for config, name in (
            ({}, "standard"),
            (on(select_method="trough"), "trough"),
            (on(select_method="last-m1"), "last-m1"),
        )
    ]


SETTINGS = """trough window=3 window=14 window=all ratio=0.5 ratio=0.3,trough-m2 trough-m1 trough-m3,window=14
trough-m2,window=6 trough-p1 trough-p2,window=4 last-m1 last-m9 last-m13"""
TEXTS = st.lists(st.sampled_from(SETTINGS.split()), min_size=1, max_size=6, unique=True)


def depth_of(config, entropies):
    """Depth of a server's configuration, by docs/configuration.md."""
    method = config.get("select_method", "trough")
    if method.startswith("last-m"):
        return int(method[6:])
    shift = {"m": 1, "p": -1}.get(method[7:8], 0) * int(method[8:] or 0)
    ratio, layers = config.get("trough_backtrack_ratio"), config.get("trough_max_backtrack_layers", 10)
    candidates = int(np.ceil(N * ratio)) if ratio else N if layers < 0 else layers
    window = min(candidates - 1, int(candidates * ratio)) if ratio else candidates - 1
    return oracle.depth(entropies, window, shift, candidates)


def depth_of_request(arguments, server, entropies):
    """Depth of a request to a `trough` server, by docs/requests.md."""
    candidates = (
        N if server.get("trough_max_backtrack_layers", 10) < 0 else server.get("trough_max_backtrack_layers", 10)
    )
    method = arguments.get("confident_select_method", "trough")
    if method.startswith("last-m"):
        assert int(method[6:]) < candidates
        return int(method[6:])
    shift = {"m": 1, "p": -1}.get(method[7:8], 0) * int(method[8:] or 0)
    window = arguments.get("confident_max_backtrack_layers", candidates) - 1
    assert window < candidates
    return oracle.depth(entropies, window, shift, candidates)


@given(TEXTS, st.integers(0, 2**32 - 1))
def test_every_unit_selects_what_its_setting_says(texts, seed):
    settings, _ = settings_for(texts, N)
    configs = {setting.name: setting.additional_config() for setting in settings}
    units = [(engine, unit) for engine in arrange(settings, GENERATIVE, N) for unit in engine.units]
    assert sorted(unit.setting for _, unit in units) == sorted(configs)
    generator = np.random.default_rng(seed)
    for length in (1, 4, 9, 13, 20):  # falls for so many layers, then anything
        entropies = np.concatenate([np.sort(generator.random(length) + 1)[::-1], generator.random(N - length)])
        for engine, unit in units:
            config = configs[unit.setting]
            if unit.setting == "standard":
                assert unit.arguments == {"confident_p": 0.0} or (
                    unit.arguments is None and not engine.additional_config
                )
            elif unit.arguments is None:
                assert engine.additional_config == config
            else:
                assert unit.arguments["confident_p"] == 1
                wanted = depth_of(config, entropies)
                assert depth_of_request(unit.arguments, engine.additional_config, entropies) == wanted


def test_settings_that_cannot_share_leave_standard_decoding_a_plain_engine():
    found = brief(arranged(["ratio=0.3,trough-m2"], GENERATIVE))
    assert found == [
        ({}, [("words", "standard")]),
        (on(trough_backtrack_ratio=0.3, select_method="trough-m2"), [("words", "ratio=0.3,trough-m2")]),
    ]


def test_needs_no_vllm():
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['vllm'] = None; sys.modules['lm_eval'] = None\n"
        "import confident_decoding.evaluation.run, confident_decoding.evaluation.report\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("texts", [["trough"], ["trough", "last-m1", "p=0.5", "window=3"]])
def test_each_unit_is_placed_once(texts):
    tasks = GENERATIVE | CHOICE | {"perplexity": "loglikelihood_rolling"}
    placed = [(u.task, u.setting) for engine in arranged(texts, tasks) for u in engine.units]
    assert sorted(placed) == sorted((task, name) for task in tasks for name in ["standard", *texts])
