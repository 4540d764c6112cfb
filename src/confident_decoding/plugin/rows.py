"""Which rows a logits call is about: vLLM passes nothing along, so the caller's name tells.

Statistics depend on this, and requests' own settings, which are for sampled rows. ``make contracts`` checks the
names in every supported release.
"""

from types import FrameType
from typing import Literal

Rows = Literal["sampled", "prompt", "warmup"]

_WARM_UP = {
    "_dummy_sampler_run",
    "compile_or_warm_up_model",
    "determine_available_memory",
    "profile_run",
    "warmup_kernels",
}


def classify(caller: FrameType, serving: bool) -> Rows:
    """The kind of rows of a logits call.

    Args:
        caller: Frame of the function that called ``compute_logits``.
        serving: A call has been seen outside warm-up already, so the callers of the caller need
            not be looked at: one frame's names are all that a step costs.
    """
    code = caller.f_code
    if code.co_name in _WARM_UP:
        return "warmup"
    if "prompt_logprob" in code.co_name or code.co_filename.endswith("/prompt_logprob.py"):
        return "prompt"
    if not serving:
        frame: FrameType | None = caller
        while frame is not None:
            if frame.f_code.co_name in _WARM_UP:
                return "warmup"
            frame = frame.f_back
    return "sampled"
