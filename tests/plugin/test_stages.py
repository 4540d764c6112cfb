"""Whether candidates fit onto the last pipeline stage, as vLLM splits the layers, and what the message advises."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.plugin.stages import misfit

PARTITION = "VLLM_PP_LAYER_PARTITION"


def plan_of(layers, **keys):
    return ConfidentDecodingConfig(**keys).resolve(layers)


@pytest.mark.parametrize(
    ("keys", "layers", "stages", "fits"),
    [
        ({}, 32, 2, True),
        ({}, 32, 4, False),  # 8 layers on the last
        ({"trough_max_backtrack_layers": 8}, 32, 4, True),
        ({"trough_max_backtrack_layers": 9}, 32, 4, False),
        ({"trough_max_backtrack_layers": -1}, 32, 2, False),
        ({"trough_max_backtrack_layers": -1}, 32, 1, True),
        ({"select_method": "last-m7"}, 32, 4, True),
        ({"select_method": "last-m8"}, 32, 4, False),
        ({"select_method": "trough-p2", "trough_max_backtrack_layers": 8}, 32, 4, True),
        ({"trough_max_backtrack_layers": 1}, 32, 16, True),  # the final layer alone
    ],
)
def test_the_last_stage_must_hold_as_many_layers_as_there_are_candidates(keys, layers, stages, fits):
    assert (misfit(plan_of(layers, **keys), stages) is None) == fits


def test_the_users_own_partition_counts(monkeypatch):
    plan = plan_of(32)
    monkeypatch.setenv(PARTITION, "23,9")
    assert "the last stage has 9 of the 32 layers, and these settings look at the last 10" in misfit(plan, 2)
    monkeypatch.setenv(PARTITION, "22,10")
    assert misfit(plan, 2) is None
    monkeypatch.setenv(PARTITION, "32")
    with pytest.raises(ValueError, match="pp_size=2"):
        misfit(plan, 2)


METHODS = st.sampled_from(["trough", "trough-m1", "trough-p2", "last-m3", "last-m9", "last-m20"])


@settings(deadline=None)
@given(st.integers(2, 60), st.integers(2, 8), st.integers(2, 60), METHODS)
def test_what_the_message_advises_helps(layers, stages, window, method):
    fixed = method.startswith("last")
    if stages > layers or (fixed and int(method[6:]) >= layers):
        return
    keys = {"select_method": method} if fixed else {"select_method": method, "trough_max_backtrack_layers": window}
    plan = plan_of(layers, **keys)
    problem = misfit(plan, stages)
    if problem is None:
        return
    assert f"pipeline_parallel_size={stages}" in problem
    if fixed:
        fewer = re.search(r"set select_method to (last-m\d+) or less", problem)
        assert (fewer is None) == (layers // stages == 1), "a stage of one layer has the final one alone"
        less = {"select_method": fewer[1] if fewer else "trough", "trough_max_backtrack_layers": 1}
    else:
        fewer = int(re.search(r"set trough_max_backtrack_layers to (\d+) or less", problem)[1])
        less = {**keys, "trough_max_backtrack_layers": fewer}
    assert misfit(plan_of(layers, **less), stages) is None
    advised = re.search(rf"set {PARTITION}=(\d+(?:,\d+)+)", problem)
    assert (advised is None) == (layers - plan.depths[-1] - 1 < stages - 1)
    if advised:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(PARTITION, advised[1])
            assert misfit(plan, stages) is None


def test_vllm_is_asked_once(monkeypatch):
    """Each request with settings of its own asks, and vLLM logs a line where layers do not divide evenly."""
    from vllm.distributed import utils

    asked, stock = [], utils.get_pp_indices
    monkeypatch.setattr(utils, "get_pp_indices", lambda *args: asked.append(args) or stock(*args))
    assert {misfit(plan_of(61), 3) for _ in range(4)} == {None}
    assert len(asked) == 1
