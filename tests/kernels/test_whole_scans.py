"""Whole scans with the kernels, and the warm-up that compiles every form of them."""

import dataclasses
import math
from functools import partial

import pytest
import torch
from toy_model import PLANS, ToyModel, plan_of

from confident_decoding import device_scan
from confident_decoding.scan import select, warm_up
from confident_decoding.selection import RowRules
from kernels.implementations import DEVICE, generator, needs_triton, operations


@needs_triton
@pytest.mark.parametrize("keys", [k for k in PLANS if "last" not in k.get("select_method", "")], ids=str)
@pytest.mark.parametrize("rows_per_read", [20, 10_000])
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_whole_scans_with_kernels_equal_those_with_twins(keys, rows_per_read, p, monkeypatch):
    plan = plan_of(p=p, **keys)
    results = []
    for ops in map(operations, ("triton", "twins")):
        # The projection kernel takes 16-bit operands; H = 64 is its step.
        model = ToyModel(
            0, torch.float16, rows_per_read, on_device=True, fused=True, hidden=64, device=DEVICE, top_ids=p == 1
        )
        model.head = dataclasses.replace(model.head, statistics=partial(ops.statistics, first_id=0 if p == 1 else None))
        packed = model.packed(66, plan.depths)
        for row in range(0, 66, 3):  # some of these are looked at, and some only after a shift
            packed[row, 64 * (1 + row // 3 % max(1, len(plan.depths) - 1)) :][:1] = math.nan
        monkeypatch.setattr(device_scan, "operations", lambda device, ops=ops: ops)
        draws = torch.rand(66, dtype=torch.float64, generator=generator(3)).to(DEVICE)
        results.append(select(packed, plan, model.head, RowRules.of(plan, draws)))
    found, expected = results
    if found.entropies is None:
        assert len(plan.depths) == 1
        return
    assert torch.equal(found.entropies.isnan(), expected.entropies.isnan()), "the same candidates were looked at"
    shifts = plan.shift != 0 and p > 0
    told = shifts and (rows_per_read == 20 or p == 1)  # a dense scan tells it where it names ids
    assert (found.kept_back is None) == (expected.kept_back is None) == (not told)
    if told:
        assert torch.equal(found.kept_back, expected.kept_back)
        assert found.kept_back.any() == (plan.shift > 1), "a layer nearer than that was looked at"
    torch.testing.assert_close(found.entropies, expected.entropies, rtol=1e-3, atol=1e-3, equal_nan=True)
    assert torch.equal(found.depths, expected.depths)
    torch.testing.assert_close(found.logits, expected.logits, rtol=2e-3, atol=2e-3)
    assert (found.top_ids is None) == (p != 1)
    if p == 1:  # where two logits are nearly equal, the order of a sum may decide
        assert ((found.top_ids != expected.top_ids) & ~found.entropies.isnan()).sum() <= 2


@needs_triton
@pytest.mark.parametrize("keys", [{}, {"select_method": "trough-m1"}, {"p": 0.5}, {"trough_min_entropy": 2.5}], ids=str)
@pytest.mark.parametrize(("rows_per_read", "metrics"), [(None, True), (20, True), (40, False)])
def test_warm_up_compiles_every_form_that_serving_needs(keys, rows_per_read, metrics, monkeypatch):
    """No batch, whatever its size and its requests, meets a kernel in a form that warm-up has not."""
    from confident_decoding.kernels.launching import Kernel

    forms, ops = set(), operations("triton")

    def launch(self, grid, *args, num_warps, num_stages=3, **constants):
        """Note the form; what it computes decides nothing about later launches."""
        forms.add((id(self), self.variant(args, (num_warps, num_stages, *constants.values()))))

    monkeypatch.setattr(Kernel, "__call__", launch)
    monkeypatch.setattr(torch, "empty", torch.zeros)  # row numbers that kernels would have written are indices
    monkeypatch.setattr(device_scan, "operations", lambda device: ops)
    plan = plan_of(**keys)
    fused = rows_per_read is not None
    model = ToyModel(
        0, torch.float16, rows_per_read, on_device=True, fused=fused, hidden=64, device=DEVICE, top_ids=metrics
    )
    statistics = partial(ops.statistics, first_id=0 if metrics else None)
    model.head = dataclasses.replace(model.head, statistics=statistics)
    counters = torch.zeros((2, 14), dtype=torch.int64, device=DEVICE)

    def counted(selection, rules, prompt=False):
        ops.count(counters, counters if metrics else None, prompt, selection, rules, plan.window)

    warm_up(plan, model.head, model.packed(1, plan.depths), counted)
    warmed = set(forms)
    assert len({kernel for kernel, _ in warmed}) >= (5 if rows_per_read is None else 6)
    for rows in (1, 2, 3, 7, 16, 33, 63, 64, 65, 66, 100, 129):
        packed = model.packed(rows, plan.depths)
        draws = torch.rand(rows, dtype=torch.float64, generator=generator(rows)).to(DEVICE)
        limits = torch.randint(-1, 9, (rows,), generator=generator(rows), dtype=torch.int32).to(DEVICE)
        rules = [RowRules.of(plan, draws), RowRules(plan.candidates, limits, plan.shift, plan.min_entropy)]
        rules.append(RowRules(plan.candidates, limits, limits.clamp(min=0), limits.float()))
        for rule in rules:
            counted(select(packed, plan, model.head, rule), rule, prompt=rows > 63)
    assert forms == warmed
