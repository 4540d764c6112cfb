"""Commands that cannot start: one message, status 2 or 1, nothing left behind; no vLLM is needed for it."""

import importlib.util
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from confident_decoding.cli.app import app


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('"Why?"\n')
    return path


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["compare", "m"], "Missing argument 'PROMPTS'"),
        (["compare", "/no/model", "{prompts}"], "there is no model at '/no/model'"),
        (["compare", "m", "/no/prompts"], "cannot read the prompts in /no/prompts: No such file"),
        (["compare", "m", "{prompts}", "--additional-config", '{"p": 0}'], "there is nothing to compare"),
        (
            ["compare", "m", "{prompts}", "--additional-config", '{"enable_multi_layer_entropy_selection": false}'],
            "there is nothing to compare",
        ),
        (["compare", "m", "{prompts}", "--html", "/no/folder/page.html"], "there is no folder /no/folder"),
        (["compare", "m", "{prompts}", "--max-tokens", "0"], "--max-tokens"),
        (["bench", "/no/model"], "there is no model at '/no/model'"),
        (["bench", "m", "--batch", "1,x"], "Give whole numbers from 1"),
        (["bench", "m", "--batch", "0"], "Give whole numbers from 1"),
        (["bench", "m", "--batch", ""], "Give whole numbers from 1"),
        (["bench", "m", "--additional-config", '{"p": 7}'], "p=7"),
        (["bench", "m", "--additional-config", '{"enable_multi_layer_entropy_selection": false}'], "off"),
    ],
)
def test_wrong_use(arguments, says, prompts):
    before = set(prompts.parent.iterdir())
    done = run(*(argument.format(prompts=prompts) if argument == "{prompts}" else argument for argument in arguments))
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stdout == ""
    assert set(prompts.parent.iterdir()) == before


@pytest.mark.parametrize("command", ["compare", "bench", "analyze", "eval"])
def test_without_vllm(command, prompts, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "vllm" else found(name, *rest))
    more = {"compare": [prompts], "analyze": [prompts], "eval": ["--tasks", "x"]}
    done = run(command, "m", *more.get(command, []))
    assert done.exit_code == 1
    assert "vLLM is not installed in this environment" in done.stderr


def test_a_page_without_jinja(prompts, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "jinja2" else found(name, *rest)
    )
    done = run("compare", "m", prompts, "--html", prompts.parent / "page.html")
    assert done.exit_code == 1
    assert '--html needs jinja2: pip install "confident-decoding[analysis]"' in done.stderr


def test_help_names_every_command():
    text = run("--help").stdout
    for name in ("doctor", "compare", "bench", "eval", "analyze"):
        assert name in text
        assert run(name, "--help").exit_code == 0


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"]])
def test_a_full_disk_behind_standard_output(arguments):
    code = "from confident_decoding.cli import main; main()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "error: the system does not do it: No space left on device.\n"
