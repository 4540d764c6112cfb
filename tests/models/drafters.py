"""Tiny draft heads beside tiny targets: EAGLE and EAGLE-3 heads, and a DeepSeek checkpoint with an MTP layer."""

import json

LAYERS_BEFORE = "model.layers."


def eagle_head(target, folder):
    """An EAGLE head for a tiny Llama: its first layer, and a projection of (embedding, state)."""
    import torch
    from safetensors.torch import load_file, save_file

    config = json.loads((target / "config.json").read_text())
    weights = load_file(target / "model.safetensors")
    first = {
        name.removeprefix("model."): tensor
        for name, tensor in weights.items()
        if name.startswith(f"{LAYERS_BEFORE}0.") and "input_layernorm" not in name
    }
    hidden = config["hidden_size"]
    torch.manual_seed(3)
    first["fc.weight"] = torch.randn(hidden, 2 * hidden) * 0.05
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    save_file(first, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def eagle3_head(target, folder, layers=()):
    """An EAGLE-3 head for a tiny Llama, which reads the states that enter ``layers`` (none: vLLM's default three)."""
    import torch
    from safetensors.torch import load_file, save_file

    config = json.loads((target / "config.json").read_text())
    weights = load_file(target / "model.safetensors")
    hidden, count = config["hidden_size"], len(layers) or 3
    first = f"{LAYERS_BEFORE}0."
    midlayer = {name.replace(first, "midlayer."): tensor for name, tensor in weights.items() if name.startswith(first)}
    torch.manual_seed(4)
    for name in ("q_proj", "k_proj", "v_proj"):  # of (embedding, state)
        weight = midlayer[f"midlayer.self_attn.{name}.weight"]
        midlayer[f"midlayer.self_attn.{name}.weight"] = torch.randn(len(weight), 2 * hidden) * 0.05
    midlayer |= {
        "midlayer.hidden_norm.weight": torch.ones(hidden),
        "fc.weight": torch.randn(hidden, count * hidden) * 0.05,
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": weights["lm_head.weight"].clone(),
    }
    folder.mkdir(parents=True)
    own = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "num_aux_hidden_states": count}
    if layers:
        own["eagle_aux_hidden_state_layer_ids"] = list(layers)
    (folder / "config.json").write_text(json.dumps({**config, **own}))
    save_file(midlayer, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def add_mtp_layer(target):
    """Append an MTP layer to a tiny DeepSeek-V3: the last layer again, two norms, a projection, a head."""
    import torch
    from safetensors.torch import load_file, save_file

    config = json.loads((target / "config.json").read_text())
    weights = load_file(target / "model.safetensors")
    hidden, number = config["hidden_size"], config["num_hidden_layers"]
    last, new = f"{LAYERS_BEFORE}{number - 1}.", f"{LAYERS_BEFORE}{number}."
    weights |= {new + name.removeprefix(last): t.clone() for name, t in weights.items() if name.startswith(last)}
    torch.manual_seed(3)
    weights |= {
        f"{new}enorm.weight": torch.ones(hidden),
        f"{new}hnorm.weight": torch.ones(hidden),
        f"{new}eh_proj.weight": torch.randn(hidden, 2 * hidden) * 0.05,
        f"{new}shared_head.norm.weight": torch.ones(hidden),
        f"{new}shared_head.head.weight": weights["lm_head.weight"].clone(),
        f"{new}embed_tokens.weight": weights["model.embed_tokens.weight"].clone(),
    }
    (target / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target
