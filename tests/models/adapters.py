"""Tiny LoRA adapters in the format that vLLM reads, and the checkpoint with one merged into it."""

import json

RANK, ALPHA = 4, 8
ATTENTION = ("q_proj", "v_proj", "o_proj")
WITH_HEAD = (*ATTENTION, "lm_head")


def write_adapter(checkpoint, folder, targets, seed):
    """An adapter on ``targets`` of a Llama-like checkpoint."""
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(seed)
    tensors = {}
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.split(".")[-1] in targets:
            tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(RANK, weight.shape[1]) * 0.2
            tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(weight.shape[0], RANK) * 0.2
    folder.mkdir(parents=True)
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "target_modules": list(targets)}))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def merged(checkpoint, adapter, folder):
    """The checkpoint with ``W + (alpha / r) B A`` in place of each adapted W."""
    from safetensors.torch import load_file, save_file

    weights, parts = load_file(checkpoint / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for name, a in parts.items():
        if name.endswith("lora_A.weight"):
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            weights[f"{module}.weight"] += ALPHA / RANK * (parts[name.replace("lora_A", "lora_B")] @ a)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text((checkpoint / "config.json").read_text())
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
