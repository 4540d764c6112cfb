"""Capture for models that hold partial sums between layers under tensor parallelism.

vLLM's sparse-attention models (DeepSeek-V3.2, GLM-5) leave each layer's all-reduce to the next
layer's norm. Their own capture then returns ``partial sum + residual``, different on every rank.
Here the partial sum is reduced where the captured layer receives it. These inner models are not
compiled by Dynamo, so a module's pre-hook runs while CUDA graphs are captured, and what it computes
is part of the graph.
"""

import threading
from typing import Any

from torch import Tensor

from confident_decoding.plugin.anatomy import Anatomy


def holds_partial_sums(parts: Anatomy) -> bool:
    """Whether the layers pass on sums that are not reduced over the tensor-parallel ranks yet."""
    partial = parts.quirks.partial_sums
    if partial is None or not partial(parts.inner):
        return False
    from vllm.distributed import get_tensor_model_parallel_world_size

    return get_tensor_model_parallel_world_size() > 1


def reduced(parts: Anatomy, x: Tensor) -> Tensor:
    """A layer's output ``[T, H]`` as it enters the residual stream."""
    if not holds_partial_sums(parts):
        return x
    from vllm.distributed import tensor_model_parallel_all_reduce

    return tensor_model_parallel_all_reduce(x.clone())  # on some platforms it writes to its argument


def capture_reduced_streams(parts: Anatomy, indices: tuple[int, ...]) -> bool:
    """Make the inner model return the reduced streams that enter the layers ``indices``.

    Returns:
        Whether it was needed; if not, nothing has been touched.
    """
    if not holds_partial_sums(parts):
        return False
    inner: Any = parts.inner
    # Dual-batch overlap runs the same modules from two threads.
    forward_pass = threading.local()

    def keep(layer: Any, args: tuple[Any, ...]) -> None:
        _, partial, residual = args[:3]
        # At once: the layer's fused norm writes to both tensors.
        forward_pass.states.append(reduced(parts, partial) + residual)

    for index in indices:
        parts.layers[index].register_forward_pre_hook(keep)
    base: Any = type(inner)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        states: list[Tensor] = []
        forward_pass.states = states
        try:
            final = base.forward(self, *args, **kwargs)
        finally:
            del forward_pass.states
        return (final, states) if states else final

    inner.__class__ = type(base.__name__, (base,), {"forward": forward, "__module__": base.__module__})
    return True
