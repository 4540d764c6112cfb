"""A worker extension that lets the CPU engine run expert parallelism.

vLLM 0.32's CPU experts are given the map of expert to rank and do not look at it, so that they read beyond their own
weights and the worker dies of it, with the plugin or without. Here experts of another rank count nothing.
"""

import torch
from vllm.model_executor.layers.fused_moe.experts import cpu_moe

_stock = cpu_moe.CPUUnquantizedExperts.apply


def apply(self, *, topk_weights, topk_ids, expert_map, **arguments):
    if expert_map is not None:
        local = expert_map[topk_ids.long()]
        topk_weights = torch.where(local < 0, 0, topk_weights)
        topk_ids = local.clamp_min(0).to(topk_ids.dtype)
    _stock(self, topk_weights=topk_weights, topk_ids=topk_ids, expert_map=expert_map, **arguments)


cpu_moe.CPUUnquantizedExperts.apply = apply


class MappedExperts:
    """For ``worker_extension_cls``."""
