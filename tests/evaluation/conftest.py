"""The command line and a task of 200 sums."""

import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

from evaluation.commands import ENGINE, ENV, SUMS


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    """A task file of 200 sums of numbers up to 20, and the right answers."""
    folder = tmp_path_factory.mktemp("sums")
    pairs = list(itertools.product(range(1, 21), range(1, 21)))
    chosen = [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))[:200]]
    lines = [json.dumps({"question": f"{a} + {b}", "answer": str(a + b)}) for a, b in chosen]
    (folder / "sums.jsonl").write_text("\n".join(lines))
    (folder / "sums.yaml").write_text(SUMS.format(data=folder / "sums.jsonl"))
    return str(folder / "sums.yaml"), chosen


@pytest.fixture(scope="module")
def command(smollm2, tmp_path_factory):
    """``command(*arguments)``: a finished run of the command line."""
    cache = tmp_path_factory.mktemp("cache")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "VLLM_"))}
    env |= {**ENV, "HF_DATASETS_CACHE": str(cache)}

    def start(*arguments, env=env, **options):
        code = "from confident_decoding.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, "eval", smollm2, *map(str, arguments), "--vllm", ENGINE],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(*arguments, status=0, **options):
        process = start(*arguments, **options)
        out, err = process.communicate(timeout=900)
        assert process.returncode == status, err
        return out, err

    run.start, run.env = start, env
    return run
