"""Every command that the documentation shows is run, on the embedded model under the name that the page has for it.

Put in: a port, the options of a small and quick server, a task of the tests for one whose data must be fetched.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from conftest import ENGINE_ENV, ROOT
from docs.blocks import blocks

from demo.server import free_port, started

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(1200)]

EXTRAS = "for extra in hf:"
ELSEWHERE = {
    "make demo": ("tests/docs/test_commands_run.py", "def test_the_demonstration"),
    "make test": (".ci/run", "make test"),
    "make setup": ("Makefile", "lint: setup"),
    ".venv/bin/pre-commit install": ("tests/docs/test_commands_run.py", "def test_what_pre_commit_runs"),
    "pip install confident-decoding[vllm]": ("tools/dist.sh", "--dry-run"),
    "pip install confident-decoding[analysis]": ("tools/dist.sh", EXTRAS),
    "pip install confident-decoding[eval,vllm]": ("tools/dist.sh", "[eval]"),
    "docker build -t vllm-confident --build-arg VLLM_VERSION=0.32.0 .": (
        "tests/test_dockerfile.py",
        "def test_the_steps_install_a_plugin_that_loads",
    ),
    "docker run --gpus all": ("tests/test_dockerfile.py", "def test_the_commands_are_those"),
    "python -m benchmarks.overhead --shape qwen3-8b": (
        "tests/test_performance_page.py",
        "def test_the_command_is_the_one_that_the_results_come_from",
    ),
    "python -m benchmarks.overhead --model YOUR_MODEL": (
        "tests/docs/test_commands_run.py",
        "def test_the_cost_of_ones_own_model",
    ),
    "python -m benchmarks.scan": ("benchmarks/results/scan-h200.json", '"calls": '),
    "python -m benchmarks.kernels": ("benchmarks/results/kernels-h200.json", '"kernels": '),
}
"""Command, or its beginning, to what runs it: a file, and what stands in it."""
MODELS = ("MODEL", "YOUR_MODEL", "SmolLM2-135M-Instruct")
QUICK = ["--enforce-eager", "--max-model-len", "512"]
INSTEAD = {
    "gsm8k": "tests/evaluation/tasks/capitals.yaml",
    "YourModelForCausalLM": "LlamaForCausalLM",
    "../.venv/bin/python": sys.executable,
}
OUTSIDE = {k: v for k, v in ENGINE_ENV.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
SHOWN = [
    block
    for block in blocks()
    if block.language == "bash" and re.search(r"^(vllm|confident-decoding|cd) ", block.text, re.MULTILINE)
]


def lines_of(block):
    """Command lines without comments, and their words."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield line, words


def assert_run_elsewhere(block, words):
    found = [where for command, where in ELSEWHERE.items() if " ".join(words).startswith(command)]
    assert found, f"{block}: {words}"
    for path, text in found:
        begins = "^" if text.startswith("def ") else ""  # a test, and not where this table names it
        assert re.search(begins + re.escape(text), (ROOT / path).read_text(), re.MULTILINE), path


def answered(url):
    """A server with Confident Decoding answers."""
    with urlopen(f"{url}/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    body = json.dumps({"model": model, "prompt": "The capital of France is", "max_tokens": 8}).encode()
    with urlopen(Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})) as answer:
        return json.load(answer)["choices"][0]["text"]


@pytest.fixture
def folder(tmp_path, smollm2):
    """Where a user stands: a model by each name, prompts, a text."""
    for name in MODELS:
        (tmp_path / name).symlink_to(smollm2)
    (tmp_path / "tests").symlink_to(ROOT / "tests")  # where that task has its data
    prompts = ["What is the capital of France?", "Name three colours."]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    (tmp_path / "book.txt").write_text((ROOT / "CONTRIBUTING.md").read_text()[:3000])
    return tmp_path


@pytest.mark.parametrize("block", SHOWN, ids=str)
def test_commands_do_what_the_page_says(block, folder):
    env = {**os.environ, **OUTSIDE, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    port, log, ran = free_port(), folder / "server.txt", 0
    with ExitStack() as servers:
        for line, words in lines_of(block):
            if words[0] == "export":
                env |= dict(word.split("=", 1) for word in words[1:])
            elif words[0] == "vllm":
                servers.close()
                named = [str(folder / word) if word in MODELS else word for word in words]
                command = [*named, "--port", str(port), "--host", "127.0.0.1", *QUICK]
                url = servers.enter_context(started(command, port, log, env=env))
                assert answered(url)
                assert "confident-decoding 0" in log.read_text()
                assert "armed" in log.read_text()
                ran += 1
            elif words[0] in ("curl", "confident-decoding", "cd"):
                text = line
                here = {"localhost:8000": f"127.0.0.1:{port}", "/tmp/evidence": f"{folder}/evidence"}
                for shown, put in {**INSTEAD, **here}.items():
                    text = text.replace(shown, put)
                where = ROOT if words[0] == "cd" else folder
                done = subprocess.run(
                    ["bash", "-c", text], cwd=where, env=env, capture_output=True, text=True, check=False
                )
                # The page shows what doctor says where vLLM is told to load another plugin.
                expected = 1 if env.get("VLLM_PLUGINS") == "my_plugin" else 0
                assert done.returncode == expected, f"{line}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
                assert done.stdout or done.stderr, line
                ran += 1
            else:
                assert_run_elsewhere(block, words)
    assert ran


PRINTED = [block for block in blocks() if block.language == "text" and block.text.startswith("$ confident-decoding ")]


@pytest.mark.parametrize("block", PRINTED, ids=str)
def test_a_command_prints_what_the_page_says(block, folder):
    env = {**os.environ, **OUTSIDE, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120"}
    command, _, printed = block.text[2:].replace("\\\n", " ").partition("\n")
    env["PYTHONPATH"] = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    shown, expected = ([line.rstrip() for line in text.splitlines() if line.strip()] for text in (done.stdout, printed))
    assert shown == expected


@pytest.mark.parametrize("other", [[], ["--p0"]], ids=["standard", "p=0"])
def test_the_demonstration(other):
    """``make demo``, with shorter answers: two servers, one after the other."""
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--max-tokens", "8", *other],
        cwd=ROOT,
        env={**os.environ, **OUTSIDE, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for words in (
        "What is gravity?",
        "Why is the sky blue?",
        "confident-decoding 0",
        "armed",
        "[trough-decoding] step=",
        "p=0" if other else "standard",
    ):
        assert words in done.stdout, words


def test_a_server_in_the_foreground(tmp_path):
    """``make serve ARGS=...``: with Confident Decoding on, the embedded model if none is named."""
    port, log = free_port(), tmp_path / "log.txt"
    line = [sys.executable, "-m", "demo.serve", "--port", str(port), "--max-model-len", "512"]
    with started(line, port, log, env={**OUTSIDE, "PYTHONPATH": str(ROOT)}) as url:
        assert answered(url)
    assert "armed" in log.read_text()


def test_what_pre_commit_runs():
    """Its hooks are this environment's own programs, so that nothing is fetched."""
    done = subprocess.run(
        [Path(sys.executable).with_name("pre-commit"), "run", "--all-files"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("Passed") == 3


def test_the_cost_of_ones_own_model(folder):
    """The command as it stands, of fewer steps."""
    (shown,) = [
        words
        for block in blocks()
        if block.language == "bash" and block not in SHOWN
        for line, words in lines_of(block)
        if line.startswith("python -m benchmarks.overhead --model ")
    ]
    words = [str(folder / word) if word in MODELS else word for word in shown]
    quick = ["--tokens", "4", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, *words[1:], *quick], cwd=ROOT, env={**os.environ, **OUTSIDE}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    assert re.search(r"^planned( +\d+\.\d\d ms +\d+\.\d{3}x){3}$", done.stdout, re.MULTILINE), done.stdout[-1500:]


def test_programs_that_are_not_run_here_are_run_elsewhere():
    for block in blocks():
        if block.language == "bash" and block not in SHOWN:
            for _, words in lines_of(block):
                assert_run_elsewhere(block, words)
