"""Made-up configurations, with as much of vLLM's as the hooks read."""

import types


def config_with(**changes):
    ns = types.SimpleNamespace
    base = {
        "speculative_config": None,
        "lora_config": None,
        "cache_config": ns(kv_sharing_fast_prefill=False),
        "compilation_config": ns(pass_config=ns(enable_sp=False)),
        "parallel_config": ns(prefill_context_parallel_size=1),
    }
    return ns(**{**base, **changes})
