"""With the switch off nothing of vLLM is touched: drafters (EAGLE, MTP) and pooling models run as if uninstalled.

(With the switch on: test_speculation.py. That a second model of the same class stays stock then: tests/models/, every
architecture.)
"""

from pathlib import Path

import pytest
from conftest import greedy, tiny_engine
from models.checkpoints import CHECKPOINTS
from models.drafters import add_mtp_layer, eagle_head

pytestmark = pytest.mark.engine
PROMPTS = [[5, 6, 7, 8], [9, 10, 11]]


@pytest.fixture(scope="module")
def results(run_engines, tiny, smollm2, tmp_path_factory):
    from models.checkpoints import build

    target = Path(tiny("LlamaForCausalLM"))
    eagle = eagle_head(target, tmp_path_factory.mktemp("eagle") / "head")
    deepseek = CHECKPOINTS["DeepseekV3ForCausalLM-mha"]
    mtp = add_mtp_layer(build("DeepseekV3ForCausalLM-mha", tmp_path_factory.mktemp("mtp")))
    calls = [{"prompts": PROMPTS, "sampling": greedy(12, logprobs=3)}]
    speculating = {
        "eagle": tiny_engine(
            str(target), speculative_config={"method": "eagle", "model": str(eagle), "num_speculative_tokens": 2}
        ),
        "mtp": tiny_engine(
            str(mtp),
            speculative_config={"method": "mtp", "num_speculative_tokens": 1},
            **deepseek.cpu_options,
        ),
    }
    jobs = [{"engine": engine, "calls": calls, "drafter": True} for engine in speculating.values()]
    # Pooling asks for a tokenizer.
    pooling = tiny_engine(smollm2, runner="pooling", convert="embed", skip_tokenizer_init=False)
    jobs.append({"engine": pooling, "calls": [], "embed": PROMPTS})
    # A process where the plugin cannot be found must say the same.
    both = zip(run_engines(jobs, env=deepseek.env), run_engines(jobs, "--hide-plugin", env=deepseek.env), strict=True)
    return dict(zip([*speculating, "pooling"], both, strict=True))


@pytest.mark.parametrize("method", ["eagle", "mtp"])
def test_drafters_with_the_switch_off(method, results):
    installed, uninstalled = results[method]
    assert installed["calls"][0]["tokens"] == uninstalled["calls"][0]["tokens"]
    assert installed["calls"][0]["logprobs"] == uninstalled["calls"][0]["logprobs"]
    assert installed["drafter"] == uninstalled["drafter"]
    assert installed["drafter"]["class_is_registered"]
    assert installed["lines"] == []


def test_pooling_models_with_the_switch_off(results):
    installed, uninstalled = results["pooling"]
    assert installed["embeddings"] == uninstalled["embeddings"]
    assert installed["lines"] == []
