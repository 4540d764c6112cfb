"""Llama checkpoints in the layouts of four quantisation formats, and one with a head in another dtype.

Scales are powers of two, so that a weight on the grid is a bfloat16 number: the reference that transformers loads and
what vLLM unpacks are the same weights.
"""

import functools

from models.row import HEADS, row

GROUP = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _linear(name, head):
    module = name.removesuffix(".weight").split(".")[-1]
    return name.endswith(".weight") and (module.endswith("_proj") or (head and module == "lm_head"))


def _power_of_two(size):
    import torch

    return torch.exp2(torch.ceil(torch.log2(size.clamp_min(1e-6))))


def quantise(weight, bits, group, zero_points=False):
    """``weight [out, in]`` to whole numbers ``[out, groups, group]``, and scales and zero points ``[out, groups, 1]``.

    ``weight = (q - zero) * scale`` to rounding, and to the bit for a weight that comes from here.
    """
    import torch

    grouped = weight.float().reshape(len(weight), -1, group)
    top = 2 ** (bits - 1) - 1
    if not zero_points:
        scale = _power_of_two(grouped.abs().amax(-1, keepdim=True) / top)
        return torch.round(grouped / scale), scale, torch.zeros_like(scale)
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    scale = _power_of_two((high - low) / (2**bits - 1))
    zero = torch.round(-low / scale).clamp(0, 2**bits - 1)
    return (torch.round(grouped / scale) + zero).clamp(0, 2**bits - 1), scale, zero


def put_on_grid(model, bits, group=GROUP, head=False, zero_points=False):
    """Round every linear weight of a transformers model to what the format can say."""
    for name, parameter in model.named_parameters():
        if _linear(name, head):
            q, scale, zero = quantise(parameter, bits, group or parameter.shape[1], zero_points)
            parameter.copy_(((q - zero) * scale).reshape(parameter.shape))


def packed(nibbles):
    """``[rows, columns]`` of 4-bit numbers to int32 ``[rows, columns / 8]``, the first in the lowest bits."""
    import torch

    parts = nibbles.to(torch.int64).reshape(len(nibbles), -1, 8) << (4 * torch.arange(8))
    word = parts.sum(-1)
    return torch.where(word >= 2**31, word - 2**32, word).to(torch.int32)


def _rewritten(tensors, head, one):
    """The tensors with each linear weight replaced by ``one(module, weight)``."""
    made = {}
    for name, tensor in tensors.items():
        if _linear(name, head):
            made |= one(name.removesuffix(".weight"), tensor)
        else:
            made[name] = tensor
    return {name: tensor.contiguous() for name, tensor in made.items()}


def _compressed_tensors(config, form, weights, activations, head):
    # vLLM's output head is no "Linear".
    group = {
        "targets": ["Linear", "re:.*lm_head"] if head else ["Linear"],
        "weights": weights,
        "input_activations": activations,
    }
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": [] if head else ["lm_head"],
    }


def int8(tensors, config):
    """compressed-tensors, 8 bits a weight (a scale a channel) and an activation (a scale a token), plain head."""
    import torch

    def one(module, weight):
        q, scale, _ = quantise(weight, 8, weight.shape[1])
        return {f"{module}.weight": q.reshape(weight.shape).to(torch.int8), f"{module}.weight_scale": scale[:, 0]}

    kind = {"num_bits": 8, "type": "int", "symmetric": True}
    activations = {**kind, "strategy": "token", "dynamic": True}
    _compressed_tensors(config, "int-quantized", {**kind, "strategy": "channel"}, activations, head=False)
    return _rewritten(tensors, False, one)


def four_bits(tensors, config):
    """compressed-tensors, 4 bits a weight, the head's too."""
    import torch

    def one(module, weight):
        q, scale, _ = quantise(weight, 4, GROUP)
        return {
            f"{module}.weight_packed": packed(q.reshape(weight.shape) + 8),
            f"{module}.weight_scale": scale[..., 0].bfloat16(),
            f"{module}.weight_shape": torch.tensor(weight.shape),
        }

    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    _compressed_tensors(config, "pack-quantized", weights, None, head=True)
    return _rewritten(tensors, True, one)


def gptq(tensors, config):
    """GPTQ, the head too: ``[in, out]``, packed along ``in``; stored zero points are one less than meant."""
    import torch

    def one(module, weight):
        q, scale, _ = quantise(weight, 4, GROUP)
        columns, rows = weight.shape
        return {
            f"{module}.qweight": packed(q.reshape(weight.shape) + 8).T,
            f"{module}.scales": scale[..., 0].T.half(),
            f"{module}.qzeros": packed(torch.full((rows // GROUP, columns), 7)),
            f"{module}.g_idx": torch.arange(rows, dtype=torch.int32) // GROUP,
        }

    config["quantization_config"] = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GROUP,
        "desc_act": False,
        "sym": True,
        "lm_head": True,
    }
    return _rewritten(tensors, True, one)


def awq(tensors, config):
    """AWQ, plain head: ``[in, out]``, packed along ``out`` in an order of its own, with zero points."""

    def in_order(nibbles):
        return packed(nibbles.reshape(len(nibbles), -1, 8)[..., AWQ_ORDER].reshape(nibbles.shape))

    def one(module, weight):
        q, scale, zero = quantise(weight, 4, GROUP, zero_points=True)
        return {
            f"{module}.qweight": in_order(q.reshape(weight.shape).T.contiguous()),
            f"{module}.scales": scale[..., 0].T.half(),
            f"{module}.qzeros": in_order(zero[..., 0].T.contiguous()),
        }

    config["quantization_config"] = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": GROUP,
        "zero_point": True,
        "version": "gemm",
    }
    return _rewritten(tensors, False, one)


def _row(for_vllm, heads=HEADS, **grid):
    return row(
        "LlamaConfig", heads, dtype="bfloat16", prepare=functools.partial(put_on_grid, **grid), for_vllm=for_vllm
    )


QUANTISED = {
    "LlamaForCausalLM-int8": _row(int8, bits=8, group=None),
    "LlamaForCausalLM-4bit-head": _row(four_bits, bits=4, head=True),
    "LlamaForCausalLM-gptq-head": _row(gptq, bits=4, head=True),
    "LlamaForCausalLM-awq-tied": _row(awq, {**HEADS, "tie_word_embeddings": True}, bits=4, zero_points=True),
    "LlamaForCausalLM-head32": row(
        "LlamaConfig", HEADS, dtype="bfloat16", options={"hf_overrides": {"head_dtype": "float32"}}
    ),
}
