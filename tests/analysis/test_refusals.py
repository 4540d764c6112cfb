"""What ``confident-decoding analyze`` refuses before it starts an engine, and what a failure leaves behind: nothing."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from analysis import made
from confident_decoding.analysis import run
from confident_decoding.cli.app import app


@pytest.fixture
def call(tmp_path, monkeypatch):
    """``call(*argv)``: status and message of a command that must not get as far as vLLM, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", None)

    def invoke(*argv):
        before = sorted(os.listdir(tmp_path))
        done = CliRunner().invoke(app, ["analyze", *map(str, argv)])
        assert sorted(os.listdir(tmp_path)) == before
        return done.exit_code, done.stderr.replace("\n", " ")

    return invoke


@pytest.fixture
def model(tmp_path):
    """Looks like a model from outside."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    return "model"


def test_a_model_that_is_not_there(call, tmp_path):
    (tmp_path / "p.jsonl").write_text('"x"\n')
    assert call("/no/such/folder", "p.jsonl")[0] == 2
    status, message = call("./nowhere", "p.jsonl")
    assert status == 2
    assert "no model at './nowhere'" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no prompt"),
        ("\n \n", "holds no prompt"),
        ('"one"\n{"prompt": "two"\n', "line 2: not JSON"),
        ('"one"\n\n{"prompt": 3}\n', "line 3: not a prompt"),
    ],
)
def test_prompt_files(text, message, call, model, tmp_path):
    (tmp_path / "p.jsonl").write_text(text)
    status, said = call(model, "p.jsonl")
    assert status == 2
    assert message in said


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "give either"),
        (("p.jsonl", "--text", "t.txt"), "give either"),
        (("none.jsonl",), "cannot read the prompts in none.jsonl: No such file"),
        (("--text", "none.txt"), "cannot read the text none.txt: No such file"),
        (("--text", "empty.txt"), "empty.txt holds no text"),
        (("--text", "latin.txt"), "latin.txt is not UTF-8 text (byte 3)"),
        (("p.jsonl", "-o", "model"), "model is there already"),
        (("p.jsonl", "-o", "t.txt"), "t.txt is there already"),
        (("p.jsonl", "-o", "no/such/place"), "there is no folder"),
        (("p.jsonl", "--window", "1"), "--window"),
        (("p.jsonl", "--trajectory", "both"), "--trajectory"),
    ],
)
def test_wrong_use(argv, message, call, model, tmp_path):
    (tmp_path / "p.jsonl").write_text('"x"\n')
    (tmp_path / "t.txt").write_text("text")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    status, said = call(model, *argv)
    assert status == 2
    assert message in said


@pytest.mark.parametrize("missing", [("pyarrow",), ("jinja2", "matplotlib")], ids=" ".join)
def test_missing_packages_are_named(missing, call, model, tmp_path, monkeypatch):
    import importlib.util

    (tmp_path / "p.jsonl").write_text('"x"\n')
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in missing else find(name, *a))
    status, said = call(model, "p.jsonl")
    assert status == 1
    assert f'analyze needs {" and ".join(missing)}: pip install "confident-decoding[analysis]"' in said


def made_up(count, rows=30):
    return [(made.sequence(rows, seed=i), None) for i in range(count)]


def analyse(target, sequences):
    settings = {"model": "made/up", "trajectory": "standard", "top_tokens": 100, "progress": lambda tokens: None}
    return run.analyse(made.Engine(), iter(sequences), target, **settings)


def failing(after, error):
    """Sequences that end in an error."""
    yield from made_up(after)
    raise error


@pytest.mark.parametrize("error", [RuntimeError("engine"), KeyboardInterrupt(), OSError("a model's file")], ids=repr)
def test_nothing_is_left_of_a_run_that_fails(error, tmp_path):
    with pytest.raises(type(error)) as raised:
        analyse(tmp_path / "out", failing(3, error))
    assert raised.value is error, "an engine's error must not be taken for one of writing"
    assert os.listdir(tmp_path) == []


def test_an_analysis_without_tokens_is_none(tmp_path):
    with pytest.raises(run.UnusableError, match="no token was recorded"):
        analyse(tmp_path / "out", [])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("step", ["trace", "picture", "page"])
def test_a_full_disk_at_any_step(step, tmp_path, monkeypatch):
    full = OSError(28, "No space left on device")

    def fail(*args, **kwargs):
        raise full

    place = {"trace": (run.TraceWriter, "add"), "picture": (run.plots, "save_png"), "page": (run, "write_page")}[step]
    monkeypatch.setattr(*place, fail)
    with pytest.raises(run.OutputError, match=r"cannot write .*: No space left on device. Nothing was left there\."):
        analyse(tmp_path / "out", made_up(3))
    assert os.listdir(tmp_path) == []


def test_an_empty_folder_may_be_there(tmp_path):
    (tmp_path / "out").mkdir()
    summary = analyse(tmp_path / "out", made_up(3))
    assert json.loads((tmp_path / "out/summary.json").read_text()) == summary
    assert Path(tmp_path / "out/report.html").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"speculative_config": {"method": "ngram"}}, "speculation must be off"),
        ({"tensor_parallel_size": 2}, "parallelism must be 1"),
    ],
)
def test_rows_that_would_not_be_the_answers(options, says):
    from confident_decoding.analysis.recording import resolve

    parallel = dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"), 1)
    arguments = SimpleNamespace(**{**parallel, "speculative_config": None, **options})
    with pytest.raises(ValueError, match=says):
        resolve(arguments)


@pytest.mark.parametrize(("asked", "becomes"), [(None, 2048), (-1, 2048), (100, 100)])
def test_the_context_that_is_analysed(asked, becomes):
    """-1 is vLLM's "auto"."""
    from confident_decoding.analysis.recording import resolve

    parallel = dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"), 1)
    arguments = SimpleNamespace(
        **parallel,
        speculative_config=None,
        max_model_len=asked,
        max_num_batched_tokens=None,
        create_model_config=lambda: SimpleNamespace(max_model_len=8192),
    )
    resolve(arguments)
    assert arguments.max_model_len == arguments.max_num_batched_tokens == becomes
