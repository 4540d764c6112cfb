"""Quantised checkpoints with plain, tied and quantised heads, and a head in another dtype than the model."""

import pytest

from models.criteria import problems
from models.evidence import gather
from models.quantised import QUANTISED

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
PLAIN_HEADS = ("LlamaForCausalLM-int8", "LlamaForCausalLM-awq-tied")


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    # Where the processor has AMX, vLLM would also round the activations of 4-bit layers.
    return gather(QUANTISED, tmp_path_factory.mktemp("evidence"), env={"VLLM_CPU_INT4_W4A8": "0"})


@pytest.mark.parametrize("tag", QUANTISED)
def test_depths_follow_from_the_models_own_logits_and_those_are_the_dequantised_weights(tag, evidence):
    assert problems(evidence[tag]) == []


@pytest.mark.parametrize("tag", QUANTISED)
def test_p_zero_is_bit_equal_to_off(tag, evidence):
    assert evidence[tag]["p0_bit_equal"]


@pytest.mark.parametrize("tag", QUANTISED)
def test_a_head_is_read_as_a_matrix_only_where_it_is_one(tag, evidence):
    """A quantised head, or one of another dtype, stays with the model's own method."""
    assert evidence[tag]["head_is_a_matrix"] == (tag in PLAIN_HEADS)
