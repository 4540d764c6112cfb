"""The vocabulary of one rank's output head, and the statistics of logits over all ranks'."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from confident_decoding.kernels import operations
from confident_decoding.kernels.twins import sampled_distribution

AfterLogits = Callable[[Tensor, int], Tensor]


def valid_columns(processor: Any, lm_head: Any) -> int:
    """Local columns that are ids of the true vocabulary: padding never enters an entropy."""
    shard = lm_head.shard_indices
    end = min(shard.org_vocab_end_index, processor.org_vocab_size)
    return max(0, end - shard.org_vocab_start_index)


def finished(processor: Any, lm_head: Any, logits: Tensor, after_logits: AfterLogits | None = None) -> Tensor:
    """The distribution that sampling starts from, of local logits ``[m, V/tp]``: its columns of the true vocabulary."""
    logits = sampled_distribution(logits[:, : valid_columns(processor, lm_head)], processor.soft_cap, processor.scale)
    return logits if after_logits is None else after_logits(logits, lm_head.shard_indices.org_vocab_start_index)


def statistics(
    processor: Any,
    lm_head: Any,
    logits: Tensor,
    count: Tensor | None = None,
    after_logits: AfterLogits | None = None,
    top_ids: bool = False,
) -> Tensor:
    """Statistics of local logits ``[m, V/tp]``; ``[tp, m, 3]``, from all ranks, where there are several.

    With ``top_ids`` there is a fourth number, an id among those of all ranks.
    """
    first_id = lm_head.shard_indices.org_vocab_start_index
    if after_logits is None:
        logits, cap, scale = logits[:, : valid_columns(processor, lm_head)], processor.soft_cap, processor.scale
    else:
        logits, cap, scale = finished(processor, lm_head, logits, after_logits), None, 1.0
    kernels = operations(logits.device)
    parts = kernels.statistics(logits, count, cap, scale, first_id if top_ids else None)
    if lm_head.tp_size == 1:
        return parts
    from vllm.distributed import tensor_model_parallel_all_gather

    return tensor_model_parallel_all_gather(kernels.merge(parts, count), dim=0)


def plain_weight(processor: Any, lm_head: Any, dtype: torch.dtype, bias: Tensor | None) -> Tensor | None:
    """``[V/tp, H]`` if the head is that matrix in ``dtype`` and nothing else, else None.

    A quantised head, another ``head_dtype`` or a bias stay with the model's own method.
    """
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.logits_processor import LogitsProcessor
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    weight = getattr(lm_head, "weight", None)
    plain = (
        type(processor)._apply_head is LogitsProcessor._apply_head
        and type(lm_head.quant_method) in (UnquantizedEmbeddingMethod, UnquantizedLinearMethod)
        and getattr(processor, "head_dtype", None) in (None, dtype)
        and bias is None
        and isinstance(weight, Tensor)
        and weight.ndim == 2
        and weight.dtype == dtype
        and weight.is_contiguous()
    )
    return weight.data if plain and weight is not None else None
