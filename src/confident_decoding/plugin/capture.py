"""Capture: find the inner model and switch on vLLM's own aux-hidden-state capture in it.

Index i of ``aux_hidden_state_layers`` is the residual stream entering layer i, so depth d of an
N-layer model is index N-d (``model_executor/models/interfaces.py``, ``EagleModelMixin``).
"""

import inspect
from typing import Any

from torch import nn

from confident_decoding.config import SelectionPlan
from confident_decoding.plugin.proof import refusal

_CAPTURES = {"_maybe_add_hidden_state", "aux_hidden_state_layers"}


def language_model(top: nn.Module) -> nn.Module:
    """The text model of a top-level model, by vLLM's own rule (``SupportsEagle3``)."""
    get: Any = getattr(top, "get_language_model", None)
    if get is not None:
        return get()
    return getattr(top, "language_model", top)


def inner_model(top: nn.Module) -> nn.Module:
    """The module that runs the decoder layers."""
    language = language_model(top)
    return getattr(language, "model", language)


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


def switch_on_capture(top: nn.Module, plan: SelectionPlan) -> nn.Module:
    """Make the inner model return the states of ``plan.depths`` (all but depth 0).

    Returns:
        The model's final norm.

    Raises:
        ConfigError: The architecture cannot capture, or has no final norm or layer list that we
            can rely on.
    """
    inner = inner_model(top)
    norm, layers = getattr(inner, "norm", None), getattr(inner, "layers", None)
    if not forward_captures(type(inner)) or not hasattr(inner, "aux_hidden_state_layers"):
        raise refusal(top, f"its inner model {type(inner).__name__} does not capture intermediate states in this vLLM")
    if not isinstance(norm, nn.Module) or not isinstance(layers, nn.ModuleList) or len(layers) != plan.num_layers:
        raise refusal(
            top, f"{type(inner).__name__} has no final `norm` and {plan.num_layers} `layers` where they are expected"
        )
    if inner.aux_hidden_state_layers:
        raise refusal(top, f"its layers {inner.aux_hidden_state_layers} are captured for another feature already")
    indices = tuple(plan.num_layers - d for d in reversed(plan.depths) if d)
    set_layers: Any = getattr(inner, "_set_aux_hidden_state_layers", None)
    if set_layers is not None:
        set_layers(indices)
    else:
        inner.aux_hidden_state_layers = indices  # type: ignore[assignment]
    return norm
