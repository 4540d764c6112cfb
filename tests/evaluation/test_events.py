"""The child process of an evaluation: what it reports, and that nothing of it stays."""

import contextlib
import os

import pytest

from confident_decoding.evaluation.events import ChildError, _reason, events

MISSING = {
    "work": "describe",
    "options": "",
    "model_args": {},
    "tasks": ["x"],
    "include_path": [],
    "limit": None,
    "allow_unsafe_code": False,
}


def children():
    """Ids of living processes that this one started."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            state, parent = (open(f"/proc/{int(name)}/stat").read().rsplit(")", 1)[1].split())[:2]  # noqa: SIM115
            if int(parent) == os.getpid() and state != "Z":
                found.append(int(name))
    return found


def test_wrong_use_that_the_child_finds_keeps_its_status():
    with pytest.raises(ChildError, match=r"^there is no task file nowhere\.yaml\.$") as refused:
        list(events({**MISSING, "model": "m", "tasks": ["nowhere.yaml"]}))
    assert refused.value.status == 2
    assert children() == []


def test_an_error_of_the_work_is_one_message():
    with pytest.raises(ChildError, match=r"TypeError: .*unexpected") as failed:
        list(events({**MISSING, "model": "m", "unexpected": 1}))
    assert failed.value.status == 1
    assert "Traceback" not in str(failed.value)


def test_a_child_that_dies_is_told_with_the_end_of_its_output(monkeypatch, tmp_path):
    """A real death: its interpreter is told to end by a module that Python imports at the start."""
    (tmp_path / "sitecustomize.py").write_text("import os\nprint('last words', flush=True)\nos._exit(9)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(ChildError) as failed:
        list(events({**MISSING, "model": "m"}))
    assert "ended with code 9" in str(failed.value)
    assert "last words" in str(failed.value)


def test_a_consumer_that_stops_ends_the_child(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        'os.write(int(sys.orig_argv[-2]), b\'{"event": "start", "mine": %d}\\n\' % os.getpid())\n'
        "time.sleep(1000)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    happening = events({**MISSING, "model": "m"})
    assert next(happening)["mine"] in children()
    happening.close()
    assert children() == []


def test_a_cause_that_is_in_the_log(tmp_path):
    """What an engine says that points elsewhere is of no use once the log is gone."""
    event = {"message": "Engine core initialization failed. See root cause above.", "status": 1}
    with (tmp_path / "log").open("w+b") as log:
        log.write(b"ERROR 11-30 08:13:50 [core.py:900] ValueError: too little memory\n")
        assert _reason(event, log) == "too little memory. Run it again with --verbose to see all that vLLM says."
    assert _reason({"message": "Failed to infer device type, please", "status": 1}, None).startswith(
        "vLLM found no device"
    )
    assert _reason({"message": "unknown task 'x'", "status": 2}, None) == "unknown task 'x'"
