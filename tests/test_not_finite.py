"""Candidates without a finite distribution: the scan of their row ends there, and no other row notices."""

import math

import pytest
import torch
from test_top_ids import FORMS, SCANS
from toy_model import H, ToyModel, plan_of

from confident_decoding.depthwise import select_depthwise
from confident_decoding.kernels import twins
from confident_decoding.scan import select
from confident_decoding.selection import RowRules
from confident_decoding.stats import Totals, new_counters

ROWS = 40


def run(form, packed, plan, rules):
    model = ToyModel(top_ids=True, **FORMS[form])
    return (select_depthwise if form == "calls" else select)(packed, plan, model.head, rules)


def fell_back(selection, rules, plan):
    counters = new_counters(plan.depths[-1], torch.device("cpu"))
    twins.count(counters, None, False, selection, rules, plan.window)
    return Totals.of(counters[0].tolist()).fell_back


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keys", [k for k in SCANS if k.get("trough_max_backtrack_layers") not in (1, 2)], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_scan_ends_before_it_and_its_neighbours_go_on(form, keys, bad, depth):
    """At depth 0 and 1 that is the final layer. What was reached is not shifted, so its logits are finite."""
    plan = plan_of(**keys)
    rules = RowRules.of(plan)
    packed = ToyModel().packed(ROWS, plan.depths)
    clean = run(form, packed, plan, rules)
    assert fell_back(clean, rules, plan) == 0
    # A row whose scan comes to that depth.
    troughs = run(form, packed, plan, RowRules(plan.candidates, plan.window)).depths
    row = int((troughs >= depth).nonzero()[0])
    packed[row, depth * H] = bad
    dirty = run(form, packed, plan, rules)
    assert dirty.depths[row] == max(0, depth - 1)
    if depth:
        assert dirty.logits[row].isfinite().all()
    others = torch.arange(ROWS) != row
    assert torch.equal(dirty.depths[others], clean.depths[others])
    torch.testing.assert_close(dirty.logits[others], clean.logits[others])
    assert fell_back(dirty, rules, plan) == 1


@pytest.mark.parametrize("form", FORMS)
def test_beyond_where_a_scan_ends_nothing_is_looked_at(form):
    plan = plan_of()
    rules = RowRules.of(plan)
    packed = ToyModel().packed(ROWS, plan.depths)
    clean = run(form, packed, plan, rules)
    row = int((clean.depths == 2).nonzero()[0])
    packed[row, 4 * H : 5 * H] = math.nan
    dirty = run(form, packed, plan, rules)
    assert torch.equal(dirty.depths, clean.depths)
    torch.testing.assert_close(dirty.logits, clean.logits)
    assert fell_back(dirty, rules, plan) == 0


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_are_not_scanned_do_not_fall_back(form):
    """Kept at the final layer by mixing or by their final entropy."""
    plan = plan_of()
    packed = ToyModel().packed(ROWS, plan.depths)
    packed[:, H : 2 * H] = math.nan
    limits = torch.full((ROWS,), plan.window, dtype=torch.int32)
    limits[:10] = -1
    thresholds = torch.zeros(ROWS)
    thresholds[10:15] = 100.0
    rules = RowRules(plan.candidates, limits, torch.zeros(ROWS, dtype=torch.int32), thresholds)
    found = run(form, packed, plan, rules)
    assert found.depths.tolist() == [0] * ROWS
    assert fell_back(found, rules, plan) == 25


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("own", [False, True])
def test_a_row_is_not_shifted_to_where_it_is(form, bad, own):
    """Three layers beyond the trough, where a lazy scan has not looked; also as a fixed layer that a row asks for."""
    plan = plan_of(select_method="trough-m3")
    packed = ToyModel().packed(ROWS, plan.depths)
    unshifted = run(form, packed, plan, RowRules(plan.candidates, plan.window))
    troughs = unshifted.depths
    rules = RowRules.of(plan)
    if own:  # the second half: a fixed layer, without a scan
        limits = torch.full((ROWS,), plan.window, dtype=torch.int32)
        limits[ROWS // 2 :] = 0
        rules = RowRules(plan.candidates, limits, torch.full((ROWS,), 3, dtype=torch.int32))
        troughs = torch.where(limits == 0, 0, troughs)
    clean = run(form, packed, plan, rules)
    assert torch.equal(clean.depths, (troughs + 3).clamp(max=plan.candidates - 1))
    assert not clean.kept_back.any()
    rows = [int(places[-1 if own else 0]) for t in (0, 1) if len(places := (troughs == t).nonzero()[:, 0])]
    for row in rows:
        packed[row, int(clean.depths[row]) * H + 1] = bad
    dirty = run(form, packed, plan, rules)
    there = torch.zeros(ROWS, dtype=torch.bool)
    there[rows] = True
    assert len(rows) == 2
    assert torch.equal(dirty.kept_back, there)
    assert torch.equal(dirty.depths, torch.where(there, troughs, clean.depths))
    expected = run(form, packed, plan, RowRules(plan.candidates, rules.limits, 0))
    torch.testing.assert_close(dirty.logits[rows], expected.logits[rows])
    torch.testing.assert_close(dirty.logits[~there], clean.logits[~there])
    assert fell_back(dirty, rules, plan) == 0, "that is the scan's; these are counted beside it"
