"""Replayed scans: what an eager scan gives, for every number of rows, and only while the weights stay in place.

On a GPU the recordings are CUDA graphs; elsewhere `record` is replaced by one that does the work again into the
same memory, so that everything around it is tested.
"""

import dataclasses
import itertools

import pytest
import torch
from toy_model import PLANS, ToyModel, plan_of

from confident_decoding import replay, scan
from confident_decoding.model_head import Selection
from confident_decoding.replay import Recording, graph_sizes
from confident_decoding.scan import replayed, select
from confident_decoding.selection import RowRules

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
MOST = 20


@pytest.fixture(autouse=True)
def recordings(monkeypatch):
    """How often anything was replayed."""
    replays = []

    def record_again(work, pool):
        found = work()

        def again():
            replays.append(len(found.depths))
            new = work()
            for field in dataclasses.fields(Selection):
                if getattr(found, field.name) is not None:
                    getattr(found, field.name).copy_(getattr(new, field.name))

        return Recording(again, found)

    def record_graph(work, pool, record=replay.record):
        graph = record(work, pool)
        return Recording(lambda: (replays.append(len(graph.selection.depths)), graph.replay()), graph.selection)

    monkeypatch.setattr(replay, "record", record_graph if GPU else record_again)
    if not GPU:
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    return replays


def a_model(rows_per_read=12):
    return ToyModel(0, torch.float16, rows_per_read, on_device=True, fused=True, hidden=64, device=DEVICE)


def graphs_of(model, plan):
    return replayed(plan, model.head, MOST, len(plan.depths) * model.hidden, torch.float16)


def test_sizes():
    assert graph_sizes(1) == [1]
    assert graph_sizes(40) == [1, 2, 4, 8, 16, 32, 40]
    assert graph_sizes(256) == [1, 2, 4, 8, 16, 32, 64, 80, 96, 112, 128, 160, 192, 224, 256]
    for most in range(1, 600):
        sizes = graph_sizes(most)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == most
        assert all(b <= (2 * a if a < 64 else a + a // 4) for a, b in itertools.pairwise(sizes))


@pytest.mark.parametrize("keys", [k for k in PLANS if "last" not in k.get("select_method", "")], ids=str)
@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("min_entropy", [0.0, 2.5])
def test_equals_the_eager_scan_for_any_number_of_rows(keys, p, min_entropy, recordings):
    model, plan = a_model(), plan_of(p=p, trough_min_entropy=min_entropy, **keys)
    graphs = graphs_of(model, plan)
    if len(plan.depths) == 1:
        assert graphs is None
        return
    # Ever other rows and sizes, so that whatever an earlier call has left in the memory would show.
    for number, rows in enumerate([MOST, 1, 9, 17, 9, 11, 20, 3]):
        packed = model.packed(rows, plan.depths, seed=number)
        draws = torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(number)).to(DEVICE)
        expected = select(packed, plan, model.head, RowRules.of(plan, draws))
        found = select(packed, plan, model.head, RowRules.of(plan, draws), replays=graphs)
        assert len(recordings) == number + 1
        assert recordings[-1] == min(size for size in graph_sizes(MOST) if size >= rows)
        assert torch.equal(found.depths, expected.depths)
        torch.testing.assert_close(found.logits, expected.logits, rtol=2e-3, atol=2e-3)
        torch.testing.assert_close(found.final_entropies, expected.final_entropies, rtol=1e-3, atol=1e-3)


def test_rows_beyond_the_batch_are_not_scanned():
    """Whatever earlier steps have left in them: they end at the final layer and add no round."""
    model, plan = a_model(), plan_of()
    graphs = graphs_of(model, plan)
    packed = model.packed(100, plan.depths)
    moved = packed[select(packed, plan, model.head).depths > 0][:20]
    assert len(moved) == 20
    assert (select(moved, plan, model.head, replays=graphs).depths > 0).all()
    found = select(moved[:17], plan, model.head, replays=graphs)
    assert (found.depths > 0).all()
    recorded = graphs._graphs[20].selection
    assert recorded.depths[17:].tolist() == [0] * 3


def test_more_rows_than_the_largest_graph_are_scanned_eagerly(recordings):
    model, plan = a_model(), plan_of()
    graphs = graphs_of(model, plan)
    packed = model.packed(MOST + 1, plan.depths)
    found = select(packed, plan, model.head, replays=graphs)
    assert recordings == []
    assert torch.equal(found.depths, select(packed, plan, model.head).depths)


@pytest.mark.parametrize("moved", ["weight", "norm"])
def test_weights_that_moved_are_not_read_at_their_old_place(moved, recordings):
    model, plan = a_model(), plan_of()
    graphs = graphs_of(model, plan)
    packed = model.packed(8, plan.depths)
    other = ToyModel(1, torch.float16, 12, on_device=True, fused=True, hidden=64, device=DEVICE)
    head = model.head
    if moved == "weight":
        head = dataclasses.replace(other.head, fused_norm=head.fused_norm, reads=(other.weight, model.gain))
    else:
        head = dataclasses.replace(head, fused_norm=other.head.fused_norm, reads=(model.weight, other.gain))
    found = select(packed, plan, head, replays=graphs)
    assert recordings == [], "launched one by one"
    assert found.logits.data_ptr() == graphs._logits.data_ptr(), "on the graphs' rows, as on ranks where they replay"
    assert torch.equal(found.depths, select(packed, plan, head).depths)


def test_weights_that_change_in_place_are_seen(recordings):
    """An update of the model's weights by another program: same memory, other values."""
    model, plan = a_model(), plan_of()
    graphs = graphs_of(model, plan)
    packed = model.packed(8, plan.depths)
    before = select(packed, plan, model.head, replays=graphs).logits.clone()
    model.weight.copy_(ToyModel(1, torch.float16, hidden=64).weight)
    found = select(packed, plan, model.head, replays=graphs)
    assert recordings == [8, 8]
    assert not torch.equal(found.logits, before)
    torch.testing.assert_close(found.logits, select(packed, plan, model.head).logits, rtol=2e-3, atol=2e-3)


def test_plans_without_a_scan_have_no_graphs():
    model = a_model()
    assert graphs_of(model, plan_of(select_method="last-m4")) is None
    assert graphs_of(model, plan_of(trough_max_backtrack_layers=1)) is None
    assert graphs_of(ToyModel(0, torch.float16, hidden=64, device=DEVICE), plan_of()) is None, "no plain weight"


def test_no_more_rows_than_a_chunk(monkeypatch):
    monkeypatch.setattr(scan, "LAZY_CHUNK_ELEMENTS", 3 * 97 * 10)
    model, plan = a_model(), plan_of()
    assert graphs_of(model, plan).sizes[-1] == 8, "chunks begin at multiples of 4 rows"


def test_rows_in_chunks_are_scanned_eagerly(monkeypatch, recordings):
    """A second chunk would overwrite the first one's depths in the graphs' memory."""
    monkeypatch.setattr(scan, "LAZY_CHUNK_ELEMENTS", 3 * 97 * 12)
    model, plan = a_model(), plan_of()
    graphs = graphs_of(model, plan)
    packed = model.packed(50, plan.depths)
    found = select(packed, plan, model.head, replays=graphs)
    assert recordings == []
    assert torch.equal(found.depths, select(packed, plan, model.head).depths)
