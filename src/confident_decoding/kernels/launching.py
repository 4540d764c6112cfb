"""What the kernels share, and what a launch needs to know of the device."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def wide(number):
    """``number`` as int64: offsets of whole tensors may not fit into 32 bits."""
    return tl.zeros((), tl.int64) + number


@triton.jit
def own(values, shared, row, held, EACH: tl.constexpr):
    """What each row has, or what all share."""
    if EACH:
        return tl.load(values + row, mask=held, other=0)
    else:
        return row * 0 + shared


@triton.jit
def is_nan(x):
    """Whether ``x`` is NaN."""
    return x != x  # noqa: PLR0124


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU (a few on a CPU, where only Triton's interpreter runs)."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


@cache
def has_tensor_maps(device: torch.device) -> bool:
    """Whether tiles can be fetched by the tensor memory accelerator (compute capability 9 and later)."""
    return device.type != "cuda" or (torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9)


class Kernel:
    """A Triton kernel that is launched without asking Triton again what it has compiled.

    Triton works out at each launch which variant the arguments call for, which takes the host several times as
    long as launching; a scan launches dozens. Here that is looked up by what a variant depends on: the constants,
    the values of whole numbers, the types and alignments of tensors.

    Args:
        function: The kernel. Its constants are declared last.
        varying: Arguments that are whole numbers and change from call to call, which the kernel is not to be
            specialised for.
    """

    def __init__(self, function: Callable[..., Any], varying: tuple[str, ...] = ()) -> None:
        self._jit = triton.jit(function, do_not_specialize=list(varying))
        names = self._jit.arg_names
        self._varying = {names.index(name) for name in varying}
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(
        self, grid: tuple[int, ...], *args: Any, num_warps: int, num_stages: int = 3, **constants: Any
    ) -> None:
        """Launch on the current stream.

        Args:
            grid: Programs, up to three dimensions.
            args: Tensors and numbers, in the kernel's order.
            num_warps: Of a program.
            num_stages: Of software pipelines.
            constants: The kernel's, in its order.
        """
        key = self.variant(args, (num_warps, num_stages, *constants.values()))
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._jit[grid](*args, **constants, num_warps=num_warps, num_stages=num_stages)
            if compiled is not None:  # the interpreter compiles nothing
                self._compiled[key] = compiled
            return
        compiled[(*grid, 1, 1)[:3]](*args, *constants.values())

    def variant(self, args: tuple[Any, ...], options: tuple[Any, ...]) -> tuple[Any, ...]:
        """What tells the compiled form for these arguments from others."""
        return (*options, *map(self._trait, range(len(args)), args))

    def _trait(self, place: int, value: Any) -> Any:
        """What of an argument a compiled variant depends on."""
        if type(value) is Tensor:
            return value.dtype, value.data_ptr() & 15, value.device.index
        return value if type(value) is int and place not in self._varying else type(value)
