"""The loader hook: every way vLLM loads a model ends in ``BaseModelLoader.load_model``.

The wrapper decides whether this load is ours (the target model of a generate engine with the
switch on) and, if so, marks the compile cache before and installs the other hooks after.
"""

import functools
import importlib
import logging
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from confident_decoding.plugin import borrowed, contracts, front_end, stages
from confident_decoding.plugin.fingerprint import mark_compile_cache
from confident_decoding.plugin.install import install
from confident_decoding.plugin.missing_capture import add_missing_captures
from confident_decoding.plugin.wrapping import is_wrapped, mark

logger = logging.getLogger("vllm.confident_decoding")
_loading: ContextVar[bool] = ContextVar("confident_decoding_loading", default=False)


def wrap_loaders(module: ModuleType) -> None:
    """Wrap ``load_model`` of the base loader and of every subclass, present and future; idempotent.

    Raises:
        RuntimeError: The base class is not what we know.
    """
    if problem := contracts.check_live(contracts.LOADER, module):
        raise RuntimeError(problem)
    base = module.BaseModelLoader
    if is_wrapped(base.load_model):
        return
    pending = [base]
    while pending:
        cls = pending.pop()
        _wrap(cls)
        pending += cls.__subclasses__()

    # Some loaders (tensorizer, IPC, users' own) replace load_model, in modules imported later.
    inherited = base.__init_subclass__

    def __init_subclass__(cls: Any, /, **kwargs: Any) -> None:  # noqa: N807
        inherited(**kwargs)
        _wrap(cls)

    base.__init_subclass__ = classmethod(__init_subclass__)


def hooked() -> bool:
    """Whether this process's loaders are wrapped; vLLM's module is imported for it."""
    module = importlib.import_module(contracts.LOADER.module)
    return is_wrapped(module.BaseModelLoader.load_model)


def _wrap(cls: type) -> None:
    original = cls.__dict__.get("load_model")
    if original is None or is_wrapped(original):
        return

    @functools.wraps(original)
    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _load(functools.partial(original, self), args, kwargs)

    mark(load_model)
    cls.load_model = load_model  # type: ignore[attr-defined]


def _load(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # The base class's order; loaders of other make may take *args and **kwargs.
    vllm_config, model_config = (
        kwargs.get(name, args[place] if len(args) > place else None)
        for place, name in enumerate(contracts.LOADER.parameters or ())
    )
    # Drafters load through here too, with a model configuration of their own; and a loader that
    # calls super().load_model must not install twice.
    if _loading.get() or vllm_config is None or model_config is not vllm_config.model_config:
        return original(*args, **kwargs)
    # The front end has checked this already, unless it runs where our hook could not be placed.
    validated = front_end.validate(vllm_config)
    if validated is None:
        return original(*args, **kwargs)
    config, plan = validated
    why_not = stages.misfit(plan, vllm_config.parallel_config.pipeline_parallel_size)
    if why_not is not None:
        _warn(why_not)
    if why_not is not None or not _on_last_stage(vllm_config):
        return original(*args, **kwargs)
    with borrowed.in_use():
        add_missing_captures()
        mark_compile_cache(vllm_config, plan)
        token = _loading.set(True)
        try:
            model = original(*args, **kwargs)
        finally:
            _loading.reset(token)
        install(model, vllm_config, config, plan)
    return model


def _on_last_stage(vllm_config: Any) -> bool:
    if vllm_config.parallel_config.pipeline_parallel_size == 1:
        return True
    from vllm.distributed.parallel_state import get_pp_group

    return get_pp_group().is_last_rank


def _warn(why_not: str) -> None:
    """One warning on each server."""
    from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank

    if get_pp_group().is_last_rank and get_tensor_model_parallel_rank() == 0:
        logger.warning("confident-decoding is not active, and this server runs standard decoding: %s.", why_not)
