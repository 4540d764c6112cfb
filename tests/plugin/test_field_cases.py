"""Reports of others that no other test covers: the numbers are those of tests/README.md."""

import shutil
import tomllib

import numpy as np
import pytest
import torch
from conftest import ROOT, greedy, on, tiny_engine
from oracle import TransformersOracle
from toy_model import ToyModel, plan_of

from plugin.processors import log_softmax
from plugin.test_entrypoint import python
from plugin.toy_head import LM_HEAD, toy_head


def test_no_entry_point_for_logits_processors():
    """25: the second model runner refuses to start with a processor of the first one's kind."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert "vllm.general_plugins" in groups
    assert "vllm.logits_processors" not in groups


def test_a_forked_process_is_armed_too():
    """18: vLLM's loader is imported after the fork, in a child that calls the entry point again."""
    out = python("""
        import os
        from confident_decoding.plugin.entrypoint import register
        register()
        child = os.fork()
        if child:
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        else:
            register()
            from vllm.model_executor.model_loader.base_loader import BaseModelLoader
            os._exit(0 if getattr(BaseModelLoader.load_model, "_confident_decoding_wrapped", False) else 1)
    """)
    assert out.strip() == "0"


@pytest.mark.parametrize("keys", [{}, {"p": 0.0}, {"select_method": "last-m3"}], ids=str)
def test_the_warm_up_does_what_serving_does(keys):
    """6: vLLM measures its memory with a call of the sampler's warm-up, so the whole selection must be inside it."""
    model = ToyModel()
    plan = plan_of(**keys)
    head = toy_head(model, plan)
    logits, work = {}, {}
    for rows in ("warmup", "sampled"):
        head.rows = rows
        model.projected.clear()
        logits[rows] = head(LM_HEAD, model.packed(8, plan.depths), None)
        work[rows] = list(model.projected)
    assert work["warmup"] == work["sampled"]
    scans = plan.fixed_depth is None
    assert (sum(work["warmup"]) > 8) is scans
    assert torch.equal(logits["warmup"], logits["sampled"])


PROMPTS = [torch.randint(3, 512, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (100, 110, 120)]


@pytest.fixture(scope="module")
def peaked(tiny, tmp_path_factory):
    """A model as sure as large ones are: most probabilities are too small for a float16."""
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny("LlamaForCausalLM"), tmp_path_factory.mktemp("peaked") / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] *= 12
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


@pytest.mark.engine
def test_half_precision_rows_are_the_selected_layers(run_engines, peaked):
    """The published fork rebuilds logits from probabilities: in float16 every row becomes -inf. Here a selected row is
    as exact as a stock one is in this dtype."""
    call = {"prompts": PROMPTS, "sampling": greedy(1, prompt_logprobs=-1)}
    jobs = [{"engine": tiny_engine(peaked, config, dtype="float16"), "calls": [call]} for config in ({}, on())]
    oracle = TransformersOracle(peaked, torch.float16)
    errors, depths = [], set()
    for result, window in zip(run_engines(jobs), (0, 5), strict=True):
        worst = []
        for prompt, found in zip(PROMPTS, result["calls"][0]["prompt_logprobs"], strict=True):
            rows = oracle.select(prompt, 0, window=window)
            for (logits, depth, gap, _), at in zip(rows[:-1], found[1:], strict=True):
                values = np.array([value for _, value in sorted(map(tuple, at))])
                assert np.isfinite(values).all()
                if gap > 0.2:  # nats: rounding in this dtype cannot change the depth
                    worst.append(np.abs(values - log_softmax(logits)).max())
                    depths.add(depth)
        assert len(worst) > 100
        errors.append(max(worst))
    print("largest error of a logprob, switch off and on:", errors)
    assert errors[1] < 1.5 * errors[0]
    assert len(depths) > 2
