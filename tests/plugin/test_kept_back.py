"""Rows that are kept back by a layer that is not finite are counted, whether a scan or a shift came upon it."""

import math

import pytest
import torch
from toy_model import H, ToyModel, plan_of

from confident_decoding.plugin.head import COUNTERS
from confident_decoding.scan import select
from plugin.toy_head import LM_HEAD, toy_head


@pytest.mark.parametrize(
    ("keys", "by_scan", "by_shift"),
    [
        ({}, 2, 0),
        ({"select_method": "trough-m3"}, 2, 3),
        ({"select_method": "trough-m3", "p": 0.0}, 0, 0),
        ({"select_method": "last-m3"}, 3, 0),
    ],
)
def test_each_once(keys, by_scan, by_shift):
    model, plan = ToyModel(), plan_of(**keys)
    packed = model.packed(60, plan.depths)
    if plan.fixed_depth is None:
        first = (select(packed, plan_of(), model.head).depths == 0).nonzero()[:, 0]
        packed[first[:2], H] = math.nan  # the scan's first candidate
        packed[first[2:5], 3 * H] = math.nan  # where only a shift by three looks
    else:
        packed[:3, H] = math.nan
    head = toy_head(model, plan, metrics=True)
    head.mirror = torch.zeros_like(head._processor.get_buffer(COUNTERS))
    head.rows = "sampled"
    logits = head(LM_HEAD, packed, None)
    assert logits.isfinite().all()
    counters = head._processor.get_buffer(COUNTERS)
    assert int(counters[0, -1]) == by_scan + by_shift
    assert int(counters[0, :-2].sum()) == 60
    assert torch.equal(head.mirror, counters)
