"""What a decode step will cost, in words: which scan the planner takes, and what was measured."""

from typing import Any

from confident_decoding.config import SelectionPlan


def expected_cost(plan: SelectionPlan, serving: dict[str, Any], dtype: str, device: str) -> str:
    """The class of a configuration's cost, with its condition.

    Args:
        plan: Of the model.
        serving: As `probe.serving` reports it.
        dtype: Of the model, for example ``"bfloat16"``.
        device: ``"cuda"`` or ``"cpu"``.
    """
    n, few = len(plan.depths), serving["dense_rows"]
    if serving["not_active"]:
        return "nothing: with these pipeline stages Confident Decoding is not active (standard decoding)."
    if plan.selects_nothing:
        return "nothing to speak of: the final layer is the only candidate."
    if plan.fixed_depth is not None:
        return f"no scan: {'one head call' if plan.p == 1 else 'two head calls'} a step instead of one."
    lora = ""
    if serving["lora"]:
        lora = (
            f" While a LoRA adapter in a slot has weights for the output head: high, each step calls the head {n} "
            "times, once for each candidate."
        )
    if few is None:
        why = _dense_because(serving, dtype)
        return (
            f"dense: all {n} candidates of every row are projected in each step ({why}); it grows with the rows.{lora}"
        )
    other = "" if device == "cpu" else " If the output head itself is quantised or has a bias, all rows are dense."
    return (
        f"low up to {few} rows in a step: all {n} candidates in one call of the output head (dense). With more rows, "
        f"rounds: further candidates only for rows whose entropy is still falling.{other}{lora}"
    )


def _dense_because(serving: dict[str, Any], dtype: str) -> str:
    if serving["batch_invariant"]:
        return "VLLM_BATCH_INVARIANT=1"
    if dtype not in ("bfloat16", "float16"):
        return f"the model runs in {dtype}, the kernels of rounds need bfloat16 or float16"
    return "the kernels of rounds need Triton and a hidden size that 64 divides"


def measured(evidence: dict[str, Any], device: str) -> str | None:
    """What was measured on a device of this kind, as a sentence; None if nothing was."""
    known = evidence["overhead"].get(device)
    if known is None:
        return None
    ratios = ", ".join(f"{ratio:.2f}x at {rows}" for rows, ratio in known["ratios"].items())
    return (
        f"Measured on {known['machine']} with {known['model']} and {known['candidates']} candidates, by requests in a "
        f"step: {ratios}. `confident-decoding bench` measures this machine."
    )
