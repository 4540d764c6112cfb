"""Statistics of logits, and the ids beside them: kernel, twin and float64."""

import math

import numpy as np
import oracle
import pytest
import torch

from confident_decoding.entropy import combine_statistics, combine_top_ids
from kernels.implementations import DEVICE, DTYPES, IMPLEMENTATIONS, ROUNDED_DTYPES, needs_triton, operations, tensor


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
    from confident_decoding.kernels.statistics import SPLIT

    logits = tensor(9, 3 * SPLIT + 5, dtype=dtype, scale=5.0)
    ops = operations("triton")
    found = ops.merge(ops.statistics(logits, None, soft_cap, scale))
    torch.testing.assert_close(
        found, operations("twins").statistics(logits, None, soft_cap, scale), rtol=1e-5, atol=1e-4
    )
