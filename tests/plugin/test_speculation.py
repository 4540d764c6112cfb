"""Drafters with the switch on: every verified row selects its own layer, and drafters get what they were trained on.

Greedy answers are those without speculation (float32). With p = 0 the drafter must propose what it proposes on a
standard server.
"""

from pathlib import Path

import pytest
from conftest import greedy, on, tiny_engine
from models.checkpoints import CHECKPOINTS
from models.drafters import add_mtp_layer, eagle_head

pytestmark = pytest.mark.engine
PROMPTS = [[5, 6, 7, 8], [9, 10, 11], list(range(20, 50))]
CALLS = [
    {"prompts": PROMPTS, "sampling": greedy(24)},
    {"prompts": PROMPTS, "sampling": [greedy(24, extra_args={"confident_p": p}) for p in (0, 1, 0)]},
]
SETTINGS = {"off": {}, "p zero": on(p=0.0), "on": on(trough_log_interval=1)}


@pytest.fixture(scope="module")
def results(run_engines, tiny, tmp_path_factory):
    from models.checkpoints import build

    target = tiny("LlamaForCausalLM")
    eagle = eagle_head(Path(target), tmp_path_factory.mktemp("eagle") / "head")
    deepseek = CHECKPOINTS["DeepseekV3ForCausalLM-mha"]
    mtp = str(add_mtp_layer(build("DeepseekV3ForCausalLM-mha", tmp_path_factory.mktemp("mtp"))))
    drafting = {
        "eagle": (target, {"method": "eagle", "model": str(eagle), "num_speculative_tokens": 2}, {}),
        # The target drafts for itself, so that some drafts are accepted.
        "draft_model": (target, {"method": "draft_model", "model": target, "num_speculative_tokens": 3}, {}),
        "mtp": (mtp, {"method": "mtp", "num_speculative_tokens": 1}, deepseek.cpu_options),
    }
    jobs, names = [], []
    for method, (model, speculation, options) in drafting.items():
        for setting, config in SETTINGS.items():
            calls = CALLS[: 2 if setting == "on" else 1]
            for speculative in (None, speculation):
                extra = {"speculative_config": speculative} if speculative else {}
                engine = tiny_engine(model, config, disable_log_stats=False, **options, **extra)
                jobs.append({"engine": engine, "calls": calls, "counters": True, "drafts": bool(speculative)})
                names.append((method, setting, speculative is not None))
    return dict(zip(names, run_engines(jobs, env=deepseek.env), strict=True))


METHODS = ["eagle", "draft_model", "mtp"]


def accepted(result):
    counters = result["counters"]
    return counters["vllm:spec_decode_num_draft_tokens"], counters["vllm:spec_decode_num_accepted_tokens"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_speculation_changes_no_token(method, setting, results):
    alone, drafted = (results[method, setting, speculates] for speculates in (False, True))
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
    by_request = results[method, "on", True]["calls"][1]["tokens"]
    assert by_request == [tokens[0][0], tokens[2][1], tokens[0][2]]
