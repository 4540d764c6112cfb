"""The documentation's programs run as they are shown, on the embedded model."""

import os
import subprocess
import sys

import pytest
from conftest import ENGINE_ENV
from docs.blocks import program


def run(page, first_line, model, name):
    """Run the page's program that begins so, with the model's name replaced; what it prints."""
    code = program(page, first_line)
    assert name in code
    done = subprocess.run(
        [sys.executable, "-c", code.replace(name, model)],
        env={**os.environ, **ENGINE_ENV},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.engine
def test_the_quick_start(smollm2):
    out = run("docs/index.md", "from vllm import LLM", smollm2, "MODEL")
    assert "confident-decoding 0.1.0 armed" in out
    assert len(out.strip().splitlines()[-1]) > 10  # what it prints comes last


@pytest.mark.engine
def test_in_transformers(smollm2):
    out = run("docs/transformers.md", "import confident_decoding.hf", smollm2, "HuggingFaceTB/SmolLM2-135M-Instruct")
    assert "What is gravity?" in out
    assert len(out) > 100
