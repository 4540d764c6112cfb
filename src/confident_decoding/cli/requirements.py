"""What a command needs before it starts an engine."""

import importlib.util

from confident_decoding.cli.inputs import fail
from confident_decoding.plugin.compat import RANGE


def require_vllm() -> None:
    """vLLM must be installed.

    Raises:
        typer.Exit: It is not.
    """
    if importlib.util.find_spec("vllm") is None:
        fail(
            f"vLLM is not installed in this environment. Install it ({RANGE} are supported), or "
            "confident-decoding[vllm] (CPU: confident-decoding[cpu]).",
            status=1,
        )


def require_plugin() -> None:
    """vLLM must load the plugin: without it "confident" would silently be standard decoding.

    Raises:
        RuntimeError: It does not; the message has the remedy.
    """
    from confident_decoding.plugin import visible

    if problem := visible.why_not_loaded():
        raise RuntimeError(f"vLLM does not load the plugin. {problem.what} {problem.remedy}")
