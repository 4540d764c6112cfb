"""One ``generate`` call: transformers' own decoding loop over a steered model."""

import sys
import threading
import weakref
from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor, nn

from confident_decoding.hf.own_head import Project
from confident_decoding.hf.parts import UnsupportedModelError, find_parts
from confident_decoding.hf.steer import Steering, Step

_SUPPORTED_MODES = ("greedy_search", "sample")
_steered: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()
_lock = threading.Lock()


def decode(
    model: Any,
    input_ids: Tensor,
    *,
    generation_config: Any,
    choose: Callable[[Step], Tensor],
    wanted: Collection[int],
    final_norm: nn.Module | str | None,
    output_head: Project | None,
    streamer: Any = None,
    **arguments: Any,
) -> Any:
    """Generate with the logits that ``choose`` gives.

    Args:
        model: The model that ``generate`` was called on.
        input_ids: ``[B, T]`` prompt.
        generation_config: As ``generate`` prepared it (a copy of the user's); `check_call` has passed it.
        choose: Logits ``[B, V]`` of a step.
        wanted: Numbers of the layers whose entering streams it reads.
        final_norm: See `find_parts`.
        output_head: See `Steering`.
        streamer: Where tokens go as they come.
        arguments: All else that ``generate`` hands to a decoding loop.

    Raises:
        UnsupportedModelError: The model does not show its parts, or the proof failed.
        RuntimeError: Another thread is generating with this model by way of this package.
    """
    parts = find_parts(model, final_norm)
    with _lock:
        if model in _steered:
            raise RuntimeError(
                "confident-decoding: this model is already generating with a custom_generate of this package, in "
                "another thread or further up in this one. Generate one batch after the other, or copy the model."
            )
        _steered.add(model)
    # For a static cache on a GPU, transformers compiles the step: minutes, and each hook would cut its graph.
    generation_config.disable_compile = True
    steering = None
    try:
        chunks = _chunks_before_last(input_ids, generation_config)
        steering = Steering(model, parts, wanted, choose, output_head=output_head, pass_over=chunks)
        for name in ("logits_processor", "stopping_criteria"):
            if arguments.get(name) is not None:
                arguments[name] = steering.resting(arguments[name])
        return sample(model, input_ids, generation_config=generation_config, streamer=streamer, **arguments)
    finally:
        if steering is not None:
            steering.close()
        _steered.discard(model)


def sample(model: Any, input_ids: Tensor, *, streamer: Any = None, **arguments: Any) -> Any:
    """transformers' greedy and sampling loop."""
    given = {"streamer": streamer if streamer is not None else _given_to_generate(model).get("streamer")}
    return model._sample(input_ids, **given, **arguments)


def check_call(model: Any, generation_config: Any, output_depths: bool) -> None:
    """Refuse, by name, what is neither greedy decoding nor sampling of a decoder-only model.

    Raises:
        UnsupportedModelError: An encoder-decoder model.
        ValueError: A generation mode; or depths are asked for, and the result has no place for them.
    """
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise UnsupportedModelError(
            f"confident-decoding: {name} is an encoder-decoder model; only decoders are supported."
        )
    assistant = _given_to_generate(model).get("assistant_model")
    mode = generation_config.get_generation_mode(assistant).value
    if mode not in _SUPPORTED_MODES:
        raise ValueError(
            f"confident-decoding: generation mode {mode!r} is not supported with custom_generate; only greedy decoding "
            "and sampling are (num_beams=1, no assistant model, no prompt lookup, no penalty_alpha, no dola_layers)."
        )
    if generation_config.guidance_scale not in (None, 1):
        raise ValueError(
            "confident-decoding: guidance_scale (classifier-free guidance) is not supported with custom_generate: it "
            "runs the model a second time, and which layers to select there is not defined."
        )
    if output_depths and not generation_config.return_dict_in_generate:
        raise ValueError("confident-decoding: output_depths=True needs return_dict_in_generate=True.")


def _given_to_generate(model: Any) -> dict[str, Any]:
    """Arguments of the ``generate`` call that led here.

    transformers (5.16 to 5.19) hands neither ``streamer`` nor ``assistant_model`` to a callable: without this, one
    would wait for ever and the other be ignored in silence.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "generate" and "streamer" in frame.f_locals and frame.f_locals.get("self") is model:
            return frame.f_locals
    return {}


def _chunks_before_last(input_ids: Tensor, generation_config: Any) -> int:
    size = generation_config.prefill_chunk_size
    return max(0, input_ids.shape[1] - 1) // size if size else 0
