"""LoRA: each request's own adapter, on attention alone and on the output head, against merged checkpoints."""

from pathlib import Path

import pytest
import torch
from conftest import greedy, on, tiny_engine
from models.adapters import ATTENTION, WITH_HEAD, merged, write_adapter
from oracle import TransformersOracle

from plugin.checks import follow

pytestmark = pytest.mark.engine

PROMPTS = [list(range(5 + i, 25 + 2 * i)) for i in range(6)]
SETTINGS = {
    "trough": (on(trough_log_interval=1), {"window": 5}),
    "trough-m1": (
        on(select_method="trough-m1", trough_max_backtrack_layers=4),
        {"window": 3, "shift": 1, "candidates": 4},
    ),
    "trough-p1": (on(select_method="trough-p1"), {"window": 5, "shift": -1}),
    "min-entropy": (on(trough_min_entropy=5.58), {"window": 5, "min_entropy": 5.58}),
    "last-m3": (on(select_method="last-m3"), {"window": 0, "fixed": 3}),
    "p=0": (on(p=0.0), {"window": 0}),
    "off": ({}, {"window": 0}),
}


@pytest.fixture(scope="module")
def adapters(tiny, tmp_path_factory):
    folder, base = tmp_path_factory.mktemp("lora"), Path(tiny("LlamaForCausalLM"))
    return base, {
        "attention": write_adapter(base, folder / "attention", ATTENTION, 1),
        "head": write_adapter(base, folder / "head", WITH_HEAD, 2),
    }


@pytest.fixture(scope="module")
def results(run_engines, adapters):
    base, made = adapters
    # One batch: two requests without an adapter, two with each.
    lora = [None, str(made["attention"]), str(made["head"])] * 2
    call = {"prompts": PROMPTS, "sampling": greedy(10, logprobs=3), "lora": lora}
    # A slot to spare: vLLM's CPU kernels give rows without an adapter the one in the last slot, if there is one.
    options = {"enable_lora": True, "max_loras": 3, "max_lora_rank": 8}
    jobs = [{"engine": tiny_engine(str(base), config, **options), "calls": [call]} for config, _ in SETTINGS.values()]
    return dict(zip(SETTINGS, run_engines(jobs), strict=True))


@pytest.fixture(scope="module")
def oracles(adapters, tmp_path_factory):
    base, made = adapters
    folder = tmp_path_factory.mktemp("merged")
    paths = [base, *(merged(base, adapter, folder / name) for name, adapter in made.items())]
    return [TransformersOracle(path, torch.float32) for path in paths]


@pytest.mark.parametrize("name", SETTINGS)
def test_each_request_follows_its_own_merged_checkpoint(name, results, oracles):
    settings, tokens = SETTINGS[name][1], results[name]["calls"][0]["tokens"]
    for number, (prompt, (generated,)) in enumerate(zip(PROMPTS, tokens, strict=True)):
        assert follow(oracles[number % 3], prompt, generated, **settings) is None, "a near tie: choose another seed"


def test_the_adapters_and_the_scan_matter(results):
    tokens = {name: result["calls"][0]["tokens"] for name, result in results.items()}
    assert tokens["trough"] != tokens["off"]
    assert tokens["trough"] != tokens["last-m3"]


def test_p_zero_is_bit_equal_to_off(results):
    zero, off = (results[name]["calls"][0] for name in ("p=0", "off"))
    assert zero["tokens"] == off["tokens"]
    assert zero["logprobs"] == off["logprobs"]


def test_the_log_line_counts_each_row_once(results):
    lines = [line for line in results["trough"]["lines"] if "[trough-decoding]" in line]
    assert len(lines) == 10, "a step is one head call, however many candidates it projects"
    assert all(f"tokens={len(PROMPTS)}" in line for line in lines[1:])


def test_two_ranks_choose_what_one_chooses(run_engines, adapters, results):
    base, made = adapters
    lora = [None, str(made["attention"]), str(made["head"])] * 2
    call = {"prompts": PROMPTS, "sampling": greedy(10), "lora": lora}
    options = {"enable_lora": True, "max_loras": 3, "max_lora_rank": 8, "tensor_parallel_size": 2}
    (two,) = run_engines([{"engine": tiny_engine(str(base), SETTINGS["trough"][0], **options), "calls": [call]}])
    assert two["calls"][0]["tokens"] == results["trough"]["calls"][0]["tokens"]
