"""A row with a candidate that is not finite stays at the final layer; its neighbours are as ever.

Two ways: the test overwrites candidates of one request on their way to the head, in a real engine; and a checkpoint
whose embedding of one token is infinite, so that all layers of that request are.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ENGINE_ENV, ROOT, greedy, on, tiny_engine

pytestmark = pytest.mark.engine

PROMPTS = [torch.randint(3, 512, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (6, 11, 30)]
SICK = 1  # the prompt whose request is overwritten
TOKENS = 16
PLACES = {"the first candidate": [1], "all candidates": [1, 2, 3, 4, 5], "the fourth": [4], "the final state": [0]}


def call(value=None, places=(), **extra_args):
    made = {"prompts": PROMPTS, "sampling": greedy(TOKENS, logprobs=3, extra_args=extra_args or None)}
    return {**made, "poison": [PROMPTS[SICK], places, value]} if value else made


CALLS = {
    "trough": {
        "clean": call(),
        "standard": call(confident_p=0),
        "four candidates": call(confident_max_backtrack_layers=4),
        **{f"{name}, {value}": call(value, places) for name, places in PLACES.items() for value in ("nan", "inf")},
    },
    "last-m2": {
        "clean": call(),
        "standard": call(confident_p=0),
        **{f"the layer, {value}": call(value, [1]) for value in ("nan", "inf", "-inf")},
    },
}


@pytest.fixture(scope="module")
def infinite(tiny, tmp_path_factory):
    """A checkpoint in which the embedding of token 7 is infinite."""
    import shutil

    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("infinite") / "model"
    shutil.copytree(tiny("LlamaForCausalLM"), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][7] = torch.inf
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


@pytest.fixture(scope="module")
def results(tiny, infinite, tmp_path_factory):
    folder = tmp_path_factory.mktemp("poisoned")
    path = tiny("LlamaForCausalLM")
    jobs = [
        {"engine": tiny_engine(path, on(select_method=method)), "calls": list(calls.values())}
        for method, calls in CALLS.items()
    ]
    sick = [*PROMPTS[:2], [5, 7, 9]]
    for config in ({}, on()):
        # The sick one last: in stock vLLM's CPU engine a NaN in the KV cache spoils requests that get its blocks later.
        calls = [{"prompts": prompts, "sampling": greedy(TOKENS)} for prompts in ([*PROMPTS[:2], [5, 8, 9]], sick)]
        jobs.append({"engine": tiny_engine(infinite, config), "calls": calls})
    (folder / "jobs.json").write_text(json.dumps(jobs))
    script = Path(ROOT) / "tests/plugin/poisoned.py"
    done = subprocess.run(
        [sys.executable, str(script), str(folder / "jobs.json"), str(folder / "out.json")],
        env={**os.environ, **ENGINE_ENV},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *overwritten, stock, confident = json.loads((folder / "out.json").read_text())
    named = {
        method: dict(zip(calls, found, strict=True))
        for (method, calls), found in zip(CALLS.items(), overwritten, strict=True)
    }
    return {**named, "infinite, off": stock, "infinite": confident}


POISONED = [(method, name) for method, calls in CALLS.items() for name, made in calls.items() if "poison" in made]


@pytest.mark.parametrize(("method", "name"), POISONED)
def test_neighbours_are_untouched(method, name, results):
    clean, sick = results[method]["clean"], results[method][name]
    assert sick["poisoned_rows"] == TOKENS
    for number in range(len(PROMPTS)):
        if number != SICK:
            assert sick["tokens"][number] == clean["tokens"][number]
            assert sick["logprobs"][number] == clean["logprobs"][number]


@pytest.mark.parametrize(
    ("method", "name"),
    [(m, n) for m, n in POISONED if "final state" not in n and "fourth" not in n],
)
def test_the_row_keeps_the_final_layer(method, name, results):
    of_method = results[method]
    assert of_method[name]["tokens"][SICK] == of_method["standard"]["tokens"][SICK]
    assert of_method["standard"]["tokens"][SICK] != of_method["clean"]["tokens"][SICK], "it must matter"


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_scan_ends_before_a_candidate_that_is_not_finite(value, results):
    """A window of four candidates is depths 0 to 3; the one that is overwritten has depth 4."""
    of_method = results["trough"]
    assert of_method[f"the fourth, {value}"]["tokens"][SICK] == of_method["four candidates"]["tokens"][SICK]


def test_a_request_whose_layers_are_all_infinite_is_answered_as_by_stock(results):
    (well, sick), (stock_well, stock_sick) = results["infinite"], results["infinite, off"]
    assert sick["tokens"][2] == stock_sick["tokens"][2]
    assert sick["tokens"][:2] == well["tokens"][:2] != stock_sick["tokens"][:2]
    assert stock_sick["tokens"][:2] == stock_well["tokens"][:2]
