"""DoLa (Chuang et al., arXiv 2309.03883), to compare Confident Decoding with, under the same interface.

The next token comes from the contrast of the final layer's distribution q_N with that of a *premature*
layer q_M, both read through the model's output head::

    M     = argmax over candidate layers j of JSD(q_N || q_j)
    V_t   = {x : q_N(x) >= relative_top * max q_N}
    F(x)  = log q_N(x) - log q_M(x) on V_t, -inf elsewhere

and the distribution is ``softmax(F)``. Layer j is the residual stream after j decoder layers; layer 0 is
the embedding.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from confident_decoding.hf.drive import check_call, decode
from confident_decoding.hf.own_head import Project
from confident_decoding.hf.parts import num_layers
from confident_decoding.hf.steer import Step

_BUCKET = 20


def dola_generate(
    model: Any,
    input_ids: Tensor,
    *,
    generation_config: Any,
    dola_layers: str | Sequence[int] = "high",
    relative_top: float = 0.1,
    norm_premature: bool = False,
    output_depths: bool = False,
    final_norm: nn.Module | str | None = None,
    output_head: Project | None = None,
    **arguments: Any,
) -> Any:
    """Decode with DoLa; pass it to ``model.generate`` as ``custom_generate``.

    Args:
        model: Any decoder with a language modelling head.
        input_ids: ``[B, T]``, from ``generate``.
        generation_config: From ``generate``.
        dola_layers: Candidate premature layers: ``"low"`` or ``"high"`` (`candidate_layers`), or their numbers.
        relative_top: Share of the top probability below which the final layer rules a token out.
        norm_premature: Apply the final norm to premature states. The published code applies the head alone.
        output_depths: Add ``premature_depths`` to the result: per generated token a tensor ``[B]`` int64, N - M.
            Needs ``return_dict_in_generate=True``.
        final_norm: As for `generate`.
        output_head: As for `generate`.
        arguments: All else that ``generate`` hands to a decoding loop.

    Returns:
        As ``model.generate`` without ``custom_generate``.

    Raises:
        ValueError: Layers, ``relative_top`` or the generation mode cannot be used, or depths are asked for without
            ``return_dict_in_generate=True``.
        UnsupportedModelError: The model does not show its final norm or its head.
        RuntimeError: The model is already generating with a ``custom_generate`` of this package.
    """
    check_call(model, generation_config, output_depths)
    if not isinstance(relative_top, int | float) or not 0 <= relative_top <= 1:
        raise ValueError(f"confident-decoding: relative_top={relative_top!r} is not a number from 0 to 1.")
    n = num_layers(model)
    layers = candidate_layers(dola_layers, n, _tied(model))
    depths: list[Tensor] = []

    def choose(step: Step) -> Tensor:
        states = torch.cat([step.streams[layer] for layer in layers])
        early = step.project(step.norm(states) if norm_premature else states).view(len(layers), *step.logits.shape)
        logits, chosen = contrast(step.logits, early, relative_top)
        depths.append(n - torch.tensor(layers, device=chosen.device)[chosen])
        return logits

    result = decode(
        model,
        input_ids,
        generation_config=generation_config,
        choose=choose,
        wanted=layers,
        final_norm=final_norm,
        output_head=output_head,
        **arguments,
    )
    if output_depths:
        result["premature_depths"] = tuple(depths)[: result.sequences.shape[1] - input_ids.shape[1]]
    return result


def _tied(model: Any) -> bool:
    """Whether the output head is the embedding (configurations of image-text models say so in different places)."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    weight = getattr(head, "weight", None)
    return weight is not None and weight is getattr(embedding, "weight", None)


def candidate_layers(dola_layers: str | Sequence[int], n: int, tied: bool) -> tuple[int, ...]:
    """Candidates of a model of ``n`` layers: every other layer of the paper's lowest or highest bucket.

    The buckets are halves of a model of up to 40 layers, and 20 layers in a deeper one. With ``tied``
    embeddings the first two are left out: the embedding's own prediction is its input token.

    Raises:
        ValueError: No such layers.

    Example:
        >>> candidate_layers("low", 32, tied=False)
        (0, 2, 4, 6, 8, 10, 12, 14)
        >>> candidate_layers("high", 60, tied=False)
        (40, 42, 44, 46, 48, 50, 52, 54, 56, 58)
    """
    half = n // 2 if n <= 2 * _BUCKET else _BUCKET
    if isinstance(dola_layers, str):
        buckets = {"low": range(half), "high": range(n - half if n > 2 * _BUCKET else half, n)}
        found = [j for j in buckets.get(dola_layers, ()) if j % 2 == 0 and (j >= 2 or not tied)]
    else:
        numbers: Sequence[Any] = dola_layers if isinstance(dola_layers, Sequence) else ()
        found = sorted(set(numbers)) if all(isinstance(j, int) and 0 <= j < n for j in numbers) else []
    if not found:
        raise ValueError(
            f"confident-decoding: dola_layers={dola_layers!r} names no usable candidates in a model of {n} layers. "
            f"Valid: 'low', 'high', or layer numbers from 0 (the embedding) to {n - 1}."
        )
    return tuple(found)


def contrast(final: Tensor, early: Tensor, relative_top: float) -> tuple[Tensor, Tensor]:
    """DoLa's logits and which candidate was contrasted.

    Args:
        final: ``[B, V]`` logits of the final layer.
        early: ``[k, B, V]`` logits of the candidates.
        relative_top: Plausibility threshold, as a share of the top probability.

    Returns:
        ``[B, V]`` fp32 logits, -inf for implausible tokens, and ``[B]`` int64 indices into the candidates.
    """
    q_final, q_early = final.float().log_softmax(-1), early.float().log_softmax(-1)
    chosen = js_divergence(q_final, q_early).argmax(0)
    q_chosen = q_early[chosen, torch.arange(len(final), device=final.device)]
    floor = q_final.amax(-1, keepdim=True) + (math.log(relative_top) if relative_top > 0 else -math.inf)
    plausible = (q_final >= floor) & (q_final > -math.inf)
    return torch.where(plausible, q_final - q_chosen, -math.inf), chosen


def js_divergence(final: Tensor, early: Tensor) -> Tensor:
    """Jensen-Shannon divergences ``[k, B]`` in nats of log-probabilities ``[B, V]`` and ``[k, B, V]``."""
    middle = torch.logaddexp(early, final) - math.log(2)
    return (_kl(final, middle) + _kl(early, middle)) / 2


def _kl(p: Tensor, q: Tensor) -> Tensor:
    # A token of probability 0 contributes 0; as logarithms it would be -inf - -inf.
    return torch.where(p > -math.inf, p.exp() * (p - q), 0).sum(-1)
