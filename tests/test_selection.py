"""Scan, shift, mix and draws against the definitions in plain Python."""

import math

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from confident_decoding.selection import hashed_draws, mix_depths, scan_depths, shift_depths

# Few distinct values, so that ties happen; NaN and infinities among them.
VALUES = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 3.0, math.nan, math.inf])
COLUMNS = st.lists(VALUES, min_size=1, max_size=12)


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.lists(st.lists(VALUES, min_size=n, max_size=n), max_size=8).map(lambda rows: (n, rows))
    ),
    st.data(),
)
@settings(max_examples=300)
def test_scan_is_the_while_loop(case, data):
    n, rows = case
    window = data.draw(st.integers(0, n - 1))
    entropies = torch.tensor(rows, dtype=torch.float32).reshape(len(rows), n).T
    assert scan_depths(entropies, window).tolist() == [oracle.trough(row, window) for row in rows]


@given(COLUMNS, st.integers(-12, 12), st.data())
def test_shift_is_clamped(row, shift, data):
    candidates = data.draw(st.integers(1, len(row)))
    window = data.draw(st.integers(0, candidates - 1))
    depths = shift_depths(scan_depths(torch.tensor(row)[:, None], window), shift, candidates)
    assert depths.tolist() == [oracle.depth(row, window, shift, candidates)]
    assert 0 <= depths.item() < candidates


def test_a_tie_stops_and_a_nan_stops():
    assert scan_depths(torch.tensor([[2.0], [2.0], [1.0]]), 2).item() == 0
    assert scan_depths(torch.tensor([[2.0], [math.nan], [1.0]]), 2).item() == 0
    assert scan_depths(torch.tensor([[math.nan], [1.0], [0.5]]), 2).item() == 0
    assert scan_depths(torch.tensor([[3.0], [2.0], [math.nan]]), 2).item() == 1


def test_the_window_bounds_the_scan():
    falling = torch.arange(10.0, 0, -1)[:, None]
    assert [scan_depths(falling, w).item() for w in range(10)] == list(range(10))


@pytest.mark.parametrize("n", [1, 5])
def test_no_rows(n):
    assert scan_depths(torch.empty(n, 0), n - 1).shape == (0,)
    assert hashed_draws(torch.arange(0), 1, 2).shape == (0,)


def test_p_zero_never_selects_and_one_always_does():
    draws = hashed_draws(torch.arange(100_000), 0, 0)
    depths = torch.full((100_000,), 3)
    assert mix_depths(depths, draws, 0.0).sum() == 0
    assert torch.equal(mix_depths(depths, draws, 1.0), depths)
    # The extremes of [0, 1) too.
    edge = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert mix_depths(torch.tensor([3, 3]), edge, 0.0).tolist() == [0, 0]
    assert mix_depths(torch.tensor([3, 3]), edge, 1.0).tolist() == [3, 3]


@given(p=st.floats(0.01, 0.99), seed=st.integers(0, 2**63 - 1), call=st.integers(0, 2**40))
@settings(max_examples=50)
def test_mixing_frequency_is_p_within_4_sigma(p, seed, call):
    n = 40_000
    kept = (mix_depths(torch.ones(n, dtype=torch.int64), hashed_draws(torch.arange(n), seed, call), p)).sum().item()
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
