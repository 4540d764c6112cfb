"""Statistics of pairs: small cases by hand, and what must hold for any."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confident_decoding.evaluation.paired import compare

RIGHT_OR_WRONG = st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 1.0])), min_size=1, max_size=40)
SCORES = st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=30)


def split(pairs):
    return [a for a, _ in pairs], [b for _, b in pairs]


def test_by_hand():
    """10 questions: both right 1, both wrong 1, gained 7, lost 1."""
    found = compare([1, 0, 1] + [0] * 7, [1, 0, 0] + [1] * 7, seed=0)
    assert (found.standard, found.score, found.difference) == pytest.approx((0.2, 0.8, 0.6))
    assert (found.gained, found.lost) == (7, 1)
    # Of 8 discordant pairs 7 or more, or 1 or fewer, on one side: 2 * (1 + 8) / 2^8.
    assert found.p == pytest.approx(18 / 256)


def test_the_interval_by_hand():
    """16 questions of which 8 are gained: the resampled difference is Binomial(16, 1/2) / 16, whose distribution
    function is 697/65536 = 0.011 at 3 and 2517/65536 = 0.038 at 4: the 2.5% quantile is 4/16, the 97.5% one 12/16."""
    assert compare([0] * 16, [0, 1] * 8, seed=0).interval == pytest.approx((4 / 16, 12 / 16))


def test_pairs_are_kept_together():
    """Each question differs by 0.1, whatever its score: no resampling of pairs can change the difference."""
    standard = [float(i % 2) for i in range(40)]
    found = compare(standard, [score + 0.1 for score in standard], seed=3)
    assert found.interval == pytest.approx((0.1, 0.1))
    assert found.p is None
    assert found.gained is None
    assert found.lost is None


@pytest.mark.parametrize(
    ("gained", "lost", "p"), [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 1 / 16), (2, 2, 1.0), (1, 5, 14 / 64)]
)
def test_mcnemar_from_its_table(gained, lost, p):
    found = compare([0] * gained + [1] * lost + [1, 0], [1] * gained + [0] * lost + [1, 0], seed=0)
    assert (found.gained, found.lost) == (gained, lost)
    assert found.p == pytest.approx(p)


@settings(max_examples=50)
@given(RIGHT_OR_WRONG)
def test_mcnemar_is_the_binomial_sum(pairs):
    gained = sum(b > a for a, b in pairs)
    lost = sum(a > b for a, b in pairs)
    n, k = gained + lost, min(gained, lost)
    expected = min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n)
    assert compare(*split(pairs), seed=0).p == pytest.approx(expected)


@settings(max_examples=30)
@given(SCORES)
def test_the_other_way_round_is_the_negative(pairs):
    a, b = split(pairs)
    there, back = compare(a, b, seed=7), compare(b, a, seed=7)
    assert there.difference == pytest.approx(-back.difference)
    assert there.interval == pytest.approx([-end for end in reversed(back.interval)], abs=1e-12)
    assert there.interval[0] - 1e-9 <= there.difference <= there.interval[1] + 1e-9 or len(pairs) < 5


def test_a_seed_repeats_and_another_does_not():
    a, b = [0.1 * i for i in range(30)], [math.sin(i) for i in range(30)]
    assert compare(a, b, seed=1) == compare(a, b, seed=1)
    assert compare(a, b, seed=1).interval != compare(a, b, seed=2).interval


def test_one_question_has_no_interval():
    assert compare([0], [1], seed=0).interval is None


@pytest.mark.parametrize(("a", "b"), [([], []), ([1], [1, 0])])
def test_no_pairs(a, b):
    with pytest.raises(ValueError, match="no pairs"):
        compare(a, b, seed=0)
