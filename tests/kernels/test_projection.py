"""Candidates' states gathered and normed, and their logits: kernel, twin and float64."""

import math

import numpy as np
import pytest
import torch

from confident_decoding.kernels.types import FirstCandidates
from confident_decoding.model_head import RmsNorm
from kernels.implementations import (
    DEVICE,
    DTYPES,
    IMPLEMENTATIONS,
    MATRIX_DTYPES,
    ROUNDED_DTYPES,
    candidates,
    needs_triton,
    operations,
    tensor,
)


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
        found, expected = (ops.gather(packed, 6, some, norm)[:20] for ops in map(operations, ("triton", "twins")))
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
