"""What the general mechanism makes of an architecture, read from its class: nothing is built, no weights are loaded.

The constructors' code names what they build: an inner model whose forward captures, an inner model whose
forward does not, or whatever text model the checkpoint names. The startup proof has the last word on each.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from torch import nn

from confident_decoding.plugin.capture import forward_captures
from confident_decoding.plugin.missing_capture import WITHOUT_CAPTURE

Kind = Literal["captures", "ours", "none", "text model", "not importable"]
"""vLLM captures; `missing_capture` does; nothing does; its text model decides; its module needs what is missing."""
Registry = Mapping[str, Callable[[], type]]
"""Architecture to what imports its class."""


def verdict(architecture: str, registry: Registry, seen: tuple[str, ...] = ()) -> tuple[Kind, str]:
    """``(kind, inner model)`` of a registered architecture.

    Args:
        architecture: A key of ``registry``.
        registry: vLLM's.
        seen: Architectures that led here.
    """
    try:
        cls = registry[architecture]()
    except Exception as error:
        return "not importable", type(error).__name__
    inner = _inner_models(cls)
    if inner:
        part = inner[0]
        if part.__name__ in WITHOUT_CAPTURE.values():
            return "ours", part.__name__
        # PLaMo 3 captures in a decoder module inside its inner model.
        captures = forward_captures(part) or any(forward_captures(inside) for inside in _inner_models(part))
        return ("captures" if captures else "none"), part.__name__
    for text in _named_text_models(cls, registry):
        if text not in (architecture, *seen):
            return verdict(text, registry, (*seen, architecture))
    return "text model" if hasattr(cls, "embed_multimodal") else "none", cls.__name__


def _constructors(cls: type) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Code and globals of every function that builds parts of ``cls``, its own first."""
    for owner in cls.__mro__:
        for name in ("__init__", "_init_model"):
            function: Any = owner.__dict__.get(name)
            if hasattr(function, "__code__"):
                yield function.__code__, function.__globals__


def _inner_models(cls: type) -> list[type]:
    """Classes with a ``layers`` loop that the constructors name, the most derived first."""
    found: list[type] = []
    for code, names in _constructors(cls):
        for name in code.co_names:
            # A class of the module, or an attribute like `model_cls`.
            part = names.get(name) or getattr(cls, name, None)
            if isinstance(part, type) and issubclass(part, nn.Module) and _runs_layers(part):
                found.append(part)
        if found:
            break
    return found


def _runs_layers(part: type) -> bool:
    return any("layers" in f.__code__.co_names for f in _forwards(part)) and not _is_encoder(part.__name__)


def _forwards(part: type) -> list[Any]:
    return [o.__dict__["forward"] for o in part.__mro__ if hasattr(o.__dict__.get("forward"), "__code__")]


def _is_encoder(name: str) -> bool:
    return any(word in name for word in ("Vision", "Audio", "Encoder", "Vit", "ViT", "CLIP", "Siglip", "Projector"))


def _named_text_models(cls: type, registry: Registry) -> list[str]:
    """Architectures that the constructors ask the registry for."""
    return [c for code, _ in _constructors(cls) for c in code.co_consts if isinstance(c, str) and c in registry]
