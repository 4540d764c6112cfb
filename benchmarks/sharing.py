"""Engines that share one GPU: what each may take of it."""

BLOCK = 16
"""Tokens of a block of the KV cache."""


def options(model, *, engines, tokens, batches, dtype="bfloat16", tensor_parallel_size=1):
    """Options with which so many engines fit, CUDA graphs for what is asked among them; none without a GPU.

    Args:
        model: Checkpoint folder.
        engines: How many there are.
        tokens: That an engine holds at once.
        batches: Sizes that are asked for.
        dtype: Of the KV cache.
        tensor_parallel_size: GPUs of an engine.
    """
    import torch
    from transformers import AutoConfig

    if not torch.cuda.is_available():
        return {}
    config = AutoConfig.from_pretrained(model).get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    a_token = 2 * config.num_hidden_layers * heads * size * getattr(torch, dtype).itemsize
    usual = {2**k for k in range(max(batches).bit_length())}
    return {
        "gpu_memory_utilization": round(0.9 / engines, 3),
        # Told, since they start at once and cannot tell what is whose; and a tenth more.
        "kv_cache_memory_bytes": max(1_000_000_000, int(1.1 * a_token * tokens) // tensor_parallel_size),
        "compilation_config": {"cudagraph_capture_sizes": sorted({*usual, *batches})},
    }
