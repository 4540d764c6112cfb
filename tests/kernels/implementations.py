"""The kernels and their twins by name, the devices and dtypes that they are tried with, and made-up tensors.

On a GPU the compiled kernels run; elsewhere Triton's interpreter runs the same source on the CPU (`make kernels`).
Where Triton is not installed there is nothing to test but the twins.
"""

import importlib.util
import os

import pytest
import torch

from confident_decoding.kernels import twins
from confident_decoding.kernels.types import Candidates

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
HAS_TRITON = importlib.util.find_spec("triton") is not None and (GPU or os.environ.get("TRITON_INTERPRET") == "1")
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs a GPU, or Triton with TRITON_INTERPRET=1")
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
    """``"twins"`` or ``"triton"``, the latter only where it runs."""
    if name == "twins":
        return twins
    from confident_decoding.kernels import triton_operations

    return triton_operations


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def tensor(*shape, dtype=torch.float32, seed=0, scale=1.0):
    return (torch.randn(*shape, generator=generator(seed)) * scale).to(dtype).to(DEVICE)


def candidates(rows, first, ahead, batch, capacity):
    (result,) = Candidates.empty(1, capacity, batch, DEVICE)
    result.rows.fill_(-(10**9))  # what nothing may read
    result.rows[: len(rows)] = torch.tensor(rows, dtype=torch.int32, device=DEVICE)
    result.work.copy_(torch.tensor([len(rows), first, ahead, len(rows) * ahead], dtype=torch.int32))
    return result
