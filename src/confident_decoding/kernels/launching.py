"""What the kernels share, and what a launch needs to know of the device."""

from functools import cache

import torch
import triton
import triton.language as tl


@triton.jit
def wide(number):
    """``number`` as int64: offsets of whole tensors may not fit into 32 bits."""
    return tl.zeros((), tl.int64) + number


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU (a few on a CPU, where only Triton's interpreter runs)."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


@cache
def has_tensor_maps(device: torch.device) -> bool:
    """Whether tiles can be fetched by the tensor memory accelerator (compute capability 9 and later)."""
    return device.type != "cuda" or (torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9)
