"""A tiny checkpoint that can be served over HTTP."""

import shutil
from pathlib import Path


def with_tokenizer(tiny_folder, smollm2, target):
    """The tiny model with SmolLM2's tokenizer, whose ids below 512 are special tokens, bytes and short merges."""
    shutil.copytree(tiny_folder, target)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(smollm2) / name, target / name)
    return str(target)
