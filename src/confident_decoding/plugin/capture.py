"""Capture: switch on vLLM's own aux-hidden-state capture in the inner model.

Index i of ``aux_hidden_state_layers`` is the residual stream entering layer i, so depth d of an
N-layer model is index N-d (``model_executor/models/interfaces.py``, ``EagleModelMixin``).
"""

import inspect
from typing import Any

from torch import nn

from confident_decoding.config import SelectionPlan
from confident_decoding.plugin.anatomy import Anatomy, inner_model, refusal
from confident_decoding.plugin.reduced_streams import capture_reduced_streams

_CAPTURES = {"_maybe_add_hidden_state", "aux_hidden_state_layers"}


def forward_captures(cls: type) -> bool:
    """Whether the class's ``forward`` fills aux hidden states, following ``super().forward``.

    A subclass may inherit the attribute and override the forward without the capture; that would
    return no states, silently.
    """
    for owner in cls.__mro__:
        forward = owner.__dict__.get("forward")
        if forward is None:
            continue
        names: set[str] = set()
        for function in (forward, inspect.unwrap(forward)):
            names.update(getattr(getattr(function, "__code__", None), "co_names", ()))
        if _CAPTURES & names:
            return True
        if "super" not in names:
            return False
    return False


def capturing_module(top: nn.Module) -> nn.Module:
    """The module whose forward captures: the inner model, or a decoder module inside it (PLaMo 3).

    Raises:
        ConfigError: There is none, or it captures for another feature.
    """
    inner = inner_model(top)
    for module in (inner, getattr(inner, "layers", None)):
        if (
            isinstance(module, nn.Module)
            and forward_captures(type(module))
            and hasattr(module, "aux_hidden_state_layers")
        ):
            if module.aux_hidden_state_layers:
                raise refusal(top, f"its layers {module.aux_hidden_state_layers} are captured for another feature")
            return module
    raise refusal(top, f"its inner model {type(inner).__name__} does not capture intermediate states in this vLLM")


def switch_on_capture(module: nn.Module, parts: Anatomy, plan: SelectionPlan) -> None:
    """Make ``module`` capture the states of ``plan.depths`` (all but depth 0)."""
    indices = tuple(plan.num_layers - d for d in reversed(plan.depths) if d)
    if capture_reduced_streams(parts, indices):
        return
    set_layers: Any = getattr(module, "_set_aux_hidden_state_layers", None)
    if set_layers is not None:
        set_layers(indices)
    else:
        module.aux_hidden_state_layers = indices  # type: ignore[assignment]
