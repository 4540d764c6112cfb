"""Tiny random checkpoints with real structure, whose layers differ by far more than rounding."""

import torch
import transformers

VOCAB = 512
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
# Normalised embeddings, attention and final soft caps, tied head, sliding and full attention in turn.
GEMMA = {
    **BASE,
    "tie_word_embeddings": True,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 16,
    "final_logit_softcapping": 3.0,
}
CONFIGS = {
    "LlamaForCausalLM": ("LlamaConfig", {**BASE, "head_dim": 32}),
    "LlamaForCausalLM-tied": ("LlamaConfig", {**BASE, "head_dim": 32, "tie_word_embeddings": True}),
    "LlamaForCausalLM-oddvocab": ("LlamaConfig", {**BASE, "head_dim": 32, "vocab_size": 500}),
    "MistralForCausalLM": ("MistralConfig", {**BASE, "head_dim": 32, "sliding_window": None}),
    "Qwen2ForCausalLM": ("Qwen2Config", BASE),
    "Qwen3ForCausalLM": ("Qwen3Config", {**BASE, "head_dim": 32}),
    # No capture in vLLM: ours (families.py).
    "MixtralForCausalLM": (
        "MixtralConfig",
        {**BASE, "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    "Qwen2MoeForCausalLM": (
        "Qwen2MoeConfig",
        {
            **BASE,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
        },
    ),
    "Gemma2ForCausalLM": ("Gemma2Config", GEMMA),
    "Gemma3ForCausalLM": ("Gemma3TextConfig", {**GEMMA, "layer_types": ["sliding_attention", "full_attention"] * 3}),
    "GPT2LMHeadModel": (
        "GPT2Config",
        {
            "vocab_size": VOCAB,
            "n_embd": 128,
            "n_layer": 6,
            "n_head": 4,
            "n_positions": 512,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "Phi3ForCausalLM": ("Phi3Config", {**BASE}),
}


def build(tag, folder, seed=0):
    """Write the checkpoint ``tag`` into ``folder``; 1-D weights are perturbed so that norms matter."""
    config_class, arguments = CONFIGS[tag]
    torch.manual_seed(seed)
    model = getattr(transformers, tag.split("-")[0])(getattr(transformers, config_class)(**arguments))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    model.to(torch.float32).save_pretrained(folder)
    return folder
