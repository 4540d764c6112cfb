"""Confident Decoding, and DoLa to compare it with, in transformers' ``generate``.

    import confident_decoding.hf

    model.generate(
        **inputs,
        custom_generate=confident_decoding.hf.generate,
        confident_config={"select_method": "trough"},
        max_new_tokens=256,
    )

docs/transformers.md.
"""

from confident_decoding.hf.confident import generate
from confident_decoding.hf.dola import dola_generate
from confident_decoding.hf.parts import UnsupportedModelError

__all__ = ["UnsupportedModelError", "dola_generate", "generate"]
