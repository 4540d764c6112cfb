"""Every architecture as a tiny random checkpoint with its family's real structure.

``build(tag, folder)`` writes a checkpoint that transformers can load; where vLLM reads another layout
than transformers 5 writes, ``folder/vllm`` holds that one. Weights are scaled so that layers differ by
far more than rounding, and 1-D and 3-D weights are perturbed so that norms, biases and routing matter.
"""

import json
from pathlib import Path

from models.multimodal_configs import MULTIMODAL
from models.other_configs import OTHERS, REFUSED, SPARSE
from models.quantised import QUANTISED
from models.row import VOCAB, Checkpoint
from models.text_configs import TEXT

ROWS = {**TEXT, **MULTIMODAL, **OTHERS, **SPARSE, **REFUSED, **QUANTISED}
LISTED = [*TEXT, *MULTIMODAL]
"""The architectures that we promise."""
BEYOND = list(OTHERS)
"""Architectures that no list names, served by the general mechanism and one-line quirks."""
GPU_ONLY = list(SPARSE)
__all__ = ["BEYOND", "CHECKPOINTS", "GPU_ONLY", "LISTED", "VOCAB", "build"]


def _checkpoint(tag):
    config, arguments, more = ROWS[tag]
    return Checkpoint(**{"architecture": tag.split("-")[0], "config": config, "arguments": arguments, **more})


CHECKPOINTS = {tag: _checkpoint(tag) for tag in ROWS}


def _choosing_all_experts(arguments):
    """The same model with every expert chosen: bfloat16 noise cannot flip its routing."""
    experts = next(
        (arguments[k] for k in ("num_experts", "num_local_experts", "n_routed_experts") if k in arguments), 0
    )
    chosen = {k: experts for k in ("num_experts_per_tok", "top_k_experts") if arguments.get(k, 1) > 1}
    nested = {k: _choosing_all_experts(arguments[k]) for k in ("text_config",) if k in arguments}
    return {**arguments, **chosen, **nested}


def build(tag, folder, seed=0, all_experts=False):
    """Write the checkpoint ``tag`` into ``folder``; returns the folder that vLLM is to load."""
    import torch
    import transformers

    made = CHECKPOINTS[tag]
    torch.manual_seed(seed)
    arguments = _choosing_all_experts(made.arguments) if all_experts else made.arguments
    model = getattr(transformers, made.architecture)(getattr(transformers, made.config)(**arguments))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.05)
            elif parameter.ndim == 3 or not parameter.any():  # Gemma 3's projection of images starts as zero
                parameter.add_(torch.randn_like(parameter) * 0.1)
        if made.prepare is not None:
            made.prepare(model)
    for key, value in made.generation.items():
        setattr(model.generation_config, key, value)
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
