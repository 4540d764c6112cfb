"""Which of the installed vLLM's generative architectures the general mechanism takes.

    python -m tools.architectures            a JSON list

Reads vLLM's registry and looks, without building anything, at what each model class would construct:
an inner model whose forward captures, an inner model whose forward does not, or whatever text model
the checkpoint names. The startup proof has the last word on each.
"""

import importlib
import json
import os
from collections.abc import Iterator

from confident_decoding.plugin.capture import forward_captures
from confident_decoding.plugin.missing_capture import WITHOUT_CAPTURE


def _constructors(cls: type) -> Iterator[tuple[object, dict]]:
    """Code and globals of every function that builds parts of ``cls``, its own first."""
    for owner in cls.__mro__:
        for name in ("__init__", "_init_model"):
            function = owner.__dict__.get(name)
            if hasattr(function, "__code__"):
                yield function.__code__, function.__globals__


def _inner_models(cls: type) -> list[type]:
    """Classes with a ``layers`` loop that the constructors name, the most derived first."""
    import torch

    found = []
    for code, names in _constructors(cls):
        for name in code.co_names:
            part = names.get(name) or getattr(
                cls, name, None
            )  # a class of the module, or an attribute like `model_cls`
            if isinstance(part, type) and issubclass(part, torch.nn.Module) and _runs_layers(part):
                found.append(part)
        if found:
            break
    return found


def _runs_layers(part: type) -> bool:
    return any("layers" in f.__code__.co_names for f in _forwards(part)) and not _is_encoder(part.__name__)


def _forwards(part: type) -> list:
    return [o.__dict__["forward"] for o in part.__mro__ if hasattr(o.__dict__.get("forward"), "__code__")]


def _is_encoder(name: str) -> bool:
    return any(word in name for word in ("Vision", "Audio", "Encoder", "Vit", "ViT", "CLIP", "Siglip", "Projector"))


def _named_text_models(cls: type, registry: dict) -> list[str]:
    """Architectures that the constructors ask the registry for."""
    return [c for code, _ in _constructors(cls) for c in code.co_consts if isinstance(c, str) and c in registry]


def verdict(architecture: str, registry: dict, seen: tuple[str, ...] = ()) -> tuple[str, str]:
    """``(kind, inner model)``; kind is captures, ours, none, text model (its own decides) or not importable."""
    module, name = registry[architecture]
    module = module if module.startswith("vllm.") else f"vllm.model_executor.models.{module}"
    try:
        cls = getattr(importlib.import_module(module), name)
    except Exception as error:
        return "not importable", f"{type(error).__name__}"
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


def survey() -> list[dict]:
    """One entry per registered generative architecture, by name."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm.model_executor.models.registry import _MULTIMODAL_MODELS, _TEXT_GENERATION_MODELS

    registry = {**_TEXT_GENERATION_MODELS, **_MULTIMODAL_MODELS}
    rows = []
    for architecture in sorted(registry, key=str.lower):
        kind, inner = verdict(architecture, registry)
        rows.append({"architecture": architecture, "capture": kind, "inner": inner})
    return rows


if __name__ == "__main__":
    print(json.dumps(survey(), indent=1))
