"""The examples run as they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ENGINE_ENV, ROOT

from demo.server import free_port, started

EXAMPLES = ROOT / "examples"
OUTSIDE = {k: v for k, v in ENGINE_ENV.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}


def run(name, *arguments, env=None):
    """What an example prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={**os.environ, "HF_HUB_OFFLINE": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_every_example_is_listed_and_run():
    listed = (EXAMPLES / "README.md").read_text()
    here = Path(__file__).read_text() + (ROOT / "tests/analysis/test_notebook.py").read_text()
    for path in EXAMPLES.iterdir():
        if path.name != "README.md":
            assert f"`{path.name}`" in listed, path.name
            assert f'"{path.name}"' in here, path.name


@pytest.mark.server
def test_a_server_a_client_and_two_kinds_of_requests(smollm2, tmp_path):
    port = free_port()
    line = ["bash", str(EXAMPLES / "serve.sh"), smollm2, "--port", str(port), "--host", "127.0.0.1"]
    line += ["--enforce-eager", "--max-model-len", "512"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    log = tmp_path / "log.txt"
    with started(line, port, log, env={**OUTSIDE, "PATH": path}) as url:
        answer = run("client.py", f"{url}/v1")
        lines = run("ab_requests.py", f"{url}/v1").splitlines()
    assert "armed" in log.read_text()
    assert len(answer.split()) > 10
    assert len(lines) == 9
    standard, confident = ([line.split(maxsplit=1)[1] for line in lines[at::3]] for at in (1, 2))
    assert all(len(text) > 10 for text in standard + confident)
    assert standard != confident


@pytest.mark.engine
def test_offline(smollm2):
    lines = [line for line in run("offline_batch.py", smollm2, env=ENGINE_ENV).splitlines() if " -> " in line]
    assert [line.split()[0] for line in lines] == ["confident"] * 2 + ["standard"] * 2
    assert [line.split(" -> ")[1] for line in lines[:2]] != [line.split(" -> ")[1] for line in lines[2:]]


@pytest.mark.engine
def test_transformers(smollm2):
    lines = run("transformers_generate.py", smollm2).splitlines()
    assert len(lines) == 2
    assert all("depths [" in line for line in lines)
