"""The wrapped model runners, and how a head call's rows are told apart."""

import logging
import sys
import types

import numpy as np
import pytest
import torch

from confident_decoding.config import ConfigError
from confident_decoding.plugin import contracts, install, rows, runner

RUNNERS = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner")


def test_rows_are_told_by_the_callers_name():
    def caller_of(kind, serving, file="somewhere.py"):
        namespace = {"classify": rows.classify, "sys": sys}
        exec(compile(f"def {kind}(serving): return classify(sys._getframe(0), serving)", file, "exec"), namespace)
        return namespace[kind]

    assert caller_of("execute_model", True)(True) == "sampled"
    assert caller_of("sample", True)(True) == "sampled"
    assert caller_of("_dummy_sampler_run", True)(True) == "warmup"
    assert caller_of("_get_prompt_logprobs_dict", True)(True) == "prompt"
    assert caller_of("chunks", True, "vllm/v1/worker/gpu/sample/prompt_logprob.py")(True) == "prompt"
    assert caller_of("sample", True, "/home/prompt_logprobs/vllm/v1/worker/gpu/model_runner.py")(True) == "sampled"

    # vLLM's warm-up runs whole steps through execute_model: told by a caller further up, until serving.
    def compile_or_warm_up_model(serving):
        return caller_of("execute_model", serving)(serving)

    assert compile_or_warm_up_model(False) == "warmup"
    assert compile_or_warm_up_model(True) == "sampled"


def fake_runner(monkeypatch, first_parameter):
    """A process with one model runner, of the first kind, whose ``execute_model`` takes this parameter."""
    space = {}
    exec(f"def execute_model(self, {first_parameter}): return 'ran'", space)
    module = types.ModuleType(RUNNERS[0])
    module.GPUModelRunner = type("GPUModelRunner", (), {"execute_model": space["execute_model"], "model": None})
    monkeypatch.setitem(sys.modules, RUNNERS[0], module)
    monkeypatch.delitem(sys.modules, RUNNERS[1], raising=False)
    return module.GPUModelRunner


def test_a_known_runner_is_wrapped_once_and_runs_models_that_are_not_ours(monkeypatch):
    cls = fake_runner(monkeypatch, "scheduler_output")
    assert runner.wrap_runners() is None
    wrapped = cls.execute_model
    assert runner.wrap_runners() is None
    assert cls.execute_model is wrapped
    assert cls().execute_model(object()) == "ran"


def test_an_unknown_runner_is_left_alone_and_named(monkeypatch):
    cls = fake_runner(monkeypatch, "work")
    original = cls.execute_model
    assert "GPUModelRunner.execute_model" in runner.wrap_runners()
    assert cls.execute_model is original
    for name in RUNNERS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert "none of vLLM's own" in runner.wrap_runners()


def test_drafters_that_would_get_packed_rows_are_refused(monkeypatch, caplog):
    monkeypatch.setattr(runner, "wrap_runners", lambda: "it was renamed")
    model = torch.nn.Linear(1, 1)
    for method in ("eagle", "eagle3", "mtp"):
        config = types.SimpleNamespace(speculative_config=types.SimpleNamespace(method=method))
        with pytest.raises(ConfigError, match="it was renamed"):
            install._hook_runners(model, config)
    with caplog.at_level(logging.ERROR, "vllm.confident_decoding"):
        install._hook_runners(model, types.SimpleNamespace(speculative_config=None))
    assert "it was renamed" in caplog.text


def test_a_drafter_whose_propose_is_another_is_refused(monkeypatch):
    """Packed rows are recognised among the arguments of ``propose``; there may be none to recognise."""
    monkeypatch.setattr(runner, "wrap_runners", lambda: None)
    module = types.ModuleType("speculator")
    module.BaseSpeculator = type("BaseSpeculator", (), {"propose": lambda self, input_batch, states: None})
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu.spec_decode.speculator", module)
    drafts = types.SimpleNamespace(speculative_config=types.SimpleNamespace(method="mtp"))
    with pytest.raises(ConfigError, match=r"BaseSpeculator\.propose takes .* expected .*last_hidden_states"):
        install._hook_runners(torch.nn.Linear(1, 1), drafts)
    install._hook_runners(torch.nn.Linear(1, 1), types.SimpleNamespace(speculative_config=None))
    for contract in contracts.PROPOSERS:
        monkeypatch.delitem(sys.modules, contract.module, raising=False)
    with pytest.raises(ConfigError, match="none of vLLM's own proposers"):
        install._hook_runners(torch.nn.Linear(1, 1), drafts)


def test_the_first_runners_rows_have_the_positions_of_its_device():
    """Which are right where the scheduler's count assumes that drafts were accepted (asynchronous scheduling)."""
    output = types.SimpleNamespace(
        num_scheduled_tokens={"a": 3, "b": 5, "c": 1}, scheduled_spec_decode_tokens={"a": [7, 7]}
    )
    batch = types.SimpleNamespace(req_ids=["b", "a", "c"])
    held = torch.tensor([0, 1, 2, 3, 4, 50, 51, 52, 90, 0, 0])
    kept = types.SimpleNamespace(begin=lambda _, order: setattr(kept, "order", order))
    runner._begin_first(types.SimpleNamespace(input_batch=batch, positions=held), kept, output)
    sampled = kept.order()
    assert (sampled.ids, sampled.counts) == (["b", "a", "c"], [1, 3, 1])
    assert sampled.positions().tolist() == [4, 50, 51, 52, 90]


def test_the_second_runners_rows_have_the_positions_of_its_batch():
    batch = types.SimpleNamespace(
        req_ids=["b", "a"],
        cu_num_logits_np=np.array([0, 1, 4, 0, 0]),
        positions=torch.tensor([3, 4, 50, 51, 52, 0]),
        logits_indices=torch.tensor([1, 2, 3, 4, 5]),
    )
    kept = types.SimpleNamespace()
    runner._sample(types.SimpleNamespace(), kept, None, batch)
    sampled = kept.order()
    assert (sampled.ids, sampled.counts) == (["b", "a"], [1, 3])
    assert sampled.positions().tolist() == [4, 50, 51, 52]


@pytest.mark.parametrize("unknown", ["batch_sharder", "adaptive_verification"])
def test_where_the_host_does_not_know_the_rows_nothing_is_said_of_them(unknown):
    kept = types.SimpleNamespace(order=None)
    runner._sample(types.SimpleNamespace(**{unknown: object()}), kept, None, None)
    assert kept.order is None
