"""What `doctor` makes of what it finds; what vLLM answers is in test_probe.py."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from confident_decoding.cli import doctor as module
from confident_decoding.cli.app import app
from confident_decoding.config import ConfidentDecodingConfig

SWITCH = "enable_multi_layer_entropy_selection"
PLAN = ConfidentDecodingConfig(enable_multi_layer_entropy_selection=True).resolve(36)
FOUND = {
    "device": {"type": "cuda", "names": ["NVIDIA H200, 139 GiB, capability 9.0"]},
    "plugin": True,
    "warnings": [],
    "problems": [],
    "model": {
        "architecture": "Qwen3ForCausalLM",
        "layers": 36,
        "hidden": 4096,
        "vocabulary": 151936,
        "dtype": "bfloat16",
        "itemsize": 2,
        "quantization": None,
        "generates": True,
        "capture": "captures",
        "inner": "Qwen3Model",
        "plan": {**vars(PLAN), "depths": list(PLAN.depths)},
        "serving": {
            "max_num_batched_tokens": 8192,
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "not_active": None,
            "lora": False,
            "batch_invariant": False,
            "dense_rows": 25,
        },
    },
}


@pytest.fixture
def doctor(monkeypatch):
    """``doctor(*arguments, found=..., vllm=True)`` with a child that answers ``found``."""

    def call(*arguments, found=FOUND, vllm=True):
        monkeypatch.setattr(module, "ask_child", lambda spec, verbose: json.loads(json.dumps(found)))
        monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: vllm or None)
        return CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "200"})

    return call


def with_model(**changes):
    return {**FOUND, "model": {**FOUND["model"], **changes}}


def test_all_is_well(doctor):
    done = doctor("owner/Qwen3-8B")
    assert done.exit_code == 0
    for words in (
        "NVIDIA H200, 139 GiB",
        "loaded by vLLM in a child process",
        "Qwen3ForCausalLM: proven against transformers: CPU, vLLM 0.32.0; H200, vLLM ",
        "Qwen3Model, by vLLM's own capture",
        "10: layers 35, 34, 33, 32, 31, 30, 29, 28, 27, 26 of 0 to 35",
        "packed rows add 576.0 MiB at max_num_batched_tokens=8192",  # 9 states x 8192 tokens x 4096 x 2 bytes
        "low up to 25 rows in a step",
        "Measured on NVIDIA H200",
        "No problem found.",
    ):
        assert words in done.stdout
    assert not any(line.endswith(" ") for line in done.stdout.splitlines())


def test_json_is_the_report(doctor):
    done = doctor("owner/name", "--json", "--additional-config", '{"p": 0.5}')
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert report["name"] == "owner/name"
    assert report["additional_config"] == {SWITCH: True, "p": 0.5}
    assert report["model"]["packed_bytes"] == 9 * 8192 * 4096 * 2
    assert report["model"]["candidate_layers"] == list(range(35, 25, -1))
    assert report["problems"] == []


def test_a_problem_comes_with_its_remedy_and_status_1(doctor):
    problem = {"what": "vLLM does not load the plugin.", "remedy": "Unset VLLM_PLUGINS."}
    done = doctor(found={**FOUND, "model": None, "plugin": False, "problems": [problem]})
    assert done.exit_code == 1
    assert "problem: vLLM does not load the plugin.\n    do: Unset VLLM_PLUGINS.\n" in done.stdout
    assert "NOT loaded by vLLM" in done.stdout
    assert "No problem found" not in done.stdout


def test_without_vllm(doctor):
    done = doctor("owner/name", vllm=False)
    assert done.exit_code == 1
    assert "vLLM is not installed in this environment, so no model can be checked." in done.stdout
    assert 'pip install "confident-decoding[vllm]"' in done.stdout


def test_an_architecture_without_evidence(doctor):
    assert (
        "XForCausalLM: not tested here; runs if the proof"
        in doctor("m", found=with_model(architecture="XForCausalLM")).stdout
    )


def test_an_architecture_that_cannot_run_is_not_called_proven(doctor):
    found = with_model(capture="none")
    done = doctor("m", found={**found, "problems": [{"what": "no capture", "remedy": "another model"}]})
    assert "Qwen3ForCausalLM: cannot run" in done.stdout
    assert "does not return intermediate states" in done.stdout


@pytest.mark.parametrize(
    ("config", "changes", "says"),
    [
        (f'{{"{SWITCH}": false}}', {}, "The switch is false"),
        (None, {"generates": False}, "not a model that generates"),
        (
            '{"trough_max_backtrack_layers": 0}',
            {"plan": {**vars(PLAN), "depths": [0], "candidates": 1, "window": 0}},
            "nothing will be selected",
        ),
        (None, {"serving": {**FOUND["model"]["serving"], "not_active": "two stages"}}, "standard decoding: two"),
    ],
)
def test_warnings_are_no_problems(doctor, config, changes, says):
    arguments = ["--additional-config", config] if config else []
    done = doctor("m", *arguments, found=with_model(**changes))
    assert done.exit_code == 0
    (warning,) = [line for line in done.stdout.splitlines() if line.startswith("warning: ")]
    assert says in warning


def test_a_path_is_not_shown(doctor, tmp_path):
    (tmp_path / "secret/name").mkdir(parents=True)
    (tmp_path / "secret/name/config.json").write_text("{}")
    done = doctor(str(tmp_path / "secret/name"))
    assert "secret" not in done.stdout
    assert "\nname\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["/no/such/model"], "there is no model at '/no/such/model'"),
        (["m", "--additional-config", '{"p": 7}'], "p=7"),
        (["--vllm", "--enforce-eager"], "name it"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_wrong_use_is_status_2(doctor, arguments, says):
    done = doctor(*arguments)
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stdout == ""


def test_options_that_vllm_refuses_are_wrong_use(doctor):
    done = doctor("m", "--vllm", "--foo", found={**FOUND, "model": None, "wrong_use": "vLLM does not know --foo"})
    assert done.exit_code == 2
    assert done.stderr == "error: vLLM does not know --foo\n"


def test_a_child_that_dies_is_a_problem(monkeypatch):
    monkeypatch.setattr(module.sys, "executable", "/bin/false")
    (problem,) = module.ask_child({"model": None}, verbose=False)["problems"]
    assert "status 1" in problem["what"]
    assert "--verbose" in problem["remedy"]


def test_variables_that_may_be_secret_are_left_out(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("VLLM_PLUGINS", "confident_decoding")
    assert module.environment()["environment"]["VLLM_PLUGINS"] == "confident_decoding"
    assert "secret" not in json.dumps(module.environment())


def test_commands_import_nothing_heavy():
    heavy = ("torch", "vllm", "transformers", "jinja2", "matplotlib")
    code = f"import sys, confident_decoding.cli.app; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
