"""Which ids have the largest logits: at the final layer and at the selected one, in every form of the scan."""

import pytest
import torch
from test_row_rules import rules_of_their_own
from toy_model import PLANS, ToyModel, V, plan_of

from confident_decoding import scan
from confident_decoding.depthwise import select_depthwise
from confident_decoding.scan import select
from confident_decoding.selection import RowRules

ROWS = 60
SCANS = [keys for keys in PLANS if not keys.get("select_method", "").startswith("last")]
FORMS = {
    "dense": {},
    "host rounds": {"rows_per_read": 16},
    "device, dense": {"on_device": True},
    "device rounds": {"rows_per_read": 9, "on_device": True, "fused": True},
    "calls": {},
}


def selected(form, packed, plan, rules=None, top_ids=True):
    model = ToyModel(top_ids=top_ids, **FORMS[form])
    return (select_depthwise if form == "calls" else select)(packed, plan, model.head, rules)


def expected(packed, plan, depths):
    """numpy's argmax of float64 logits, at depth 0 and at the depths."""
    every = ToyModel().logits64(packed, plan)
    return [
        [int(logits[d].argmax()) for logits, d in zip(every, at, strict=True)] for at in ([0] * len(depths), depths)
    ]


def check(found, packed, plan):
    ids = found.top_ids
    assert ids.dtype == torch.int32
    chosen = ids.gather(0, found.depths[None])[0]
    assert [ids[0].tolist(), chosen.tolist()] == expected(packed, plan, found.depths.tolist())
    assert (ids[0] != chosen).any() or not plan.window


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keys", SCANS, ids=str)
def test_ids_are_those_of_the_logits(form, keys):
    plan = plan_of(**keys)
    packed = ToyModel().packed(ROWS, plan.depths)
    found = selected(form, packed, plan)
    if len(plan.depths) == 1:
        assert found.top_ids is None or form == "calls"
        return
    check(found, packed, plan)


@pytest.mark.parametrize("form", FORMS)
def test_ids_of_rows_by_their_own_rules(form):
    plan = plan_of()
    packed = ToyModel().packed(ROWS, plan.depths)
    check(selected(form, packed, plan, rules_of_their_own(plan)), packed, plan)


@pytest.mark.parametrize("form", ["dense", "host rounds", "device rounds"])
def test_ids_of_chunks(form, monkeypatch):
    plan = plan_of(select_method="trough-m2")
    packed = ToyModel().packed(ROWS, plan.depths)
    monkeypatch.setattr(scan, "CHUNK_ELEMENTS", 7 * len(plan.depths) * V)
    monkeypatch.setattr(scan, "LAZY_CHUNK_ELEMENTS", 8 * 3 * V)
    check(selected(form, packed, plan), packed, plan)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keys", SCANS, ids=str)
def test_asking_for_ids_changes_nothing_else(form, keys):
    plan = plan_of(p=0.5, **keys)
    packed = ToyModel().packed(ROWS, plan.depths)
    draws = torch.rand(ROWS, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found, plain = (selected(form, packed, plan, RowRules.of(plan, draws), asked) for asked in (True, False))
    assert plain.top_ids is None
    assert torch.equal(found.depths, plain.depths)
    assert torch.equal(found.logits, plain.logits)
    if plain.entropies is not None:
        assert torch.equal(found.entropies.nan_to_num(-1), plain.entropies.nan_to_num(-1))
