"""Wrong use of ``confident-decoding eval``: one message that says what is valid, status 2, nothing left behind."""

import sys

import pytest
from conftest import ROOT
from typer.testing import CliRunner

from confident_decoding.cli.app import app

TASK = ["--tasks", "tests/evaluation/tasks/capitals.yaml"]


@pytest.fixture
def run(monkeypatch):
    """``run(*arguments)``: status, standard output and standard error of the command."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(*arguments, width=1000):
        done = CliRunner().invoke(app, ["eval", *map(str, arguments)], env={"COLUMNS": str(width), "TERM": "dumb"})
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.stdout, done.stderr

    return run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/no/model", *TASK], ["there is no model at '/no/model'", "Give a folder"]),
        (["empty", *TASK], ["empty is a folder without a config.json"]),
        (["m", *TASK, "-s", "last-p1"], ["'last-p1'", "'last-mK'"]),
        (["m", *TASK, "-s", "p=1,windows=3"], ["'windows=3'", "window (candidate layers"]),
        (["m", *TASK, "--ablate-p", "0.5,2"], ["'p=2'", "0 to 1"]),
        (["m", *TASK, "--ablate-layers", "0-3"], ["'0-3'", "'1-4,8'"]),
        (["m", "--tasks", " , "], ["--tasks names no task"]),
        (["m", *TASK, "--model-args", "add_bos_token=true"], ["--model-args is not JSON", "add_bos_token=true"]),
        (["m", *TASK, "--model-args", "[1]"], ["must be a JSON object"]),
        (["m", *TASK, "--gen-kwargs", "x"], ["--gen-kwargs is not JSON"]),
        (["m", *TASK, "--include-path", "/no/folder"], ["/no/folder", "no such folder"]),
        (["m", *TASK, "--limit", "0"], ["--limit", "greater than or equal to 1"]),
        (["m"], ["--tasks"]),
    ],
)
def test_wrong_use(arguments, words, run, tmp_path, monkeypatch):
    (tmp_path / "here/empty").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    status, out, err = run(*arguments)
    assert status == 2, err
    assert out == ""
    text = " ".join(err.replace("│", " ").split())
    for word in words:
        assert word in text
    assert "Traceback" not in err
    assert err.count("error:") <= 1
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["empty"]


@pytest.mark.parametrize("module", ["lm_eval", "numpy", "scipy"])
def test_what_is_not_installed_is_named_with_the_remedy(module, run, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    status, _, err = run("m", *TASK)
    assert status == 1
    assert f'eval needs {module}: pip install "confident-decoding[eval]"' in err


def test_help_says_what_a_setting_is_and_gives_an_example(run):
    status, out, _ = run("--help", width=160)
    assert status == 0
    text = " ".join(out.replace("│", " ").split())
    for word in ("Example: confident-decoding eval MODEL --tasks", "last-m8", "window=", "--output", "goes on where"):
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ([], ["trough"]),
        (["--ablate-layers", "1-2"], ["trough", "last-m1", "last-m2"]),
        (["--ablate-p", "0.5,1"], ["trough", "p=0.5"]),
        (["-s", "last-m1", "--ablate-layers", "1-2"], ["last-m1", "last-m2"]),
    ],
)
def test_ablations_are_added(arguments, settings, run, monkeypatch):
    """To the default as well; what is there already is not added again."""
    from confident_decoding.evaluation import run as runs

    asked = []

    def evaluation(request, write):
        asked.extend(request.settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "Evaluation", evaluation)
    status, *_ = run("m", *TASK, *arguments)
    assert (status, asked) == (1, settings)


@pytest.mark.engine
def test_an_unknown_task_is_refused_with_its_neighbours(smollm2, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(smollm2, "--tasks", "gsm8")
    assert status == 2
    assert "unknown task 'gsm8'" in err
    assert "gsm8k" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no/such-model"], ["'no/such-model' cannot be read"]),
        (["{smollm2}", "--vllm", "--max-model-len 99999999"], ["cannot be read", "99999999"]),
        (["{smollm2}", "--vllm", "--max-model-length 3"], ["vLLM's engine does not know --max-model-length 3"]),
        (["{smollm2}", "--model-args", '{"dtype": "float32"}'], ["'dtype': options of vLLM belong into --vllm"]),
        (["{smollm2}", "-s", "last-m30"], ["'last-m30'", "'last-m1' to 'last-m29'"]),
        (["{smollm2}", "-s", "trough", "-s", "window=10"], ["'trough' and 'window=10' mean the same"]),
    ],
)
def test_what_is_wrong_with_this_model(arguments, words, smollm2, run, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    arguments = [argument.replace("{smollm2}", smollm2) for argument in arguments]
    status, out, err = run(*arguments, *TASK, "--output", tmp_path / "out")
    assert status == 2, err
    for word in words:
        assert word in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []
