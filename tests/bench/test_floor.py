"""The least that a scan costs, against every order of rounds tried out."""

import itertools

import pytest

from benchmarks.floor import floors, least_ms, product_ms

SHARE = [0.5, 0.25, 0.125, 0.125]


def a_product(rows):
    return 1.0 if rows <= 10 else rows / 10


def orders(depths):
    """All ways to cut depths 1 to n-1 into rounds, the first of which may be empty."""
    for cuts in itertools.product([False, True], repeat=depths - 1):
        edges = [1, *(depth for depth, cut in enumerate(cuts, 1) if cut), depths]
        yield [list(range(a, b)) for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("batch", [1, 4, 9, 30, 200])
@pytest.mark.parametrize("under", [0.0, 0.3])
def test_no_order_of_rounds_is_cheaper(batch, under):
    found = []
    for first, *rounds in orders(len(SHARE)):
        cost = a_product(batch * (1 + len(first))) - a_product(batch)
        for depths in rounds:
            share = 1 - under if depths[0] == 1 else sum(SHARE[depths[0] - 1 :])
            some = 1 - (1 - share) ** batch
            cost += some * a_product(batch * share / some * len(depths))
        found.append(cost)
    assert len(found) == 8
    assert least_ms(batch, SHARE, under, a_product) == pytest.approx(min(found))


def test_products_between_and_beyond_what_was_measured():
    lines = [("head by cuBLAS, 8 rows", 1.0), ("head by our kernel, 8 rows", 0.9), ("head by cuBLAS, 16 rows", 2.0)]
    lines += [("head by our kernel, no rows", 0.001), ("keep, 8 rows", 0.5)]
    product = product_ms({"kernels": [{"kernel": name, "ms": ms} for name, ms in lines]})
    assert [product(rows) for rows in (1, 8, 12, 16, 32)] == pytest.approx([0.9, 0.9, 1.45, 2.0, 4.0])


def test_a_ratio_beside_its_floor_and_aim():
    case = "planned, paper"
    kernels = {"kernels": [{"kernel": f"head by cuBLAS, {n} rows", "ms": 1.0} for n in (1, 10_000)]}
    parts = {"64": {"stock": [{"a": 8.0, "b": 2.0}, {"a": 9.0, "b": 2.0}], case: [{"a": 8.0, "b": 5.0}], "dense": [{}]}}
    (line,) = floors({"parts": parts}, kernels)
    assert line == {"batch": 64, "case": case, "ratio": 1.3, "floor": 1.0, "aim": pytest.approx(1.01)}
