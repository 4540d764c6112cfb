"""Which of the installed vLLM's generative architectures the general mechanism takes (`plugin.survey`).

python -m tools.architectures            a JSON list
"""

import json
import os

from confident_decoding.plugin.survey import verdict


def survey() -> list[dict]:
    """One entry per registered generative architecture, by name."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm.model_executor.models.registry import _MULTIMODAL_MODELS, _TEXT_GENERATION_MODELS, ModelRegistry

    generative = {**_TEXT_GENERATION_MODELS, **_MULTIMODAL_MODELS}
    registry = {name: ModelRegistry.models[name].load_model_cls for name in generative}
    rows = []
    for architecture in sorted(registry, key=str.lower):
        kind, inner = verdict(architecture, registry)
        rows.append({"architecture": architecture, "capture": kind, "inner": inner})
    return rows


if __name__ == "__main__":
    print(json.dumps(survey(), indent=1))
