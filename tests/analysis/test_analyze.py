"""``confident-decoding analyze`` on the embedded model, against transformers in float64; and everything it refuses."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle
import pyarrow.parquet as pq
import pytest
import torch
from conftest import ENGINE_ENV, QUESTIONS, ROOT
from typer.testing import CliRunner

from analysis import made
from confident_decoding.analysis import run
from confident_decoding.analysis.trace import Trace
from confident_decoding.cli.app import app

TIE = 1e-4  # nats, or logits: below it two correct programs may differ
FLOAT32 = ["--vllm", "--dtype float32"]
TEXT = """Gravity is a fundamental interaction which causes mutual attraction between all things that have mass. It is
by far the weakest of the four: it has no influence at the level of subatomic particles, yet at the macroscopic scale it
determines the motion of planets, stars, galaxies, and even light. On Earth, gravity gives weight to objects, and the
Moon's gravity causes the tides of the oceans. Gravity also has many important biological functions; it helps to guide
the growth of plants through the process of gravitropism, and influences the circulation of fluids in animals. """


def chat(questions):
    return "".join(json.dumps({"messages": [{"role": "user", "content": q}]}) + "\n" for q in questions)


def execute(command, timeout=1500, **options):
    env = {**os.environ, **ENGINE_ENV}
    return subprocess.run(
        [sys.executable, *command], env=env, capture_output=True, text=True, timeout=timeout, check=False, **options
    )


def run_commands(folder, jobs):
    """Results of several commands in one process."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = execute([str(ROOT / "tests/analysis/commands.py"), str(folder / "jobs.json"), str(folder / "results.json")])
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def reference(smollm2):
    return oracle.TransformersOracle(smollm2, torch.float32)


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2)


def sequences_of(folder):
    """Rows of the trace, sequence by sequence."""
    rows = pq.read_table(folder / "trace.parquet").to_pylist()
    return [[row for row in rows if row["sequence"] == i] for i in range(rows[-1]["sequence"] + 1)]


def compare(rows, logits, window):
    """One sequence's rows with the float64 logits ``[n, T, V]`` of its positions; the rows that a tie may turn.

    Returns:
        What float64 says of each row, where it is not a tie: depth, whether its best token changes, looked-at depths.
    """
    said = []
    for i, row in enumerate(rows):
        h = [oracle.entropy(depth) for depth in logits[:, i]]
        np.testing.assert_allclose(row["entropy"][: len(h)], h, atol=2e-3, rtol=1e-3)
        d = oracle.trough(h, window - 1)
        gap = min((abs(h[j + 1] - h[j]) for j in range(min(d + 1, window - 1))), default=math.inf)
        second, first = np.sort(logits[:, i], -1)[:, -2:].T
        margin = (first - second)[[0, d]].min()
        if gap < TIE or margin < TIE:
            said.append(None)
            continue
        assert row["depth"] == d
        assert row["final_token"] == int(logits[0, i].argmax())
        assert row["selected_token"] == int(logits[d, i].argmax())
        changed = row["final_token"] != row["selected_token"]
        assert row["changed"] == changed
        said.append((d, changed, min(d + 1, window - 1)))
    return said


def agree(summary, said):
    """The summary's figures are those of float64, as far as ties leave it open."""
    known, open_rows = [s for s in said if s is not None], sum(s is None for s in said)
    assert open_rows <= 0.01 * len(said)
    assert summary["tokens"] == len(said)
    for name, place in (("mean_depth", 0), ("replaced", 1), ("extra_projections", 2)):
        total = sum(s[place] for s in known)
        assert total <= summary[name] * len(said) + 1e-6 <= total + 9 * open_rows + 2e-6
    moved = sum(s[0] > 0 for s in known)
    assert moved <= summary["not_at_final"] * len(said) + 1e-6 <= moved + open_rows + 2e-6
    print({key: summary[key] for key in ("tokens", "not_at_final", "replaced", "mean_depth", "extra_projections")})
    print(f"near ties: {open_rows}")


def answers_agree(folder, questions, reference, tokenizer, window):
    said = []
    for question, rows in zip(questions, sequences_of(folder), strict=True):
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        tokens = [row["token"] for row in rows]
        logits = reference.rows([*prompt, *tokens[:-1]], len(prompt) - 1, range(window))
        said += compare(rows, logits, window)
    return said


@pytest.fixture(scope="module")
def standard(smollm2, tmp_path_factory):
    """The command as a user calls it, on the standard trajectory."""
    folder = tmp_path_factory.mktemp("standard")
    (folder / "prompts.jsonl").write_text(chat(QUESTIONS[:4]))
    command = ["-c", "from confident_decoding.cli import main; main()", "analyze", smollm2, "prompts.jsonl"]
    options = ["--trajectory", "standard", "--max-tokens", "32", "--sweep", "0", "--json", "-o", "out"]
    return folder, execute([*command, *options, *FLOAT32], cwd=folder)


@pytest.mark.engine
def test_what_standard_decoding_meets_is_what_float64_says(standard, reference, tokenizer):
    folder, done = standard
    assert done.returncode == 0, done.stderr
    said = answers_agree(folder / "out", QUESTIONS[:4], reference, tokenizer, 10)
    agree(json.loads((folder / "out/summary.json").read_text()), said)
    for rows in sequences_of(folder / "out"):
        assert [row["token"] for row in rows] == [row["final_token"] for row in rows]


@pytest.mark.engine
def test_json_is_all_that_is_on_standard_output(standard):
    folder, done = standard
    assert json.loads(done.stdout) == json.loads((folder / "out/summary.json").read_text())
    assert len(done.stderr.splitlines()) < 5, done.stderr


@pytest.mark.engine
def test_the_folder_holds_what_the_help_promises(standard):
    folder, _ = standard
    names = {path.name for path in (folder / "out").iterdir()}
    assert {"report.html", "summary.json", "trace.parquet"} < names
    assert len([name for name in names if name.endswith(".png")]) == 8
    assert sorted(os.listdir(folder)) == ["out", "prompts.jsonl"]
    about = Trace(folder / "out/trace.parquet").about
    assert (about.num_layers, about.candidates, about.window, about.trajectory) == (30, 10, 10, "standard")


@pytest.fixture(scope="module")
def others(smollm2, tmp_path_factory):
    """More commands, in one process."""
    folder = tmp_path_factory.mktemp("others")
    (folder / "prompts.jsonl").write_text(chat(QUESTIONS[4:6]))
    (folder / "long.jsonl").write_text(json.dumps("word " * 400) + "\n")
    (folder / "text.txt").write_text(TEXT * 2)
    prompts, text = str(folder / "prompts.jsonl"), str(folder / "text.txt")
    confident = ["--window", "4", "--sweep", "12", "--max-tokens", "24", "--top-tokens", "10"]
    small = ["--vllm", "--dtype float32 --max-model-len 96"]

    def job(name, *argv, **options):
        return {"argv": ["analyze", smollm2, "-o", str(folder / name), *argv], **options}

    jobs = {
        "confident": job("confident", prompts, *confident, *FLOAT32),
        "text": job("text", "--text", text, *small),
        "too long": job("too-long", str(folder / "long.jsonl"), *small),
        "full disk": job("full-disk", prompts, "--max-tokens", "4", *small, largest_file=20_000),
        "unknown model": {"argv": ["analyze", "no-such/model", prompts, "-o", str(folder / "unknown")]},
        "unknown option": job("unknown-option", prompts, "--vllm", "--no-such-option"),
        "context": job("context", prompts, "--vllm", "--max-model-len 99999999"),
        "several processes": job("several", prompts, "--vllm", "--tensor-parallel-size 2"),
        "no device": job("no-device", prompts, no_device=True),
    }
    return folder, dict(zip(jobs, run_commands(folder, list(jobs.values())), strict=True))


@pytest.mark.engine
def test_confident_answers_select_in_their_window_and_record_beyond(others, reference, tokenizer):
    folder, done = others
    assert done["confident"]["status"] == 0, done["confident"]["errors"]
    assert "24" in done["confident"]["output"]
    summary = json.loads((folder / "confident/summary.json").read_text())
    agree(summary, answers_agree(folder / "confident", QUESTIONS[4:6], reference, tokenizer, 4))
    deeper = answers_agree_beyond(folder / "confident", QUESTIONS[4:6], reference, tokenizer)
    assert summary["windows"][-1]["window"] == 12
    assert summary["windows"][-1]["mean_depth"] == pytest.approx(deeper, abs=0.01)
    rows = [row for sequence in sequences_of(folder / "confident") for row in sequence]
    assert [row["token"] for row in rows] == [row["selected_token"] for row in rows]
    assert any(row["changed"] for row in rows), "the case is too easy to mean anything"
    assert [row["top_tokens"] is not None for row in rows] == [i < 10 for i in range(len(rows))]


def answers_agree_beyond(folder, questions, reference, tokenizer):
    """Mean depth in the largest recorded window, in float64."""
    depths = []
    for question, rows in zip(questions, sequences_of(folder), strict=True):
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        logits = reference.rows([*prompt, *(row["token"] for row in rows[:-1])], len(prompt) - 1, range(12))
        depths += [oracle.trough([oracle.entropy(x) for x in logits[:, i]], 11) for i in range(len(rows))]
    return float(np.mean(depths))


@pytest.mark.engine
def test_a_text_is_read_in_pieces(others, reference, tokenizer):
    folder, done = others
    assert done["text"]["status"] == 0, done["text"]["errors"]
    ids = tokenizer(TEXT * 2)["input_ids"]
    summary, said = json.loads((folder / "text/summary.json").read_text()), []
    sequences = sequences_of(folder / "text")
    assert len(sequences) == math.ceil(len(ids) / 95)
    for number, rows in enumerate(sequences):
        piece = ids[95 * number : 95 * (number + 1)]
        assert [row["token"] for row in rows] == piece[1:]
        said += compare(rows, reference.rows(piece[:-1], 0, range(10)), 10)
    agree(summary, said)
    assert summary["recorded_candidates"] == 20
    speed = summary["speed"]
    assert speed["share_of_gemm"] == pytest.approx(speed["tokens_per_second"] / speed["gemm_tokens_per_second"])
    # Of what is multiplied: 30 layers of 576 wide states (9 and 3 heads of 64, 1536 inside), and 20 heads.
    layers = 30 * (576 * (576 + 2 * 192) + 576 * 576 + 3 * 576 * 1536)
    flops = 2 * (layers + 20 * 576 * 49152)
    assert speed["gemm_tokens_per_second"] * flops == pytest.approx(1e9 * speed["head_gflops_per_second"])


REFUSED = {
    "too long": (2, "prompt 1 is refused"),
    "full disk": (1, "File too large. Nothing was left there"),
    "unknown model": (2, "no-such/model"),
    "unknown option": (2, "--no-such-option"),
    "context": (2, "99999999"),
    "several processes": (2, "must be 1"),
    "no device": (1, "vLLM found no device"),
}


@pytest.mark.engine
@pytest.mark.parametrize("name", REFUSED)
def test_refusals_of_the_engine_are_one_message(name, others):
    folder, done = others
    status, message = REFUSED[name]
    assert done[name]["status"] == status
    assert message in done[name]["errors"].replace("\n", " ")
    assert done[name]["errors"].count("error:") == 1
    assert "Traceback" not in done[name]["errors"]
    assert done[name]["output"] == ""
    expected = {"confident", "text", "prompts.jsonl", "long.jsonl", "text.txt", "jobs.json", "results.json"}
    assert set(os.listdir(folder)) == expected


@pytest.mark.engine
@pytest.mark.slow
def test_twenty_answers(smollm2, reference, tokenizer, tmp_path):
    """An independent run of this size gave 58.2 % not at final, 16.7 % replaced, depth 1.64, 2.63 projections."""
    (tmp_path / "prompts.jsonl").write_text(chat(QUESTIONS))
    options = ["--trajectory", "standard", "--sweep", "0", "-o", str(tmp_path / "out"), *FLOAT32]
    argv = ["analyze", smollm2, str(tmp_path / "prompts.jsonl"), *options]
    (done,) = run_commands(tmp_path, [{"argv": argv}])
    assert done["status"] == 0, done["errors"]
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    agree(summary, answers_agree(tmp_path / "out", QUESTIONS, reference, tokenizer, 10))


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
    assert f"analyze needs {' and '.join(missing)}: install confident-decoding[analysis]" in said


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
    with pytest.raises(ValueError, match="no token was recorded"):
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
