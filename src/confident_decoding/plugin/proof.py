"""Proof at startup: an architecture runs only if its parts behave as the selection models them.

Three things are checked on the loaded instance, on two rows, without attention or a KV cache:

1. `prove_capture`: with every decoder layer replaced for a moment by known outputs, the inner model
   returns the streams that it was asked for, and its final state is ``norm(last stream)``. Models
   that hold partial sums between layers (tensor parallel with deferred reduction) fail here too.
2. `prove_passing`: with the inner model replaced for a moment by a known output, the top-level
   forward passes that on unchanged. Models that rescale after the norm fail here.
3. `prove_logits`: ``compute_logits`` is head, gather, trim, cap and scale. Models that norm, rescale
   or cap inside it fail here.
"""

from typing import Any

import torch
from torch import Tensor, nn

from confident_decoding.config import ConfigError, SelectionPlan
from confident_decoding.plugin import compat
from confident_decoding.plugin.head import SelectingHead, sampled_distribution

ROWS = 2
_FAILURES = (AttributeError, TypeError, ValueError, RuntimeError, AssertionError, KeyError, IndexError)


def refusal(model: nn.Module, why: str) -> ConfigError:
    """The error that names the architecture, the reason, the remedy and the versions."""
    return ConfigError(
        f"confident-decoding cannot run {type(model).__name__}: {why}. Serve it with "
        f"enable_multi_layer_entropy_selection=false. ({compat.versions()})"
    )


def _states(count: int, hidden: int, like: nn.Module, dtype: torch.dtype) -> list[Tensor]:
    """Random ``[2, H]`` tensors, equal on every rank."""
    generator = torch.Generator("cpu").manual_seed(0)
    device = next(like.parameters()).device
    return [torch.randn(ROWS, hidden, generator=generator).to(device, dtype) for _ in range(count)]


@torch.inference_mode()
def prove_capture(
    model: nn.Module, inner: nn.Module, norm: nn.Module, plan: SelectionPlan, *, hidden: int, dtype: torch.dtype
) -> None:
    """Run the inner forward over known layer outputs ``(x_i, residual_i)`` and check all it returns.

    Raises:
        ConfigError: A state is missing, late, early or not ``x + residual``; or the final state is
            not the norm of the last one.
    """
    layers: Any = inner.layers
    outputs, embeds = _states(2 * len(layers), hidden, model, dtype), _states(1, hidden, model, dtype)[0]
    streams = []
    for number, layer in enumerate(layers):
        x, residual = outputs[2 * number : 2 * number + 2]
        streams.append(x + residual)
        # Fresh copies: the fused norms of vLLM write to their arguments.
        layer.forward = lambda *_, pair=(x, residual), **__: (pair[0].clone(), pair[1].clone())
    try:
        # The class's forward, not a call: nothing is to be compiled yet.
        output = type(inner).forward(
            inner,
            input_ids=None,
            positions=torch.arange(ROWS, device=embeds.device),
            intermediate_tensors=None,
            inputs_embeds=embeds,
        )
        final, captured = output if isinstance(output, tuple) else (output, [])
        expected = [streams[plan.num_layers - d - 1] for d in reversed(plan.depths) if d]
        same = len(captured) == len(expected) and all(map(torch.equal, captured, expected))
        normed = norm(streams[-1].clone())
        rounding = 4 * torch.finfo(dtype).eps * normed.abs().max().item()
        proven = same and (final - normed).abs().max().item() <= rounding
    except _FAILURES as error:
        raise refusal(model, f"its inner model could not be run for the startup proof ({error!r})") from error
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)
    if not proven:
        raise refusal(
            model,
            "its inner model does not return each captured state as the residual stream entering that layer, or its "
            "final state is not its norm of the last one (as with partial sums between layers)",
        )


@torch.inference_mode()
def prove_passing(model: Any, inner: nn.Module, plan: SelectionPlan, *, hidden: int, dtype: torch.dtype) -> None:
    """Check that the top-level forward returns what the inner model returns.

    Raises:
        ConfigError: It does something to the states in between.
    """
    if inner is model:
        return
    known = _states(len(plan.depths), hidden, model, dtype)
    output: Any = (known[0], known[1:]) if len(known) > 1 else known[0]
    stock = type(inner)

    def stand_in(self: Any, *args: Any, **kwargs: Any) -> Any:
        return output

    inner.__class__ = type(stock.__name__, (stock,), {"forward": stand_in, "__call__": stand_in})
    try:
        device = known[0].device
        returned = model.forward(
            input_ids=torch.zeros(ROWS, dtype=torch.int64, device=device),
            positions=torch.arange(ROWS, device=device),
            intermediate_tensors=None,
            inputs_embeds=None,
        )
        final, captured = returned if isinstance(returned, tuple) else (returned, [])
        proven = torch.equal(final, known[0]) and len(captured) == len(known) - 1
        proven = proven and all(map(torch.equal, captured, known[1:]))
    except _FAILURES as error:
        raise refusal(model, f"its forward could not be run for the startup proof ({error!r})") from error
    finally:
        inner.__class__ = stock
    if not proven:
        raise refusal(model, "its forward changes the final state after the inner model has returned it")


class _Recorder:
    """Passes head calls on and remembers their arguments."""

    def __init__(self, head: SelectingHead) -> None:
        self.head = head
        self.calls: list[tuple[Any, Tensor | None]] = []

    def __call__(self, lm_head: Any, hidden_states: Tensor, embedding_bias: Tensor | None) -> Tensor:
        self.calls.append((lm_head, embedding_bias))
        return self.head(lm_head, hidden_states, embedding_bias)


@torch.inference_mode()
def prove_logits(model: Any, processor: Any, head: SelectingHead, *, hidden: int, dtype: torch.dtype) -> None:
    """Check that stock logits equal head, gather, trim, cap and scale, as we model them, to the bit.

    Raises:
        ConfigError: They differ, or the head is not called once with plain rows.
    """
    states = _states(1, hidden, model, dtype)[0]
    recorder = _Recorder(head)
    processor._apply_head = recorder
    proven = False
    try:
        expected = model.compute_logits(states)
        if len(recorder.calls) == 1 and head.stock_calls == 1:
            lm_head, bias = recorder.calls[0]
            modelled = head(lm_head, states, bias)
            if lm_head.tp_size > 1:
                from vllm.distributed import tensor_model_parallel_all_gather

                modelled = tensor_model_parallel_all_gather(modelled)
            modelled = sampled_distribution(processor, modelled[..., : processor.org_vocab_size])
            proven = expected is not None and expected.shape == modelled.shape and torch.equal(expected, modelled)
    except _FAILURES as error:
        raise refusal(model, f"its compute_logits could not be run for the startup proof ({error!r})") from error
    finally:
        processor._apply_head = head
    if not proven:
        raise refusal(
            model,
            "its compute_logits is not a plain output head (with soft cap and scale) on the normed final state, so "
            "the candidates' logits cannot be computed faithfully",
        )
