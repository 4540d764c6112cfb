"""Worker processes: spawned or forked, killed, and started again on the same cache; a real ``vllm serve``."""

import contextlib
import json
import os
import re
import subprocess
import sys
import uuid

import httpx
import psutil
import pytest
from conftest import ENGINE_ENV, ROOT, on
from load.checkpoint import with_tokenizer

from demo.server import running
from plugin.test_server import SERVER_ENV, processes_with

pytestmark = pytest.mark.server

OPTIONS = ("--max-model-len", "4096", "--dtype", "float32", "--served-model-name", "m", "--max-num-seqs", "4")
PROBED = ("--worker-extension-cls", "load.probe.Probe")
PROMPTS = [[40, 50, 60, 70], [300, 20, 111], [99] * 9]


@pytest.fixture(scope="module")
def checkpoint(tiny, smollm2, tmp_path_factory):
    return with_tokenizer(tiny("LlamaForCausalLM"), smollm2, tmp_path_factory.mktemp("crash") / "model")


def asked(prompt, **options):
    fixed = {"model": "m", "prompt": prompt, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return {**fixed, "max_tokens": 16, **options}


def answer(url, prompt):
    return httpx.post(f"{url}/v1/completions", json=asked(prompt), timeout=120).json()["choices"][0]["token_ids"]


def streamed(url, victim):
    """How a long stream ends, ``finished`` or the error, whose first line is the end of a process."""
    killed = False
    try:
        with httpx.stream(
            "POST", f"{url}/v1/completions", json=asked(PROMPTS[0], max_tokens=4000, stream=True), timeout=120
        ) as reply:
            for line in reply.iter_lines():
                if not killed:
                    victim.kill()
                    killed = True
                if line == "data: [DONE]":
                    return "finished"
                if '"error"' in line:
                    return f"error {json.loads(line.removeprefix('data: '))['error']['code']}"
    except httpx.HTTPError as error:
        return type(error).__name__
    return "cut"


def crash(checkpoint, folder, config, victim, *options):
    """Answers before, how the workers were started, and what follows when one of the processes is killed at work."""
    mark = f"CONFIDENT_DECODING_TEST={uuid.uuid4()}"
    env = {
        **SERVER_ENV,
        **dict([mark.split("=")]),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",  # the stream must be far from its end when its first line is read
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}",
    }
    log = folder / f"{victim}.txt"
    with running(checkpoint, log, config, *OPTIONS, *PROBED, *options, env=env) as url:
        seen = {"answers": [answer(url, prompt) for prompt in PROMPTS]}
        if config:
            hooks = httpx.post(f"{url}/collective_rpc", json={"method": "hooks"}, timeout=60)
            seen["hooks"] = hooks.json()["results"]
        processes = [psutil.Process(pid) for pid in processes_with(mark)]
        server = min(processes, key=lambda process: process.create_time())
        seen["stream"] = streamed(url, next(process for process in processes if process.name().startswith(victim)))
        seen["code"] = server.wait(timeout=120)
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.wait_procs(processes, timeout=30)
        seen["left"] = [process for process in processes if process.is_running()]
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{url}/health", timeout=5)
    return {**seen, "log": log.read_text()}


FIRST = ("VLLM::Worker",)
AGAIN = ("VLLM::EngineCor",)
TWO_RANKS = ("VLLM::Worker", "--tensor-parallel-size", "2", "--enforce-eager")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("crashes")


@pytest.fixture(scope="module")
def first(checkpoint, folder):
    """A compiled model, whose worker is killed."""
    return crash(checkpoint, folder, on(), *FIRST)


@pytest.fixture(scope="module")
def again(checkpoint, folder, first):
    """Started again on the same cache; then the engine core is killed."""
    return crash(checkpoint, folder, on(), *AGAIN)


@pytest.fixture(scope="module")
def two_ranks(checkpoint, folder):
    return crash(checkpoint, folder, on(), *TWO_RANKS)


def check_every_worker_is_hooked_and_says_so(seen, process, workers):
    assert seen["hooks"] == [{"started": process, "head": "SelectingHead"}] * workers
    armed = re.findall(r"\((\S*Worker\S*) pid=\d+\) INFO .*confident-decoding \S+ armed", seen["log"])
    assert len(armed) == len(set(armed)) == workers


def check_the_server_has_ended(seen):
    """With an error for who was waiting, and nothing left behind."""
    assert seen["stream"] == "error 500"
    assert seen["left"] == []
    assert "EngineDeadError" in seen["log"]


@pytest.fixture(scope="module")
def forked(checkpoint, folder):
    """Two ranks of an offline engine, forked."""
    out = folder / "forked.json"
    env = {**ENGINE_ENV, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "PROMPTS": json.dumps(PROMPTS)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/plugin/forked.py"), checkpoint, str(out)],
        env={**os.environ, **env, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return {**json.loads(out.read_text()), "log": done.stdout}


@pytest.mark.parametrize("start", ["first", "again"])
def test_a_spawned_worker_is_hooked_and_says_so(start, request):
    check_every_worker_is_hooked_and_says_so(request.getfixturevalue(start), "SpawnProcess", 1)


def test_forked_workers_are_hooked_and_say_so(forked, first):
    check_every_worker_is_hooked_and_says_so(forked, "ForkProcess", 2)
    assert forked["answers"] == first["answers"]


@pytest.mark.parametrize("start", ["first", "again"])
def test_a_killed_process_ends_the_server_with_an_error(start, request):
    check_the_server_has_ended(request.getfixturevalue(start))


def test_a_server_started_again_on_the_same_cache_answers_the_same(first, again):
    assert again["answers"] == first["answers"]
    assert len({str(tokens) for tokens in again["answers"]}) == len(PROMPTS)


@pytest.mark.slow
def test_two_ranks(two_ranks, first):
    check_every_worker_is_hooked_and_says_so(two_ranks, "SpawnProcess", 2)
    check_the_server_has_ended(two_ranks)
    assert two_ranks["answers"] == first["answers"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "arguments"),
    [("first", FIRST), ("again", AGAIN), ("two_ranks", TWO_RANKS)],
    ids=["first", "again", "two ranks"],
)
def test_that_is_what_a_stock_server_does(start, arguments, checkpoint, tmp_path, request):
    seen = request.getfixturevalue(start)
    stock = crash(checkpoint, tmp_path, None, *arguments)
    assert (stock["code"], stock["stream"], stock["left"]) == (seen["code"], seen["stream"], seen["left"])
    assert stock["answers"] != seen["answers"]
