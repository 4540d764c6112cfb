"""What `doctor` asks of vLLM, of the real one: the plugin, and models that are a configuration without weights."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ENGINE_ENV, ROOT, on
from models.checkpoints import BEYOND, CHECKPOINTS, LISTED

pytestmark = pytest.mark.engine

LOOK = """
import json, os, sys
answer = os.dup(1)
os.dup2(2, 1)
from confident_decoding.cli.probe import look
results = []
for case in json.loads(sys.argv[1]):
    os.environ.update(case.get("env", {}))
    results.append(look({"model": None, "options": "", "additional_config": {}, **case.get("spec", {})}))
    for name in case.get("env", {}):
        del os.environ[name]
os.write(answer, json.dumps(results).encode())
"""
NO_DEVICE = """
import vllm.platforms
from vllm.platforms.interface import UnspecifiedPlatform
vllm.platforms._current_platform = UnspecifiedPlatform()
"""
CHANGED_FORWARD = """
from confident_decoding.plugin import missing_capture
missing_capture.KNOWN_FORWARDS["MixtralModel"] = frozenset()
"""


def look(cases, before=""):
    """`probe.look` of each case, in one process of its own."""
    command = [sys.executable, "-c", before + LOOK, json.dumps(list(cases.values()))]
    done = subprocess.run(
        command, env={**os.environ, **ENGINE_ENV}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(cases, json.loads(done.stdout), strict=True))


@pytest.fixture(scope="module")
def configurations(tmp_path_factory):
    """Folders with a config.json alone: whoever wants weights fails."""
    import transformers

    common = {
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 320,
    }
    made = {}
    for name, config, architecture in (
        ("llama", transformers.LlamaConfig(**common), "LlamaForCausalLM"),
        ("mixtral", transformers.MixtralConfig(**common), "MixtralForCausalLM"),
        ("gpt2", transformers.GPT2Config(n_layer=3, vocab_size=320), "GPT2LMHeadModel"),
        ("unknown", transformers.LlamaConfig(**common), "NoSuchForCausalLM"),
    ):
        folder = tmp_path_factory.mktemp(name)
        config.architectures = [architecture]
        config.save_pretrained(folder)
        made[name] = str(folder)
    return made


def proven(tmp_path_factory):
    """A case for every architecture that there is evidence for, from its configuration."""
    import transformers

    for tag in LISTED + BEYOND:
        made, folder = CHECKPOINTS[tag], tmp_path_factory.mktemp(tag)
        config = getattr(transformers, made.config)(**made.arguments)
        config.architectures = [made.architecture]
        config.save_pretrained(folder)
        yield tag, {"spec": {"model": str(folder), "options": "", "additional_config": on()}}


@pytest.fixture(scope="module")
def found(configurations, tmp_path_factory):
    def model(name, options="", **keys):
        return {"spec": {"model": configurations[name], "options": options, "additional_config": on(**keys)}}

    return look(
        {
            "left out": {"env": {"VLLM_PLUGINS": "other,another"}},
            "disabled": {"env": {"CONFIDENT_DECODING_DISABLE": "1"}},
            "named": {"env": {"VLLM_PLUGINS": "confident_decoding"}},
            "llama": model("llama", "--max-num-batched-tokens 4096", trough_max_backtrack_layers=4),
            "float32": model("llama", "--dtype float32"),
            "too deep": model("llama", select_method="last-m12"),
            "refused option": model("llama", "--kv-sharing-fast-prefill"),
            "unknown option": model("llama", "--no-such-option 3"),
            "mixtral": model("mixtral"),
            "gpt2": model("gpt2"),
            "unknown": model("unknown"),
            "nowhere": {"spec": {"model": "no-such-owner/no-such-model", "additional_config": on()}},
            **dict(proven(tmp_path_factory)),
        }
    )


def test_a_plugin_that_is_left_out(found):
    (problem,) = found["left out"]["problems"]
    assert found["left out"]["plugin"] is False
    assert "VLLM_PLUGINS=other,another" in problem["what"]
    assert "Add confident_decoding to VLLM_PLUGINS" in problem["remedy"]


def test_a_plugin_that_is_switched_off(found):
    (problem,) = found["disabled"]["problems"]
    assert "CONFIDENT_DECODING_DISABLE=1" in problem["what"]
    assert problem["remedy"] == "Unset CONFIDENT_DECODING_DISABLE."


def test_a_plugin_that_is_loaded(found):
    assert found["named"] == {
        "device": {"type": "cpu", "names": []},
        "plugin": True,
        "model": None,
        "warnings": [],
        "problems": [],
    }


def test_a_model_without_its_weights(found):
    assert found["llama"]["problems"] == []
    model = found["llama"]["model"]
    assert (model["architecture"], model["capture"], model["inner"]) == ("LlamaForCausalLM", "captures", "LlamaModel")
    assert (model["layers"], model["hidden"], model["vocabulary"]) == (12, 128, 320)
    assert (model["dtype"], model["itemsize"]) == ("bfloat16", 2)
    assert model["plan"]["depths"] == [0, 1, 2, 3]
    assert model["serving"]["max_num_batched_tokens"] == 4096
    assert (found["float32"]["model"]["dtype"], found["float32"]["model"]["itemsize"]) == ("float32", 4)


def test_a_capture_of_our_own(found):
    assert found["mixtral"]["problems"] == []
    assert (found["mixtral"]["model"]["capture"], found["mixtral"]["model"]["inner"]) == ("ours", "MixtralModel")


@pytest.mark.parametrize("tag", LISTED + BEYOND)
def test_what_is_proven_is_not_refused(found, tag):
    model = found[tag]["model"]
    assert found[tag]["problems"] == []
    assert (model["architecture"], model["layers"]) == (CHECKPOINTS[tag].architecture, 6)
    ours = ("MixtralModel", "Qwen2MoeModel", "Gemma2Model", "Gemma3Model")
    text = ("Mistral3ForConditionalGeneration",)  # whatever text model its configuration has
    kind = "ours" if model["inner"] in ours else "text model" if tag in text else "captures"
    assert model["capture"] == kind


def test_an_architecture_without_capture(found):
    (problem,) = found["gpt2"]["problems"]
    assert found["gpt2"]["model"]["capture"] == "none"
    assert problem["what"].startswith("GPT2LMHeadModel cannot run: it does not capture")


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("too deep", "'last-m12' needs more than 12 layers"),
        ("refused option", "--kv-sharing-fast-prefill"),
        ("unknown", "NoSuchForCausalLM"),
        ("nowhere", "vLLM cannot use this model"),
    ],
)
def test_what_the_server_would_refuse(found, case, says):
    (problem,) = found[case]["problems"]
    assert says in problem["what"]
    assert "\n\n" not in problem["what"]
    assert problem["remedy"]


def test_an_option_that_vllm_does_not_know(found):
    assert "vLLM's engine does not know --no-such-option 3" in found["unknown option"]["wrong_use"]
    assert found["unknown option"]["problems"] == []


@pytest.fixture(scope="module")
def odd(configurations):
    """A vLLM without a device, and one in which Mixtral's forward has changed."""
    specs = {
        name: {"spec": {"model": configurations[name], "options": "", "additional_config": on()}}
        for name in ("llama", "mixtral")
    }
    return look(specs, before=NO_DEVICE + CHANGED_FORWARD)


def test_a_machine_without_a_device(odd):
    found = odd["llama"]
    (problem,) = found["problems"]
    assert found["device"] is None
    assert "no device that it can run on" in problem["what"]
    assert "CPU build" in problem["remedy"]
    assert (found["model"]["layers"], "serving" in found["model"]) == (12, False)


def test_a_forward_that_the_plugin_does_not_know(odd):
    assert odd["mixtral"]["model"]["capture"] == "none"
    assert "MixtralForCausalLM cannot run" in odd["mixtral"]["problems"][1]["what"]


def test_the_command(smollm2):
    code = "from confident_decoding.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor", smollm2, "--json"],
        env={**os.environ, **ENGINE_ENV},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    model = json.loads(done.stdout)["model"]
    assert model["candidate_layers"] == [29, 28, 27, 26, 25, 24, 23, 22, 21, 20]
    assert model["verdict"].startswith("proven against transformers: CPU")
