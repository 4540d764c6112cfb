"""Models without a download: shapes for random weights, a small random checkpoint whose outputs vary, a head for it."""

import json
import os
from pathlib import Path

LAYERS, HIDDEN, VOCAB = int(os.environ.get("CHECK_LAYERS", "12")), 1024, 32_003  # a vocabulary that needs padding

SHAPES = {
    "qwen3-8b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
    },
}


def write_shape(name, folder):
    """A folder that vLLM can load with ``load_format="dummy"``; returns its path."""
    config = {
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "rope_theta": 1e6,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **SHAPES[name],
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def small_checkpoint(folder, seed=0, kv_heads=4):
    """A random 12-layer Qwen3 in ``folder``; returns its path."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "initializer_range": 0.05,
        "rope_theta": 1e6,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors = {}

    def weight(name, *shape, scale=0.05):
        tensors[name] = (torch.randn(*shape, generator=generator) * scale).to(torch.bfloat16)

    weight("model.embed_tokens.weight", VOCAB, HIDDEN, scale=1.0)
    weight("lm_head.weight", VOCAB, HIDDEN, scale=0.06)
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        weight(p + "self_attn.q_proj.weight", 1024, HIDDEN)
        weight(p + "self_attn.k_proj.weight", 128 * kv_heads, HIDDEN)
        weight(p + "self_attn.v_proj.weight", 128 * kv_heads, HIDDEN)
        weight(p + "self_attn.o_proj.weight", HIDDEN, 1024)
        weight(p + "mlp.gate_proj.weight", 2048, HIDDEN)
        weight(p + "mlp.up_proj.weight", 2048, HIDDEN)
        weight(p + "mlp.down_proj.weight", HIDDEN, 2048)
        for norm, size in (
            ("input_layernorm", HIDDEN),
            ("post_attention_layernorm", HIDDEN),
            ("self_attn.q_norm", 128),
            ("self_attn.k_norm", 128),
        ):
            tensors[p + norm + ".weight"] = (1 + torch.randn(size, generator=generator) * 0.1).to(torch.bfloat16)
    tensors["model.norm.weight"] = (1 + torch.randn(HIDDEN, generator=generator) * 0.1).to(torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def small_eagle3_head(folder, layers):
    """A random EAGLE-3 head in ``folder`` for `small_checkpoint`, which reads the states that enter ``layers``."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(1)
    shapes = {
        "fc": (HIDDEN, len(layers) * HIDDEN),
        "midlayer.self_attn.q_proj": (1024, 2 * HIDDEN),
        "midlayer.self_attn.k_proj": (512, 2 * HIDDEN),
        "midlayer.self_attn.v_proj": (512, 2 * HIDDEN),
        "midlayer.self_attn.o_proj": (HIDDEN, 1024),
        "midlayer.mlp.gate_proj": (2048, HIDDEN),
        "midlayer.mlp.up_proj": (2048, HIDDEN),
        "midlayer.mlp.down_proj": (HIDDEN, 2048),
        "lm_head": (VOCAB, HIDDEN),
    }
    tensors = {
        f"{name}.weight": (torch.randn(*shape, generator=generator) * 0.05).to(torch.bfloat16)
        for name, shape in shapes.items()
    }
    norms = ("norm", *(f"midlayer.{name}" for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")))
    tensors |= {f"{name}.weight": torch.ones(HIDDEN, dtype=torch.bfloat16) for name in norms}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": VOCAB,
        "draft_vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": list(layers),
        "num_aux_hidden_states": len(layers),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)
