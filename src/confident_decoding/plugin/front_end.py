"""The front-end hook: a bad configuration stops the start in process 0, before weights are loaded.

vLLM builds one ``InputProcessor`` in its front-end process before it starts the engine core
(``v1/engine/async_llm.py``, ``v1/engine/llm_engine.py``).
"""

import functools
import importlib
from types import ModuleType
from typing import Any

from confident_decoding.config import ConfidentDecodingConfig, ConfigError, SelectionPlan
from confident_decoding.plugin import compat, contracts

_MARK = "_confident_decoding_wrapped"


def wrap_input_processor(module: ModuleType) -> None:
    """Make ``InputProcessor`` validate our settings first; idempotent.

    Raises:
        RuntimeError: The class is not what we know.
    """
    if problem := contracts.check_live(contracts.FRONT_END, module):
        raise RuntimeError(problem)
    processor = module.InputProcessor
    original = processor.__init__
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        validate(vllm_config)
        original(self, vllm_config, *args, **kwargs)

    setattr(__init__, _MARK, True)
    processor.__init__ = __init__


def validate(vllm_config: Any) -> tuple[ConfidentDecodingConfig, SelectionPlan] | None:
    """Check everything that can be known before the model is built.

    Returns:
        The settings and the plan; None if this engine is to be left alone: switch off, or a
        pooling model. With pipeline stages the loader leaves it alone too, with a warning.

    Raises:
        ConfigError: One message with every problem.
    """
    config = ConfidentDecodingConfig.from_additional_config(vllm_config.additional_config)
    model_config = vllm_config.model_config
    if not config.enable_multi_layer_entropy_selection or model_config.runner_type != "generate":
        return None
    plan = config.resolve(model_config.get_total_num_hidden_layers())
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        return config, plan
    compat.refuse_unsupported(vllm_config)
    for contract in (contracts.LOADER, contracts.HEAD):
        if problem := contracts.check_live(contract, importlib.import_module(contract.module)):
            raise ConfigError(f"confident-decoding cannot hook this vLLM: {problem}. ({compat.versions()})")
    return config, plan
