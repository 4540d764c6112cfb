"""Where the parts are that the hooks need: language model, inner model, layers, norm, logits processor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from confident_decoding.config import ConfigError
from confident_decoding.model_head import RmsNorm
from confident_decoding.plugin import compat
from confident_decoding.plugin.families import Quirks, quirks_of
from confident_decoding.plugin.fused_norm import fused_norm

NORMS = ("norm", "norm_f", "final_layernorm")
"""Names under which vLLM's inner models keep their final norm."""


def refusal(model: nn.Module, why: str) -> ConfigError:
    """The error that names the architecture, the reason, the remedy and the versions."""
    return ConfigError(
        f"confident-decoding cannot run {type(model).__name__}: {why}. Serve it with "
        f"enable_multi_layer_entropy_selection=false. ({compat.versions()})"
    )


@dataclass(frozen=True)
class Anatomy:
    """The parts of one loaded model.

    Attributes:
        top: What the model runner calls.
        inner: The module that embeds, runs the decoder layers and norms.
        layers: Its N decoder layers; those before ``first`` are placeholders.
        first: The first of them that is here, on the last pipeline stage; 0 without stages.
        norm: Its final norm.
        processor: The language model's ``LogitsProcessor``.
        quirks: What it does beside the usual form.
    """

    top: nn.Module
    inner: nn.Module
    layers: nn.ModuleList
    first: int
    norm: nn.Module
    processor: Any
    quirks: Quirks

    def normed(self, stream: Tensor) -> Tensor:
        """The final norm alone, ``[m, H]``; may write to its argument."""
        output = self.norm(stream)
        return output[0] if isinstance(output, tuple) else output  # norms that pass a residual along (Cohere)

    def final_state(self, stream: Tensor) -> Tensor:
        """Residual states ``[m, H]`` to what the head is applied to, ``[m, H]``; may write to its argument."""
        normed = self.normed(stream)
        return self.quirks.after_norm(self.top, normed) if self.quirks.after_norm else normed

    def fused_norm(self) -> RmsNorm | None:
        """What `final_state` computes if kernels may compute it instead."""
        return None if self.quirks.after_norm else fused_norm(self.norm)

    @property
    def after_logits(self) -> Callable[[Tensor, int], Tensor] | None:
        """``(logits, first_id) -> logits``: what follows the ``LogitsProcessor``, or None."""
        after = self.quirks.after_logits
        return None if after is None else lambda logits, first_id: after(self.top, logits, first_id)


def language_model(top: nn.Module) -> nn.Module:
    """The text model of a top-level model, by vLLM's own rule (``SupportsEagle3``)."""
    get: Any = getattr(top, "get_language_model", None)
    if get is not None:
        try:
            return get()
        except NotImplementedError:  # the interface's default
            pass
    return getattr(top, "language_model", top)


def inner_model(top: nn.Module) -> nn.Module:
    """The module that runs the decoder layers."""
    language = language_model(top)
    return getattr(language, "model", language)


def dissect(top: nn.Module, num_layers: int) -> Anatomy:
    """Find the parts.

    Raises:
        ConfigError: One is not where vLLM's models have it.
    """
    inner = inner_model(top)
    layers = getattr(inner, "layers", None)
    layers = getattr(layers, "layers", layers)  # a decoder module of its own inside the inner model
    norm = next((found for name in NORMS if isinstance(found := getattr(inner, name, None), nn.Module)), None)
    if norm is None or not isinstance(layers, nn.ModuleList) or len(layers) != num_layers:
        raise refusal(
            top,
            f"{type(inner).__name__} has no final norm (looked for: {', '.join(NORMS)}) and {num_layers} `layers` "
            "where they are expected",
        )
    if any(getattr(layer, "fuse_input_allreduce", False) for layer in layers):  # MiniMax-M3 under tensor parallelism
        raise refusal(top, "some of its layers pass on sums that are not reduced over the tensor-parallel ranks")
    return Anatomy(top, inner, layers, _first_here(layers), norm, _plain_processor(top), quirks_of(top))


def _first_here(layers: nn.ModuleList) -> int:
    """Index of the first layer that this process's pipeline stage has."""
    from vllm.model_executor.models.utils import PPMissingLayer

    return next((i for i, layer in enumerate(layers) if not isinstance(layer, PPMissingLayer)), len(layers))


def logits_processor(top: nn.Module) -> Any:
    """The module that turns final states into logits: a ``LogitsProcessor``, or what LoRA has put around it."""
    return getattr(language_model(top), "logits_processor", None) or getattr(top, "logits_processor", None)


def _plain_processor(top: nn.Module) -> Any:
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    processor = logits_processor(top)
    if not isinstance(processor, LogitsProcessor) or processor.logits_as_input:
        raise refusal(top, "it has no LogitsProcessor that applies an output head")
    return processor
