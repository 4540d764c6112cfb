"""Where a transformers model keeps its decoder layers and its final norm."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

NORM_NAMES = ("norm", "norm_f", "final_layernorm", "ln_f", "final_layer_norm", "final_norm", "embedding_norm", "ln_out")
"""In the order of search. A wrong guess is harmless: the first forward proves what was found."""
_INNER_NAMES = ("model", "language_model", "text_model", "decoder", "transformer")
_LAYER_NAMES = ("layers", "h", "blocks")


class UnsupportedModelError(ValueError):
    """A model does not show what the selection needs; the message says what, and which argument to pass."""


@dataclass(frozen=True)
class Parts:
    """The parts of one model.

    Attributes:
        num_layers: N.
        norm: Final norm: what enters it is the residual stream after layer N-1.
        layers: The N decoder layers, in order.
        around: The modules that contain norm and layers, outermost first, the model itself left out. The
            output of one of them is what the model's head is applied to.
    """

    num_layers: int
    norm: nn.Module
    layers: tuple[nn.Module, ...]
    around: tuple[nn.Module, ...]


def num_layers(model: Any) -> int:
    """N, from the configuration of the model's text part."""
    return int(model.config.get_text_config().num_hidden_layers)


def find_parts(model: Any, final_norm: nn.Module | str | None = None) -> Parts:
    """Find the parts by name, below ``model.get_decoder()``.

    Args:
        model: A transformers model with a language modelling head.
        final_norm: The norm, or its dotted name, where it has an unusual name.

    Raises:
        UnsupportedModelError: There is no such norm or no list of N layers beside it, or a layer is several of them.
    """
    n = num_layers(model)
    names = {module: name for name, module in model.named_modules()}
    owners = list(dict.fromkeys([*_inside(model.get_decoder()), *_inside(model.base_model)]))
    if final_norm is None:
        norm = next(
            (m for o in owners for name in NORM_NAMES if isinstance(m := getattr(o, name, None), nn.Module)), None
        )
        if norm is None:
            places = ", ".join(dict.fromkeys(type(owner).__name__ for owner in owners))
            raise UnsupportedModelError(
                f"confident-decoding: no final norm found in {type(model).__name__}. Looked for "
                f"{', '.join(NORM_NAMES)} in its {places}. Pass final_norm=, the module or its dotted name."
            )
    else:
        norm = _named(model, final_norm)
        if norm is None or norm not in names:
            raise UnsupportedModelError(
                f"confident-decoding: final_norm={final_norm!r} is not a module of {type(model).__name__}."
            )
    inside = names[norm].split(".")[:-1]
    owner = model.get_submodule(".".join(inside))
    layers = _layers(owner, n) or next((found for o in owners if (found := _layers(o, n))), None)
    if layers is None:
        raise UnsupportedModelError(
            f"confident-decoding: {type(model).__name__} has no list of {n} decoder layers in {type(owner).__name__}, "
            f"beside its final norm {names[norm]!r}. Pass final_norm=, the norm after its layers, or its dotted name."
        )
    if len(set(layers)) < n:
        raise UnsupportedModelError(
            f"confident-decoding: {type(model).__name__} runs the same decoder layer several times (of {n} layers "
            f"{len(set(layers))} differ), so that its layers cannot be told apart."
        )
    around = tuple(model.get_submodule(".".join(inside[: i + 1])) for i in range(len(inside)))
    return Parts(n, norm, layers, around)


def _inside(module: nn.Module) -> Iterator[nn.Module]:
    yield module
    for name in _INNER_NAMES:
        inner = getattr(module, name, None)
        if isinstance(inner, nn.Module):
            yield from _inside(inner)


def _named(model: nn.Module, final_norm: nn.Module | str) -> nn.Module | None:
    if not isinstance(final_norm, str):
        return final_norm
    try:
        return model.get_submodule(final_norm)
    except AttributeError:
        return None


def _layers(owner: nn.Module, n: int) -> tuple[nn.Module, ...] | None:
    lists = {name: m for name, m in owner.named_children() if isinstance(m, nn.ModuleList) and len(m) == n}
    for name in (*_LAYER_NAMES, *lists):
        if name in lists:
            return tuple(lists[name])
    return None
