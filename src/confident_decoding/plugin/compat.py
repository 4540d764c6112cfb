"""What can run: vLLM versions, and combinations that are refused at startup by name."""

import os
import re
from collections.abc import Iterator
from typing import Any

import confident_decoding
from confident_decoding.config import ConfigError

SUPPORTED = ((0, 26), (0, 33))
"""First and last vLLM release that the contracts are checked against."""

RANGE = " to ".join(".".join(map(str, version)) for version in SUPPORTED)

SPECULATION = ("ngram", "suffix", "draft_model", "eagle", "eagle3", "mtp")
"""Speculative methods that work: they need no hidden state of the target model, or get their own (`drafting`)."""
DRAFTS_FROM_FINAL_STATES = ("eagle", "eagle3", "mtp")
"""Those of them whose drafters are given the final state, in one of the model runners at least."""


def versions() -> str:
    """The versions that an error message ends with."""
    import vllm

    return f"vLLM {vllm.__version__}, confident-decoding {confident_decoding.__version__}, supported vLLM {RANGE}"


def version_problem(version: str) -> tuple[str | None, str | None]:
    """Judge a vLLM version: ``(refusal, warning)``, at most one of them set."""
    match = re.match(r"(\d+)\.(\d+)", version)
    found = (int(match[1]), int(match[2])) if match else None
    if found is None or found <= (0, 1):  # a checkout without tags calls itself 0.1.dev...
        return None, f"vLLM {version} is not a release; tested are {RANGE}."
    if found < SUPPORTED[0]:
        return (
            f"vLLM {version} is older than the oldest supported release. Supported: {RANGE}. "
            f"Upgrade vLLM, or set enable_multi_layer_entropy_selection to false.",
            None,
        )
    if found > SUPPORTED[1]:
        return None, f"vLLM {version} is newer than the newest tested release ({RANGE}); each hook is checked first."
    return None, None


def unsupported_combinations(vllm_config: Any) -> Iterator[str]:
    """Name each setting of vLLM that Confident Decoding cannot run with yet, and why."""
    speculative = vllm_config.speculative_config
    method = getattr(speculative, "method", None)
    if speculative is not None and method not in SPECULATION:
        yield (
            f"speculative decoding with method {method!r} (its drafter has not been shown to get the states of the "
            f"target that it reads). "
            f"Supported methods: {', '.join(SPECULATION)}"
        )
    if getattr(vllm_config.cache_config, "kv_sharing_fast_prefill", False):
        yield "--kv-sharing-fast-prefill (it drops the captured states)"
    passes = getattr(vllm_config.compilation_config, "pass_config", None)
    if getattr(passes, "enable_sp", False):
        yield "the sequence-parallelism pass (compilation_config.pass_config.enable_sp): states are scattered"
    parallel = vllm_config.parallel_config
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        yield "prefill context parallelism (--prefill-context-parallel-size)"
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        yield (
            "vLLM's Rust front end (unset VLLM_USE_RUST_FRONTEND): it has no plugins, so requests' own settings would "
            "not be checked"
        )
    if getattr(parallel, "use_ubatching", False):
        yield (
            "dual-batch overlap (--enable-dbo, --ubatch-size): the model's output is put together from pieces, which "
            "has not been run with packed rows"
        )


def refuse_unsupported(vllm_config: Any) -> None:
    """Raise if this server's settings or vLLM version cannot work.

    Raises:
        ConfigError: Names every unsupported setting and its remedy.
    """
    import vllm

    refusal, _ = version_problem(vllm.__version__)
    problems = [refusal] if refusal else []
    if not problems and (named := list(unsupported_combinations(vllm_config))):
        remedy = "Leave them out, or set enable_multi_layer_entropy_selection to false."
        problems = [*(f"unsupported together with {setting}." for setting in named), remedy]
    if problems:
        raise ConfigError("confident-decoding cannot start:\n  " + "\n  ".join(problems))
