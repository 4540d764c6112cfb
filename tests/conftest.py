"""Shared fixtures: the embedded model, tiny checkpoints, and real engines in processes of their own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/plugin"), str(ROOT)]

hypothesis.settings.register_profile("no clock", deadline=None)  # timings never decide a test
hypothesis.settings.load_profile("no clock")

SWITCH = "enable_multi_layer_entropy_selection"
QUESTIONS = [
    "What is gravity?",
    "Name three colors.",
    "Write a short poem about the sea.",
    "How do I boil an egg?",
    "Explain photosynthesis to a child.",
    "List the planets of the solar system.",
    "What is the capital of France?",
    "Tell me a story about a dragon.",
    "Why is the sky blue?",
    "How does a bicycle stay upright?",
    "Write an email asking for a day off.",
    "What is 12 times 12?",
    "Give me a recipe for pancakes.",
    "Who wrote Hamlet?",
    "What are prime numbers?",
    "Describe a sunset.",
    "How do vaccines work?",
    "Translate good morning to Spanish.",
    "What should I pack for a hike?",
    "Explain recursion.",
]

ENGINE_ENV = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",  # `make engines` runs two at a time; spinning threads would take each other's core
}


def on(**keys):
    """``additional_config`` with the switch on."""
    return {SWITCH: True, **keys}


@pytest.fixture(scope="session")
def smollm2():
    from demo.checkpoint import smollm2

    return str(smollm2())


@pytest.fixture(scope="session")
def prompts(smollm2):
    """Token ids of the chat prompts of ``QUESTIONS``."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    return [
        tokenizer.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True)["input_ids"]
        for q in QUESTIONS
    ]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """``tiny(tag)``: folder of a tiny random checkpoint, made once a session."""
    from models.checkpoints import build

    made = {}

    def get(tag):
        if tag not in made:
            made[tag] = str(build(tag, tmp_path_factory.mktemp(tag)))
        return made[tag]

    return get


@pytest.fixture(scope="session")
def tiny_text(tiny, tmp_path_factory):
    """Folder of a tiny Llama with a tokenizer and a chat template, for features that read or write text."""
    import shutil

    from models.tokenizers import add_tokenizer

    folder = tmp_path_factory.mktemp("text") / "model"
    return str(add_tokenizer(shutil.copytree(tiny("LlamaForCausalLM"), folder)))


@pytest.fixture(scope="session")
def run_engines(tmp_path_factory):
    """``run_engines(jobs)``: results of the driver (tests/plugin/driver.py); jobs share one process."""

    def run(jobs, *arguments, env=None, timeout=900):
        folder = tmp_path_factory.mktemp("engines")
        (folder / "jobs.json").write_text(json.dumps(jobs))
        log = folder / "log.txt"
        command = [
            sys.executable,
            str(ROOT / "tests/plugin/driver.py"),
            str(folder / "jobs.json"),
            str(folder / "results.json"),
            *arguments,
        ]
        with log.open("w") as out:
            code = subprocess.run(
                command,
                env={**os.environ, **ENGINE_ENV, **(env or {})},
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            ).returncode
        if code:
            pytest.fail(f"engine driver exited with {code}; end of its log:\n{log.read_text()[-6000:]}")
        results = json.loads((folder / "results.json").read_text())
        for result in results:
            result["log"] = log.read_text()
        return results

    return run


@pytest.fixture(scope="session")
def second_runner(tmp_path_factory):
    """Environment in which vLLM's CPU engine has the second model runner: its kernels in Triton's interpreter.

    vLLM asks for a Triton that names a backend for CPUs, which PyPI's does not. The interpreter asks no backend, so
    another one under that name is enough.
    """
    triton = Path(sys.prefix) / "triton"
    assert (triton / "triton").is_dir(), "`make setup` puts Triton there"
    folder = tmp_path_factory.mktemp("backend")
    named = folder / "interpreted_cpu-0.dist-info"
    named.mkdir()
    (named / "METADATA").write_text("Metadata-Version: 2.1\nName: interpreted-cpu\nVersion: 0\n")
    (named / "entry_points.txt").write_text("[triton.backends]\ncpu = triton.backends.nvidia\n")
    found = [str(folder), str(triton), str(ROOT / "tests/plugin"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(found),
        "TRITON_INTERPRET": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # functions of modules in tests/plugin are sent to the workers
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }


def smol_engine(path, additional_config=None, dtype="float32", **options):
    """LLM arguments for the embedded model; small, eager unless told otherwise."""
    return {
        "model": path,
        "dtype": dtype,
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "max_model_len": 1024,
        "enforce_eager": True,
        "additional_config": additional_config or {},
        **options,
    }


def tiny_engine(path, additional_config=None, **options):
    """LLM arguments for a tiny checkpoint."""
    return {
        "model": path,
        "dtype": "float32",
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "max_model_len": 128,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "enforce_eager": True,
        "max_logprobs": -1,
        "additional_config": additional_config or {},
        **options,
    }


def greedy(max_tokens, **options):
    return {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, "detokenize": False, **options}


@pytest.fixture(scope="module")  # its driver is a process that tests of processes would see
def browser():
    """Debian's Chromium, headless."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs a browser: install Debian's package chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()
