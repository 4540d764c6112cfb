"""Drafts from the suffixes of earlier answers: vLLM takes them from a package that is compiled when it is installed."""

import os
import subprocess
import sys

import pytest
from conftest import greedy, on, tiny_engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]
PACKAGE = "arctic-inference>=0.1.1,<0.4"
PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [20, 21, 22, 23] * 6]
CALLS = [
    {"prompts": PROMPTS, "sampling": greedy(48)},
    {"prompts": PROMPTS, "sampling": greedy(48)},  # what was answered once is drafted now
    {"prompts": PROMPTS, "sampling": [greedy(48, seed=n, extra_args={"confident_p": 0.5}) for n in range(3)]},
]


@pytest.fixture(scope="module")
def results(tiny, run_engines, tmp_path_factory):
    """Without and with drafts, each with the selection off and on."""
    folder = tmp_path_factory.mktemp("package")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), PACKAGE]
    subprocess.run(pip, check=True)
    env = {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    found = {}
    for drafts in (False, True):
        extra = {"speculative_config": {"method": "suffix", "num_speculative_tokens": 8}} if drafts else {}
        for name, config in {"off": {}, "on": on()}.items():
            engine = tiny_engine(tiny("LlamaForCausalLM"), config, disable_log_stats=False, **extra)
            calls = CALLS if name == "on" else CALLS[:2]
            (found[name, drafts],) = run_engines([{"engine": engine, "calls": calls, "counters": True}], env=env)
    return found


@pytest.mark.parametrize("name", ["off", "on"])
def test_speculation_changes_no_token(name, results):
    alone, drafted = ([call["tokens"] for call in results[name, drafts]["calls"]] for drafts in (False, True))
    assert drafted == alone
    counters = results[name, True]["counters"]
    assert counters["vllm:spec_decode_num_accepted_tokens"] > 40
    print(
        f"{name}: {counters['vllm:spec_decode_num_accepted_tokens']} of "
        f"{counters['vllm:spec_decode_num_draft_tokens']} drafted tokens accepted"
    )


def test_layers_are_selected(results):
    off, on_ = (results[name, True]["calls"] for name in ("off", "on"))
    assert off[0]["tokens"] != on_[0]["tokens"] != on_[2]["tokens"]
