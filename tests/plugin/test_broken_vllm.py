"""A vLLM that is too old, newer, or has something renamed: what the user is told (units: test_compat.py)."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ENGINE_ENV, ROOT, greedy, on, tiny_engine

pytestmark = pytest.mark.engine

TOGETHER = ("too old", "head", "capture", "newer", "runner")
"""Cases of one process; "front end" changes a class before the plugin meets it."""
SUPPORTED = "supported vLLM 0.26 to 0.33"


@pytest.fixture(scope="module")
def broken(tiny, tmp_path_factory):
    folder, results = tmp_path_factory.mktemp("broken"), {}
    for cases in (TOGETHER, ("front end",)):
        out = folder / f"{cases[0]}.json"
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests/plugin/broken.py"), tiny("LlamaForCausalLM"), str(out), *cases],
            env={**os.environ, **ENGINE_ENV},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        results.update(json.loads(out.read_text()))
    return results


@pytest.fixture(scope="module")
def left_out(run_engines, tiny):
    """With ``VLLM_PLUGINS`` that does not name us; the switch is on."""
    engine = tiny_engine(tiny("LlamaForCausalLM"), on(), max_model_len=64, max_num_seqs=2)
    job = {"engine": engine, "calls": [{"prompts": [[5, 6, 7]], "sampling": greedy(8)}], "probe": True}
    (result,) = run_engines([job], env={"VLLM_PLUGINS": "lora_filesystem_resolver"})
    return result


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("too old", ["ConfigError: confident-decoding cannot start", "vLLM 0.25.1 is older", "Upgrade vLLM"]),
        ("head", ["ConfigError", "cannot hook this vLLM", "LogitsProcessor._apply_head does not exist", SUPPORTED]),
        (
            "capture",
            [
                "ConfigError",
                "cannot run LlamaForCausalLM",
                "LlamaModel does not capture intermediate states",
                SUPPORTED,
            ],
        ),
        ("bad configuration", ["ConfigError: confident-decoding: --additional-config is not valid", "p=2"]),
    ],
)
def test_the_start_is_refused_with_one_message(case, parts, broken):
    assert broken[case]["tokens"] is None
    for part in parts:
        assert part in broken[case]["error"]


@pytest.mark.parametrize(
    ("case", "line", "refusal"),
    [
        ("newer", "WARNING confident-decoding: vLLM 0.34.0 is newer than the newest tested release", None),
        (
            "runner",
            "ERROR confident-decoding: requests cannot have settings of their own",
            "GPUModelRunner.execute_model",
        ),
        ("front end", "ERROR confident-decoding could not hook vLLM's front end.", None),
    ],
)
def test_the_engine_runs_and_says_what_is_missing(case, line, refusal, broken, left_out):
    found = broken[case]
    assert found["error"] is None
    assert sum(one.startswith(line) for one in found["lines"]) == 1
    assert sum("armed: " in one for one in found["lines"]) == 1
    assert found["tokens"] == broken["newer"]["tokens"] != left_out["calls"][0]["tokens"][0]
    assert (refusal or "") in (found["refusal"] or "")
    assert bool(found["refusal"]) == bool(refusal)


def test_vllm_plugins_that_does_not_name_us_is_standard_decoding_without_a_line(left_out):
    """Nothing of ours runs in that process to say so: the armed line is missing, and `doctor` tells why."""
    assert left_out["lines"] == []
    assert left_out["probe"]["class_is_registered"]
    assert not left_out["probe"]["head_in_dict"]
