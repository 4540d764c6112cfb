"""Keep compiled graphs with and without captured states apart in vLLM's compile cache.

``aux_hidden_state_layers`` is instance data and part of no cache key, so a graph cached without
capture would be loaded and return no states. ``VllmConfig.compute_hash`` hashes
``additional_config``, which is therefore replaced by a copy that also says what is captured.
"""

import functools
import hashlib
from importlib.resources import files
from typing import Any

from confident_decoding.config import SelectionPlan

KEY = "_confident_decoding"


def mark_compile_cache(vllm_config: Any, plan: SelectionPlan) -> None:
    """Give ``vllm_config`` a copy of its ``additional_config`` with our fingerprint in it.

    Call it before the model is built, so that configurations derived for nested models inherit it.
    The user's own dictionary is left as it is.
    """
    vllm_config.additional_config = {
        **vllm_config.additional_config,
        KEY: {"depths": list(plan.depths), "source": source_hash()},
    }


@functools.cache
def source_hash() -> str:
    """Hash of this package's own source: an upgrade never meets graphs of its predecessor."""
    digest = hashlib.sha256()
    for path in sorted(str(p) for p in _python_files(files("confident_decoding"))):
        digest.update(open(path, "rb").read())  # noqa: SIM115 (a resource path, read at once)
    return digest.hexdigest()[:16]


def _python_files(folder: Any) -> Any:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _python_files(entry)
        elif entry.name.endswith(".py"):
            yield entry
