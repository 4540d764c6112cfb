"""Dense scan on a small model of our own: packed rows in, the right layer's own logits out."""

import math
import weakref

import numpy as np
import oracle
import pytest
import torch
from toy_model import PLANS, H, ToyModel, V, plan_of

from confident_decoding import scan
from confident_decoding.depthwise import select_depthwise
from confident_decoding.kernels import statistics_of_finished
from confident_decoding.model_head import ModelHead
from confident_decoding.scan import select
from confident_decoding.selection import RowRules

DENSE_AND_LAZY = (None, 4)  # rows_per_read


@pytest.mark.parametrize("keys", PLANS, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_selects_what_the_oracle_selects(keys, rows):
    model, plan = ToyModel(), plan_of(**keys)
    packed = model.packed(rows, plan.depths)
    result = select(packed, plan, model.head)
    expected = model.expected(packed, plan)
    assert result.depths.tolist() == [d for d, _ in expected]
    np.testing.assert_allclose(result.logits.numpy(), [x for _, x in expected], rtol=1e-4, atol=1e-4)
    if rows == 64 and plan.window > 1 and not plan.shift:
        assert len(set(result.depths.tolist())) > 2, "the case is too easy to mean anything"


@pytest.mark.parametrize("keys", PLANS, ids=str)
@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
def test_chunks_change_nothing(keys, p, monkeypatch):
    model, plan = ToyModel(), plan_of(p=p, **keys)
    packed = model.packed(50, plan.depths)
    draws = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    whole = select(packed, plan, model.head, RowRules.of(plan, draws))
    monkeypatch.setattr(scan, "CHUNK_ELEMENTS", 7 * len(plan.depths) * V)
    chunked = select(packed, plan, model.head, RowRules.of(plan, draws))
    assert torch.equal(whole.depths, chunked.depths)
    torch.testing.assert_close(whole.logits, chunked.logits)
    if plan.fixed_depth is None and len(plan.depths) > 1:
        assert max(model.projected[-3:]) <= 7 * len(plan.depths)
        torch.testing.assert_close(whole.entropies, chunked.entropies)


def test_peak_does_not_grow_with_the_candidates(monkeypatch):
    """Rows times candidates of any one projection stay under the limit."""
    monkeypatch.setattr(scan, "CHUNK_ELEMENTS", 40 * V)
    for k in (2, 5, 10):
        model, plan = ToyModel(), plan_of(trough_max_backtrack_layers=k)
        select(model.packed(200, plan.depths), plan, model.head)
        assert max(model.projected) <= 40


@pytest.mark.parametrize("keys", [{}, {"select_method": "last-m4"}], ids=str)
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_a_chunks_logits_are_released_before_the_next(keys, p, monkeypatch):
    """Beyond the result and one chunk's own projections, no logits are alive."""
    monkeypatch.setattr(scan, "CHUNK_ELEMENTS", 4 * 10 * V)
    model, plan = ToyModel(), plan_of(p=p, **keys)
    alive, most = [], 0

    def project(states):
        nonlocal most
        logits = model.project(states)
        alive.append(weakref.ref(logits))
        most = max(most, sum(ref() is not None for ref in alive))
        return logits

    head = ModelHead(model.norm, project, statistics_of_finished, V)
    select(model.packed(100, plan.depths), plan, head, RowRules.of(plan, torch.rand(100, dtype=torch.float64)), True)
    assert len(alive) > 5
    assert most <= 3


@pytest.mark.parametrize("keys", PLANS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_p_zero_is_the_stock_head_call(keys, dtype):
    """One projection of B contiguous final states, bit for bit."""
    model, plan = ToyModel(dtype=dtype), plan_of(p=0.0, **keys)
    packed = model.packed(9, plan.depths)
    result = select(packed, plan, model.head)
    assert torch.equal(result.logits, model.project(packed[:, :H].contiguous()))
    assert model.projected[0] == 9
    assert result.depths.tolist() == [0] * 9
    if plan.window:
        assert result.entropies is not None
        assert model.projected[1] == 9 * len(plan.depths), "the scan must run, or p=0 would exercise nothing"


@pytest.mark.parametrize("keys", [{}, {"select_method": "last-m3"}])
def test_mixing_takes_the_final_layers_own_logits(keys):
    model, plan = ToyModel(), plan_of(p=0.5, **keys)
    packed = model.packed(40, plan.depths)
    draws = torch.linspace(0, 0.999, 40, dtype=torch.float64)
    result = select(packed, plan, model.head, RowRules.of(plan, draws))
    expected = model.expected(packed, plan)
    final = packed[:, :H] @ model.weight.T
    for row in range(40):
        if draws[row] < 0.5:
            assert result.depths[row] == expected[row][0]
            np.testing.assert_allclose(result.logits[row].numpy(), expected[row][1], rtol=1e-4, atol=1e-4)
        else:
            assert result.depths[row] == 0
            torch.testing.assert_close(result.logits[row], final[row])


def test_mixing_without_draws_is_an_error():
    model, plan = ToyModel(), plan_of(p=0.5)
    with pytest.raises(ValueError, match="draw"):
        select(model.packed(2, plan.depths), plan, model.head)


def test_last_mk_projects_that_layer_alone():
    model, plan = ToyModel(), plan_of(select_method="last-m4")
    select(model.packed(6, plan.depths), plan, model.head)
    assert model.projected == [6]
    mixed = plan_of(select_method="last-m4", p=0.5)
    select(model.packed(6, mixed.depths), mixed, model.head, RowRules.of(mixed, torch.zeros(6, dtype=torch.float64)))
    assert model.projected == [6, 6, 6]


@pytest.mark.parametrize("keys", [{}, {"select_method": "last-m4"}, {"trough_max_backtrack_layers": 1}])
def test_final_entropies_on_request(keys):
    model, plan = ToyModel(), plan_of(**keys)
    packed = model.packed(6, plan.depths)
    found = select(packed, plan, model.head, with_final_entropies=True).final_entropies
    expected = [oracle.entropy(row) for row in (packed[:, :H] @ model.weight.T).double().numpy()]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("keys", PLANS, ids=str)
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rows_per_read", DENSE_AND_LAZY)
def test_no_rows(keys, p, rows_per_read):
    model, plan = ToyModel(rows_per_read=rows_per_read), plan_of(p=p, **keys)
    rules = RowRules.of(plan, torch.empty(0, dtype=torch.float64))
    result = select(torch.empty(0, len(plan.depths) * H), plan, model.head, rules, True)
    assert result.logits.shape == (0, V)
    assert result.depths.shape == (0,)


def test_non_contiguous_rows():
    model, plan = ToyModel(), plan_of()
    packed = model.packed(12, plan.depths)
    strided = packed.repeat(1, 2)[::2, : packed.shape[1]]
    assert not strided.is_contiguous()
    assert torch.equal(select(strided, plan, model.head).logits, select(strided.contiguous(), plan, model.head).logits)


@pytest.mark.parametrize("keys", PLANS, ids=str)
@pytest.mark.parametrize("p", [0.0, 1.0])
@pytest.mark.parametrize("rows_per_read", DENSE_AND_LAZY)
def test_logits_are_private_memory(keys, p, rows_per_read):
    """The sampler writes into them (grammar bitmask, penalties); packed rows must not change."""
    model, plan = ToyModel(rows_per_read=rows_per_read), plan_of(p=p, **keys)
    packed = model.packed(3, plan.depths)
    copy = packed.clone()
    select(packed, plan, model.head).logits.fill_(-math.inf)
    assert torch.equal(packed, copy)


@pytest.mark.parametrize("rows_per_read", DENSE_AND_LAZY)
def test_nan_and_inf_states_stop_at_their_own_row(rows_per_read):
    model, plan = ToyModel(rows_per_read=rows_per_read), plan_of()
    packed = model.packed(5, plan.depths)
    clean = select(packed, plan, model.head)
    packed[2, H : 2 * H] = math.nan  # depth 1 of row 2
    dirty = select(packed, plan, model.head)
    assert dirty.depths[2] == 0
    keep = [0, 1, 3, 4]
    assert torch.equal(dirty.depths[keep], clean.depths[keep])
    torch.testing.assert_close(dirty.logits[keep], clean.logits[keep])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("how", [select, select_depthwise])
@pytest.mark.parametrize("p", [0.5, 1.0])
def test_last_mk_keeps_the_final_layer_where_its_own_is_not_finite(how, p, value):
    model, plan = ToyModel(), plan_of(select_method="last-m3", p=p)
    packed = model.packed(5, plan.depths)
    rules = RowRules.of(plan, torch.tensor([0.1, 0.9, 0.1, 0.9, 0.1], dtype=torch.float64))
    clean = how(packed, plan, model.head, rules)
    packed[2, H + 4] = value
    packed[3, H + 4] = value
    sick = how(packed, plan, model.head, rules)
    assert sick.depths.tolist() == [3, 0 if p < 1 else 3, 0, 0, 3]
    torch.testing.assert_close(sick.logits[2:4], model.project(packed[2:4, :H].contiguous()))
    for row in (0, 1, 4):
        assert torch.equal(sick.logits[row], clean.logits[row])
