"""The words of `doctor` about cost follow the planner."""

import pytest

from confident_decoding.cli.expectation import expected_cost, measured
from confident_decoding.config import ConfidentDecodingConfig

GPU = {"not_active": None, "lora": False, "batch_invariant": False, "dense_rows": 25}


def plan(**keys):
    return ConfidentDecodingConfig(enable_multi_layer_entropy_selection=True, **keys).resolve(36)


def test_the_boundary_is_named():
    text = expected_cost(plan(), GPU, "bfloat16", "cuda")
    assert text.startswith("low up to 25 rows in a step: all 10 candidates")


@pytest.mark.parametrize(
    ("keys", "serving", "dtype", "begins"),
    [
        ({}, {"not_active": "why"}, "bfloat16", "nothing: with these pipeline stages"),
        ({"trough_max_backtrack_layers": 0}, {}, "bfloat16", "nothing to speak of"),
        ({"select_method": "last-m8"}, {}, "bfloat16", "no scan: one head call"),
        ({"select_method": "last-m8", "p": 0.5}, {}, "bfloat16", "no scan: two head calls"),
        ({}, {"dense_rows": None}, "float32", "dense: all 10 candidates"),
        ({}, {"dense_rows": None, "batch_invariant": True}, "bfloat16", "dense: all 10 candidates"),
    ],
)
def test_other_classes(keys, serving, dtype, begins):
    assert expected_cost(plan(**keys), {**GPU, **serving}, dtype, "cuda").startswith(begins)


@pytest.mark.parametrize("dense_rows", [25, None])
def test_adapters_on_the_head_are_the_exception_under_lora(dense_rows):
    serving = {**GPU, "dense_rows": dense_rows}
    without, text = (expected_cost(plan(), {**serving, "lora": lora}, "bfloat16", "cuda") for lora in (False, True))
    assert text.startswith(f"{without} While a LoRA adapter in a slot has weights for the output head: high")
    assert "calls the head 10 times" in text


def test_the_reason_of_a_dense_scan():
    dense = {**GPU, "dense_rows": None}
    assert "runs in float32" in expected_cost(plan(), dense, "float32", "cuda")
    assert "VLLM_BATCH_INVARIANT=1" in expected_cost(plan(), {**dense, "batch_invariant": True}, "bfloat16", "cuda")
    assert "Triton" in expected_cost(plan(), dense, "bfloat16", "cuda")


def test_what_was_measured():
    evidence = {
        "overhead": {"cpu": {"machine": "2 CPU cores", "model": "m", "candidates": 10, "ratios": {"1": 1.08, "8": 1.3}}}
    }
    assert measured(evidence, "cpu").startswith("Measured on 2 CPU cores with m and 10 candidates")
    assert "1.08x at 1, 1.30x at 8" in measured(evidence, "cpu")
    assert measured(evidence, "xpu") is None
