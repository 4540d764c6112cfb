"""With the switch off nothing of vLLM is touched: drafters (EAGLE, MTP) and pooling models run as if uninstalled.

And in a process without the plugin, with the plugin and the switch off, and after an engine with it on was shut down,
every class, module and engine of vLLM is the same (walk.py looks at them all), but for the two entries.

(With the switch on: test_speculation.py. That a second model of the same class stays stock then: tests/models/, every
architecture.)
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ENGINE_ENV, ROOT, greedy, tiny_engine
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


LOADERS = "vllm.model_executor.model_loader"
FRONT_END = "vllm.v1.engine.input_processor.InputProcessor"
ENTRIES = {
    f"{LOADERS}.base_loader.BaseModelLoader.__init_subclass__",
    f"{LOADERS}.base_loader.BaseModelLoader.load_model",
    f"{LOADERS}.modelexpress_loader.ModelExpressModelLoader.load_model",
    f"{LOADERS}.tensorizer_loader.TensorizerLoader.load_model",
    f"{LOADERS}.weight_cache.ipc_loader.IpcModelLoader.load_model",
    f"{FRONT_END}.__init__",
    f"{FRONT_END}.process_inputs",
}
"""The loader's and the front end's, in vLLM 0.32: all that may differ from a process without the plugin."""


@pytest.fixture(scope="module")
def looks(tiny, tmp_path_factory):
    """What `walk` has seen with and without the plugin; Mixtral is a class that is given its capture."""
    folder, model = tmp_path_factory.mktemp("walk"), tiny("MixtralForCausalLM")
    seen = {}
    for name, arguments in {"installed": ["off", "on", "off"], "uninstalled": ["--hide-plugin", "off"]}.items():
        out = folder / f"{name}.json"
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests/plugin/walk.py"), str(out), model, *arguments],
            env={**os.environ, **ENGINE_ENV},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        seen[name] = json.loads(out.read_text())
    return seen


def differing(a, b):
    """Names that only one of the two has, or whose values are not alike."""
    return {name for name in {*a, *b} if a.get(name) != b.get(name)}


def differing_classes(installed, uninstalled):
    """The same, in the modules that the process without the plugin has loaded."""
    a, b = installed["classes"], uninstalled["classes"]
    return {f"{module}.{name}" for module in b for name in differing(a[module], b[module])}


def differing_instances(installed, uninstalled):
    """The same, of a running engine; requests have random names."""
    a, b = (
        {re.sub(r"requests\[[^]]*\]", "requests[...]", name): what for name, what in seen["instances"].items()}
        for seen in (installed, uninstalled)
    )
    return differing(a, b)


@pytest.mark.parametrize("step", [0, 2], ids=["switched off", "after an engine with it on"])
def test_only_the_two_entries_differ_from_a_process_without_the_plugin(step, looks):
    installed, (uninstalled,) = looks["installed"][step], looks["uninstalled"]
    assert differing_classes(installed, uninstalled) == ENTRIES
    assert sum(map(len, uninstalled["classes"].values())) > 20_000, "or little was looked at"
    assert differing_instances(installed, uninstalled) == set()
    assert len(uninstalled["instances"]) > 2_000
    assert installed["tokens"] == uninstalled["tokens"]


def test_the_switch_off_loads_no_module_of_vllm(looks):
    assert set(looks["installed"][0]["classes"]) == set(looks["uninstalled"][0]["classes"])


def test_after_an_engine_with_it_on_every_function_is_the_object_that_it_was(looks):
    assert looks["installed"][2]["moved"] == []


def test_an_engine_with_it_on_does_differ(looks):
    """The walker can see: an engine with the switch on has hooks on instances, and other tokens."""
    switched_on, (stock,) = looks["installed"][1], looks["uninstalled"]
    runner = "llm.llm_engine.model_executor.driver_worker.worker.model_runner"
    assert differing_instances(switched_on, stock) == {
        "llm.input_processor._confident_decoding",
        "llm.input_processor.renderer.config.confident_decoding_metrics",
        f"{runner}.model",
        f"{runner}.model._modules[logits_processor]._apply_head",
        f"{runner}.model._modules[model].aux_hidden_state_layers",
        f"{runner}.model.confident_decoding_installed",
    }
    assert switched_on["tokens"] != stock["tokens"]
