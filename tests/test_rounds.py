"""The lazy scan: the dense scan's depths and logits, with fewer projections."""

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_model import PLANS, H, ToyModel, V, assert_same_selection, plan_of

from confident_decoding import scan
from confident_decoding.scan import select
from confident_decoding.selection import RowRules

SCANS = [keys for keys in PLANS if not keys.get("select_method", "").startswith("last")]


@pytest.mark.parametrize("keys", SCANS, ids=str)
@pytest.mark.parametrize("rows_per_read", [1, 5, 16, 10_000])
@pytest.mark.parametrize("min_entropy", [0.0, 2.5])
def test_selects_what_the_oracle_selects(keys, rows_per_read, min_entropy):
    model, plan = ToyModel(rows_per_read=rows_per_read), plan_of(trough_min_entropy=min_entropy, **keys)
    packed = model.packed(64, plan.depths)
    result = select(packed, plan, model.head)
    expected = model.expected(packed, plan)
    assert result.depths.tolist() == [d for d, _ in expected]
    np.testing.assert_allclose(result.logits.numpy(), [x for _, x in expected], rtol=1e-4, atol=1e-4)


def test_the_threshold_matters():
    """With it some rows stay that would have moved, and others still move."""
    model = ToyModel(rows_per_read=8)
    packed = model.packed(64, plan_of().depths)
    depths = [select(packed, plan_of(trough_min_entropy=t), model.head).depths for t in (0.0, 2.5)]
    held = (depths[0] > 0) & (depths[1] == 0)
    assert held.any()
    assert (depths[1] > 0).any()
    final = [oracle.entropy(row) for row in (packed[:, :H] @ model.weight.T).double().numpy()]
    assert [h <= 2.5 for h, row in zip(final, held.tolist(), strict=True) if row] == [True] * int(held.sum())


@pytest.mark.parametrize("keys", SCANS, ids=str)
@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("chunked", [False, True])
def test_equals_the_dense_scan(keys, p, chunked, monkeypatch):
    plan = plan_of(p=p, **keys)
    dense, lazy = ToyModel(), ToyModel(rows_per_read=16)
    packed = dense.packed(50, plan.depths)
    draws = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = select(packed, plan, dense.head, RowRules.of(plan, draws))
    if chunked:
        monkeypatch.setattr(scan, "CHUNK_ELEMENTS", 21 * V)
    found = select(packed, plan, lazy.head, RowRules.of(plan, draws))
    assert_same_selection(found, expected, lazily=p == 1 and plan.window > 1)
    if chunked and len(plan.depths) > 1:
        assert max(lazy.projected[1:] if p == 0 else lazy.projected) <= 21


def test_a_candidate_is_projected_only_where_the_scan_has_reached_it():
    """One row a round ahead: depth d is projected for the rows whose scan came to d-1 and did not end there."""
    model, plan = ToyModel(rows_per_read=1), plan_of()
    result = select(model.packed(40, plan.depths), plan, model.head)
    reached = [40, *(int((result.depths >= d).sum()) for d in range(1, plan.window))]
    assert model.projected == [80, *[rows for rows in reached[1:] if rows]]


def test_rounds_look_ahead_as_far_as_one_reading_pays_for():
    model, plan = ToyModel(rows_per_read=60), plan_of()
    result = select(model.packed(40, plan.depths), plan, model.head)
    descending = int((result.depths >= 1).sum())
    assert model.projected[0] == 80
    assert model.projected[1] == descending * min(60 // descending, plan.window - 1)
    assert len(model.projected) < plan.window


def test_few_rows_are_scanned_in_one_reading():
    model, plan = ToyModel(rows_per_read=30), plan_of()
    select(model.packed(2, plan.depths), plan, model.head)
    assert model.projected == [2 * len(plan.depths)]


def test_rows_that_mixing_keeps_are_not_scanned():
    model, plan = ToyModel(rows_per_read=1), plan_of(p=0.25)
    draws = torch.linspace(0, 0.99, 40, dtype=torch.float64)
    select(model.packed(40, plan.depths), plan, model.head, RowRules.of(plan, draws))
    assert model.projected[0] == 40 + int((draws < 0.25).sum())


def test_rows_under_the_threshold_cost_one_projection():
    model, plan = ToyModel(rows_per_read=8), plan_of(trough_min_entropy=100.0)
    result = select(model.packed(40, plan.depths), plan, model.head)
    assert model.projected == [40]
    assert result.depths.tolist() == [0] * 40


def test_p_zero_is_the_stock_head_call():
    model, plan = ToyModel(dtype=torch.bfloat16, rows_per_read=4), plan_of(p=0.0)
    packed = model.packed(9, plan.depths)
    result = select(packed, plan, model.head)
    assert torch.equal(result.logits, model.project(packed[:, :H].contiguous()))
    assert len(model.projected) > 2, "the scan must run, or p=0 would exercise nothing"


def test_mixing_without_draws_is_an_error():
    model, plan = ToyModel(rows_per_read=4), plan_of(p=0.5)
    with pytest.raises(ValueError, match="draw"):
        select(model.packed(2, plan.depths), plan, model.head)


@given(seed=st.integers(0, 2**16), rows=st.integers(1, 12), per_read=st.integers(1, 40), k=st.integers(2, 12))
@settings(max_examples=60)
def test_any_rows_and_rounds_agree_with_the_dense_scan(seed, rows, per_read, k):
    plan = plan_of(trough_max_backtrack_layers=k)
    dense, lazy = ToyModel(seed), ToyModel(seed, rows_per_read=per_read)
    packed = dense.packed(rows, plan.depths, seed + 1)
    expected, found = select(packed, plan, dense.head), select(packed, plan, lazy.head)
    assert torch.equal(found.depths, expected.depths)
    torch.testing.assert_close(found.logits, expected.logits)
