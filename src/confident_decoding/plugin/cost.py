"""What the packed rows cost, in bytes and in the unit that operators plan with: KV-cache tokens."""

import logging
from typing import Any

logger = logging.getLogger("vllm.confident_decoding")


def packed_bytes(states: int, tokens: int, hidden: int, itemsize: int) -> int:
    """Bytes by which packed rows ``[tokens, states*hidden]`` are larger than the final states alone.

    Args:
        states: n, captured depths, the final one included.
        tokens: Of the step, at most ``max_num_batched_tokens``.
        hidden: H.
        itemsize: Bytes of an element.

    Example:
        >>> packed_bytes(10, 8192, 4096, 2) // 2**20
        576
    """
    return (states - 1) * tokens * hidden * itemsize


def kv_bytes_per_token(vllm_config: Any) -> int:
    """Bytes that one token takes in this rank's KV cache, all layers; 0 if vLLM does not say.

    Asks each attention layer for its cache specification, as the model runner does
    (``v1/worker/gpu_model_runner.py``, ``get_kv_cache_spec``); layers with a constant-size state
    (Mamba, gated delta nets) have no cost per token.
    """
    try:
        from vllm.v1.kv_cache_interface import AttentionSpec
    except ImportError:
        return 0
    total = 0
    for layer in vllm_config.compilation_config.static_forward_context.values():
        get_spec = getattr(layer, "get_kv_cache_spec", None)
        if get_spec is None or getattr(layer, "kv_sharing_target_layer_name", None):
            continue
        try:
            spec = get_spec(vllm_config)
        except Exception:  # some layers cannot tell before the cache is planned; a log line is all that depends on it
            logger.debug("KV-cache specification of %s not available yet", type(layer).__name__, exc_info=True)
            return 0
        if isinstance(spec, AttentionSpec):
            total += spec.page_size_bytes // spec.block_size
    return total
