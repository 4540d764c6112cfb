"""Capture: switch on vLLM's own aux-hidden-state capture in the inner model.

Index i of ``aux_hidden_state_layers`` is the residual stream entering layer i, so depth d of an
N-layer model is index N-d (``model_executor/models/interfaces.py``, ``EagleModelMixin``). Drafters of the
EAGLE-3 kind ask the model for states of their own through the same list (`CapturedStates`).
"""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from confident_decoding.config import SelectionPlan
from confident_decoding.plugin.anatomy import Anatomy, inner_model, refusal
from confident_decoding.plugin.reduced_streams import capture_reduced_streams

_CAPTURES = {"_maybe_add_hidden_state", "aux_hidden_state_layers"}


class CapturedStates:
    """Whose the captured states are: the candidates', and a drafter's, which may want some of the same.

    A model returns each state once, in the order of its layers, however they were asked for.

    Args:
        own: Indices of the candidates' states, without the final one.
    """

    def __init__(self, own: Iterable[int]) -> None:
        self.own = tuple(sorted(own))
        self.drafters: tuple[int, ...] | None = None

    @property
    def indices(self) -> tuple[int, ...]:
        """All that the model is to capture."""
        return tuple(sorted({*self.own, *(self.drafters or ())}))

    def split(self, states: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The candidates' states and the drafter's, each ``[T, H]``, of what the model returned for `indices`."""
        by_index = dict(zip(self.indices, states, strict=True))
        return [by_index[i] for i in self.own], [by_index[i] for i in self.drafters or ()]


def indices_of(plan: SelectionPlan) -> tuple[int, ...]:
    """Indices of the states of ``plan.depths`` (all but depth 0)."""
    return tuple(plan.num_layers - d for d in reversed(plan.depths) if d)


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


def switch_on_capture(module: nn.Module, parts: Anatomy, indices: tuple[int, ...]) -> None:
    """Make ``module`` capture the states ``indices``."""
    if capture_reduced_streams(parts, indices):
        return
    set_layers: Any = getattr(module, "_set_aux_hidden_state_layers", None)
    if set_layers is not None:
        set_layers(indices)
    else:
        module.aux_hidden_state_layers = indices  # type: ignore[assignment]
