"""Pipeline stages: states are captured on the last one, so all candidates must be there."""

import functools
import os

from confident_decoding.config import SelectionPlan


def misfit(plan: SelectionPlan, stages: int) -> str | None:
    """Why Confident Decoding is not active with so many pipeline stages, and what would make it; None if it is.

    The state of depth d enters the d-th last layer. That of the stage's first layer is the stage's input, which vLLM's
    models do not capture there; so a stage of m layers has depths 0 to m-1.

    Args:
        plan: What is to be captured.
        stages: ``pipeline_parallel_size``.

    Raises:
        ValueError: ``VLLM_PP_LAYER_PARTITION`` is not valid, in vLLM's own words.
    """
    if stages == 1:
        return None
    held = _layers_of_last(plan.num_layers, stages, os.environ.get("VLLM_PP_LAYER_PARTITION"))
    needed = plan.depths[-1] + 1
    if needed <= held:
        return None
    remedies = [
        *_fewer(plan, held),
        *_partition(plan.num_layers, stages, needed),
        "use tensor parallelism instead",
    ]
    return (
        f"with pipeline_parallel_size={stages} the last stage has {held} of the {plan.num_layers} layers, and these "
        f"settings look at the last {needed}; {', or '.join(remedies)}"
    )


@functools.cache
def _layers_of_last(layers: int, stages: int, partition: str | None) -> int:
    """Asked once: requests ask too, and vLLM logs a line each time that layers do not divide evenly."""
    del partition  # vLLM reads it from the environment
    from vllm.distributed.utils import get_pp_indices

    start, end = get_pp_indices(layers, stages - 1, stages)
    return end - start


def _fewer(plan: SelectionPlan, held: int) -> list[str]:
    if plan.fixed_depth is None:
        return [f"set trough_max_backtrack_layers to {held} or less"]
    return [f"set select_method to last-m{held - 1} or less"] if held > 1 else []


def _partition(layers: int, stages: int, last: int) -> list[str]:
    """Layers for each stage that give the last one enough."""
    others, left = stages - 1, layers - last
    if left < others:
        return []
    sizes = [left // others + (place < left % others) for place in range(others)]
    return [f"set VLLM_PP_LAYER_PARTITION={','.join(map(str, [*sizes, last]))}"]
