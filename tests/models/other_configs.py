"""Architectures that no list names (``OTHERS``), that cannot run (``REFUSED``), and that need a GPU (``SPARSE``)."""

from models.multimodal_configs import SMALL_VISION, TEXT_ONLY
from models.row import BASE, HEADS, LAYERS, MOE, UNTIED, row
from models.text_configs import DEEPSEEK_V3_ROUTING, GLM_DSA

OTHERS = {
    # Rescales after its norm, in the top-level forward.
    "MiniCPM3ForCausalLM": row(
        "MiniCPM3Config",
        {
            **BASE,
            "num_key_value_heads": 4,
            "q_lora_rank": 64,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
            "scale_emb": 2,
            "dim_model_base": 32,
        },
    ),
    # Multiplies and caps the logits outside the LogitsProcessor.
    "MuseGlimmerForConditionalGeneration": row(
        "MuseGlimmerConfig",
        {
            "text_config": {
                **HEADS,
                "final_logit_softcapping": 3.0,
                "output_multiplier": 0.7,
                "sliding_window": 16,
            },
            "vision_config": {**SMALL_VISION, "pos_emb_height": 4, "pos_emb_width": 4, "output_dim": 256},
        },
        options=TEXT_ONLY,
    ),
    # Layers that return one tensor; logits divided by a constant.
    "GraniteForCausalLM": row(
        "GraniteConfig",
        {**UNTIED, "logits_scaling": 2.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5},
    ),
    # A norm that returns a tuple, parallel attention and experts, logits scaled.
    "Cohere2MoeForCausalLM": row(
        "Cohere2MoeConfig",
        # Full attention only: on sliding layers stock vLLM and transformers differ already.
        {**BASE, "head_dim": 32, **MOE, "logit_scale": 0.25, "layer_types": ["full_attention"] * LAYERS},
    ),
    # A top-level class that is compiled as a whole.
    "Ernie4_5ForCausalLM": row("Ernie4_5Config", HEADS),
    "Phi3ForCausalLM": row("Phi3Config", {**UNTIED}),
}


def _named_routing(tensors, config):
    """The routing that transformers' GLM-5 always has, by the names that vLLM reads."""
    config.update(DEEPSEEK_V3_ROUTING)
    return tensors


def _with_indexers(tensors, config):
    """DeepSeek-V3 with the indexers of V3.2: they choose every token while the context is at most index_topk."""
    import torch

    heads, width, rank, hidden = 64, 128, config["q_lora_rank"], config["hidden_size"]
    config.update(
        architectures=["DeepseekV32ForCausalLM"],
        model_type="deepseek_v32",
        index_topk=2048,
        index_n_heads=heads,
        index_head_dim=width,
    )
    generator = torch.Generator().manual_seed(1)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}.self_attn.indexer."
        for name, shape in {
            "wq_b.weight": (heads * width, rank),
            "wk.weight": (width, hidden),
            "weights_proj.weight": (heads, hidden),
        }.items():
            tensors[at + name] = torch.randn(shape, generator=generator) * 0.04
        tensors |= {at + "k_norm.weight": torch.ones(width), at + "k_norm.bias": torch.zeros(width)}
    return tensors


# Real sparse attention, in the sizes that its GPU kernels take.
_SPARSE = {
    **GLM_DSA,
    "hidden_size": 1024,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1024,
    "index_topk": 2048,
    "index_n_heads": 64,
    "moe_intermediate_size": 256,
    "n_routed_experts": 8,
    "max_position_embeddings": 4096,
    "initializer_range": 0.04,
}
SPARSE = {
    "DeepseekV32ForCausalLM": row(
        "DeepseekV3Config",
        {**{k: v for k, v in _SPARSE.items() if not k.startswith(("index", "mlp_layer"))}, **DEEPSEEK_V3_ROUTING},
        architecture="DeepseekV3ForCausalLM",
        for_vllm=_with_indexers,
        dtype="bfloat16",
    ),
    "GlmMoeDsaForCausalLM-sparse": row("GlmMoeDsaConfig", _SPARSE, for_vllm=_named_routing, dtype="bfloat16"),
}

# No capture in vLLM, and none here.
REFUSED = {
    "GPT2LMHeadModel": row(
        "GPT2Config",
        {
            "vocab_size": BASE["vocab_size"],
            "n_embd": 128,
            "n_layer": LAYERS,
            "n_head": 4,
            "n_positions": 512,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
}
