"""Pack: the top-level model returns one tensor of packed rows instead of states and a list.

The instance's class is swapped for a subclass, so rows stay rows for whatever the runner does with
them: indexing, CUDA-graph buffers, padding, chunked prefill.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from confident_decoding.plugin.adapters import HeadAdapters
from confident_decoding.plugin.capture import CapturedStates
from confident_decoding.plugin.rows import classify


def pack(output: Any, captured: CapturedStates) -> Any:
    """What the runner gets for what the stock forward returned.

    Args:
        output: ``final [T, H]``, or ``(final, [state [T, H], ...])`` where something is captured.
        captured: Whose those states are.

    Returns:
        Packed rows ``[T, n*H]``; with a drafter that reads states, ``(packed rows, [its states])``.

    Raises:
        RuntimeError: The states are not all there.
    """
    if not captured.indices:
        return output
    final, states = output if isinstance(output, tuple) and len(output) == 2 else (output, ())
    if len(states) != len(captured.indices):
        raise RuntimeError(
            f"confident-decoding expected {len(captured.indices)} captured states from the model and got "
            f"{len(states)}. The compiled graph was built without them: clear vLLM's compile cache "
            "(VLLM_DISABLE_COMPILE_CACHE=1) and report this."
        )
    own, drafters = captured.split(states)
    packed = torch.cat([final, *reversed(own)], dim=-1) if own else final
    return packed if captured.drafters is None else (packed, drafters)


def swap_class(
    model: nn.Module,
    captured: CapturedStates,
    prove: Callable[[], None],
    select: Any,
    adapters: HeadAdapters | None,
) -> None:
    """Give ``model`` a subclass of its class whose forward packs and whose logits calls are told apart.

    Args:
        model: The top-level model instance.
        captured: Whose captured states are whose.
        prove: Called when a drafter has asked for states of its own; raises if the model does not return them.
        select: The `head.SelectingHead`. Its ``rows`` attribute is set to the kind of the rows for the
            duration of a call; its ``serving`` attribute says whether warm-up is over.
        adapters: What may stand before the output head; None without ``--enable-lora``.
    """
    base: Any = type(model)

    # Not `forward`: a class that is compiled as a whole (Ernie 4.5) has bound its own when it was built.
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = base.__call__(self, *args, **kwargs)
        return pack(output, captured)

    def set_aux_hidden_state_layers(self: Any, layers: Iterable[int]) -> None:
        captured.drafters = tuple(sorted(set(layers)))
        base.set_aux_hidden_state_layers(self, captured.indices)
        prove()

    def logits_method(name: str) -> Any:
        stock = getattr(base, name)

        def method(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            rows = select.rows = classify(sys._getframe(1), select.serving)
            try:
                if adapters is None or not select.packed(hidden_states) or not adapters.wrapped(self):
                    return stock(self, hidden_states, *args, **kwargs)
                # Warm-up goes both ways: either may come later, and its memory and kernels must be known by then.
                if rows == "warmup" or adapters.touch_head(self):
                    select.rows = None  # plain rows pass through the head
                    logits = select.select_by_calls(hidden_states, lambda h: stock(self, h, *args, **kwargs), rows)
                    if rows != "warmup":
                        return logits
                    select.rows = rows
                with adapters.passed():
                    return stock(self, hidden_states, *args, **kwargs)
            finally:
                select.rows = None

        method.__name__, method.__doc__ = name, stock.__doc__
        return method

    methods = {name: logits_method(name) for name in ("compute_logits", "compute_logits_local") if hasattr(base, name)}
    # Only where the class has it: that is what tells vLLM that a model can give states to a drafter.
    if hasattr(base, "set_aux_hidden_state_layers"):
        methods["set_aux_hidden_state_layers"] = set_aux_hidden_state_layers
    # Same name and module: vLLM and its logs identify models by them.
    model.__class__ = type(
        base.__name__,
        (base,),
        {"__call__": call, "__module__": base.__module__, "__qualname__": base.__qualname__, **methods},
    )
