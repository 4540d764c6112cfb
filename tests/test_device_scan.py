"""The scan with counts on the device, through the torch twins of its kernels: the oracle's depths and logits."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_model import PLANS, H, ToyModel, V, assert_same_selection, plan_of

from confident_decoding import device_scan, planner, scan
from confident_decoding.kernels import twins
from confident_decoding.scan import select
from confident_decoding.selection import RowRules

SCANS = [keys for keys in PLANS if not keys.get("select_method", "").startswith("last")]


def lazy(rows_per_read, seed=0, dtype=torch.float32, fused=True):
    return ToyModel(seed, dtype, rows_per_read, on_device=True, fused=fused)


@pytest.mark.parametrize("keys", SCANS, ids=str)
@pytest.mark.parametrize("rows_per_read", [1, 5, 40, 100, 10_000])
@pytest.mark.parametrize("min_entropy", [0.0, 2.5])
@pytest.mark.parametrize("fused", [False, True])
def test_selects_what_the_oracle_selects(keys, rows_per_read, min_entropy, fused):
    model, plan = lazy(rows_per_read, fused=fused), plan_of(trough_min_entropy=min_entropy, **keys)
    packed = model.packed(64, plan.depths)
    result = select(packed, plan, model.head)
    expected = model.expected(packed, plan)
    assert result.depths.tolist() == [d for d, _ in expected]
    np.testing.assert_allclose(result.logits.numpy(), [x for _, x in expected], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("keys", SCANS, ids=str)
@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("rows_per_read", [3, 60])
@pytest.mark.parametrize("chunked", [False, True])
def test_equals_the_dense_scan(keys, p, rows_per_read, chunked, monkeypatch):
    plan = plan_of(p=p, **keys)
    dense, model = ToyModel(), lazy(rows_per_read)
    packed = dense.packed(50, plan.depths)
    draws = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = select(packed, plan, dense.head, RowRules.of(plan, draws))
    if chunked:
        monkeypatch.setattr(scan, "LAZY_CHUNK_ELEMENTS", 21 * V)
    found = select(packed, plan, model.head, RowRules.of(plan, draws))
    assert_same_selection(found, expected, lazily=p == 1 and plan.window > 2 and rows_per_read == 3)


def test_a_round_projects_what_the_schedule_has_room_for(monkeypatch):
    """The number of candidates that a round works on never exceeds its tensors."""
    seen = []

    def project(states, weight, candidates):
        m, first, ahead, total = candidates.work.tolist()
        assert total == m * ahead <= len(states) == candidates.capacity
        assert sorted(set(candidates.rows[:m].tolist())) == candidates.rows[:m].tolist(), "rows in order, each once"
        seen.append((m, first, ahead))
        return twins.project(states, weight, candidates)

    class Watched:
        def __getattr__(self, name):
            return project if name == "project" else getattr(twins, name)

    monkeypatch.setattr(device_scan, "operations", lambda device: Watched())
    model, plan = lazy(40), plan_of()
    result = select(model.packed(64, plan.depths), plan, model.head)
    assert model.projected == [64], "depth 0 fills the first reading alone"
    assert seen[0] == (64, 1, 1)
    for (m, first, ahead), following in itertools.pairwise(seen[1:]):
        assert m == int((result.depths >= first - 1).sum())
        assert ahead == planner.look_ahead(64, m, first, plan.window - first + 1, 40) if m else ahead == 0
        assert following[1] == first + ahead
    assert any(ahead > 1 for _, _, ahead in seen)


def test_rows_that_mixing_keeps_are_at_the_final_layer_whatever_the_shift():
    for keys in SCANS:
        plan = plan_of(p=0.5, **keys)
        model = lazy(4)
        packed = model.packed(40, plan.depths)
        draws = torch.linspace(0, 0.99, 40, dtype=torch.float64)
        result = select(packed, plan, model.head, RowRules.of(plan, draws))
        kept = draws >= 0.5
        assert result.depths[kept].tolist() == [0] * int(kept.sum())
        torch.testing.assert_close(result.logits[kept], (packed[:, :H] @ model.weight.T)[kept])


def test_a_nan_stops_at_its_own_row():
    for depth in (0, 1, 3):
        model, plan = lazy(2), plan_of()
        packed = model.packed(20, plan.depths)
        clean = select(packed, plan, model.head)
        row = int((clean.depths >= depth).nonzero()[0])
        packed[row, depth * H] = torch.nan
        dirty = select(packed, plan, model.head)
        assert dirty.depths[row] == max(0, depth - 1)
        others = torch.arange(20) != row
        assert torch.equal(dirty.depths[others], clean.depths[others])
        torch.testing.assert_close(dirty.logits[others], clean.logits[others])


def test_p_zero_is_the_stock_head_call():
    model, plan = lazy(4, dtype=torch.bfloat16), plan_of(p=0.0)
    packed = model.packed(9, plan.depths)
    result = select(packed, plan, model.head)
    assert torch.equal(result.logits, model.project(packed[:, :H].contiguous()))
    assert result.depths.tolist() == [0] * 9
    assert not result.entropies[1].isnan().any(), "the scan must run, or p=0 would exercise nothing"


@given(
    seed=st.integers(0, 2**16),
    rows=st.integers(1, 30),
    per_read=st.integers(1, 80),
    k=st.integers(2, 12),
    shift=st.sampled_from(["trough", "trough-m1", "trough-p2"]),
    min_entropy=st.sampled_from([0.0, 2.5, 3.0]),
)
@settings(max_examples=80)
def test_any_rows_and_rounds_agree_with_the_dense_scan(seed, rows, per_read, k, shift, min_entropy):
    plan = plan_of(trough_max_backtrack_layers=k, select_method=shift, trough_min_entropy=min_entropy)
    dense, model = ToyModel(seed), lazy(per_read, seed)
    packed = dense.packed(rows, plan.depths, seed + 1)
    expected, found = select(packed, plan, dense.head), select(packed, plan, model.head)
    assert torch.equal(found.depths, expected.depths)
    torch.testing.assert_close(found.logits, expected.logits)


@pytest.mark.parametrize("rows_per_read", [None, 300])
def test_no_call_has_more_rows_than_a_kernel_takes(rows_per_read):
    """Prompt rows come by the thousands; one program decides about all rows of a call."""
    model, plan = lazy(rows_per_read), plan_of(trough_max_backtrack_layers=2)
    packed = model.packed(2500, plan.depths)
    result = select(packed, plan, model.head)
    assert max(model.projected) <= 2 * 1024
    assert result.depths.tolist() == [d for d, _ in model.expected(packed, plan)]


def test_chunks_begin_where_kernels_expect_them():
    """Limits of single rows are int32, read from addresses that are multiples of 16 bytes."""
    for columns in (97, 49_152, 151_936, 262_144):
        for form in (lazy(None), lazy(40)):
            head = dataclasses.replace(form.head, columns=columns)
            assert scan._chunk_rows(plan_of(), head) % 4 == 0
