"""Which rows go on, where a scan ends, and shifts: kernels and twins against the oracle."""

import math

import numpy as np
import oracle
import pytest
import torch

from confident_decoding.kernels.types import Candidates, FirstCandidates, Rule
from confident_decoding.planner import look_ahead
from confident_decoding.selection import RowRules
from kernels.implementations import DEVICE, IMPLEMENTATIONS, candidates, generator, needs_triton, operations


def entropies_as_statistics(entropies, shards):
    """``[R, m, 3]`` whose combined entropies are these: every shard holds the same distribution, weighted alike."""
    h = torch.as_tensor(entropies, dtype=torch.float32)
    return torch.stack([torch.zeros_like(h), torch.ones_like(h), math.log(shards) - h], -1).repeat(shards, 1, 1)


def named(statistics, ids):
    """A fourth number, of which only the last shard's is to be taken, since its maximum is the largest."""
    result = torch.cat([statistics, torch.full_like(statistics[..., :1], -5.0)], -1)
    result[:-1, :, 0], result[:-1, :, 1:3] = -math.inf, 0.0
    result[-1, :, 3] = ids
    return result


def course(ops, matrix, rule, rounds_ahead, shards, capacity=400, top_ids=None):
    """Run the decisions of all rounds over entropies ``[n, B]``; kept candidates are told by their logits.

    With ``top_ids`` ``[n, B]`` to be filled, the id at depth d of row i is ``1000 * d + i``.
    """
    n, batch = matrix.shape
    entropies = torch.full((n, batch), math.nan, device=DEVICE)
    depths = torch.full((batch,), -7, dtype=torch.int64, device=DEVICE)
    result = torch.full((batch, 2), math.nan, device=DEVICE)
    stage, log = FirstCandidates(batch, rounds_ahead), []
    while True:
        last = isinstance(stage, FirstCandidates) and stage.ahead == n
        following = None if last else Candidates.empty(1, capacity, batch, DEVICE)[0]
        if isinstance(stage, FirstCandidates):
            m, first, ahead, rows = batch, 0, stage.ahead, list(range(batch))
        else:
            m, first, ahead, total = stage.work.tolist()
            assert total == m * ahead
            rows = stage.rows[:m].tolist()
        log.append((m, first, ahead, rows))
        pairs = [(row, first + a) for a in range(ahead) for row in rows]
        h = torch.zeros(stage.capacity)
        logits = torch.full((stage.capacity, 2), math.nan, device=DEVICE)
        for number, (row, depth) in enumerate(pairs):
            h[number] = matrix[depth, row]
            logits[number] = torch.tensor([float(row), float(depth)])
        stats = entropies_as_statistics(h, shards).contiguous()
        if top_ids is not None:
            ids = torch.zeros(stage.capacity)
            ids[: len(pairs)] = torch.tensor([1000.0 * depth + row for row, depth in pairs])
            stats = named(entropies_as_statistics(h, 1).repeat(shards, 1, 1), ids).contiguous()
        source = ops.decide(stats.to(DEVICE), stage, following, entropies, depths, rule, top_ids)
        ops.keep(logits, source, stage, result)
        if following is None or int(following.work[0]) == 0:
            return depths, result, entropies, log
        stage = following


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("batch", [1, 10, 13, 100])
@pytest.mark.parametrize("shards", [1, 3, 19])
@pytest.mark.parametrize("first", [1, 2, 8])
@pytest.mark.parametrize("window", [7, 4])
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("min_entropy", [0.0, 1.0])
def test_decisions_are_the_scan(name, batch, shards, first, window, limited, min_entropy):
    n = 8
    matrix = torch.rand(n, batch, generator=generator(batch)) * 2
    matrix += torch.linspace(2, 0, n)[:, None] * (torch.rand(batch, generator=generator(1)) < 0.6)
    if batch > 2:
        matrix[0, 0], matrix[2, 1], matrix[1, 2] = math.nan, math.nan, matrix[0, 2]
    limits = torch.randint(-1, window + 1, (batch,), generator=generator(2), dtype=torch.int32).to(DEVICE)
    thresholds = torch.full((batch,), min_entropy, device=DEVICE) if limited else min_entropy
    rule = Rule(window, 20, RowRules(n, limits if limited else window, 0, thresholds))
    depths, kept, seen, log = course(operations(name), matrix, rule, first, shards)
    for row in range(batch):
        limit = max(0, int(limits[row])) if limited else window
        h = [float(x) for x in matrix[:, row]]
        expected = 0 if 0 < min_entropy >= h[0] else oracle.depth(h, min(limit, window), 0, n)
        assert int(depths[row]) == expected
        assert kept[row].tolist() == [row, expected]
        np.testing.assert_allclose(seen[: expected + 1, row].cpu(), h[: expected + 1], rtol=1e-5, atol=1e-5)
    for number, (m, start, ahead, rows) in enumerate(log):
        assert rows == sorted(set(rows))
        if number:
            scanned = int((limits >= 1).sum()) if limited else batch
            assert ahead == look_ahead(batch, m, start, window - start + 1, 20, scanned)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("batch", [7, 90])
@pytest.mark.parametrize("shards", [1, 5])
@pytest.mark.parametrize("first", [1, 3, 6])
def test_decisions_record_the_ids_of_what_was_looked_at(name, batch, shards, first):
    n = 6
    matrix = torch.rand(n, batch, generator=generator(batch)) + torch.linspace(2, 0, n)[:, None]
    matrix[2, 3], matrix[0, 4] = math.nan, math.nan
    ids = torch.full((n, batch), -1, dtype=torch.int32, device=DEVICE)
    rule = Rule(n - 1, 20, RowRules(n, n - 1))
    depths, _, seen, _ = course(operations(name), matrix, rule, first, shards, top_ids=ids)
    plain = course(operations(name), matrix, rule, first, 1)
    assert torch.equal(depths, plain[0])
    for row in range(batch):
        for depth in range(n):
            looked = depth <= int(depths[row]) or not math.isnan(seen[depth, row])
            looked |= math.isnan(matrix[depth, row]) and (depth == 0 or depth == int(depths[row]) + 1)
            if looked:
                assert int(ids[depth, row]) == 1000 * depth + row
            else:
                assert int(ids[depth, row]) == -1


@needs_triton
@pytest.mark.parametrize("first", [1, 2])
def test_decisions_equal_the_twin_round_by_round(first):
    matrix = torch.rand(12, 200, generator=generator(5)).sort(0, descending=True)[0]
    matrix[:, ::3] = torch.rand(12, 67, generator=generator(6))
    rule = Rule(11, 50, RowRules(12, 11))
    found, expected = (course(ops, matrix, rule, first, 1, 2400) for ops in map(operations, ("triton", "twins")))
    assert found[3] == expected[3]
    assert len(found[3]) > 3
    assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("shift", [1, -1, 3])
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("batch", [5, 90])
def test_shifts(name, shift, limited, batch):
    troughs = torch.randint(0, 6, (batch,), generator=generator()).to(DEVICE)
    entropies = torch.rand(8, batch, generator=generator(1)).to(DEVICE)
    entropies[0, 3::7] = math.nan
    entropies[(troughs + 1)[1::5], torch.arange(1, batch, 5, device=DEVICE)] = math.nan
    limits = torch.randint(-1, 2, (batch,), generator=generator(2), dtype=torch.int32).to(DEVICE) if limited else None
    # Each row its own values, or one for all.
    own = torch.full((batch,), shift, dtype=torch.int32, device=DEVICE) if limited else shift
    rule = Rule(7, 20, RowRules(7, limits if limited else 7, own, 0.3))
    (moved,) = Candidates.empty(1, batch, batch, DEVICE)
    depths = operations(name).relocate(troughs, entropies, moved, rule)

    def settled(row):
        trough, limit = int(troughs[row]), int(limits[row]) if limited else 7
        if entropies[0, row] <= 0.3 or limit < 0:
            return 0
        ended_at_nan = trough < limit and bool(entropies[0, row].isnan() or entropies[trough + 1, row].isnan())
        return trough if ended_at_nan else min(max(trough + shift, 0), 6)

    expected = [settled(row) for row in range(batch)]
    assert depths.tolist() == expected
    rows = [row for row in range(batch) if expected[row] != int(troughs[row])]
    assert moved.work.tolist() == [len(rows), 0, 1, len(rows)]
    assert moved.rows[: len(rows)].tolist() == rows


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("shards", [1, 5])
def test_ids_of_moved_rows(name, shards):
    ids = torch.full((4, 6), -1, dtype=torch.int32, device=DEVICE)
    ids[2] = 7
    depths = torch.tensor([0, 3, 2, 1, 2, 3], device=DEVICE)
    stats = named(entropies_as_statistics(torch.ones(6), 1).repeat(shards, 1, 1), torch.arange(50.0, 56.0))
    operations(name).name_moved(stats.contiguous().to(DEVICE), candidates([1, 3, 4], 0, 1, 6, 6), depths, ids)
    expected = [[-1] * 6, [-1, -1, -1, 51, -1, -1], [7, 7, 7, 7, 52, 7], [-1, 50, -1, -1, -1, -1]]
    assert ids.tolist() == expected
