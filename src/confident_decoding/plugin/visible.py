"""Whether vLLM has the plugin in this process, and if not, why and what to do."""

import importlib
import os
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from confident_decoding.plugin import contracts, entrypoint, front_end, loader

GROUP = "vllm.general_plugins"
_HOOKED = (contracts.LOADER, contracts.FRONT_END, contracts.REQUESTS, contracts.HEAD)


@dataclass(frozen=True)
class Problem:
    """Something that is wrong.

    Attributes:
        what: A sentence that says what was found.
        remedy: A sentence that says what to do.
    """

    what: str
    remedy: str


def why_not_loaded() -> Problem | None:
    """Load plugins as each of vLLM's processes does, and look whether ours has placed its hooks."""
    import vllm.envs
    from vllm.plugins import load_general_plugins

    if entrypoint.disabled():
        return Problem(
            f"{entrypoint.DISABLE}={os.environ[entrypoint.DISABLE]} keeps the plugin out of every process.",
            f"Unset {entrypoint.DISABLE}.",
        )
    own = _own_entry_point()
    if own is None:
        return Problem(
            f"confident-decoding can be imported, but it is not installed: no entry point in {GROUP}.",
            "pip install confident-decoding into the environment that vLLM runs in.",
        )
    allowed = vllm.envs.VLLM_PLUGINS
    if allowed is not None and own.name not in allowed:
        return Problem(
            f"VLLM_PLUGINS={','.join(allowed)} leaves it out.",
            f"Add {own.name} to VLLM_PLUGINS, or unset it to load all plugins.",
        )
    try:
        own.load()
    except Exception as error:
        return Problem(f"It cannot be imported ({type(error).__name__}: {error}).", "Install confident-decoding anew.")
    load_general_plugins()
    return _missing_hook()


def _own_entry_point() -> EntryPoint | None:
    return next((e for e in entry_points(group=GROUP) if e.value.startswith("confident_decoding.")), None)


def _missing_hook() -> Problem | None:
    from vllm import __version__

    remedy = f"Report it with this output; until then use a vLLM release that is supported (here is {__version__})."
    for contract in _HOOKED:
        try:
            problem = contracts.check_live(contract, importlib.import_module(contract.module))
        except ImportError as error:
            problem = str(error)
        if problem:
            return Problem(f"vLLM has changed: {problem}.", remedy)
    if not (loader.hooked() and front_end.hooked()):
        return Problem("vLLM called the plugin, but its hooks are not in place.", remedy)
    return None
