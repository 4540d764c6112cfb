"""Inner models that vLLM runs without a capture of their own get one here.

Four inner models have no aux-hidden-state capture. Their forwards are one and the same loop: embed,
every layer, norm. A loop of our own writing adds the capture; it stands in for the class's forward,
and only for instances that capture something. It is put there before the model is built, because
vLLM's compile wrapper binds ``self.forward`` when it constructs one (``compilation/wrapper.py``).
"""

import functools
import hashlib
import inspect
import io
import textwrap
import tokenize
from itertools import islice
from types import ModuleType
from typing import Any

from torch import Tensor

from confident_decoding.config import ConfigError
from confident_decoding.plugin import borrowed
from confident_decoding.plugin.import_hooks import PostImportHooks

WITHOUT_CAPTURE = {
    "vllm.model_executor.models.mixtral": "MixtralModel",
    "vllm.model_executor.models.qwen2_moe": "Qwen2MoeModel",
    "vllm.model_executor.models.gemma2": "Gemma2Model",
    "vllm.model_executor.models.gemma3": "Gemma3Model",
}
"""Module to class."""

KNOWN_FORWARDS = {
    "MixtralModel": frozenset({"a0ce1b6a61398e20"}),
    "Qwen2MoeModel": frozenset({"e8b201d89d5fc751"}),
    "Gemma2Model": frozenset({"a0ce1b6a61398e20"}),
    "Gemma3Model": frozenset({"24816f4074e9cbc9", "c4ad5b0f96a90164"}),
}
"""`source_hash` of each class's forward in the supported releases; an unknown one is refused."""

_hooks: PostImportHooks | None = None


def add_missing_captures() -> None:
    """Give the four classes a capture as their modules are imported; call it before a model is built.

    Idempotent, and undone when the last model of ours is gone (`borrowed`). A class whose forward is not one that we
    know is left as it is, so that the check for capture then refuses the model by name (`capture.capturing_module`).
    """
    global _hooks  # noqa: PLW0603 (once per process)
    if _hooks is None:
        _hooks = PostImportHooks()
        borrowed.on_return(_forget)
        for module in WITHOUT_CAPTURE:
            _hooks.on_import(module, _add_capture)


def _forget() -> None:
    global _hooks  # noqa: PLW0603
    if _hooks is not None:
        _hooks.remove()
    _hooks = None


def _add_capture(module: ModuleType) -> None:
    cls: Any = getattr(module, WITHOUT_CAPTURE[module.__name__], None)
    if cls is None or hasattr(cls, "aux_hidden_state_layers"):
        return  # a vLLM that has its own capture by now
    if source_hash(cls.forward) not in KNOWN_FORWARDS[cls.__name__]:
        return
    borrowed.put(cls, "aux_hidden_state_layers", ())
    borrowed.put(cls, "forward", capturing_forward(cls.forward))


def capturing_forward(stock: Any) -> Any:
    """A forward that returns ``(final [T, H], [state [T, H], ...])`` where something is captured."""

    @functools.wraps(stock)
    def forward(
        self: Any,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **layer_arguments: Any,
    ) -> Any:
        wanted = self.aux_hidden_state_layers
        if not wanted:
            return stock(self, input_ids, positions, intermediate_tensors, inputs_embeds, **layer_arguments)
        if intermediate_tensors is not None:  # on the last pipeline stage: only there something is captured
            stream, residual = intermediate_tensors["hidden_states"], intermediate_tensors["residual"]
        else:
            stream, residual = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds, None
        captured = []
        stage = islice(self.layers, self.start_layer, self.end_layer)
        for index, layer in enumerate(stage, start=self.start_layer + 1):
            stream, residual = layer(positions, stream, residual, **layer_arguments)
            if index in wanted:
                captured.append(stream + residual)
        return self.norm(stream, residual)[0], captured

    return forward


def source_hash(function: Any) -> str:
    """Hash of a function's tokens: layout and comments do not matter, and Python's version does not.

    Raises:
        ConfigError: Its source cannot be read.
    """
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except OSError as error:
        raise ConfigError(f"confident-decoding cannot read the source of {function.__qualname__}") from error
    return hash_tokens(source)


def hash_tokens(source: str) -> str:
    """`source_hash` of text."""
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = [t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type not in layout]
    # A trailing comma before a closing bracket is layout too.
    kept = [t for t, after in zip(tokens, [*tokens[1:], ""], strict=True) if not (t == "," and after in ")]}")]
    return hashlib.sha256(" ".join(kept).encode()).hexdigest()[:16]
