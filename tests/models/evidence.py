"""Runs `prove` for the tests: every tag once, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ENGINE_ENV

COVERED = {
    "LlamaForCausalLM-tied": "in plugin/test_architectures.py, the same checkpoint against the same oracle",
    "LlamaForCausalLM-oddvocab": "in plugin/test_architectures.py as well, and on two ranks in plugin/test_parallel.py",
    "Qwen3_5MoeForCausalLM": "by Qwen3_5ForCausalLM (one inner model) and the experts of Qwen3NextForCausalLM",
    "DeepseekV3ForCausalLM": "by DeepseekV2ForCausalLM: a subclass without a body",
    "DeepseekV3ForCausalLM-mha": "by DeepseekV2ForCausalLM; plugin/test_speculation.py selects on this checkpoint",
    "Qwen3VLMoeForConditionalGeneration": "by Qwen3VLForConditionalGeneration and Qwen3MoeForCausalLM, its two parents",
    "Qwen3_5MoeForConditionalGeneration": "by Qwen3_5ForConditionalGeneration and Qwen3NextForCausalLM, likewise",
}
"""Checkpoints whose code in vLLM and here others run too, and where; their own proof is left to `make test-all`."""
TESTS = Path(__file__).resolve().parent.parent


def marked(tags):
    """Parameters of a test, a tag each."""
    return [pytest.param(tag, marks=pytest.mark.slow) if tag in COVERED else tag for tag in tags]


def wanted(request):
    """The tags of this module's tests that are to run."""
    here = [item for item in request.session.items if item.path == request.path]
    return list(dict.fromkeys(item.callspec.params["tag"] for item in here))


def gather(tags, folder, *arguments, env=None):
    """``{tag: line of evidence}``."""
    out = folder / "evidence.jsonl"
    subprocess.run(
        [sys.executable, "-m", "models.prove", str(out), "--jobs", "1", *arguments, *tags],
        cwd=TESTS,
        env={**os.environ, **ENGINE_ENV, **(env or {})},
        check=True,
    )
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    logs = "".join(log.read_text()[-3000:] for log in folder.glob("*.log"))
    return {tag: {"tag": tag, "error": f"no evidence was written; logs:\n{logs}"} for tag in tags} | {
        row["tag"]: row for row in rows
    }
