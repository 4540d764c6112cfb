"""Rules of rows, mixing and draws against the definitions in plain Python."""

import math

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.selection import RowRules, hashed_draws

RULES = RowRules(10, 9)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(-12, 12), st.integers(1, 10))
def test_shift_is_clamped(troughs, shift, candidates):
    troughs = [min(trough, candidates - 1) for trough in troughs]
    rules = RowRules(candidates, candidates - 1, shift)
    found = rules.settle(torch.tensor(troughs), torch.zeros(10, len(troughs)), candidates - 1)
    assert found.tolist() == [min(max(trough + shift, 0), candidates - 1) for trough in troughs]


def test_thresholds_hold_rows_at_the_final_layer():
    troughs, entropies = torch.tensor([3, 3, 3]), torch.tensor([0.5, 0.50001, 0.0]).repeat(10, 1)
    assert RowRules(10, 9, 0, 0.5).settle(troughs, entropies, 9).tolist() == [0, 3, 0]
    assert RowRules(10, 9, 1, 0.5).settle(troughs, entropies, 9).tolist() == [0, 4, 0]
    assert RowRules(10, 9, 0, 0.0).settle(troughs, entropies, 9).tolist() == [3, 3, 3], "0 = none, not even at 0 nats"
    own = torch.tensor([0.0, 1.0, 0.0])
    assert RowRules(10, 9, 0, own).settle(troughs, entropies, 9).tolist() == [3, 0, 3]
    assert RowRules(10, 9, 0, 0.5).held(torch.tensor([math.nan])).tolist() == [False]


def test_rows_that_are_kept_are_not_shifted():
    limits = torch.tensor([-1, 0, 5], dtype=torch.int32)
    assert RowRules(10, limits, 2).settle(torch.tensor([0, 0, 4]), torch.ones(10, 3), 9).tolist() == [0, 2, 6]


NAN = math.nan
FALLS = [  # entropies, limit; whether the scan ends at a NaN
    ([5, 4, 3, NAN], 3, True),
    ([5, NAN, 3, 2], 3, True),
    ([NAN, 4, 3, 2], 3, True),
    ([NAN, NAN, NAN, NAN], 3, True),
    ([5, 4, 3, NAN], 2, False),  # by its limit, before the NaN
    ([5, 6, NAN, NAN], 3, False),  # at its trough; nothing has looked further
    ([5, 4, 3, 2], 3, False),
    ([NAN, 4, 3, 2], 0, False),  # no scan
    ([NAN, 4, 3, 2], -1, False),
]


@pytest.mark.parametrize("window", [3, 2])
def test_rows_fall_back_where_a_nan_ends_their_scan(window):
    entropies = torch.tensor([row for row, _, _ in FALLS]).T
    limits = torch.tensor([limit for _, limit, _ in FALLS], dtype=torch.int32)
    troughs = torch.tensor([oracle.trough(row, max(0, min(limit, window))) for row, limit, _ in FALLS])
    found = RowRules(4, limits).fell_back(troughs, entropies, window).tolist()
    # With the window at 2, the first row's scan ends there, before it looks at depth 3.
    assert found == [falls and not (window == 2 and number == 0) for number, (_, _, falls) in enumerate(FALLS)]


def test_rows_that_fell_back_are_not_shifted():
    """The shift could select the very candidate that is no distribution."""
    entropies = torch.tensor([[5, 4, 3, NAN], [5, NAN, 3, 2], [NAN, 4, 3, 2], [5, 4, 6, NAN]]).T
    troughs = torch.tensor([2, 0, 0, 1])
    for shift in (1, 2, torch.tensor([1, 2, 1, 2])):
        found = RowRules(4, 3, shift).settle(troughs, entropies, 3).tolist()
        assert found == [2, 0, 0, min(3, 1 + (2 if isinstance(shift, torch.Tensor) else shift))]
    held = RowRules(4, 3, 1, 5.0).settle(troughs, entropies, 3).tolist()
    assert held == [0, 0, 0, 0]


def test_some_of_the_rows():
    rules = RowRules(10, torch.arange(5), torch.arange(5) - 2, torch.ones(5))
    some = rules[slice(1, 3)]
    assert (some.limits.tolist(), some.shifts.tolist(), some.thresholds.tolist()) == ([1, 2], [-1, 0], [1.0, 1.0])
    assert RULES[slice(1, 3)] == RULES
    assert RULES.limits_of(torch.zeros(3)).tolist() == [9, 9, 9]


def test_a_plan_that_mixes_needs_draws():
    plan = ConfidentDecodingConfig(p=0.5).resolve(12)
    with pytest.raises(ValueError, match="draw"):
        RowRules.of(plan)
    assert RowRules.of(plan, torch.tensor([0.4, 0.5], dtype=torch.float64)).limits.tolist() == [9, -1]


def mixed(draws, p):
    """Depths of rows whose trough is 3."""
    return RULES.mixed(draws, p).settle(torch.full(draws.shape, 3), torch.ones(10, *draws.shape), 9)


def test_p_zero_never_selects_and_one_always_does():
    draws = hashed_draws(torch.arange(100_000), 0, 0)
    assert mixed(draws, 0.0).sum() == 0
    assert (mixed(draws, 1.0) == 3).all()
    # The extremes of [0, 1) too.
    edge = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert mixed(edge, 0.0).tolist() == [0, 0]
    assert mixed(edge, 1.0).tolist() == [3, 3]
    assert mixed(edge, torch.tensor([0.5, 0.5], dtype=torch.float64)).tolist() == [3, 0]


@given(p=st.floats(0.01, 0.99), seed=st.integers(0, 2**63 - 1), call=st.integers(0, 2**40))
@settings(max_examples=50)
def test_mixing_frequency_is_p_within_4_sigma(p, seed, call):
    n = 40_000
    kept = (mixed(hashed_draws(torch.arange(n), seed, call), p) > 0).sum().item()
    assert abs(kept - n * p) < 4 * math.sqrt(n * p * (1 - p))


def test_draws_of_one_row_over_calls_are_uniform_too():
    n = 20_000
    row = torch.tensor([5])
    draws = np.array([hashed_draws(row, 0, call).item() for call in range(n)])
    counts, _ = np.histogram(draws, bins=20, range=(0, 1))
    assert abs(counts - n / 20).max() < 4.5 * math.sqrt(n / 20)
    # ... and a call says nothing about the next.
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 4 / math.sqrt(n)


def test_draws_depend_on_their_keys_alone():
    rows = torch.arange(64)
    before = torch.random.get_rng_state()
    draws = hashed_draws(rows, 7, 3)
    assert torch.equal(draws, hashed_draws(rows, 7, 3))
    assert torch.equal(draws[10:20], hashed_draws(rows[10:20], 7, 3))
    assert not torch.equal(draws, hashed_draws(rows, 7, 4))
    assert not torch.equal(draws, hashed_draws(rows, 8, 3))
    assert torch.equal(before, torch.random.get_rng_state())


@given(seeds=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), engine=st.integers(0, 2**64 - 1))
def test_keys_of_single_rows_are_the_same_chain(seeds, engine):
    rows = torch.arange(len(seeds)) * 7
    found = hashed_draws(rows, engine, torch.tensor(seeds))
    assert found.tolist() == [
        hashed_draws(row[None], engine, seed).item() for row, seed in zip(rows, seeds, strict=True)
    ]


def test_draws_are_splitmix64():
    """The chain against Python's unbounded integers."""
    mask = 2**64 - 1

    def mix(z):
        z = (z + 0x9E3779B97F4A7C15) & mask
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    state = mix(mix(0x9E3779B97F4A7C15 ^ 123) ^ (2**63 + 5))
    expected = [(mix(state ^ row) >> 11) * 2.0**-53 for row in range(50)]
    assert hashed_draws(torch.arange(50), 123, 2**63 + 5).tolist() == expected
