"""The scan by whole calls of B plain rows: the dense scan's depths and logits."""

import numpy as np
import pytest
import torch
from toy_model import PLANS, H, ToyModel, V, plan_of

from confident_decoding.depthwise import select_depthwise
from confident_decoding.scan import select
from confident_decoding.selection import RowRules


@pytest.mark.parametrize("keys", PLANS, ids=str)
@pytest.mark.parametrize("min_entropy", [0.0, 2.5])
def test_selects_what_the_oracle_selects(keys, min_entropy):
    model, plan = ToyModel(), plan_of(trough_min_entropy=min_entropy, **keys)
    packed = model.packed(64, plan.depths)
    result = select_depthwise(packed, plan, model.head)
    expected = model.expected(packed, plan)
    assert result.depths.tolist() == [d for d, _ in expected]
    np.testing.assert_allclose(result.logits.numpy(), [x for _, x in expected], rtol=1e-4, atol=1e-4)
    assert set(model.projected) == {64}, "every call has the rows of the batch"


@pytest.mark.parametrize("keys", PLANS, ids=str)
@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
def test_equals_the_dense_scan(keys, p):
    model, plan = ToyModel(), plan_of(p=p, **keys)
    packed = model.packed(50, plan.depths)
    draws = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = select(packed, plan, model.head, RowRules.of(plan, draws), True)
    found = select_depthwise(packed, plan, model.head, RowRules.of(plan, draws), True)
    assert torch.equal(found.depths, expected.depths)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.final_entropies, expected.final_entropies)


def test_p_zero_is_the_stock_call():
    model, plan = ToyModel(dtype=torch.bfloat16), plan_of(p=0.0)
    packed = model.packed(9, plan.depths)
    result = select_depthwise(packed, plan, model.head)
    assert torch.equal(result.logits, model.project(packed[:, :H].contiguous()))
    assert len(model.projected) == 1 + len(plan.depths), "the scan must run, or p=0 would exercise nothing"


def test_last_mk_calls_the_head_for_that_layer_alone():
    model, plan = ToyModel(), plan_of(select_method="last-m4")
    select_depthwise(model.packed(6, plan.depths), plan, model.head)
    assert model.projected == [6]


def test_mixing_without_draws_is_an_error():
    model, plan = ToyModel(), plan_of(p=0.5)
    with pytest.raises(ValueError, match="draw"):
        select_depthwise(model.packed(2, plan.depths), plan, model.head)


@pytest.mark.parametrize("keys", PLANS, ids=str)
def test_no_rows(keys):
    model, plan = ToyModel(), plan_of(**keys)
    result = select_depthwise(torch.empty(0, len(plan.depths) * H), plan, model.head)
    assert result.logits.shape == (0, V)
    assert result.depths.shape == (0,)
