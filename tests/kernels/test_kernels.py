"""Each Triton kernel against its twin in torch, and the twins against float64.

On a GPU the compiled kernels run; elsewhere Triton's interpreter runs the same source on the CPU
(`make test-kernels`). Where Triton is not installed there is nothing to test but the twins.
"""

import dataclasses
import importlib.util
import math
import os
from functools import partial

import numpy as np
import oracle
import pytest
import torch
from toy_model import PLANS, ToyModel, plan_of

from confident_decoding import device_scan
from confident_decoding.entropy import combine_statistics, combine_top_ids
from confident_decoding.kernels import twins
from confident_decoding.kernels.types import Candidates, FirstCandidates, Rule
from confident_decoding.model_head import RmsNorm, Selection
from confident_decoding.scan import select, warm_up
from confident_decoding.selection import RowRules

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
HAS_TRITON = importlib.util.find_spec("triton") is not None and (GPU or os.environ.get("TRITON_INTERPRET") == "1")
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs a GPU, or Triton with TRITON_INTERPRET=1")
if HAS_TRITON:
    from confident_decoding.kernels import statistics as kernel_statistics
    from confident_decoding.kernels import triton_operations
    from confident_decoding.kernels.launching import Kernel
IMPLEMENTATIONS = [
    pytest.param("twins"),
    pytest.param("triton", marks=needs_triton),
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Triton's interpreter multiplies bfloat16 matrices as if they were whole numbers (`create_dot`, 3.6).
# Nor does it round to nearest where it converts to bfloat16.
ROUNDED_DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if GPU else [])]
MATRIX_DTYPES = [torch.float16, torch.bfloat16] if GPU else [torch.float16]


def operations(name):
    return twins if name == "twins" else triton_operations


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def tensor(*shape, dtype=torch.float32, seed=0, scale=1.0):
    return (torch.randn(*shape, generator=generator(seed)) * scale).to(dtype).to(DEVICE)


def capped(x, soft_cap, scale):
    """vLLM's steps on one number at a time, rounded to the dtype after each."""

    def rounded(values):
        return torch.tensor(values).to(x.dtype).double().numpy()

    values = x.double().cpu().numpy()
    if soft_cap is not None:
        values = rounded(rounded(np.tanh(rounded(values / soft_cap))) * soft_cap)
    return rounded(values * scale) if scale != 1.0 else values


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 7, 97, 8192, 8193, 20_001])
@pytest.mark.parametrize(("soft_cap", "scale"), [(None, 1.0), (30.0, 1.0), (None, 0.25), (5.0, 2.0)])
def test_entropies_of_statistics(name, dtype, columns, soft_cap, scale):
    if name == "triton" and dtype not in ROUNDED_DTYPES:
        soft_cap, scale = None, 1.0
    rows = 5
    logits = tensor(rows, columns, dtype=dtype, scale=4.0)
    if columns > 7:
        logits[1, ::3] = -math.inf
    stats = operations(name).statistics(logits, None, soft_cap, scale)
    assert stats.shape[1:] == (rows, 3)
    found = combine_statistics(stats).cpu()
    merged = operations(name).merge(stats)
    assert merged.shape == (1, rows, 3)
    torch.testing.assert_close(combine_statistics(merged).cpu(), found, rtol=1e-5, atol=1e-5)
    for row in range(rows):
        expected = oracle.entropy(capped(logits[row], soft_cap, scale))
        # A value that the cap rounds to its neighbour moves the entropy; the twin and the kernel round alike.
        exact = soft_cap is None or dtype == torch.float32
        assert abs(float(found[row]) - expected) < (2e-5 if exact else 5e-3) * max(1.0, expected)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 97, 8192, 20_001])
@pytest.mark.parametrize(("soft_cap", "scale"), [(None, 1.0), (2.0, 0.5)])
def test_top_ids_of_statistics(name, dtype, columns, soft_cap, scale):
    """The lowest id of the largest, over splits, over shards, after cap and scale; and the same other numbers."""
    if name == "triton" and dtype not in ROUNDED_DTYPES:
        soft_cap, scale = None, 1.0
    ops, first_id = operations(name), 140_001
    logits = tensor(6, columns, dtype=dtype, scale=4.0)
    logits[1] = 0.5
    logits[2, columns // 3 :] = 7.0  # what a cap rounds to the same number is a tie
    logits[3], logits[3, -1] = -math.inf, -2.0
    stats = ops.statistics(logits, None, soft_cap, scale, first_id)
    plain = ops.statistics(logits, None, soft_cap, scale)
    assert torch.equal(stats[..., :3], plain)
    merged = ops.merge(stats)
    assert merged.shape == (1, 6, 4)
    assert torch.equal(merged[..., :3], ops.merge(plain))
    expected = capped(logits, soft_cap, scale).argmax(-1) + first_id
    other = ops.merge(ops.statistics(logits, None, soft_cap, scale, first_id + columns))
    for shards in (stats, merged, torch.cat([stats, stats]), torch.cat([merged, other])):
        found = combine_top_ids(shards).tolist()
        if soft_cap is None or dtype == torch.float32:
            assert found == expected.tolist()
        else:  # the cap in numpy may round to a neighbour
            values = capped(logits, soft_cap, scale)
            best = values.max(-1)
            here = values[range(6), np.array(found) - first_id]
            np.testing.assert_allclose(here, best, rtol=2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_padding_outside_the_view_is_not_read(name):
    logits = tensor(4, 304, dtype=torch.bfloat16)
    padded = torch.full((4, 512), math.inf, dtype=torch.bfloat16, device=DEVICE)
    padded[:, :304] = logits
    found = operations(name).statistics(padded[:, :304])
    assert torch.equal(found, operations(name).statistics(logits))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_rows_that_have_no_entropy(name):
    logits = tensor(6, 9000)
    logits[1], logits[2, 8999], logits[3, 4] = -math.inf, math.nan, math.inf
    logits[4, 1:] = -math.inf
    stats = operations(name).statistics(logits)
    merged = operations(name).merge(stats)
    assert merged[0, 1].tolist()[:2] == [-math.inf, 0]
    assert combine_statistics(stats)[[0, 4]].tolist() == combine_statistics(merged)[[0, 4]].tolist()
    found = combine_statistics(merged).tolist()
    assert [math.isnan(h) for h in found] == [False, True, True, True, False, False]
    assert found[4] == 0
    named = operations(name).merge(operations(name).statistics(logits, first_id=0))
    assert torch.equal(named[..., :3].nan_to_num(-7.0), merged.nan_to_num(-7.0))
    # Beside a shard that has finite logits, one without any weighs nothing.
    other = operations(name).statistics(tensor(6, 50, seed=1))
    both = combine_statistics(torch.cat([stats, other]))
    assert both[1] == combine_statistics(other)[1]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("columns", [0, 50])
def test_shards_without_columns_or_rows(name, columns):
    stats = operations(name).statistics(torch.empty(3, columns, device=DEVICE).fill_(1.0)[:, :columns])
    assert stats.shape == (1, 3, 3)
    named = operations(name).statistics(torch.empty(3, columns, device=DEVICE).fill_(1.0), first_id=60)
    assert torch.equal(named[..., :3], stats)
    assert named[..., 3].tolist() == [[60.0 if columns else 0.0] * 3]
    empty = operations(name).statistics(torch.empty(0, columns, device=DEVICE))
    assert empty.shape == operations(name).merge(empty).shape == (1, 0, 3)
    if columns == 0:
        assert stats.tolist() == [[[-math.inf, 0, 0]] * 3]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("count", [0, 1, 5, 23, 40])
def test_only_counted_rows_need_a_result(name, count):
    logits = tensor(40, 9001, dtype=torch.bfloat16)
    number = torch.tensor([count], dtype=torch.int32, device=DEVICE)
    found = operations(name).statistics(logits, number)
    expected = operations(name).statistics(logits)
    assert torch.equal(found[:, :count], expected[:, :count])
    assert torch.equal(operations(name).merge(found, number)[:, :count], operations(name).merge(expected)[:, :count])
    named = operations(name).merge(operations(name).statistics(logits, number, first_id=0), number)[:, :count]
    assert combine_top_ids(named).tolist() == logits[:count].float().argmax(-1).tolist()


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_row_does_not_depend_on_its_neighbours(name):
    logits = tensor(37, 20_000, dtype=torch.bfloat16, scale=3.0)
    whole = operations(name).statistics(logits)
    for rows in (slice(0, 1), slice(5, 9), slice(36, 37)):
        assert torch.equal(operations(name).statistics(logits[rows]), whole[:, rows])


@needs_triton
@pytest.mark.parametrize("dtype", ROUNDED_DTYPES)
@pytest.mark.parametrize(("soft_cap", "scale"), [(None, 1.0), (30.0, 0.5)])
def test_statistics_equal_the_twin(dtype, soft_cap, scale):
    logits = tensor(9, 3 * kernel_statistics.SPLIT + 5, dtype=dtype, scale=5.0)
    found = triton_operations.merge(triton_operations.statistics(logits, None, soft_cap, scale))
    torch.testing.assert_close(found, twins.statistics(logits, None, soft_cap, scale), rtol=1e-5, atol=1e-4)


def candidates(rows, first, ahead, batch, capacity):
    (result,) = Candidates.empty(1, capacity, batch, DEVICE)
    result.rows.fill_(-(10**9))  # what nothing may read
    result.rows[: len(rows)] = torch.tensor(rows, dtype=torch.int32, device=DEVICE)
    result.work.copy_(torch.tensor([len(rows), first, ahead, len(rows) * ahead], dtype=torch.int32))
    return result


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [16, 100, 4096])
@pytest.mark.parametrize("norm", ["none", "rms", "gemma", "float32 weight"])
def test_gathered_states_are_normed_as_the_model_norms_them(name, dtype, hidden, norm):
    batch, n = 7, 5
    packed = tensor(batch, n * hidden, dtype=dtype)
    weight = tensor(hidden, seed=1, dtype=torch.float32 if norm == "float32 weight" else dtype)
    spec = None if norm == "none" else RmsNorm(weight, 1e-5, plus_one=norm == "gemma")
    some = candidates([1, 2, 6], 2, 3, batch, 12)
    first = FirstCandidates(batch, 4)
    own = torch.tensor([0, 1, 4, 3, 2, 1, 0], device=DEVICE)
    cases = [
        (first, None, [(row, depth) for depth in range(4) for row in range(batch)]),
        (some, None, [(row, depth) for depth in (2, 3, 4) for row in (1, 2, 6)]),
        (candidates([0, 3, 5], 0, 1, batch, 12), own, [(0, 0), (3, 3), (5, 1)]),
        (candidates([], 3, 0, batch, 12), None, []),
    ]
    for what, depths, expected in cases:
        states = operations(name).gather(packed, n, what, spec, depths)
        assert states.shape == (what.capacity, hidden)
        for number, (row, depth) in enumerate(expected):
            raw = packed[row, depth * hidden : (depth + 1) * hidden]
            if depth == 0 or spec is None:
                assert torch.equal(states[number], raw)
                continue
            x = raw.double().cpu().numpy()
            y = x / math.sqrt((x**2).mean() + 1e-5)
            w = weight.double().cpu().numpy() + (1 if norm == "gemma" else 0)
            # At most one rounding of the normed state and one of the product.
            np.testing.assert_allclose(
                states[number].double().cpu().numpy(), y * w, rtol=2.1 * torch.finfo(dtype).eps + 3e-6, atol=1e-6
            )


@needs_triton
@pytest.mark.parametrize("dtype", ROUNDED_DTYPES)
def test_gathered_states_equal_the_twin(dtype):
    packed, weight = tensor(9, 6 * 256, dtype=dtype), tensor(256, seed=1, dtype=dtype)
    some = candidates([0, 4, 5, 8], 1, 5, 9, 30)
    for plus_one in (False, True):
        norm = RmsNorm(weight, 1e-6, plus_one)
        found, expected = (ops.gather(packed, 6, some, norm)[:20] for ops in (triton_operations, twins))
        differs = (found != expected).float().mean()  # a sum in another order can round one value the other way
        assert differs < (0.01 if dtype.itemsize == 2 else 0.5)
        torch.testing.assert_close(found, expected, rtol=4 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", MATRIX_DTYPES)
@pytest.mark.parametrize("count", [0, 1, 64, 65, 150])
@pytest.mark.parametrize(("hidden", "columns"), [(64, 300), (192, 97)])
def test_projection(name, dtype, count, hidden, columns):
    states, weight = tensor(160, hidden, dtype=dtype), tensor(columns, hidden, dtype=dtype, seed=1)
    if count:
        states[count:] = math.nan  # rows beyond the count must not reach the others
    listed = candidates([0] * count, 1, 1, 160, 160)
    found = operations(name).project(states, weight, listed)[:count].double().cpu().numpy()
    expected = states[:count].double().cpu().numpy() @ weight.double().cpu().numpy().T
    np.testing.assert_allclose(found, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-3 * math.sqrt(hidden))


@needs_triton
def test_projection_without_tensor_maps(monkeypatch):
    """GPUs before compute capability 9 fetch tiles by pointers."""
    from confident_decoding.kernels import projection

    monkeypatch.setattr(projection, "has_tensor_maps", lambda device: False)
    for dtype in MATRIX_DTYPES:
        test_projection("triton", dtype, 65, 192, 300)


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
@pytest.mark.parametrize("batch", [1, 10, 100])
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
    for _, _, _, rows in log:
        assert rows == sorted(set(rows))


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
    found, expected = (course(ops, matrix, rule, first, 1, 2400) for ops in (triton_operations, twins))
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


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [5, 5000])
def test_kept_logits(name, dtype, columns):
    logits, result = tensor(12, columns, dtype=dtype), tensor(6, columns, dtype=dtype, seed=1)
    before = result.clone()
    source = torch.tensor([7, -1, 0, -99, -99, -99], dtype=torch.int32, device=DEVICE)
    operations(name).keep(logits, source, candidates([4, 1, 2], 1, 4, 6, 12), result)
    assert torch.equal(result[4], logits[7])
    assert torch.equal(result[2], logits[0])
    others = [0, 1, 3, 5]
    assert torch.equal(result[others], before[others])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(("rows", "n", "mirrored"), [(0, 10, True), (1, 1, True), (130, 10, False), (300, 40, True)])
@pytest.mark.parametrize("own", [(), ("limits",), ("limits", "thresholds")], ids=str)
def test_counting(name, rows, n, own, mirrored):
    """Against the definitions; the matrices are parts of wider ones, as those of replayed scans are."""
    g, window = generator(rows + n), max(0, n - 2)
    depths = torch.randint(0, n, (rows,), generator=g)
    entropies = torch.rand(n, rows + 3, generator=g).sort(0, descending=True)[0]
    entropies[torch.rand(n, rows + 3, generator=g) < 0.1] = math.nan
    ids = torch.randint(0, 3, (n, rows + 3), generator=g, dtype=torch.int32)
    limits = torch.randint(-1, n, (rows,), generator=g, dtype=torch.int32) if "limits" in own else 6
    thresholds = torch.rand(rows, generator=g) if "thresholds" in own else 0.4
    counters = torch.full((2, n + 2), 5, dtype=torch.int64, device=DEVICE)
    mirror = torch.zeros((2, n + 2), dtype=torch.int64, pin_memory=GPU) if mirrored else None
    rules = RowRules(n, *(x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in (limits, 0, thresholds)))
    parts = entropies.to(DEVICE)[:, :rows], ids.to(DEVICE)[:, :rows]
    expected = np.full((2, n + 2), 5)
    for prompt in (False, True):
        for matrices, fixed in ((parts, False), ((parts[0], None), False), ((None, None), False), ((None, None), True)):
            chosen = Selection(torch.empty(0), depths.to(DEVICE), None, *matrices)
            operations(name).count(counters, mirror, prompt, chosen, rules, None if fixed else window)
            own_rows = expected[int(prompt)]
            own_rows[:n] += np.bincount(depths, minlength=n)
            for row in range(rows):
                if matrices[1] is not None:
                    own_rows[n] += bool(ids[0, row] != ids[depths[row], row])
                h, limit = entropies[:, row].tolist(), int(limits[row]) if "limits" in own else 6
                threshold = float(thresholds[row]) if "thresholds" in own else 0.4
                own_rows[n + 1] += bool(fixed and depths[row] == 0 and limit >= 0)
                if matrices[0] is not None and min(limit, window) > 0 and not 0 < threshold >= h[0]:
                    own_rows[n + 1] += oracle.ends_at_nan(h, min(limit, window))
    if GPU:
        torch.cuda.synchronize()
    np.testing.assert_array_equal(counters.cpu().numpy(), expected)
    if mirror is not None and rows:
        np.testing.assert_array_equal(mirror.numpy(), expected)
    if rows == 300:
        assert expected[0, n + 1] > 20, "the case is too easy to mean anything"


@needs_triton
@pytest.mark.parametrize("keys", [k for k in PLANS if "last" not in k.get("select_method", "")], ids=str)
@pytest.mark.parametrize("rows_per_read", [20, 10_000])
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_whole_scans_with_kernels_equal_those_with_twins(keys, rows_per_read, p, monkeypatch):
    plan = plan_of(p=p, **keys)
    results = []
    for ops in (triton_operations, twins):
        # The projection kernel takes 16-bit operands; H = 64 is its step.
        model = ToyModel(
            0, torch.float16, rows_per_read, on_device=True, fused=True, hidden=64, device=DEVICE, top_ids=p == 1
        )
        model.head = dataclasses.replace(model.head, statistics=partial(ops.statistics, first_id=0 if p == 1 else None))
        packed = model.packed(66, plan.depths)
        monkeypatch.setattr(device_scan, "operations", lambda device, ops=ops: ops)
        draws = torch.rand(66, dtype=torch.float64, generator=generator(3)).to(DEVICE)
        results.append(select(packed, plan, model.head, RowRules.of(plan, draws)))
    found, expected = results
    if found.entropies is None:
        assert len(plan.depths) == 1
        return
    assert torch.equal(found.entropies.isnan(), expected.entropies.isnan()), "the same candidates were looked at"
    torch.testing.assert_close(found.entropies, expected.entropies, rtol=1e-3, atol=1e-3, equal_nan=True)
    assert torch.equal(found.depths, expected.depths)
    torch.testing.assert_close(found.logits, expected.logits, rtol=2e-3, atol=2e-3)
    assert (found.top_ids is None) == (p != 1)
    if p == 1:  # where two logits are nearly equal, the order of a sum may decide
        assert (found.top_ids != expected.top_ids).sum() <= 2


@needs_triton
@pytest.mark.parametrize("keys", [{}, {"select_method": "trough-m1"}, {"p": 0.5}, {"trough_min_entropy": 2.5}], ids=str)
@pytest.mark.parametrize(("rows_per_read", "metrics"), [(None, True), (20, True), (40, False)])
def test_warm_up_compiles_every_form_that_serving_needs(keys, rows_per_read, metrics, monkeypatch):
    """No batch, whatever its size and its requests, meets a kernel in a form that warm-up has not."""
    forms = set()

    def launch(self, grid, *args, num_warps, num_stages=3, **constants):
        """Note the form; what it computes decides nothing about later launches."""
        forms.add((id(self), self.variant(args, (num_warps, num_stages, *constants.values()))))

    monkeypatch.setattr(Kernel, "__call__", launch)
    monkeypatch.setattr(device_scan, "operations", lambda device: triton_operations)
    plan = plan_of(**keys)
    fused = rows_per_read is not None
    model = ToyModel(
        0, torch.float16, rows_per_read, on_device=True, fused=fused, hidden=64, device=DEVICE, top_ids=metrics
    )
    statistics = partial(triton_operations.statistics, first_id=0 if metrics else None)
    model.head = dataclasses.replace(model.head, statistics=statistics)
    counters = torch.zeros((2, 14), dtype=torch.int64, device=DEVICE)

    def counted(selection, rules, prompt=False):
        triton_operations.count(counters, counters if metrics else None, prompt, selection, rules, plan.window)

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
