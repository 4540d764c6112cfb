"""What a row of the tables says, and the sizes that all of them share."""

from collections.abc import Callable
from dataclasses import dataclass, field

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
        cpu_options: Those that its CPU engine needs on top.
        env: Environment variables that the engine needs.
        generation: Settings of its generation_config.json.
        prepare: Changes the model before it is saved.
        for_vllm: Rewrites ``(tensors, config.json)`` for vLLM.
    """

    architecture: str
    config: str
    arguments: dict
    dtype: str = "float32"
    options: dict = field(default_factory=dict)
    cpu_options: dict = field(default_factory=dict)
    env: dict = field(default_factory=dict)
    generation: dict = field(default_factory=dict)
    prepare: Callable | None = None
    for_vllm: Callable | None = None


def row(config, arguments, **more):
    """``(config, arguments, the rest)`` of a `Checkpoint`; its architecture is the row's name."""
    return config, arguments, more


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
SLIDING_AND_FULL = ["sliding_attention", "full_attention"] * (LAYERS // 2)


def mrope(section, **more):
    """Rotary positions in three sections, as the Qwen vision models have them."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": section, **more}}
