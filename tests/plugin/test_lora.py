"""LoRA: each request's own adapter, on attention alone and on the output head, against merged checkpoints."""

import os
from pathlib import Path

import pytest
import torch
from conftest import greedy, on, tiny_engine
from models.adapters import ATTENTION, WITH_HEAD, merged, write_adapter
from oracle import TransformersOracle

from plugin.checks import follow

pytestmark = pytest.mark.engine

PROMPTS = [list(range(5 + i, 25 + 2 * i)) for i in range(6)]
TOKENS = 10
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
# A slot to spare: vLLM's CPU kernels give rows without an adapter the one in the last slot, if there is one.
OPTIONS = {"enable_lora": True, "max_loras": 3, "max_cpu_loras": 5, "max_lora_rank": 8}
TARGETS = {"attention": ATTENTION, "head": WITH_HEAD, "second": ATTENTION, "third": ATTENTION}
BATCHES = {
    "before": (None, "attention"),
    "loaded": (None, "attention", "head") * 2,
    "removed": (None, "attention"),
    "loaded again": ("head",),
    "beside": ("attention",),
    "no slot left": ("second",),
    "evicted": ("third",),
}
"""The adapters of one engine's batches, in this order. Before the third, vLLM is told to remove the adapter on the
head; for the last, it must give that one's slot away, the least recently used, and keeps the adapter in memory."""
HEAD_IN_A_SLOT = ("loaded", "loaded again", "beside", "no slot left")


@pytest.fixture(scope="module")
def adapters(tiny, tmp_path_factory):
    folder, base = tmp_path_factory.mktemp("lora"), Path(tiny("LlamaForCausalLM"))
    made = {
        name: write_adapter(base, folder / name, targets, seed)
        for seed, (name, targets) in enumerate(TARGETS.items(), start=1)
    }
    return base, made


def ask(run_engines, adapters, configs, env=None, **options):
    """``{batch: (its answer, calls of each rank's head with plain rows)}`` of one engine for each configuration."""
    base, made = adapters
    calls = []
    for name, used in BATCHES.items():
        if name == "removed":
            calls.append({"do": "remove_adapter", "with": {"path": str(made["head"])}})
        lora = [None if adapter is None else str(made[adapter]) for adapter in used]
        batch = {"prompts": PROMPTS[: len(used)], "sampling": greedy(TOKENS, logprobs=3), "lora": lora}
        calls += [{"do": "plain_head_calls"}, batch, {"do": "plain_head_calls"}]
    jobs = [{"engine": tiny_engine(str(base), config, **OPTIONS, **options), "calls": calls} for config in configs]
    found = []
    for result in run_engines(jobs, env=env):
        answers = [answer for answer in result["calls"] if answer is not True]
        assert len(answers) == len(calls) - 1, "vLLM did not have the adapter that it was told to remove"
        by_batch = {
            name: (answer, [b - a for a, b in zip(before, after, strict=True)])
            for name, before, answer, after in zip(BATCHES, answers[::3], answers[1::3], answers[2::3], strict=True)
        }
        found.append({"batches": by_batch, "lines": result["lines"]})
    return found


@pytest.fixture(scope="module")
def results(run_engines, adapters):
    return dict(zip(SETTINGS, ask(run_engines, adapters, [config for config, _ in SETTINGS.values()]), strict=True))


def tokens(result):
    return {name: answer["tokens"] for name, (answer, _) in result["batches"].items()}


@pytest.fixture(scope="module")
def oracles(adapters, tmp_path_factory):
    base, made = adapters
    folder = tmp_path_factory.mktemp("merged")
    paths = {None: base, **{name: merged(base, adapter, folder / name) for name, adapter in made.items()}}
    return {name: TransformersOracle(path, torch.float32) for name, path in paths.items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_each_request_follows_its_own_merged_checkpoint(name, results, oracles):
    settings = SETTINGS[name][1]
    for batch, answers in tokens(results[name]).items():
        for prompt, adapter, (generated,) in zip(PROMPTS, BATCHES[batch], answers, strict=False):
            assert follow(oracles[adapter], prompt, generated, **settings) is None, "a near tie: choose another seed"


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "off"])
def test_candidates_are_head_calls_only_while_an_adapter_in_a_slot_touches_the_head(name, results):
    calls = {batch: calls for batch, (_, (calls,)) in results[name]["batches"].items()}
    assert [batch for batch, number in calls.items() if number] == list(HEAD_IN_A_SLOT), calls
    assert all(calls[batch] % TOKENS == 0 for batch in HEAD_IN_A_SLOT)


def test_the_adapters_and_the_scan_matter(results):
    found = {name: tokens(result)["loaded"] for name, result in results.items()}
    assert found["trough"] != found["off"]
    assert found["trough"] != found["last-m3"]
    assert len({str(answer) for answer in found["trough"][:3]}) == 3


def test_p_zero_is_bit_equal_to_off(results):
    for batch in BATCHES:
        zero, off = (results[name]["batches"][batch][0] for name in ("p=0", "off"))
        assert zero["tokens"] == off["tokens"]
        assert zero["logprobs"] == off["logprobs"]


def test_the_log_line_counts_each_row_once(results):
    lines = [line for line in results["trough"]["lines"] if "[trough-decoding]" in line]
    assert len(lines) == TOKENS * len(BATCHES), "a step is one head call, however many candidates it projects"
    rows = [len(adapters) for adapters in BATCHES.values() for _ in range(TOKENS)]
    wrong = [(n, line) for n, line in zip(rows[1:], lines[1:], strict=True) if f"tokens={n} " not in line]
    assert not wrong


def test_two_ranks_choose_what_one_chooses_in_the_same_way(run_engines, adapters, results):
    env = {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # a function of actions.py is sent to the workers
    }
    (two,) = ask(run_engines, adapters, [SETTINGS["trough"][0]], env, tensor_parallel_size=2)
    one = results["trough"]
    assert tokens(two) == tokens(one)
    for batch, (_, calls) in two["batches"].items():
        assert calls == 2 * one["batches"][batch][1], f"{batch}: each rank takes the one rank's way"
