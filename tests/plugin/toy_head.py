"""A selecting head on the toy model, without vLLM around it."""

import types

import torch
from toy_model import H, V

from confident_decoding.plugin.head import COUNTERS, SelectingHead
from confident_decoding.stats import new_counters

LM_HEAD = types.SimpleNamespace(
    num_embeddings_per_partition=V,
    shard_indices=types.SimpleNamespace(org_vocab_start_index=0, org_vocab_end_index=V),
    tp_size=1,
    quant_method=None,
)
"""What the head reads of vLLM's."""


class Processor(torch.nn.Module):
    """A logits processor."""

    soft_cap, scale, org_vocab_size = None, 1.0, V

    def __init__(self, model, deepest):
        super().__init__()
        self.project = model.project
        self.register_buffer(COUNTERS, new_counters(deepest, torch.device("cpu")))

    def _apply_head(self, lm_head, states, bias):
        return self.project(states)


def toy_head(model, plan, **options):
    """The head of a plan; it answers calls ``head(LM_HEAD, packed, None)``."""
    values = {"hidden": H, "plan": plan, "seed": 0, "select_method": "trough", "log_interval": 0, "reports": True}
    return SelectingHead(Processor(model, plan.depths[-1]), model.norm, **values, **options)
