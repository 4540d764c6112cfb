"""The ``vllm.general_plugins`` entry point.

vLLM calls `register` in every process that it starts: front end, engine core, workers, and the
subprocess that inspects model classes. Whether the feature is on is known later, from the
configuration, so all that happens here is to ask to be called when two of vLLM's modules load.
"""

import logging
import os
from types import ModuleType

from confident_decoding.plugin.import_hooks import PostImportHooks

# A child of vLLM's logger, so that lines carry its format and its process prefix.
logger = logging.getLogger("vllm.confident_decoding")

DISABLE = "CONFIDENT_DECODING_DISABLE"
"""An environment variable that keeps the plugin out of a process, for operators in a hurry."""
_NOT_SET = ("", "0", "false", "no")
_hooks: PostImportHooks | None = None


def disabled() -> bool:
    """Whether the environment keeps the plugin out of this process."""
    return os.environ.get(DISABLE, "").strip().lower() not in _NOT_SET


def register() -> None:
    """Arrange for the loader and front-end hooks; idempotent, cheap, and never raises."""
    global _hooks  # noqa: PLW0603 (one registration per process is the point)
    if _hooks is not None:
        return
    if disabled():
        _hooks = PostImportHooks()  # with nothing to hook
        logger.warning("confident-decoding is disabled by %s: standard decoding, whatever the configuration.", DISABLE)
        return
    try:
        hooks = PostImportHooks()
        hooks.on_import("vllm.model_executor.model_loader.base_loader", _hook_loader)
        hooks.on_import("vllm.v1.engine.input_processor", _hook_front_end)
        _hooks = hooks
    except Exception:
        logger.exception("confident-decoding could not register; it stays off.")


def _hook_loader(module: ModuleType) -> None:
    try:
        from confident_decoding.plugin.loader import wrap_loaders

        wrap_loaders(module)
    except Exception:
        # With the switch on, the front end's own check refuses to start and names the reason.
        logger.exception("confident-decoding could not hook vLLM's model loader; it stays off.")


def _hook_front_end(module: ModuleType) -> None:
    try:
        from confident_decoding.plugin.front_end import wrap_input_processor

        wrap_input_processor(module)
    except Exception:
        # The worker validates again before it loads a model.
        logger.exception("confident-decoding could not hook vLLM's front end.")
