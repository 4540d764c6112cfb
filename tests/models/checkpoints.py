"""Every architecture as a tiny random checkpoint with its family's real structure.

``build(tag, folder)`` writes a checkpoint that transformers can load; where vLLM reads another layout
than transformers 5 writes, ``folder/vllm`` holds that one. Weights are scaled so that layers differ by
far more than rounding, and 1-D and 3-D weights are perturbed so that norms, biases and routing matter.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

VOCAB = 512
LAYERS = 6


@dataclass(frozen=True)
class Checkpoint:
    """How to make one architecture.

    Attributes:
        architecture: Class in transformers, and in vLLM.
        config: Configuration class in transformers.
        arguments: Its arguments.
        dtype: That vLLM's CPU engine can run it in.
        options: Further arguments of ``vllm.LLM``.
        env: Environment variables that the engine needs.
        for_vllm: Rewrites ``(tensors, config.json)`` for vLLM.
    """

    architecture: str
    config: str
    arguments: dict
    dtype: str = "float32"
    options: dict = field(default_factory=dict)
    env: dict = field(default_factory=dict)
    for_vllm: Callable | None = None


BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
UNTIED = {**BASE, "tie_word_embeddings": False}
HEADS = {**UNTIED, "head_dim": 32}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
# With every expert chosen, bfloat16 noise cannot flip the routing.
ALL_EXPERTS = {**MOE, "num_experts_per_tok": 4}
SLIDING_AND_FULL = ["sliding_attention", "full_attention"] * (LAYERS // 2)

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
DEEPSEEK_V3 = {**DEEPSEEK, "q_lora_rank": 64, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
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


def _mrope(section, **more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": section, **more}}


QWEN3_5 = {**HEADS, **GATED_DELTA, **_mrope([2, 1, 1], mrope_interleaved=True, partial_rotary_factor=0.25)}
QWEN3_5_MOE = {
    **{key: value for key, value in QWEN3_5.items() if key != "intermediate_size"},
    **ALL_EXPERTS,
    "shared_expert_intermediate_size": 64,
}
QWEN_VISION_IDS = {
    "image_token_id": VOCAB - 1,
    "video_token_id": VOCAB - 2,
    "vision_start_token_id": VOCAB - 3,
    "vision_end_token_id": VOCAB - 4,
    "tie_word_embeddings": False,
}
QWEN2_VL_TEXT = {**UNTIED, **_mrope([4, 6, 6])}
QWEN3_VL_TEXT = {**HEADS, **_mrope([6, 5, 5], mrope_interleaved=True)}
QWEN3_5_VISION = {
    "depth": 1,
    "hidden_size": 64,
    "out_hidden_size": 128,
    "intermediate_size": 64,
    "num_heads": 2,
    "num_position_embeddings": 16,
}
QWEN3_VISION = {**QWEN3_5_VISION, "depth": 3, "deepstack_visual_indexes": [0, 1]}
SMALL_VISION = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 16,
}
TEXT_ONLY = {"language_model_only": True}


def _dense_glm(tensors, config):
    """GLM-5 as dense latent attention under its own class: equal while the context is at most index_topk."""
    for key in [key for key in config if key.startswith("index") or key in ("layer_types", "mlp_layer_types")]:
        del config[key]
    config.update(model_type="deepseek_v3", topk_method="noaux_tc", scoring_func="sigmoid")
    return {name: tensor for name, tensor in tensors.items() if "indexer" not in name}


def _published_experts(tensors, config):
    """vLLM reads the published layout of Qwen3-VL-MoE's experts; transformers 5 saves the transpose."""
    experts = ("experts.gate_up_proj", "experts.down_proj")
    return {name: t.transpose(1, 2).contiguous() if name.endswith(experts) else t for name, t in tensors.items()}


def _row(config, arguments, **more):
    return config, arguments, more


_ROWS = {
    "LlamaForCausalLM": _row("LlamaConfig", HEADS),
    "LlamaForCausalLM-tied": _row("LlamaConfig", {**HEADS, "tie_word_embeddings": True}),
    "LlamaForCausalLM-oddvocab": _row("LlamaConfig", {**HEADS, "vocab_size": 500}),
    "Llama4ForCausalLM": _row("Llama4TextConfig", LLAMA4),
    "MistralForCausalLM": _row("MistralConfig", {**HEADS, "sliding_window": None}),
    "MixtralForCausalLM": _row(
        "MixtralConfig", {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
    ),
    "Qwen2ForCausalLM": _row("Qwen2Config", UNTIED),
    "Qwen3ForCausalLM": _row("Qwen3Config", HEADS),
    "Qwen2MoeForCausalLM": _row("Qwen2MoeConfig", {**UNTIED, **MOE, "shared_expert_intermediate_size": 64}),
    "Qwen3MoeForCausalLM": _row("Qwen3MoeConfig", {**HEADS, **MOE}),
    "Qwen3NextForCausalLM": _row(
        "Qwen3NextConfig",
        {**HEADS, **ALL_EXPERTS, **GATED_DELTA, "shared_expert_intermediate_size": 64},
        dtype="bfloat16",
    ),
    "Qwen3_5ForCausalLM": _row("Qwen3_5TextConfig", QWEN3_5, dtype="bfloat16"),
    "Qwen3_5MoeForCausalLM": _row("Qwen3_5MoeTextConfig", QWEN3_5_MOE, dtype="bfloat16"),
    "Gemma2ForCausalLM": _row("Gemma2Config", GEMMA),
    "Gemma3ForCausalLM": _row("Gemma3TextConfig", GEMMA3),
    "Gemma4ForCausalLM": _row("Gemma4TextConfig", GEMMA4),
    # Per-layer inputs, and layers that share an earlier layer's keys and values.
    "Gemma4ForCausalLM-ple": _row(
        "Gemma4TextConfig", {**GEMMA4, "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 2}
    ),
    "Gemma4ForCausalLM-moe": _row(
        "Gemma4TextConfig",
        {**GEMMA4, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64},
    ),
    "DeepseekV2ForCausalLM": _row("DeepseekV2Config", DEEPSEEK_V2, options={**NO_CPU_ROPE, **CPU_MLA}),
    "DeepseekV3ForCausalLM": _row("DeepseekV3Config", {**DEEPSEEK_V3, **YARN}, options=CPU_MLA),
    "DeepseekV3ForCausalLM-mha": _row(
        "DeepseekV3Config",
        {**DEEPSEEK_V3, "kv_lora_rank": 32, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32},
        options=NO_CPU_ROPE,
        env={"VLLM_MLA_DISABLE": "1"},
    ),
    # Sparse attention as dense: the CPU engine has none. (DeepSeek-V3.2's class asks for sparse attention; outside
    # CUDA vLLM serves it by DeepseekV3ForCausalLM.)
    "GlmMoeDsaForCausalLM": _row(
        "GlmMoeDsaConfig", GLM_DSA, options={**NO_CPU_ROPE, **CPU_MLA}, for_vllm=_dense_glm
    ),
    "GptOssForCausalLM": _row("GptOssConfig", GPT_OSS),
    # Multimodal wrappers.
    "Llama4ForConditionalGeneration": _row(
        "Llama4Config",
        {
            "text_config": LLAMA4,
            "image_token_index": VOCAB - 1,
            "boi_token_index": VOCAB - 2,
            "eoi_token_index": VOCAB - 3,
            "vision_config": {
                **SMALL_VISION,
                "intermediate_size": 256,
                "vision_output_dim": 64,
                "projector_input_dim": 64,
                "projector_output_dim": 64,
            },
        },
        options=TEXT_ONLY,
    ),
    "Mistral3ForConditionalGeneration": _row(
        "Mistral3Config",
        {
            "text_config": {**HEADS, "model_type": "mistral", "sliding_window": None},
            "image_token_index": VOCAB - 1,
            "spatial_merge_size": 2,
            "vision_config": {**SMALL_VISION, "model_type": "pixtral", "head_dim": 32},
        },
        options=TEXT_ONLY,
    ),
    "Qwen2VLForConditionalGeneration": _row(
        "Qwen2VLConfig",
        {
            **QWEN_VISION_IDS,
            "text_config": QWEN2_VL_TEXT,
            "vision_config": {"depth": 1, "embed_dim": 64, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2},
        },
        options=TEXT_ONLY,
    ),
    "Qwen2_5_VLForConditionalGeneration": _row(
        "Qwen2_5_VLConfig",
        {
            **QWEN_VISION_IDS,
            "text_config": QWEN2_VL_TEXT,
            "vision_config": {
                "depth": 1,
                "hidden_size": 64,
                "out_hidden_size": 128,
                "intermediate_size": 64,
                "num_heads": 2,
                "fullatt_block_indexes": [0],
            },
        },
        options=TEXT_ONLY,
    ),
    "Qwen3VLForConditionalGeneration": _row(
        "Qwen3VLConfig",
        {**QWEN_VISION_IDS, "text_config": QWEN3_VL_TEXT, "vision_config": QWEN3_VISION},
        options=TEXT_ONLY,
    ),
    "Qwen3VLMoeForConditionalGeneration": _row(
        "Qwen3VLMoeConfig",
        {
            **QWEN_VISION_IDS,
            "text_config": {**QWEN3_VL_TEXT, **MOE, "norm_topk_prob": True},
            "vision_config": QWEN3_VISION,
        },
        options=TEXT_ONLY,
        for_vllm=_published_experts,
    ),
    "Qwen3_5ForConditionalGeneration": _row(
        "Qwen3_5Config",
        {**QWEN_VISION_IDS, "text_config": QWEN3_5, "vision_config": QWEN3_5_VISION},
        dtype="bfloat16",
        options=TEXT_ONLY,
    ),
    "Qwen3_5MoeForConditionalGeneration": _row(
        "Qwen3_5MoeConfig",
        {**QWEN_VISION_IDS, "text_config": QWEN3_5_MOE, "vision_config": QWEN3_5_VISION},
        dtype="bfloat16",
        options=TEXT_ONLY,
    ),
    "Gemma3ForConditionalGeneration": _row(
        "Gemma3Config",
        {
            # transformers caps only the text class's logits; published checkpoints have no cap.
            "text_config": {**GEMMA3, "final_logit_softcapping": None},
            "mm_tokens_per_image": 4,
            "image_token_index": VOCAB - 1,
            "boi_token_index": VOCAB - 2,
            "eoi_token_index": VOCAB - 3,
            "vision_config": SMALL_VISION,
        },
        options=TEXT_ONLY,
    ),
    "Gemma4ForConditionalGeneration": _row(
        "Gemma4Config",
        {
            "text_config": GEMMA4,
            "audio_config": None,
            "vision_config": {
                **{k: v for k, v in SMALL_VISION.items() if k not in ("image_size", "patch_size")},
                "num_key_value_heads": 2,
                "head_dim": 32,
                "position_embedding_size": 64,
            },
            "image_token_id": VOCAB - 1,
            "video_token_id": VOCAB - 2,
            "audio_token_id": VOCAB - 3,
            "boi_token_id": VOCAB - 4,
            "eoi_token_id": VOCAB - 5,
            "boa_token_id": VOCAB - 6,
            "eoa_token_index": VOCAB - 7,
        },
        options=TEXT_ONLY,
    ),
}
LISTED = list(_ROWS)
"""The architectures that we promise."""

_ROWS |= {
    # Rescales after its norm, in the top-level forward.
    "MiniCPM3ForCausalLM": _row(
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
    "MuseGlimmerForConditionalGeneration": _row(
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
    "GraniteForCausalLM": _row(
        "GraniteConfig",
        {**UNTIED, "logits_scaling": 2.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5},
    ),
    # A norm that returns a tuple, parallel attention and experts, logits scaled.
    "Cohere2MoeForCausalLM": _row(
        "Cohere2MoeConfig",
        # Full attention only: on sliding layers stock vLLM and transformers differ already.
        {**BASE, "head_dim": 32, **MOE, "logit_scale": 0.25, "layer_types": ["full_attention"] * LAYERS},
    ),
    "Phi3ForCausalLM": _row("Phi3Config", {**UNTIED}),
}
BEYOND = [tag for tag in _ROWS if tag not in LISTED]
"""Architectures that no list names, served by the general mechanism and one-line quirks."""


def _checkpoint(tag):
    config, arguments, more = _ROWS[tag]
    return Checkpoint(**{"architecture": tag.split("-")[0], "config": config, "arguments": arguments, **more})


CHECKPOINTS = {tag: _checkpoint(tag) for tag in _ROWS}


def build(tag, folder, seed=0):
    """Write the checkpoint ``tag`` into ``folder``; returns the folder that vLLM is to load."""
    import torch
    import transformers

    made = CHECKPOINTS[tag]
    torch.manual_seed(seed)
    model = getattr(transformers, made.architecture)(getattr(transformers, made.config)(**made.arguments))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.05)
            elif parameter.ndim == 3:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    folder = Path(folder)
    model.to(torch.float32).save_pretrained(folder)
    return folder if made.for_vllm is None else _rewritten(made, folder)


def _rewritten(made, folder):
    from safetensors.torch import load_file, save_file

    target = folder / "vllm"
    target.mkdir()
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    tensors = made.for_vllm(tensors, config)
    (target / "config.json").write_text(json.dumps(config, indent=1))
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target
