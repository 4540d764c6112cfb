"""Several worker processes on one machine: tensor and expert parallel ranks and pipeline stages agree with one."""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import greedy, on, tiny_engine
from models.checkpoints import CHECKPOINTS
from oracle import entropy, trough
from safetensors.torch import load_file

from demo.server import free_port

pytestmark = pytest.mark.engine
# Functions of modules beside this one are sent to the workers.
FROM_HERE = {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
}
# No statistics to anybody, no token in the home directory.
QUIET_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
PROMPTS = [torch.randint(3, 500, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (6, 11, 30)]
CALLS = [{"prompts": PROMPTS, "sampling": greedy(16, logprobs=3, prompt_logprobs=1)}]
OWN = [
    greedy(16, seed=5, extra_args={"confident_p": 0.5}),
    greedy(16, extra_args={"confident_p": 0}),
    greedy(16, extra_args={"confident_select_method": "trough-m1", "confident_min_entropy": 5.5}),
]


def run(run_engines, path, config, env=None, calls=CALLS, job=None, **options):
    # Workers must be spawned: the driver process has used threads of its own.
    (result,) = run_engines(
        [{"engine": tiny_engine(path, config, **options), "calls": calls, **(job or {})}],
        env={"VLLM_WORKER_MULTIPROC_METHOD": "spawn", **(env or {})},
    )
    return result


def lines(result, pattern):
    return re.findall(pattern, result["log"])


@pytest.fixture(scope="module")
def one_and_two(run_engines, tiny):
    """A vocabulary of 500 is padded differently at TP=1 and TP=2; rows are mixed."""
    path, config = tiny("LlamaForCausalLM-oddvocab"), on(p=0.7, trough_log_interval=1)
    calls = [*CALLS, {"prompts": PROMPTS, "sampling": OWN}]
    return [run(run_engines, path, config, calls=calls, tensor_parallel_size=ranks) for ranks in (1, 2)]


def test_two_ranks_choose_what_one_chooses(one_and_two):
    one, two = one_and_two
    assert one["calls"][0]["tokens"] == two["calls"][0]["tokens"]
    for a, b in zip(one["calls"][0]["prompt_logprobs"], two["calls"][0]["prompt_logprobs"], strict=True):
        for row_a, row_b in zip(a[1:], b[1:], strict=True):
            assert dict(row_a) == pytest.approx(dict(row_b), abs=1e-4)


def test_requests_of_their_own_settings_are_the_same_on_two_ranks(one_and_two):
    servers, own = (call["tokens"] for call in one_and_two[0]["calls"])
    assert own == one_and_two[1]["calls"][1]["tokens"]
    assert [a == b for a, b in zip(own, servers, strict=True)] == [False] * 3, "the settings must matter"


def test_depths_are_the_same_and_told_by_one_rank(one_and_two):
    pattern = r"\[trough-decoding\] step=.* tokens_kept_at_final=\S+"
    one, two = (lines(result, pattern) for result in one_and_two)
    assert len(one) == 2 * 16
    assert one == two
    assert len(lines(one_and_two[1], r"armed: ")) == 1
    assert lines(one_and_two[1], r"Worker_TP0\S* pid=\d+\)? INFO .*armed: "), "rank 0 speaks"


@pytest.fixture(scope="module")
def experts(run_engines, tiny):
    """One rank, and two ranks with half of the experts each."""
    path, config = tiny("MixtralForCausalLM"), on(trough_log_interval=1)
    split = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    repaired = {"worker_extension_cls": "mapped_experts.MappedExperts"}
    return run(run_engines, path, config), run(run_engines, path, config, FROM_HERE, **split, **repaired)


@pytest.mark.slow
def test_expert_parallel_ranks_choose_what_one_chooses(experts):
    one, two = experts
    assert lines(two, r"Expert parallelism is enabled.*Local/global number of experts: 2/4")
    assert one["calls"][0]["tokens"] == two["calls"][0]["tokens"]
    pattern = r"\[trough-decoding\] step=.* tokens_kept_at_final=\S+"
    assert lines(one, pattern) == lines(two, pattern)
    assert len(lines(one, pattern)) == 16


@pytest.fixture(scope="module", params=["Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM-mha"])
def four_ranks_of_experts(request, run_engines, tiny):
    """One rank; and two data-parallel engines of two tensor-parallel ranks each, the experts divided over all four.

    The second engine is asked less: in the end it steps only because the other does.
    """
    path, row, config = tiny(request.param), CHECKPOINTS[request.param], on(trough_log_interval=1)
    place = {"VLLM_DP_SIZE": "2", "VLLM_DP_MASTER_IP": "127.0.0.1", "VLLM_DP_MASTER_PORT": str(free_port())}
    split = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    repaired = {"worker_extension_cls": "gathered_experts.GatheredExperts"}
    asked, own = {"ranks": "gathered_experts.sequence_parallel"}, {**row.options, **row.cpu_options}

    def engine(rank):
        env = {**FROM_HERE, **row.env, **place, "VLLM_DP_RANK": str(rank), "VLLM_DP_RANK_LOCAL": str(rank)}
        calls = [{**CALLS[0], "prompts": PROMPTS[: 3 - rank]}]
        return run(run_engines, path, config, env, calls, asked, **own, **split, **repaired)

    with ThreadPoolExecutor(2) as pool:
        engines = list(pool.map(engine, range(2)))
    return run(run_engines, path, config, row.env, **own), engines


@pytest.mark.slow
def test_sequence_parallel_experts_choose_what_one_rank_chooses(four_ranks_of_experts):
    one, engines = four_ranks_of_experts
    expected, pattern = one["calls"][0], r"tokens_kept_at_final=(\d+)/(\d+)"
    for number, engine in enumerate(engines):
        assert [chosen for chosen, _ in engine["ranks"]] == [True, True]
        assert all(layers > 0 for _, layers in engine["ranks"])
        found = engine["calls"][0]
        assert found["tokens"] == expected["tokens"][: 3 - number]
        for a, b in zip(found["prompt_logprobs"], expected["prompt_logprobs"], strict=False):
            for row_a, row_b in zip(a[1:], b[1:], strict=True):
                assert dict(row_a) == pytest.approx(dict(row_b), abs=1e-3)
    assert lines(engines[0], pattern) == lines(one, pattern)
    assert any(kept != tokens for kept, tokens in lines(one, pattern)), "the switch must matter"


@pytest.mark.slow
def test_batch_sharded_sampling_gets_the_rows_that_it_asks_for(run_engines, tiny):
    """What it asks of the model, to the bit; from end to end, in the second model runner: test_second_runner.py."""
    asked = {"ranks": "ranks.sharded_rows"}
    two = run(run_engines, tiny("LlamaForCausalLM-oddvocab"), on(), FROM_HERE, [], asked, tensor_parallel_size=2)
    for difference, selected in two["ranks"]:
        assert difference == 0
        assert selected > 5


@pytest.fixture(scope="module", params=[2, 4])
def five_hundred_steps(request, run_engines, tiny):
    """The checkpoint, and what each of 2 or 4 ranks kept of more than 500 steps of sampled answers."""
    path = tiny("LlamaForCausalLM-oddvocab")
    sampled = [greedy(90) | {"temperature": 0.9, "seed": seed} for seed in range(len(PROMPTS))]
    calls = [
        {"do": "on_ranks", "with": {"function": "start_recording"}},
        *[{"prompts": [[7 * n + 3, *ids] for ids in PROMPTS], "sampling": sampled} for n in range(6)],
        {"do": "on_ranks", "with": {"function": "recorded"}},
    ]
    result = run(run_engines, path, on(), FROM_HERE, calls, tensor_parallel_size=request.param)
    return path, result["calls"][-1]


@pytest.mark.slow
def test_every_rank_takes_the_same_decisions(five_hundred_steps):
    """And no rank sends more than three numbers for a candidate."""
    path, ranks = five_hundred_steps
    assert len(ranks[0]["depths"]) > 3 * 500
    assert len(set(ranks[0]["depths"])) > 3
    for rank in ranks[1:]:
        assert rank["depths"] == ranks[0]["depths"]
    candidates = json.loads((Path(path) / "config.json").read_text())["num_hidden_layers"]
    assert {rank["calls"] for rank in ranks} == {ranks[0]["calls"]}
    assert 0 < max(rank["bytes"] for rank in ranks) <= 12 * candidates * len(ranks[0]["depths"])


@pytest.mark.slow
def test_depths_on_several_ranks_are_those_of_the_mathematics(five_hundred_steps):
    path, ranks = five_hundred_steps
    tensors, config = load_file(Path(path) / "model.safetensors"), json.loads((Path(path) / "config.json").read_text())
    gain, head = (tensors[f"{name}.weight"].double().numpy() for name in ("model.norm", "lm_head"))
    states = np.array(ranks[0]["packed"]).reshape(len(ranks[0]["packed"]), -1, len(gain)).swapaxes(0, 1)
    raw = states[1:]
    normed = raw / np.sqrt((raw**2).mean(-1, keepdims=True) + config["rms_norm_eps"]) * gain
    logits = np.concatenate([states[:1], normed]) @ head.T
    entropies = np.array([[entropy(row) for row in depth] for depth in logits])
    window, sure = len(entropies) - 1, 0
    for h, depth in zip(entropies.T, ranks[0]["depths"], strict=False):
        expected = trough(h, window)
        if np.abs(np.diff(h))[: expected + 1].min() > 1e-4:
            sure += 1
            assert depth == expected
    assert sure > 150


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "env", "error"),
    [
        (
            {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"},
            QUIET_RAY,
            "current platform cpu does not support ray.",
        ),
        ({}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}, "Model Runner V2 requires Triton."),
    ],
    ids=["ray", "V2 runner"],
)
def test_vllms_cpu_engine_refuses_by_itself(options, env, error, run_engines, tiny):
    job = {"may_fail": True}
    refused = run(run_engines, tiny("LlamaForCausalLM"), on(), env, [], job, **options)
    assert error in refused["error"]


@pytest.mark.slow
def test_vllms_cpu_engine_leaves_out_dual_batch_overlap_by_itself(run_engines, tiny):
    overlapped = run(run_engines, tiny("LlamaForCausalLM"), on(), enable_dbo=True)
    assert "Dual-Batch Overlap is not supported on CPU, disabled." in overlapped["log"]
    assert lines(overlapped, r"armed: ")


@pytest.mark.slow
def test_ray_workers_choose_what_one_rank_chooses(run_engines, tiny):
    """With the CPU platform made to name a Ray resource; both workers must select, and the first one speaks."""
    path, config = tiny("LlamaForCausalLM-oddvocab"), on(trough_log_interval=1)
    job = {"before": "ray_on_cpu.start", "ranks": "ranks.sharded_rows"}
    options = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}
    one = run(run_engines, path, config)
    two = run(run_engines, path, config, {**FROM_HERE, **QUIET_RAY}, job=job, **options)
    assert one["calls"][0]["tokens"] == two["calls"][0]["tokens"]
    assert [selected > 5 for _, selected in two["ranks"]] == [True, True]
    assert len(lines(two, r"RayWorkerProc.*Worker_TP0.*armed: ")) == 1
    assert len(lines(two, r"armed: ")) == 1


STAGES = {
    "pipeline_parallel_size": 2,
    # Compiled: stock vLLM 0.32 fails with stages on the CPU in eager mode, where no dummy run makes the buffers
    # between them.
    "enforce_eager": False,
}
MULTIPROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
LINE = r"\[trough-decoding\] step=.* tokens_kept_at_final=\S+"


def one_and_staged(run_engines, path, config, env=None, **options):
    """One process, and two stages of three layers each."""
    calls = [*CALLS, {"prompts": PROMPTS, "sampling": [greedy(16), *OWN[1:]]}]
    one = run(run_engines, path, config, calls=calls)
    return one, run(run_engines, path, config, {**MULTIPROCESS, **(env or {})}, calls, **STAGES, **options)


def kept(result):
    """Tokens that stayed at the final layer, and all; stages take requests as they come, so steps are not alike."""
    return [sum(map(int, numbers)) for numbers in zip(*lines(result, r"tokens_kept_at_final=(\d+)/(\d+)"), strict=True)]


def check_chooses_the_same(one, staged):
    for a, b in zip(one["calls"], staged["calls"], strict=True):
        assert a["tokens"] == b["tokens"]
    assert kept(one) == kept(staged)
    assert 0 < kept(staged)[0] < kept(staged)[1], "something must be selected"
    (speaker,) = lines(staged, r"\((\S+) pid=\d+\)[^\n]* armed: ")
    assert "PP1" in speaker, "the last stage speaks"


def test_a_window_on_the_last_pipeline_stage_is_selected_from(run_engines, tiny):
    """Three candidates, three layers on the last stage; requests of their own settings among them."""
    config = on(trough_max_backtrack_layers=3, trough_log_interval=1)
    check_chooses_the_same(*one_and_staged(run_engines, tiny("LlamaForCausalLM"), config))


@pytest.mark.slow
def test_a_stage_whose_layers_are_counted_from_its_own_first(run_engines, tiny):
    """As in vLLM 0.26 to 0.29."""
    config = on(trough_max_backtrack_layers=3, trough_log_interval=1)
    env = {**FROM_HERE, "VLLM_DISABLE_COMPILE_CACHE": "1"}
    own = {"worker_extension_cls": "staged.CountedFromOwnFirst"}
    check_chooses_the_same(*one_and_staged(run_engines, tiny("LlamaForCausalLM"), config, env, **own))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "Gemma2ForCausalLM", "Qwen3ForCausalLM"])
def test_other_models_with_stages(architecture, run_engines, tiny):
    """Two of them capture by the plugin's own loop."""
    config = on(trough_max_backtrack_layers=3, trough_log_interval=1)
    check_chooses_the_same(*one_and_staged(run_engines, tiny(architecture), config))


def check_stands_aside(staged):
    (warning,) = lines(staged, r"WARNING .*(confident-decoding is not active.*)")
    assert "with pipeline_parallel_size=2 the last stage has 3 of the 6 layers, and these settings" in warning
    assert "set trough_max_backtrack_layers to 3 or less, or use tensor parallelism instead" in warning
    assert not lines(staged, r"armed: ")
    assert not lines(staged, LINE)


@pytest.mark.slow
def test_a_window_that_does_not_fit_starts_with_one_warning(run_engines, tiny):
    config = on(trough_log_interval=1)
    staged = run(run_engines, tiny("LlamaForCausalLM"), config, calls=[], pipeline_parallel_size=2)
    check_stands_aside(staged)


@pytest.mark.slow
def test_a_window_that_does_not_fit_is_standard_decoding(run_engines, tiny):
    path = tiny("LlamaForCausalLM")
    staged = run(run_engines, path, on(trough_log_interval=1), MULTIPROCESS, **STAGES)
    off = run(run_engines, path, {})
    assert staged["calls"][0]["tokens"] == off["calls"][0]["tokens"]
    check_stands_aside(staged)
