"""The front-end hook: a bad configuration stops the start in process 0, before weights are loaded, and a bad request
is refused before it is scheduled.

vLLM builds one ``InputProcessor`` in its front-end process before it starts the engine core
(``v1/engine/async_llm.py``, ``v1/engine/llm_engine.py``).
"""

import functools
import importlib
from types import ModuleType
from typing import Any

from confident_decoding.config import ConfidentDecodingConfig, ConfigError, SelectionPlan
from confident_decoding.plugin import compat, contracts, metrics, runner, stages
from confident_decoding.plugin.request_settings import PREFIX, request_settings
from confident_decoding.plugin.wrapping import is_wrapped, mark


def wrap_input_processor(module: ModuleType) -> None:
    """Make ``InputProcessor`` validate the server's settings first, and each request's; idempotent.

    Raises:
        RuntimeError: The class is not what we know.
    """
    for contract in (contracts.FRONT_END, contracts.REQUESTS):
        if problem := contracts.check_live(contract, module):
            raise RuntimeError(problem)
    processor = module.InputProcessor
    original = processor.__init__
    if is_wrapped(original):
        return

    @functools.wraps(original)
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        validated = validate(vllm_config)
        if validated is not None:
            self._confident_decoding = validated
            runner.problem()  # now, not within the first request that asks
            config, plan = validated
            if config.trough_metrics and not stages.misfit(plan, vllm_config.parallel_config.pipeline_parallel_size):
                metrics.offer(vllm_config)
        original(self, vllm_config, *args, **kwargs)

    process = processor.process_inputs

    @functools.wraps(process)
    def process_inputs(self: Any, request_id: Any, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        validated = getattr(self, "_confident_decoding", None)
        if validated is not None:
            _validate_or_refuse(params, self.vllm_config, *validated)
        return process(self, request_id, prompt, params, *args, **kwargs)

    mark(__init__)
    processor.__init__ = __init__
    processor.process_inputs = process_inputs


def hooked() -> bool:
    """Whether this process's ``InputProcessor`` validates; vLLM's module is imported for it."""
    module = importlib.import_module(contracts.FRONT_END.module)
    return is_wrapped(module.InputProcessor.__init__)


def _validate_or_refuse(params: Any, vllm_config: Any, config: ConfidentDecodingConfig, plan: SelectionPlan) -> None:
    try:
        validate_request(params, vllm_config, config, plan)
    except ValueError as error:
        raise _request_error()(str(error)) from None


@functools.cache
def _request_error() -> type[Exception]:
    """A ValueError, as offline users expect, that the server answers with a 400."""
    from vllm.exceptions import VLLMValidationError

    return type("RequestError", (VLLMValidationError, ValueError), {"__doc__": "A request's settings are not valid."})


def validate_request(params: Any, vllm_config: Any, config: ConfidentDecodingConfig, plan: SelectionPlan) -> None:
    """Check a request's own settings before it is scheduled.

    Raises:
        ValueError: They are not valid, or cannot be had here.
    """
    settings = request_settings(getattr(params, "extra_args", None), plan, config.select_method)
    seeded = getattr(params, "seed", None) is not None and 0 < plan.p < 1
    if settings is None and not seeded:
        return
    parallel = vllm_config.parallel_config
    inactive = stages.misfit(plan, parallel.pipeline_parallel_size)
    if inactive and settings is None:  # nothing is mixed there
        return
    scored = [name for name in _OF_PROMPTS if getattr(params, name, None) is not None]
    if inactive:
        why = f"Confident Decoding is not active on this server: {inactive}"
    elif getattr(parallel, "enable_batch_sharded_sampling", None):
        why = "with enable_batch_sharded_sampling, rows are sampled in another order than requests have"
    elif getattr(vllm_config.speculative_config, "enable_adaptive_verification", False):
        why = "with enable_adaptive_verification, the device alone knows how many of a request's drafts are verified"
    elif problem := runner.problem():
        why = f"this vLLM's model runner cannot tell requests apart ({problem})"
    elif settings is not None and scored:
        why = f"{scored[0]} is of the server's settings, and cannot be combined with a request's own"
    else:
        return
    what = f"{PREFIX}* arguments" if settings is not None else f"a seed, which would decide where p={plan.p:g} mixes,"
    raise ValueError(f"confident-decoding: a request cannot have {what} here: {why}.")


_OF_PROMPTS = ("prompt_logprobs", "prompt_logprob_token_ids")
"""Parameters that ask for scores of prompt tokens; vLLM has the second since 0.31, with the second model runner."""


def validate(vllm_config: Any) -> tuple[ConfidentDecodingConfig, SelectionPlan] | None:
    """Check everything that can be known before the model is built.

    Returns:
        The settings and the plan; None if this engine is to be left alone: switch off, or a pooling model. Where
        they do not fit onto the last pipeline stage the loader leaves it alone too, with a warning.

    Raises:
        ConfigError: One message with every problem.
    """
    config = ConfidentDecodingConfig.from_additional_config(vllm_config.additional_config)
    model_config = vllm_config.model_config
    if not config.enable_multi_layer_entropy_selection or model_config.runner_type != "generate":
        return None
    plan = config.resolve(model_config.get_total_num_hidden_layers())
    if stages.misfit(plan, vllm_config.parallel_config.pipeline_parallel_size):
        return config, plan
    compat.refuse_unsupported(vllm_config)
    for contract in (contracts.LOADER, contracts.HEAD):
        if problem := contracts.check_live(contract, importlib.import_module(contract.module)):
            raise ConfigError(f"confident-decoding cannot hook this vLLM: {problem}. ({compat.versions()})")
    return config, plan
