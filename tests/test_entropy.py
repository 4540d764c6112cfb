"""Entropies against float64, for every dtype, width, layout and odd value."""

import math

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from confident_decoding.entropy import combine_statistics, combine_top_ids, entropy, shard_statistics

TOLERANCE = 1e-5  # nats, fp32 accumulation over up to 256k columns


def sharded(logits, cuts):
    parts = [logits[:, a:b] for a, b in zip([0, *cuts], [*cuts, logits.shape[1]], strict=True)]
    return combine_statistics(torch.stack([shard_statistics(part) for part in parts]))


def close(found, logits):
    expected = [oracle.entropy(row) for row in logits.double().numpy()]
    np.testing.assert_allclose(found.numpy(), expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("columns", [50_257, 128_256, 151_936, 256_000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("spread", [0.5, 5.0, 20.0])
def test_matches_float64(columns, dtype, spread):
    generator = torch.Generator().manual_seed(columns)
    logits = (torch.randn(3, columns, generator=generator) * spread).to(dtype)
    found = entropy(logits)
    assert found.dtype == torch.float32
    close(found, logits)
    close(sharded(logits, [1, columns // 3, columns // 2]), logits)


@given(st.integers(1, 5), st.integers(1, 40), st.data())
@settings(max_examples=200)
def test_any_row_any_shards(rows, columns, data):
    value = st.floats(-100, 100, width=32) | st.just(-math.inf)
    logits = torch.tensor([[data.draw(value) for _ in range(columns)] for _ in range(rows)], dtype=torch.float32)
    cuts = sorted(data.draw(st.lists(st.integers(0, columns), max_size=4)))
    close(entropy(logits), logits)
    close(sharded(logits, cuts), logits)


def test_known_values():
    assert entropy(torch.zeros(1, 1)).item() == 0.0
    assert entropy(torch.zeros(1, 1000)).item() == pytest.approx(math.log(1000), abs=1e-6)
    one_hot = torch.full((1, 1000), -math.inf)
    one_hot[0, 3] = 5.0
    assert entropy(one_hot).item() == 0.0
    two = torch.full((1, 1000), -math.inf)
    two[0, :2] = -3.0
    assert entropy(two).item() == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_plus_inf_make_the_row_nan_and_no_other(bad):
    logits = torch.randn(3, 100)
    logits[1, 7] = bad
    for found in (entropy(logits), sharded(logits, [50])):
        assert torch.isnan(found).tolist() == [False, True, False]


def test_all_minus_inf_is_nan():
    logits = torch.randn(2, 10)
    logits[0] = -math.inf
    assert torch.isnan(entropy(logits)).tolist() == [True, False]
    assert torch.isnan(sharded(logits, [3, 7])).tolist() == [True, False]


def test_a_shard_without_columns_or_without_finite_logits_weighs_nothing():
    logits = torch.randn(2, 10)
    padded = torch.cat([logits, torch.full((2, 5), -math.inf)], 1)
    close(sharded(padded, [10]), logits)
    close(sharded(logits, [10]), logits)
    close(sharded(logits, [0, 0]), logits)


@pytest.mark.parametrize("layout", ["transposed", "strided", "sliced"])
def test_non_contiguous(layout):
    base = torch.randn(64, 64)
    logits = {"transposed": base.T, "strided": base[:, ::3], "sliced": base[5:9, 7:50]}[layout]
    assert not logits.is_contiguous()
    close(entropy(logits), logits)
    assert torch.equal(entropy(logits), entropy(logits.contiguous()))


def test_input_is_not_written_to():
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.randn(4, 100).to(dtype)
        copy = logits.clone()
        entropy(logits)
        assert torch.equal(logits, copy)


def test_no_rows():
    assert entropy(torch.empty(0, 100)).shape == (0,)


@pytest.fixture
def threads():
    """More than one, whatever other tests have set: torch splits sums over them."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("columns", [500, 20_000, 32_768, 40_000, 49_152, 100_000, 151_936])
def test_row_does_not_depend_on_its_neighbours(columns, threads):
    logits = torch.randn(30, columns) * 3
    whole = shard_statistics(logits)
    for rows in (*(slice(i, i + 1) for i in range(9)), slice(0, 7), slice(23, 30), slice(1, 24)):
        assert torch.equal(whole[rows], shard_statistics(logits[rows]))


def test_far_logits_do_not_overflow():
    logits = torch.tensor([[3e38, -3e38, 3e38], [-3e38, -3e38, -3e38]])
    close(entropy(logits), logits)


def top_ids(logits, cuts, first_id=0):
    starts = [0, *cuts]
    parts = [
        shard_statistics(logits[:, a:b], first_id + a) for a, b in zip(starts, [*cuts, logits.shape[1]], strict=True)
    ]
    return combine_top_ids(torch.stack(parts)).tolist()


@pytest.mark.parametrize("columns", [1, 1023, 1024, 1025, 5000, 151_936])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_largest_logits_id_is_that_of_numpy(columns, dtype):
    """bfloat16 has ties in nearly every row of 151,936: the lowest id of them, as torch's and numpy's argmax."""
    generator = torch.Generator().manual_seed(columns)
    logits = (torch.randn(7, columns, generator=generator) * 3).to(dtype)
    logits[1] = 0.5
    logits[2, columns // 2 :] = 99
    logits[3], logits[3, -1] = -math.inf, -5
    expected = logits.float().numpy().argmax(-1)
    assert top_ids(logits, []) == expected.tolist()
    assert top_ids(logits, [columns // 3, columns // 3, columns // 2]) == expected.tolist(), "an empty shard holds none"
    assert top_ids(logits, [columns // 2], 100_000) == (expected + 100_000).tolist()


def test_ids_do_not_change_the_other_numbers():
    logits = torch.randn(12, 70_000, generator=torch.Generator().manual_seed(0))
    logits[3], logits[4, 7], logits[5, 69_999] = -math.inf, math.nan, math.inf
    plain, named = shard_statistics(logits), shard_statistics(logits, 5)
    assert torch.equal(plain.nan_to_num(-1.5), named[:, :3].nan_to_num(-1.5))
    both = [combine_statistics(stats[None].expand(2, -1, -1)) for stats in (plain, named)]
    assert torch.equal(*(h.nan_to_num(-1.5) for h in both))
    ids = combine_top_ids(named[None])
    assert ((ids >= 5) & (ids < 70_005)).all(), "also where there is no entropy"


@given(st.integers(1, 4), st.integers(1, 30), st.data())
def test_any_rows_ids(rows, columns, data):
    value = st.sampled_from([-math.inf, -1.0, 0.0, 1.0])
    logits = torch.tensor([[data.draw(value) for _ in range(columns)] for _ in range(rows)])
    logits[:, data.draw(st.integers(0, columns - 1))] = 0.0
    cuts = sorted(data.draw(st.lists(st.integers(0, columns), max_size=4)))
    assert top_ids(logits, cuts) == logits.numpy().argmax(-1).tolist()
