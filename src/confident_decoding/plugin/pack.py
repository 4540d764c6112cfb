"""Pack: the top-level model returns one tensor of packed rows instead of states and a list.

The instance's class is swapped for a subclass, so rows stay rows for whatever the runner does with
them: indexing, CUDA-graph buffers, padding, chunked prefill.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from confident_decoding.plugin.rows import classify


def pack(output: Any, states: int) -> Tensor:
    """Packed rows ``[T, n*H]`` from ``(final [T, H], [aux [T, H], ...])``, aux shallowest first.

    Args:
        output: What the stock forward returned.
        states: n-1, captured states that must be there.

    Raises:
        RuntimeError: They are not all there.
    """
    aux = output[1] if isinstance(output, tuple) and len(output) == 2 else ()
    if len(aux) != states:
        raise RuntimeError(
            f"confident-decoding expected {states} captured states from the model and got {len(aux)}. The compiled "
            "graph was built without them: clear vLLM's compile cache (VLLM_DISABLE_COMPILE_CACHE=1) and report this."
        )
    return torch.cat([output[0], *reversed(aux)], dim=-1)


def swap_class(model: nn.Module, states: int, select: Any, processor_of: Callable[[Any], Any]) -> None:
    """Give ``model`` a subclass of its class whose forward packs and whose logits calls are told apart.

    Args:
        model: The top-level model instance.
        states: n-1, captured states.
        select: The `head.SelectingHead`. Its ``rows`` attribute is set to the kind of the rows for the
            duration of a call; its ``serving`` attribute says whether warm-up is over.
        processor_of: The model's ``LogitsProcessor`` at the time of a call.
    """
    base: Any = type(model)

    # Not `forward`: a class that is compiled as a whole (Ernie 4.5) has bound its own when it was built.
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = base.__call__(self, *args, **kwargs)
        return pack(output, states) if states else output

    def logits_method(name: str) -> Any:
        stock = getattr(base, name)

        def method(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            rows = select.rows = classify(sys._getframe(1), select.serving)
            try:
                if not select.takes_calls(processor_of(self), hidden_states):
                    return stock(self, hidden_states, *args, **kwargs)
                select.rows = None  # plain rows pass through the head
                return select.select_by_calls(hidden_states, lambda h: stock(self, h, *args, **kwargs), rows)
            finally:
                select.rows = None

        method.__name__, method.__doc__ = name, stock.__doc__
        return method

    methods = {name: logits_method(name) for name in ("compute_logits", "compute_logits_local") if hasattr(base, name)}
    # Same name and module: vLLM and its logs identify models by them.
    model.__class__ = type(
        base.__name__,
        (base,),
        {"__call__": call, "__module__": base.__module__, "__qualname__": base.__qualname__, **methods},
    )
