"""The tiny Llama that most of these tests generate with."""

import pytest

from hf.common import load


@pytest.fixture(scope="module")
def checkpoint(tiny):
    return tiny("LlamaForCausalLM")


@pytest.fixture(scope="module")
def model(checkpoint):
    return load(checkpoint)
