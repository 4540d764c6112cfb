"""What can run: vLLM versions, and combinations that are refused at startup by name."""

import re
from collections.abc import Iterator
from typing import Any

import confident_decoding
from confident_decoding.config import ConfigError

SUPPORTED = ((0, 26), (0, 33))
"""First and last vLLM release that the contracts are checked against."""

RANGE = " to ".join(".".join(map(str, version)) for version in SUPPORTED)

SPECULATION = ("ngram", "ngram_gpu", "suffix", "draft_model", "eagle", "mtp")
"""Speculative methods that need no hidden state of the target model, or its final one alone (`drafting`)."""
DRAFTS_FROM_FINAL_STATES = ("eagle", "mtp")
"""Those of them that need the final one."""


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
    """Name each setting of vLLM that Confident Decoding cannot run with yet, with the remedy."""
    speculative = vllm_config.speculative_config
    method = getattr(speculative, "method", None)
    if speculative is not None and method not in SPECULATION:
        yield (
            f"speculative decoding with method {method!r} (its drafter needs other hidden states of the target). "
            f"Supported methods: {', '.join(SPECULATION)}"
        )
    if getattr(vllm_config.cache_config, "kv_sharing_fast_prefill", False):
        yield "--kv-sharing-fast-prefill (it drops the captured states)"
    passes = getattr(vllm_config.compilation_config, "pass_config", None)
    if getattr(passes, "enable_sp", False):
        yield "the sequence-parallelism pass (compilation_config.pass_config.enable_sp): states are scattered"
    if getattr(vllm_config.parallel_config, "prefill_context_parallel_size", 1) > 1:
        yield "prefill context parallelism (--prefill-context-parallel-size)"


def refuse_unsupported(vllm_config: Any) -> None:
    """Raise if this server's settings or vLLM version cannot work.

    Raises:
        ConfigError: Names every unsupported setting and its remedy.
    """
    import vllm

    refusal, _ = version_problem(vllm.__version__)
    problems = (
        [refusal] if refusal else [f"unsupported together with {p}." for p in unsupported_combinations(vllm_config)]
    )
    if problems:
        raise ConfigError("confident-decoding cannot start:\n  " + "\n  ".join(problems))
