"""What a model does to states or logits that vLLM's common parts do not show.

One row per quirk, by the name of the model's class (or of a class that it derives from). A model
without a row is taken as vLLM's usual form: the final state is ``norm(stream)``, the logits are
``LogitsProcessor(head(final state))``. The startup proof (`proof`) checks either claim on the loaded
model, so a missing or wrong row is a refusal by name and never a wrong answer.
The other per-model code is `missing_capture`: classes that lack the capture.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Quirks:
    """What one architecture does beside the usual form.

    Attributes:
        after_norm: ``(top-level model, normed states [m, H]) -> [m, H]``: what its forward does to the
            final state after the norm.
        after_logits: ``(top-level model, logits [m, columns], first_id) -> [m, columns]``: what its
            ``compute_logits`` does after the ``LogitsProcessor``. Must be possible on a slice of the
            vocabulary, whose first column is token ``first_id``; must not write to its argument.
        partial_sums: ``(inner model) -> bool``: whether, under tensor parallelism, its layers pass
            on sums that are not reduced over the ranks yet.
    """

    after_norm: Callable[[Any, Tensor], Tensor] | None = None
    after_logits: Callable[[Any, Tensor, int], Tensor] | None = None
    partial_sums: Callable[[Any], bool] | None = None


def _scaled_and_capped(model: Any, logits: Tensor, first_id: int) -> Tensor:
    logits = logits * model.output_multiplier
    cap = model.final_logit_softcapping
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _suppressed(model: Any, logits: Tensor, first_id: int) -> Tensor:
    """-inf at the ids that the checkpoint's generation config suppresses."""
    columns = [token - first_id for token in model._suppress_token_ids or ()]
    mine = [column for column in columns if 0 <= column < logits.shape[1]]
    if not mine:
        return logits
    logits = logits.clone()
    for column in mine:  # a handful; single fills need no index on the device
        logits[:, column] = -torch.inf
    return logits


QUIRKS = {
    # model_executor/models/minicpm.py: forward divides by scale_width
    "MiniCPMForCausalLM": Quirks(after_norm=lambda model, states: states / model.scale_width),
    # model_executor/models/muse_glimmer.py: multiplier and soft cap in compute_logits
    "MuseGlimmerForCausalLM": Quirks(after_logits=_scaled_and_capped),
    # model_executor/models/gemma4_mm.py: suppressed ids in compute_logits (some releases)
    "Gemma4ForConditionalGeneration": Quirks(
        after_logits=lambda model, logits, first_id: (
            _suppressed(model, logits, first_id) if hasattr(model, "_suppress_token_ids") else logits
        )
    ),
    # vllm/models/deepseek_v32/nvidia/model.py: the all-reduce is left to the next layer's norm
    "DeepseekV32ForCausalLM": Quirks(partial_sums=lambda inner: not getattr(inner, "use_sequence_parallel", False)),
}


def quirks_of(model: nn.Module) -> Quirks:
    """The row of a top-level model, or of the first of its base classes that has one."""
    return next((QUIRKS[cls.__name__] for cls in type(model).__mro__ if cls.__name__ in QUIRKS), Quirks())
