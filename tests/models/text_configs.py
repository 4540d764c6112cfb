"""The text architectures that we promise."""

from models.row import BASE, HEADS, LAYERS, MOE, SLIDING_AND_FULL, UNTIED, VOCAB, mrope, row

# Gemma: normalised embeddings, attention and final soft caps, tied head, sliding and full attention in turn.
GEMMA = {
    **BASE,
    "tie_word_embeddings": True,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 16,
    "final_logit_softcapping": 3.0,
}
GEMMA3 = {**GEMMA, "layer_types": SLIDING_AND_FULL}
GEMMA4 = {
    **BASE,
    "tie_word_embeddings": True,
    "head_dim": 32,
    "global_head_dim": 64,
    "sliding_window": 16,
    "final_logit_softcapping": 3.0,
    "layer_types": SLIDING_AND_FULL,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": VOCAB,
}
LLAMA4 = {
    **HEADS,
    "intermediate_size": 64,
    "intermediate_size_mlp": 256,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 128,  # a multiple of the KV block size
}
GPT_OSS = {
    **HEADS,
    "intermediate_size": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
    "layer_types": SLIDING_AND_FULL,
}

# DeepSeek: latent attention (head size 576 is the one that the CPU backend has), a dense first layer, then experts.
DEEPSEEK = {
    **UNTIED,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 64,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
DEEPSEEK_V2 = {**DEEPSEEK, "q_lora_rank": None, "topk_method": "greedy"}
DEEPSEEK_V3_ROUTING = {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
DEEPSEEK_V3 = {**DEEPSEEK, "q_lora_rank": 64, **DEEPSEEK_V3_ROUTING}
YARN = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 256,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "beta_fast": 32,
        "beta_slow": 1,
    }
}
GLM_DSA = {
    **DEEPSEEK,
    "q_lora_rank": 64,
    "rms_norm_eps": 1e-6,
    "index_topk": 64,
    "index_head_dim": 128,
    "index_n_heads": 4,
    "mlp_layer_types": ["dense"] + ["sparse"] * (LAYERS - 1),
}
# The reference backend has float32; where the processor has AMX, vLLM prefers one that has not.
CPU_MLA = {"attention_backend": "CPU_MLA", "block_size": 16}
# vLLM's compiled rotary embedding for the CPU is wrong for DeepSeek's 3-D queries under plain RoPE.
NO_CPU_ROPE = {"compilation_config": {"custom_ops": ["all", "-rotary_embedding"]}}

# Gated delta nets and full attention in turn.
GATED_DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"] * (LAYERS // 2),
}

QWEN3_5 = {**HEADS, **GATED_DELTA, **mrope([2, 1, 1], mrope_interleaved=True, partial_rotary_factor=0.25)}
QWEN3_5_MOE = {
    **{key: value for key, value in QWEN3_5.items() if key != "intermediate_size"},
    **MOE,
    "shared_expert_intermediate_size": 64,
}


def _dense_glm(tensors, config):
    """GLM-5 as dense latent attention under its own class: equal while the context is at most index_topk."""
    for key in [key for key in config if key.startswith("index") or key in ("layer_types", "mlp_layer_types")]:
        del config[key]
    config.update(model_type="deepseek_v3", topk_method="noaux_tc", scoring_func="sigmoid")
    return {name: tensor for name, tensor in tensors.items() if "indexer" not in name}


TEXT = {
    "LlamaForCausalLM": row("LlamaConfig", HEADS),
    "LlamaForCausalLM-tied": row("LlamaConfig", {**HEADS, "tie_word_embeddings": True}),
    "LlamaForCausalLM-oddvocab": row("LlamaConfig", {**HEADS, "vocab_size": 500}),
    "Llama4ForCausalLM": row("Llama4TextConfig", LLAMA4),
    "MistralForCausalLM": row("MistralConfig", {**HEADS, "sliding_window": None}),
    "MixtralForCausalLM": row(
        "MixtralConfig", {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
    ),
    "Qwen2ForCausalLM": row("Qwen2Config", UNTIED),
    "Qwen3ForCausalLM": row("Qwen3Config", HEADS),
    "Qwen2MoeForCausalLM": row("Qwen2MoeConfig", {**UNTIED, **MOE, "shared_expert_intermediate_size": 64}),
    "Qwen3MoeForCausalLM": row("Qwen3MoeConfig", {**HEADS, **MOE}),
    "Qwen3NextForCausalLM": row(
        "Qwen3NextConfig",
        {**HEADS, **MOE, **GATED_DELTA, "shared_expert_intermediate_size": 64},
        dtype="bfloat16",
    ),
    "Qwen3_5ForCausalLM": row("Qwen3_5TextConfig", QWEN3_5, dtype="bfloat16"),
    "Qwen3_5MoeForCausalLM": row("Qwen3_5MoeTextConfig", QWEN3_5_MOE, dtype="bfloat16"),
    "Gemma2ForCausalLM": row("Gemma2Config", GEMMA),
    "Gemma3ForCausalLM": row("Gemma3TextConfig", GEMMA3),
    "Gemma4ForCausalLM": row("Gemma4TextConfig", GEMMA4),
    # Per-layer inputs, and layers that share an earlier layer's keys and values.
    "Gemma4ForCausalLM-ple": row(
        "Gemma4TextConfig", {**GEMMA4, "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 2}
    ),
    "Gemma4ForCausalLM-moe": row(
        "Gemma4TextConfig",
        {**GEMMA4, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64},
    ),
    "DeepseekV2ForCausalLM": row("DeepseekV2Config", DEEPSEEK_V2, cpu_options={**NO_CPU_ROPE, **CPU_MLA}),
    "DeepseekV3ForCausalLM": row("DeepseekV3Config", {**DEEPSEEK_V3, **YARN}, cpu_options=CPU_MLA),
    "DeepseekV3ForCausalLM-mha": row(
        "DeepseekV3Config",
        {**DEEPSEEK_V3, "kv_lora_rank": 32, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32},
        cpu_options=NO_CPU_ROPE,
        env={"VLLM_MLA_DISABLE": "1"},
    ),
    # Sparse attention as dense: the CPU engine has none. (DeepSeek-V3.2's class asks for sparse attention; outside
    # CUDA vLLM serves it by DeepseekV3ForCausalLM.)
    "GlmMoeDsaForCausalLM": row(
        "GlmMoeDsaConfig", GLM_DSA, cpu_options={**NO_CPU_ROPE, **CPU_MLA}, for_vllm=_dense_glm
    ),
    "GptOssForCausalLM": row("GptOssConfig", GPT_OSS),
}
