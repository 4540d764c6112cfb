"""Drafters with the switch on: every verified row selects its own layer, and drafters get what they were trained on.

Greedy answers are those without speculation (float32). With p = 0 the drafter must propose what it proposes on a
standard server.
"""

from pathlib import Path

import pytest
from conftest import greedy, on, tiny_engine
from models.checkpoints import CHECKPOINTS
from models.drafters import add_mtp_layer, eagle3_head, eagle_head

pytestmark = pytest.mark.engine
PROMPTS = [[5, 6, 7, 8], [9, 10, 11], list(range(20, 50))]
CALLS = [
    {"prompts": PROMPTS, "sampling": greedy(24)},
    {"prompts": PROMPTS, "sampling": [greedy(24, extra_args={"confident_p": p}) for p in (0, 1, 0)]},
    {"prompts": PROMPTS, "sampling": [greedy(24, seed=n, extra_args={"confident_p": 0.5}) for n in range(3)]},
]
SETTINGS = ("off", "p zero", "on")


def config(setting, keys):
    return {"off": {}, "p zero": on(p=0.0, **keys), "on": on(trough_log_interval=1, **keys)}[setting]


@pytest.fixture(scope="module")
def drafting(tiny, tmp_path_factory):
    """Target, speculative configuration, engine options and keys of ours, of each method."""
    from models.checkpoints import build

    folder, target = tmp_path_factory.mktemp("heads"), tiny("LlamaForCausalLM")

    def head(kind, name, *layers):
        return str(kind(Path(target), folder / name, *layers))

    mtp = str(add_mtp_layer(build("DeepseekV3ForCausalLM-mha", tmp_path_factory.mktemp("mtp"))))
    return {
        "eagle": (target, {"method": "eagle", "model": head(eagle_head, "eagle")}, {}, {}),
        # What enters the first layer, a state that is a candidate's too, and what leaves the last layer.
        "eagle3": (target, {"method": "eagle3", "model": head(eagle3_head, "eagle3", (0, 4, 6))}, {}, {}),
        # Three states of the drafter's side by side are as wide as a packed row of three candidates.
        "eagle3, as wide": (
            target,
            {"method": "eagle3", "model": head(eagle3_head, "wide", (2, 4, 5))},
            {},
            {"trough_max_backtrack_layers": 3},
        ),
        # The target drafts for itself, so that some drafts are accepted.
        "draft_model": (target, {"method": "draft_model", "model": target, "num_speculative_tokens": 3}, {}, {}),
        "mtp": (
            mtp,
            {"method": "mtp", "num_speculative_tokens": 1},
            CHECKPOINTS["DeepseekV3ForCausalLM-mha"].cpu_options,
            {},
        ),
    }


@pytest.fixture(scope="module")
def results(run_engines, drafting):
    """By method, setting and whether it drafts; methods of one target share the engines that do not.

    What drafts with p = 0 is held against the engine that is off.
    """
    jobs, places = [], {}
    for method, (model, speculation, options, keys) in drafting.items():
        for setting in SETTINGS:
            for drafts in (False, True) if setting != "p zero" else (True,):
                extra = {"speculative_config": {"num_speculative_tokens": 2, **speculation}} if drafts else {}
                calls = CALLS[: 3 if setting == "on" else 1]
                engine = tiny_engine(model, config(setting, keys), disable_log_stats=False, **options, **extra)
                job = {"engine": engine, "calls": calls, "counters": True, "drafts": drafts}
                if job not in jobs:
                    jobs.append(job)
                places[method, setting, drafts] = jobs.index(job)
    found = run_engines(jobs, env=CHECKPOINTS["DeepseekV3ForCausalLM-mha"].env)
    return {key: found[place] for key, place in places.items()}


METHODS = ["eagle", "eagle3", "eagle3, as wide", "draft_model", "mtp"]


def accepted(result):
    counters = result["counters"]
    return counters["vllm:spec_decode_num_draft_tokens"], counters["vllm:spec_decode_num_accepted_tokens"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_speculation_changes_no_token(method, setting, results):
    alone = results[method, "off" if setting == "p zero" else setting, False]
    drafted = results[method, setting, True]
    assert [call["tokens"] for call in drafted["calls"]] == [call["tokens"] for call in alone["calls"]]
    assert accepted(drafted)[0] > 0, "it must draft"


@pytest.mark.parametrize("method", METHODS)
def test_the_drafter_gets_the_final_hidden_states(method, results):
    """With p = 0 it sees what it sees on a standard server, and proposes the same."""
    drafts = [results[method, setting, True]["drafts"] for setting in SETTINGS]
    assert len(drafts[0]) > 5
    assert drafts[0] == drafts[1] != drafts[2]
    assert accepted(results[method, "p zero", True]) == accepted(results[method, "off", True])
    on_, off = accepted(results[method, "on", True]), accepted(results[method, "off", True])
    print(f"{method}: accepted of drafted, off {off[1]}/{off[0]}, on {on_[1]}/{on_[0]}")


@pytest.mark.parametrize("method", METHODS)
def test_layers_are_selected(method, results):
    tokens = [results[method, setting, True]["calls"][0]["tokens"] for setting in SETTINGS]
    assert tokens[0] == tokens[1] != tokens[2]
    by_request, mixed = (call["tokens"] for call in results[method, "on", True]["calls"][1:])
    assert by_request == [tokens[0][0], tokens[2][1], tokens[0][2]]
    assert mixed not in tokens
