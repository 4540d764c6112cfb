"""The multimodal wrappers that we promise."""

import re

from models.row import HEADS, MOE, UNTIED, VOCAB, mrope, row
from models.text_configs import GEMMA3, GEMMA4, LLAMA4, QWEN3_5, QWEN3_5_MOE

QWEN_VISION_IDS = {
    "image_token_id": VOCAB - 1,
    "video_token_id": VOCAB - 2,
    "vision_start_token_id": VOCAB - 3,
    "vision_end_token_id": VOCAB - 4,
    "tie_word_embeddings": False,
}
QWEN2_VL_TEXT = {**UNTIED, **mrope([4, 6, 6])}
QWEN3_VL_TEXT = {**HEADS, **mrope([6, 5, 5], mrope_interleaved=True)}
QWEN3_5_VISION = {
    "depth": 1,
    "patch_size": 8,
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
FINE = {"image_size": 64, "patch_size": 8}
TEXT_ONLY = {"language_model_only": True}


def _published_experts(tensors, config):
    """vLLM reads the published layout of Qwen3-VL-MoE's experts; transformers 5 saves the transpose."""
    experts = ("experts.gate_up_proj", "experts.down_proj")
    return {name: t.transpose(1, 2).contiguous() if name.endswith(experts) else t for name, t in tensors.items()}


def _published_tower(tensors, config):
    """vLLM reads the published names of Gemma 3's vision tower; transformers 5 saves them one level shorter."""
    return {re.sub(r"vision_tower\.(?!vision_model)", "vision_tower.vision_model.", n): t for n, t in tensors.items()}


MULTIMODAL = {
    "Llama4ForConditionalGeneration": row(
        "Llama4Config",
        {
            "text_config": LLAMA4,
            "image_token_index": VOCAB - 1,
            "boi_token_index": VOCAB - 2,
            "eoi_token_index": VOCAB - 3,
            "vision_config": {
                **SMALL_VISION,
                "patch_size": 8,
                "intermediate_size": 256,
                "vision_output_dim": 64,
                "projector_input_dim": 64,
                "projector_output_dim": 64,
            },
        },
        options=TEXT_ONLY,
    ),
    "Mistral3ForConditionalGeneration": row(
        "Mistral3Config",
        {
            "text_config": {**HEADS, "model_type": "mistral", "sliding_window": None},
            "image_token_index": VOCAB - 1,
            "spatial_merge_size": 2,
            "vision_config": {**SMALL_VISION, "model_type": "pixtral", "head_dim": 32, **FINE},
        },
        options=TEXT_ONLY,
    ),
    "Qwen2VLForConditionalGeneration": row(
        "Qwen2VLConfig",
        {
            **QWEN_VISION_IDS,
            "text_config": QWEN2_VL_TEXT,
            "vision_config": {
                "depth": 1,
                "patch_size": 8,
                "embed_dim": 64,
                "hidden_size": 128,
                "num_heads": 2,
                "mlp_ratio": 2,
            },
        },
        options=TEXT_ONLY,
    ),
    "Qwen2_5_VLForConditionalGeneration": row(
        "Qwen2_5_VLConfig",
        {
            **QWEN_VISION_IDS,
            "text_config": QWEN2_VL_TEXT,
            "vision_config": {
                "depth": 2,
                "patch_size": 8,
                "hidden_size": 64,
                "out_hidden_size": 128,
                "intermediate_size": 64,
                "num_heads": 2,
                "window_size": 32,
                "fullatt_block_indexes": [1],
            },
        },
        options=TEXT_ONLY,
    ),
    "Qwen3VLForConditionalGeneration": row(
        "Qwen3VLConfig",
        {**QWEN_VISION_IDS, "text_config": QWEN3_VL_TEXT, "vision_config": QWEN3_VISION},
        options=TEXT_ONLY,
    ),
    "Qwen3VLMoeForConditionalGeneration": row(
        "Qwen3VLMoeConfig",
        {
            **QWEN_VISION_IDS,
            "text_config": {**QWEN3_VL_TEXT, **MOE, "norm_topk_prob": True},
            "vision_config": QWEN3_VISION,
        },
        options=TEXT_ONLY,
        for_vllm=_published_experts,
    ),
    "Qwen3_5ForConditionalGeneration": row(
        "Qwen3_5Config",
        {**QWEN_VISION_IDS, "text_config": QWEN3_5, "vision_config": QWEN3_5_VISION},
        dtype="bfloat16",
        options=TEXT_ONLY,
    ),
    "Qwen3_5MoeForConditionalGeneration": row(
        "Qwen3_5MoeConfig",
        {**QWEN_VISION_IDS, "text_config": QWEN3_5_MOE, "vision_config": QWEN3_5_VISION},
        dtype="bfloat16",
        options=TEXT_ONLY,
    ),
    "Gemma3ForConditionalGeneration": row(
        "Gemma3Config",
        {
            # transformers caps only the text class's logits; published checkpoints have no cap.
            "text_config": {**GEMMA3, "final_logit_softcapping": None},
            "mm_tokens_per_image": 16,
            "image_token_index": VOCAB - 1,
            "boi_token_index": VOCAB - 2,
            "eoi_token_index": VOCAB - 3,
            "vision_config": {**SMALL_VISION, **FINE, "vision_use_head": False},
        },
        options=TEXT_ONLY,
        for_vllm=_published_tower,
    ),
    "Gemma4ForConditionalGeneration": row(
        "Gemma4Config",
        {
            "text_config": GEMMA4,
            "audio_config": None,
            "vision_config": {
                **{k: v for k, v in SMALL_VISION.items() if k not in ("image_size", "patch_size")},
                "num_key_value_heads": 2,
                "head_dim": 32,
                "position_embedding_size": 64,
                "patch_size": 4,
                "default_output_length": 70,
            },
            "image_token_id": VOCAB - 1,
            "video_token_id": VOCAB - 2,
            "audio_token_id": VOCAB - 3,
            "boi_token_id": VOCAB - 4,
            "eoi_token_id": VOCAB - 5,
            "boa_token_id": VOCAB - 6,
            "eoa_token_index": VOCAB - 7,
        },
        generation={"suppress_tokens": [17, 300, 301]},
        options=TEXT_ONLY,
    ),
}
