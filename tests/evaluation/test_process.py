"""The child process: what it reports, how it ends, and that nothing of it stays."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from confident_decoding.evaluation.process import ChildError, _reason, events

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
    """The child reports once and then sleeps; closing the events ends it and what it started."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, subprocess, sys, time\n"
        "if os.environ.pop('SLEEPY', None):\n"
        "    asleep = subprocess.Popen(['sleep', '1000'])\n"
        '    os.write(int(os.environ[\'EVENTS\']), b\'{"event": "start", "sleeper": %d}\\n\' % asleep.pid)\n'
        "    time.sleep(1000)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("SLEEPY", "1")
    pipe = os.pipe

    def told():
        reading, writing = pipe()
        os.environ["EVENTS"] = str(writing)
        return reading, writing

    monkeypatch.setattr(os, "pipe", told)
    monkeypatch.setenv("EVENTS", "")
    happening = events({**MISSING, "model": "m"})
    sleeper = next(happening)["sleeper"]
    os.kill(sleeper, 0)
    happening.close()
    assert children() == []
    for _ in range(100):
        with contextlib.suppress(OSError):
            if open(f"/proc/{sleeper}/stat").read().rsplit(")", 1)[1].split()[0] != "Z":  # noqa: SIM115
                time.sleep(0.1)
                continue
        break
    else:
        os.kill(sleeper, signal.SIGKILL)
        pytest.fail("what the child had started is still there")


def test_a_child_ends_with_a_parent_that_is_killed():
    """Else its engine would go on to hold a GPU's memory."""
    code = "import os, time\nfrom confident_decoding.evaluation.child import _end_with_parent\n"
    code += "reading, writing = os.pipe()\nchild = os.fork()\n"
    code += "if not child:\n    _end_with_parent()\n    os.write(writing, b'x')\n    time.sleep(1000)\n"
    code += "os.read(reading, 1)\nprint(child, flush=True)\ntime.sleep(1000)"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    os.kill(child, 0)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(100):
        try:
            if open(f"/proc/{child}/stat").read().rsplit(")", 1)[1].split()[0] == "Z":  # noqa: SIM115
                return
        except OSError:
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("it is still there")


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
