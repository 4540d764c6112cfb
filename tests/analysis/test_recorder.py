"""The recorder chooses what the scan chooses, and what it keeps is what float64 says of every candidate."""

import numpy as np
import oracle
import pytest
import torch
from toy_model import ToyModel, V, plan_of

from confident_decoding import scan
from confident_decoding.analysis import recorder as module
from confident_decoding.analysis.recorder import TOPS, Recorder
from confident_decoding.selection import RowRules

ROWS = 50


def record(recorder, plan, packed, model, rules=None, finish=lambda x: x):
    return recorder.select(packed, model.head, finish, plan, rules or RowRules.of(plan), False)


def exact(model, packed, plan):
    """Logits of every candidate ``[n, B, V]`` in float64, by definition."""
    return np.array(model.logits64(packed, plan)).transpose(1, 0, 2)


@pytest.mark.parametrize("chunk", [None, 7], ids=["whole", "chunks"])
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_keeps_what_every_candidate_says(p, chunk, monkeypatch):
    model, plan = ToyModel(), plan_of(p=p)
    if chunk:
        monkeypatch.setattr(scan, "CHUNK_ELEMENTS", chunk * len(plan.depths) * V)
    packed = model.packed(ROWS, plan.depths)
    recorder = Recorder()
    recorder.tops_left = 20
    record(recorder, plan, packed, model)
    seen, logits = recorder.take(), exact(model, packed, plan)
    expected = np.array([[oracle.entropy(row) for row in depth] for depth in logits]).T
    np.testing.assert_allclose(seen.entropies, expected, atol=1e-5)
    assert (seen.best == logits.argmax(-1).T).all()
    assert seen.top_tokens.shape == (20, len(plan.depths), TOPS)
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    order = np.argsort(-chances, -1)[..., :TOPS].transpose(1, 0, 2)[:20]
    assert (seen.top_tokens == order).all()
    top = np.sort(chances, -1)[..., ::-1][..., :TOPS].transpose(1, 0, 2)[:20]
    np.testing.assert_allclose(seen.top_probabilities, top, atol=1e-6)


@pytest.mark.parametrize("rows_per_read", [None, 4], ids=["dense", "lazy"])
@pytest.mark.parametrize("limit", [None, 3])
def test_selects_what_the_served_scan_selects(limit, rows_per_read):
    model, plan = ToyModel(rows_per_read=rows_per_read), plan_of()
    packed = model.packed(ROWS, plan.depths)
    rules = RowRules(plan.candidates, plan.window if limit is None else limit)
    served = scan.select(packed, plan, model.head, rules)
    recorder = Recorder()
    recorded = record(recorder, plan, packed, model, rules)
    assert torch.equal(recorded.depths, served.depths)
    torch.testing.assert_close(recorded.logits, served.logits)
    assert recorder.take().depths.tolist() == served.depths.tolist()
    assert len(set(served.depths.tolist())) > 2, "the case is too easy to mean anything"


def test_what_is_recorded_is_what_sampling_starts_from():
    """Cap, scale and columns that are no tokens change the best tokens and their probabilities."""
    model, plan = ToyModel(), plan_of()
    packed = model.packed(ROWS, plan.depths)
    recorder = Recorder()
    recorder.tops_left = ROWS
    record(recorder, plan, packed, model, finish=lambda logits: logits[:, 40:].flip(1))
    logits = exact(model, packed, plan)[..., 40:][..., ::-1]
    assert (recorder.take().best == logits.argmax(-1).T).all()


def test_takes_rows_in_order_and_only_once():
    model, plan = ToyModel(), plan_of()
    packed = model.packed(ROWS, plan.depths)
    recorder = Recorder()
    recorder.tops_left = 3
    for start in range(0, ROWS, 10):
        record(recorder, plan, packed[start : start + 10], model)
    seen = recorder.take()
    whole = Recorder()
    record(whole, plan, packed, model)
    assert (seen.best == whole.take().best).all()
    assert len(seen.top_tokens) == 3
    assert recorder.tops_left == 0
    with pytest.raises(RuntimeError, match="no row reached the recorder"):
        recorder.take()


def test_nothing_is_projected_twice():
    model, plan = ToyModel(), plan_of()
    record(Recorder(), plan, model.packed(ROWS, plan.depths), model)
    assert sum(model.projected) == ROWS * len(plan.depths)


@pytest.mark.parametrize("kind", ["sampled", "prompt", "warmup", None])
def test_wants_one_kind_of_rows(kind):
    recorder = Recorder()
    assert not recorder.wants(kind)
    recorder.wanted = "prompt"
    assert recorder.wants(kind) == (kind == "prompt")


@pytest.mark.parametrize("columns", [1, 97, 1024, 1025, 3000])
def test_best_is_the_first_of_equals(columns):
    x = torch.randint(0, 5, (200, columns), generator=torch.Generator().manual_seed(columns)).float()
    x[0], x[1] = -torch.inf, 1.0
    x[2, -1], x[3, -1], x[4, 0] = 9.0, torch.nan, 9.0
    assert module._argmax(x).tolist() == [int(np.argmax(row)) for row in x.numpy()]


def test_measures_the_rate_of_the_head():
    recorder = Recorder()
    with pytest.raises(RuntimeError, match="no row reached the recorder"):
        recorder.head_flops_per_second(10)
    model, plan = ToyModel(), plan_of()
    record(recorder, plan, model.packed(ROWS, plan.depths), model)
    model.projected.clear()
    assert recorder.head_flops_per_second(30, repeats=3) > 0
    assert model.projected == [1, 30, 30, 30]
