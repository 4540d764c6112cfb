"""Rows of one batch that are each selected by rules of their own, in every form of the scan, against float64."""

import numpy as np
import oracle
import pytest
import torch
from toy_model import ToyModel, V, plan_of

from confident_decoding.depthwise import select_depthwise
from confident_decoding.scan import select
from confident_decoding.selection import RowRules

ROWS, N = 60, 12


def rules_of_their_own(plan, seed=0):
    g = torch.Generator().manual_seed(seed)
    limits = torch.randint(-1, plan.window + 1, (ROWS,), generator=g).to(torch.int32)
    shifts = torch.randint(-2, 4, (ROWS,), generator=g).to(torch.int32)
    thresholds = torch.where(torch.rand(ROWS, generator=g) < 0.5, torch.rand(ROWS, generator=g) * 3, 0.0)
    return RowRules(plan.candidates, limits, shifts, thresholds)


def expected(model, packed, plan, rules):
    """Row by row: depth and logits."""
    every = model.logits64(packed, plan)
    result = []
    for row, logits in enumerate(every):
        h = [oracle.entropy(x) for x in logits]
        limit, shift, threshold = int(rules.limits[row]), int(rules.shifts[row]), float(rules.thresholds[row])
        held = limit < 0 or 0 < threshold >= h[0]
        depth = 0 if held else oracle.depth(h, limit, shift, plan.candidates)
        result.append((depth, logits[depth]))
    return result


@pytest.mark.parametrize("form", ["dense", "host rounds", "device rounds", "calls"])
@pytest.mark.parametrize("keys", [{}, {"trough_max_backtrack_layers": -1}, {"trough_max_backtrack_layers": 4}], ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_each_row_by_its_own_rules(form, keys, seed):
    plan = plan_of(**keys)
    model = ToyModel(
        rows_per_read={"host rounds": 16, "device rounds": 9}.get(form), on_device=form == "device rounds", fused=True
    )
    packed = model.packed(ROWS, plan.depths)
    rules = rules_of_their_own(plan, seed)
    result = (select_depthwise if form == "calls" else select)(packed, plan, model.head, rules)
    right = expected(model, packed, plan, rules)
    assert result.depths.tolist() == [depth for depth, _ in right]
    np.testing.assert_allclose(result.logits.numpy(), [x for _, x in right], rtol=1e-4, atol=1e-4)
    assert result.logits.shape == (ROWS, V)
    assert len(set(result.depths.tolist())) > 3, "the case is too easy to mean anything"


def test_a_fixed_layer_of_one_row_beside_troughs_of_others():
    """What a request for last-m5 is on a server that scans: no scan, and a shift from the final layer."""
    plan, model = plan_of(), ToyModel(rows_per_read=16)
    packed = model.packed(ROWS, plan.depths)
    limits = torch.full((ROWS,), plan.window, dtype=torch.int32)
    shifts = torch.zeros(ROWS, dtype=torch.int32)
    limits[3], shifts[3] = 0, 5
    result = select(packed, plan, model.head, RowRules(plan.candidates, limits, shifts))
    alone = select(packed, plan, model.head)
    others = torch.arange(ROWS) != 3
    assert result.depths[3] == 5
    assert torch.equal(result.depths[others], alone.depths[others])
    np.testing.assert_allclose(result.logits[3].numpy(), model.logits64(packed, plan)[3][5], rtol=1e-4, atol=1e-4)
