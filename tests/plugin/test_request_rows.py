"""Rows of a step and the requests that they belong to, with vLLM's own scheduler output where it is installed."""

import logging
from types import SimpleNamespace

import pytest
import torch

from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.plugin.request_rows import RequestRows, Sampled
from confident_decoding.selection import hashed_draws

CPU = torch.device("cpu")


def rows_of(seed=0, **server):
    config = ConfidentDecodingConfig(**server)
    return RequestRows(config.resolve(12), config.select_method, seed)


def new(request_id, seed=None, **extra_args):
    params = SimpleNamespace(extra_args=extra_args or None, seed=seed)
    return SimpleNamespace(req_id=request_id, sampling_params=params)


def step(rows, arrived=(), finished=(), order=(), positions=None):
    """Begin a step; ``order`` is ``[(request, rows)]``, ``positions`` the place of each row in its sequence."""
    output = SimpleNamespace(scheduled_new_reqs=list(arrived), finished_req_ids=set(finished))
    sampled = Sampled([name for name, _ in order], [count for _, count in order], lambda: torch.tensor(positions))
    rows.begin(output, lambda: sampled)


def test_no_request_with_settings_costs_nothing():
    rows = rows_of()
    step(rows, [new("a"), new("b", seed=3)], order=[("a", 1), ("b", 1)])
    assert rows.rules(2, CPU) is None


def test_each_row_has_its_requests_settings():
    rows = rows_of()
    step(
        rows,
        [new("a"), new("b", confident_p=0.0), new("c", confident_max_backtrack_layers=3, confident_min_entropy=0.5)],
        order=[("c", 2), ("a", 1), ("b", 3)],
    )
    rules = rows.rules(6, CPU)
    assert rules.limits.tolist() == [2, 2, 9, -1, -1, -1]
    assert rules.shifts.tolist() == [0] * 6
    assert rules.thresholds.tolist() == [0.5, 0.5, 0, 0, 0, 0]


def test_limits_alone_where_nothing_else_differs():
    rows = rows_of(select_method="trough-m1", trough_min_entropy=0.1)
    step(rows, [new("a"), new("b", confident_p=0)], order=[("a", 1), ("b", 1)])
    rules = rows.rules(2, CPU)
    assert (rules.limits.tolist(), rules.shifts, rules.thresholds) == ([9, -1], 1, 0.1)


def test_requests_leave():
    rows = rows_of()
    step(rows, [new("a", confident_p=0)], order=[("a", 1)])
    assert rows.rules(1, CPU) is not None
    step(rows, [new("b")], order=[("b", 1), ("a", 1)])
    assert rows.rules(2, CPU).limits.tolist() == [9, -1]
    step(rows, finished=["a"], order=[("b", 1)])
    assert rows.rules(1, CPU) is None


def test_a_step_without_requests_that_differ_is_the_servers():
    """They exist, and are not scheduled now."""
    rows = rows_of()
    step(rows, [new("a", confident_p=0), new("b")], order=[("b", 1)])
    assert rows.rules(1, CPU) is None


def test_rows_that_do_not_add_up_are_an_error():
    rows = rows_of()
    step(rows, [new("a", confident_p=0)], order=[("a", 1)])
    with pytest.raises(RuntimeError, match="2 rows"):
        rows.rules(2, CPU)


def test_standard_by_default_and_confident_by_request():
    rows = rows_of(p=0.0)
    step(rows, [new("a"), new("b", confident_p=1)], order=[("a", 1), ("b", 1)])
    assert rows.rules(2, CPU).limits.tolist() == [-1, 9]


def limits_over_steps(seed, position_of_row=0, others=0, engine_seed=0, tokens=60):
    """Which of a request's tokens are selected, token by token, with so many neighbours."""
    rows = rows_of(engine_seed, p=0.5)
    found = []
    names = [f"other{i}" for i in range(others)]
    for token in range(tokens):
        arrived = [new("a", seed), *(new(name, 7 + i) for i, name in enumerate(names))] if token == 0 else []
        order = [(name, 1) for name in names]
        order.insert(min(position_of_row, others), ("a", 1))
        step(rows, arrived, order=order, positions=[4 + token] * (1 + others))
        rules = rows.rules(1 + others, CPU)
        found.append(int(rules.limits[min(position_of_row, others)]))
    return found


def test_a_seeded_request_draws_the_same_whatever_is_beside_it():
    alone = limits_over_steps(5)
    assert set(alone) == {9, -1}
    assert alone == limits_over_steps(5, position_of_row=3, others=7, engine_seed=99)
    assert alone != limits_over_steps(6)
    assert limits_over_steps(2**64 - 1) != limits_over_steps(0)


def test_unseeded_requests_draw_by_engine_seed_and_call():
    rows = [rows_of(seed, p=0.5) for seed in (1, 1, 2)]
    drawn = []
    for some in rows:
        step(some, [new(f"r{i}", confident_p=0.5) for i in range(40)], order=[(f"r{i}", 1) for i in range(40)])
        drawn.append([some.rules(40, CPU).limits.tolist() for _ in range(2)])
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] != drawn[0][1], "another call, other draws"


def test_the_rows_of_drafts_have_positions_of_their_own():
    rows = rows_of(p=0.5)
    step(rows, [new("a", 5)], order=[("a", 6)], positions=[*range(4, 10)])
    limits = rows.rules(6, CPU).limits.tolist()
    expected = hashed_draws(torch.arange(4, 10), torch.full((6,), 5)) < 0.5
    assert limits == torch.where(expected, 9, -1).tolist()


def test_only_seeds_that_mix_ask_the_device_for_positions():
    """Elsewhere the host knows all that decides."""
    asked = []
    rows = rows_of()
    for settings in ({"confident_p": 0}, {"confident_p": 0.5}, {"confident_p": 0.5, "seed": 3}):
        step(rows, [new("a", **settings)], order=[("a", 1)])
        sampled = Sampled(["a"], [1], lambda: asked.append(1) or torch.tensor([7]))
        rows.order = lambda sampled=sampled: sampled
        rows.rules(1, CPU)
        assert len(asked) == ("seed" in settings)


def test_calls_with_rules_draw_other_numbers_than_calls_without():
    """Both count from one, with the engine's seed."""
    rows = rows_of(3, p=0.5)
    ids = [f"r{i}" for i in range(40)]
    step(rows, [new(name, confident_p=0.5) for name in ids], order=[(name, 1) for name in ids])
    without = torch.where(hashed_draws(torch.arange(40), 3, 1) < 0.5, 9, -1)
    assert rows.rules(40, CPU).limits.tolist() != without.tolist()


def test_a_bad_argument_that_slipped_past_the_front_end_does_not_end_the_engine(caplog):
    rows = rows_of()
    with caplog.at_level(logging.ERROR, "vllm.confident_decoding"):
        step(rows, [new("a", confident_p=7)], order=[("a", 1)])
    assert "confident_p=7" in caplog.text
    assert rows.rules(1, CPU) is None


def test_the_next_part_of_a_session_has_its_own_settings():
    rows = rows_of()
    step(rows, [new("a", confident_p=0)], order=[("a", 1)])
    step(rows, [new("a")], order=[("a", 1)])
    assert rows.rules(1, CPU) is None
