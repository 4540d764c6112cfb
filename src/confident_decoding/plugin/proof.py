"""Proof at startup: an architecture runs only if its parts behave as the selection models them.

Three things are checked on the loaded instance, on three rows, without attention or a KV cache:

1. `prove_capture`: with every decoder layer replaced for a moment by known outputs, the inner model
   returns the streams that it was asked for, and its final state is ``norm(last stream)``. Models
   that hold partial sums between layers (tensor parallel with deferred reduction) fail here too.
2. `prove_passing`: with the inner model replaced for a moment by a known output, the top-level
   forward passes that on unchanged. Models that rescale after the norm fail here.
3. `prove_logits`: ``compute_logits`` is head, gather, trim, cap and scale. Models that norm, rescale
   or cap inside it fail here.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from confident_decoding.config import SelectionPlan
from confident_decoding.kernels.twins import sampled_distribution
from confident_decoding.plugin.anatomy import Anatomy, refusal
from confident_decoding.plugin.head import SelectingHead
from confident_decoding.plugin.reduced_streams import reduced

ROWS = 3  # not 2: unpacking a tensor of two rows as a pair would not fail
_FAILURES = (AttributeError, TypeError, ValueError, RuntimeError, AssertionError, KeyError, IndexError)

LAYER_OUTPUTS: tuple[tuple[Callable[[Tensor, Tensor], Any], Callable[[Tensor, Tensor], Tensor]], ...] = (
    (lambda x, residual: (x, residual), lambda x, residual: x + residual),
    (lambda x, residual: (x, None), lambda x, residual: x),
    (lambda x, residual: (x, residual, None), lambda x, residual: x + residual),
    (lambda x, residual: x, lambda x, residual: x),
)
"""What a decoder layer may return, made of two tensors, and the residual stream that it means."""


def _states(count: int, hidden: int, like: nn.Module, dtype: torch.dtype) -> list[Tensor]:
    """Random ``[3, H]`` tensors, equal on every rank."""
    generator = torch.Generator("cpu").manual_seed(0)
    device = next(like.parameters()).device
    return [torch.randn(ROWS, hidden, generator=generator).to(device, dtype) for _ in range(count)]


@torch.inference_mode()
def prove_capture(parts: Anatomy, indices: tuple[int, ...], *, hidden: int, dtype: torch.dtype) -> None:
    """Run the inner forward over known layer outputs and check all it returns.

    Args:
        parts: Of the model.
        indices: What it captures, ascending. Index 0, which only drafters ask for, is what enters the first layer.
        hidden: H.
        dtype: Of its states.

    Raises:
        ConfigError: A state is missing, late, early or not the residual stream; or the final state is
            not the norm of the last one.
    """
    failure: Exception | None = None
    for returned, meant in LAYER_OUTPUTS:
        try:
            if _captures_streams(parts, indices, returned, meant, hidden=hidden, dtype=dtype):
                return
        except _FAILURES as error:
            failure = failure or error
    raise refusal(
        parts.top,
        "its inner model does not return each captured state as the residual stream entering that layer, or its "
        "final state is not its norm of the last one" + (f" (first error: {failure!r})" if failure else ""),
    ) from failure


def _captures_streams(
    parts: Anatomy,
    indices: tuple[int, ...],
    returned: Callable[[Tensor, Tensor], Any],
    meant: Callable[[Tensor, Tensor], Tensor],
    *,
    hidden: int,
    dtype: torch.dtype,
) -> bool:
    here = parts.layers[parts.first :]
    made = _states(2 * len(here) + 1, hidden, parts.top, dtype)
    embeds, streams = made.pop(), {}
    # Weight offloading replaces `forward` on the layer instances (vllm/model_executor/offloader).
    own = [layer.__dict__.get("forward") for layer in here]
    for index, (layer, x, residual) in enumerate(zip(here, made[::2], made[1::2], strict=True), parts.first + 1):
        streams[index] = meant(reduced(parts, x), residual)
        # Fresh copies: the fused norms of vLLM write to their arguments.
        layer.forward = lambda *_, x=x, r=residual, **__: returned(x.clone(), r.clone())
    try:
        # The class's forward, not a call: nothing is to be compiled yet.
        output = type(parts.inner).forward(
            parts.inner,
            input_ids=None,
            positions=torch.arange(ROWS, device=embeds.device),
            **_entering(parts, embeds),
        )
    finally:
        for layer, forward in zip(here, own, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward
    final, captured = output if isinstance(output, tuple) else (output, [])
    # What enters the first layer may be the embeddings times something.
    pairs = [(state, streams[i]) for i, state in zip(indices, captured, strict=False) if i]
    normed = parts.normed(streams[len(parts.layers)].clone())
    rounding = 2 * torch.finfo(dtype).eps * normed.float().norm().item()
    return (
        len(captured) == len(indices)
        and all(torch.equal(state, stream) for state, stream in pairs)
        and final.shape == normed.shape
        and (final.float() - normed.float()).norm().item() <= rounding
    )


def _entering(parts: Anatomy, embeds: Tensor) -> dict[str, Any]:
    """What the inner forward gets to start from: embeddings, or what the stage before sends."""
    if parts.first == 0:
        return {"intermediate_tensors": None, "inputs_embeds": embeds}
    top: Any = parts.top
    sent = top.make_empty_intermediate_tensors(len(embeds), embeds.dtype, embeds.device)
    for name, tensor in sent.tensors.items():
        sent.tensors[name] = embeds.clone() if tensor.shape == embeds.shape else torch.zeros_like(tensor)
    return {"intermediate_tensors": sent, "inputs_embeds": None}


@torch.inference_mode()
def prove_passing(parts: Anatomy, plan: SelectionPlan, vllm_config: Any, *, hidden: int, dtype: torch.dtype) -> None:
    """Check that the top-level forward returns what the inner model returns, but for the known quirk.

    Raises:
        ConfigError: It does something else to the states in between.
    """
    from vllm.forward_context import set_forward_context

    model: Any = parts.top
    inner = parts.inner
    if inner is model:
        return
    known = _states(len(plan.depths), hidden, model, dtype)
    expected = parts.quirks.after_norm(model, known[0].clone()) if parts.quirks.after_norm else known[0]
    output: Any = (known[0].clone(), known[1:]) if len(known) > 1 else known[0].clone()
    stock = type(inner)

    def stand_in(self: Any, *args: Any, **kwargs: Any) -> Any:
        return output

    inner.__class__ = type(stock.__name__, (stock,), {"forward": stand_in, "__call__": stand_in})
    try:
        device = known[0].device
        with set_forward_context(None, vllm_config):  # some wrappers ask for it
            returned = model.forward(
                input_ids=torch.zeros(ROWS, dtype=torch.int64, device=device),
                positions=torch.arange(ROWS, device=device),
                intermediate_tensors=None,
                inputs_embeds=None,
            )
        final, captured = returned if isinstance(returned, tuple) else (returned, [])
        proven = torch.equal(final, expected) and len(captured) == len(known) - 1
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
def prove_logits(parts: Anatomy, head: SelectingHead, *, hidden: int, dtype: torch.dtype) -> None:
    """Check that stock logits equal head, gather, trim, cap, scale and the known quirk, to the bit.

    Raises:
        ConfigError: They differ, or the head is not called once with plain rows.
    """
    model: Any = parts.top
    processor = parts.processor
    states = _states(1, hidden, model, dtype)[0]
    recorder = _Recorder(head)
    before = set(vars(model))
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
            modelled = sampled_distribution(
                modelled[..., : processor.org_vocab_size], processor.soft_cap, processor.scale
            )
            found = [modelled]
            if parts.after_logits is not None:
                slices, first = modelled.chunk(3, dim=1), 0  # as ranks have them
                apart = []
                for part in slices:
                    apart.append(parts.after_logits(part.contiguous(), first))
                    first += part.shape[1]
                found = [parts.after_logits(modelled, 0), torch.cat(apart, dim=1)]
            proven = expected is not None and all(torch.equal(expected, logits) for logits in found)
    except _FAILURES as error:
        raise refusal(model, f"its compute_logits could not be run for the startup proof ({error!r})") from error
    finally:
        processor._apply_head = head
        # What compute_logits caches on its first call would lie in the pool that sleep level 2 discards.
        for name in set(vars(model)) - before:
            delattr(model, name)
    if not proven:
        raise refusal(
            model,
            "its compute_logits is not a plain output head (with soft cap and scale) on the normed final state, so "
            "the candidates' logits cannot be computed faithfully",
        )
