"""How much two answers differ, by hand and by laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confident_decoding.cli.difference import compare_tokens, marked

IDS = st.lists(st.integers(0, 3), max_size=12)


@pytest.mark.parametrize(
    ("one", "other", "first", "by_position", "aligned"),
    [
        ([], [], None, 0, 0),
        ([1, 2, 3], [1, 2, 3], None, 0, 0),
        ([1, 2, 3], [1, 2], 2, 1 / 3, 1 / 5),
        ([1, 2], [1, 2, 3, 4], 2, 2 / 4, 2 / 6),
        ([], [7, 8], 0, 1, 1),
        ([1, 2, 3, 4], [1, 9, 3, 4], 1, 1 / 4, 2 / 8),
        ([1, 2, 3, 4], [9, 1, 2, 3, 4], 0, 5 / 5, 1 / 9),
        ([1, 2, 3], [4, 5, 6], 0, 1, 1),
        ([1, 2, 1, 2], [2, 1, 2, 1], 0, 1, 2 / 8),
    ],
)
def test_by_hand(one, other, first, by_position, aligned):
    found = compare_tokens(one, other)
    assert (found.first, found.by_position, found.aligned) == (
        first,
        pytest.approx(by_position),
        pytest.approx(aligned),
    )


@given(IDS, IDS)
def test_laws(one, other):
    found = compare_tokens(one, other)
    assert 0 <= found.aligned <= 1
    assert (found.by_position == 0) == (found.aligned == 0) == (found.first is None) == (one == other)
    if found.first is not None:
        assert one[: found.first] == other[: found.first]
        assert one[found.first : found.first + 1] != other[found.first : found.first + 1]
    for start, there, size in found.kept:
        assert one[start : start + size] == other[there : there + size]
    kept = sum(size for _, _, size in found.kept)
    assert found.aligned * (len(one) + len(other)) == pytest.approx(len(one) + len(other) - 2 * kept)


@given(st.lists(st.integers(0, 30), max_size=12, unique=True), st.integers(0, 12), st.integers(31, 40))
def test_one_inserted_token_changes_one(one, place, new):
    place = min(place, len(one))
    found = compare_tokens(one, [*one[:place], new, *one[place:]])
    assert found.aligned == pytest.approx(1 / (2 * len(one) + 1))
    assert found.first == place


def test_long_answers_are_aligned_whole():
    """Popular tokens are not left out, as difflib does by default from 200 elements."""
    one = [5, 6] * 300
    assert compare_tokens(one, [7, *one]).aligned == pytest.approx(1 / 1201)


def test_marked_joins_neighbours():
    assert marked(["a", "b", "c", "", "d"], [(0, 2), (4, 1)]) == [("ab", False), ("c", True), ("d", False)]
    assert marked(["a"], []) == [("a", True)]
