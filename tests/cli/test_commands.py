"""`compare` and `bench` with real engines on the embedded model, as a user types them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import ENGINE_ENV, QUESTIONS, greedy, on, smol_engine

pytestmark = pytest.mark.engine

MAIN = "from confident_decoding.cli import main; main()"
EAGER = "--enforce-eager --dtype float32 --max-model-len 512"
TOKENS = 24


def command(*arguments, env=None):
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        env={**os.environ, **ENGINE_ENV, "COLUMNS": "120", **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    lines = [{"messages": [{"role": "user", "content": question}]} for question in QUESTIONS[:3]]
    lines.insert(1, "The planets of the solar system are")
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


@pytest.fixture(scope="module")
def compared(files, smollm2):
    done = command(
        "compare",
        smollm2,
        str(files / "prompts.jsonl"),
        "--max-tokens",
        str(TOKENS),
        "--json",
        "--html",
        str(files / "page.html"),
        "--vllm",
        EAGER,
    )
    assert done.returncode == 0, done.stderr
    return done, json.loads(done.stdout)


def test_answers_are_those_of_two_engines(compared, run_engines, smollm2, prompts):
    """Standard answers are stock vLLM's and confident ones a server's; prompts keep their order."""
    chats = prompts[:3]
    jobs = [
        {
            "engine": smol_engine(smollm2, config, max_model_len=512),
            "calls": [{"prompts": chats, "sampling": {**greedy(TOKENS), "ignore_eos": False}}],
        }
        for config in ({}, on())
    ]
    stock, confident = (result["calls"][0]["tokens"] for result in run_engines(jobs))
    _, result = compared
    answers = [result["prompts"][place] for place in (0, 2, 3)]
    assert [[a["standard"]["token_ids"]] for a in answers] == stock
    assert [[a["confident"]["token_ids"]] for a in answers] == confident
    assert stock != confident
    assert result["prompts"][1]["prompt"] == "The planets of the solar system are"


def test_the_numbers_are_those_of_the_tokens(compared):
    _, result = compared
    changed = total = 0
    for one in result["prompts"]:
        tokens = [one["standard"]["token_ids"], one["confident"]["token_ids"]]
        length = max(map(len, tokens))
        padded = np.array([ids + [-1 - side] * (length - len(ids)) for side, ids in enumerate(tokens)])
        differ = padded[0] != padded[1]
        assert one["changed_by_position"] == pytest.approx(differ.mean())
        assert one["first_difference"] == (int(differ.argmax()) if differ.any() else None)
        changed, total = changed + differ.sum(), total + length
    assert result["summary"]["changed_by_position"] == pytest.approx(changed / total)
    assert result["summary"]["prompts"] == 4


def test_nothing_but_the_result_on_standard_output(compared):
    done, _ = compared
    assert done.stderr.startswith("Starting vLLM")
    assert "INFO" not in done.stderr


def test_the_page_is_written(compared, files):
    _, result = compared
    page = (files / "page.html").read_text()
    assert page.count("<article>") == 4
    assert f"{result['summary']['prompts_changed']} of 4 answers changed" in page
    assert sorted(p.name for p in files.iterdir()) == ["page.html", "prompts.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "env", "status", "says"),
    [
        (["--vllm", "--max-model-len 12"], {}, 2, "3 of 4 prompts cannot run. line 1: "),
        (["--vllm", "-pp 4"], {}, 2, "Confident Decoding would not be active: with pipeline_parallel_size=4"),
        (["--vllm", "--no-such-option 3"], {}, 2, "vLLM's engine does not know --no-such-option 3"),
        ([], {"VLLM_PLUGINS": "other"}, 1, "vLLM does not load the plugin. VLLM_PLUGINS=other leaves it out."),
        (["--additional-config", '{"select_method": "last-m40"}'], {}, 1, "'last-m40' needs more than 40 layers"),
    ],
)
def test_what_cannot_be_compared_is_one_message(files, smollm2, tmp_path, arguments, env, status, says):
    page = tmp_path / "page.html"
    done = command("compare", smollm2, str(files / "prompts.jsonl"), "--html", str(page), *arguments, env=env)
    assert done.returncode == status
    assert done.stdout == ""
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_bench(smollm2):
    done = command(
        "bench",
        smollm2,
        *("--batch", "1,3", "--rounds", "2", "--tokens", "12", "--json", "--vllm", "--enforce-eager"),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [list(times) for times in result["rounds"]] == [["stock", "confident"]] * 2
    for batch in ("1", "3"):
        for name in ("stock", "confident"):
            measured = [times[name][batch] for times in result["rounds"]]
            assert all(ms > 0 for ms in measured)
            assert result["median"][name][batch]["ms"] == pytest.approx(np.median(measured))
        assert result["median"]["stock"][batch]["ratio"] == 1
    assert result["machine"]["vllm"]


@pytest.mark.parametrize(
    ("options", "env", "status", "says"),
    [
        ("", {"VLLM_PLUGINS": "other"}, 1, "vLLM does not load the plugin. VLLM_PLUGINS=other leaves it out."),
        ("--pipeline-parallel-size 4", {}, 2, "the last stage has 7 of the 30 layers"),
        ("--max-num-seqs 4", {}, 2, "8 requests are more than an engine with --max-num-seqs 4 takes into a step."),
        ("--max-model-len 64", {}, 2, "do not fit into a context of 64 tokens. Give at most 32."),
        ("--max-model-len 100000", {}, 1, "max_model_len"),
    ],
)
def test_bench_starts_no_engine_that_would_measure_something_else(smollm2, options, env, status, says):
    done = command("bench", smollm2, "--vllm", options, env=env)
    assert done.returncode == status
    assert says in done.stderr
    assert done.stdout == ""


def test_bench_says_which_engine_failed(smollm2):
    done = command("bench", smollm2, "--one-at-a-time", "--vllm", "--enforce-eager --num-gpu-blocks-override 1")
    assert done.returncode == 1
    assert done.stderr.startswith("error: the stock engine failed:")
    assert "memory for the cache" in done.stderr
    assert "Traceback" not in done.stderr
