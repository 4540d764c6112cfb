"""LoRA: what vLLM puts around the ``LogitsProcessor``, and the way past it where it adds nothing.

``--enable-lora`` replaces the language model's processor after loading (``lora/model_manager.py``), whatever the
adapters touch. The wrapper applies adapters to the very rows that it is given, so packed rows cannot go through it.
If no adapter in a slot has weights for the output head, its part of the logits is zero in every row, and packed rows
may go to the processor itself.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from confident_decoding.plugin import contracts
from confident_decoding.plugin.anatomy import logits_processor


def problem() -> str | None:
    """Why packed rows have no way past this vLLM's wrapper, or None."""
    return contracts.check_live(contracts.ADAPTERS, importlib.import_module(contracts.ADAPTERS.module))


class HeadAdapters:
    """Says, for one model instance, what stands before its output head when logits are asked for.

    It reads the host's own record of the slots (``LoRAModelManager``), which vLLM brings up to date on every rank
    before the forward of a step: no device is asked, and ranks agree.

    Args:
        processor: The language model's ``LogitsProcessor``.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._wrapper: Any = None
        self._names: tuple[str, ...] = ()
        self._passing = False

    def wrapped(self, top: Any) -> bool:
        """Whether there is a wrapper around the processor of ``top`` now; the first time it gets its way past."""
        found = logits_processor(top)
        if found is self._processor:
            return False
        if found is not self._wrapper:
            self._wrapper = found
            self._names = tuple(name for name, module in top.lora_manager.modules.items() if module is found)
            self._let_pass(found)
        return True

    def touch_head(self, top: Any) -> bool:
        """Whether an adapter that is in a slot has weights for the output head."""
        known = top.lora_manager.list_adapters()
        in_slots = [known[number] for number in top.lora_manager.lora_index_to_id if number is not None]
        return any(adapter.get_lora(name) is not None for adapter in in_slots for name in self._names)

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Meanwhile the wrapper hands its rows to the processor, and adds nothing."""
        self._passing = True
        try:
            yield
        finally:
            self._passing = False

    def _let_pass(self, wrapper: Any) -> None:
        stock = wrapper._get_logits

        def _get_logits(hidden_states: Tensor, lm_head: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._passing:
                return stock(hidden_states, lm_head, *args, **kwargs)
            # Where the head is the embedding itself (tied GLM-4 in vLLM 0.26), that is wrapped as well.
            return self._processor._get_logits(hidden_states, getattr(lm_head, "base_layer", lm_head), *args, **kwargs)

        wrapper._get_logits = _get_logits
