"""A process of its own: what is told and said, how it ends, and that nothing of it stays."""

import contextlib
import os
import subprocess
import sys
import textwrap
import time

import pytest

from confident_decoding.engines import process as processes
from confident_decoding.engines.process import Process

ANSWERS = """
    import os
    from confident_decoding.engines.process import Parent
    parent = Parent()
    for message in parent.messages():
        print("noise")
        parent.say([message, os.environ["NEW"], os.environ["OLD"]])
    parent.say("the end")
"""
SLEEPS = """
    import signal, subprocess, time
    from confident_decoding.engines.process import Parent
    {first}
    Parent().say(subprocess.Popen(["sleep", "1000"]).pid)
    time.sleep(1000)
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """``start(code)``: a process that runs ``code``, its output in a file."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    with (tmp_path / "log.txt").open("w") as output:

        def started(code):
            (tmp_path / "stand_in.py").write_text(textwrap.dedent(code))
            return Process("stand_in", output, {"NEW": "1", "OLD": "1"})

        yield started


def lives(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def gone(pid):
    """Within ten seconds."""
    for _ in range(100):
        if not lives(pid):
            return True
        time.sleep(0.1)
    return False


def test_messages_go_both_ways_and_noise_does_not(start, monkeypatch, tmp_path):
    monkeypatch.setenv("OLD", "user's")
    big = "\u2028" * 300_000  # more than a pipe takes at once
    with start(ANSWERS) as child:
        for message in ({"a": [1, None, "é"]}, big):
            child.tell(message)
            assert child.hear() == [message, "1", "user's"]
    assert (tmp_path / "log.txt").read_text() == "noise\nnoise\n"


def test_it_may_finish(start):
    child = start(ANSWERS)
    child.close()
    assert child.status() == 0
    child.close()  # again does no harm


def test_one_that_has_ended_says_nothing_more(start):
    with start("raise SystemExit(3)") as child:
        assert child.hear() is None
        assert child.status() == 3
        child.tell("anybody there?")
        assert child.hear() is None
    child.tell("nor after that?")
    assert child.hear() is None


def test_a_word_that_was_cut_off_is_none(start):
    with start("""
        import os
        from confident_decoding.engines.process import Parent
        os.write(Parent()._descriptor, b'{"half": ')
    """) as child:
        assert child.hear() is None


def test_a_fork_of_it_does_not_keep_the_parent_waiting(start):
    """vLLM's engine core is one, and lives on where the front end is killed."""
    child = start("""
        import os, signal, time
        from confident_decoding.engines.process import Parent
        parent = Parent()
        if not (fork := os.fork()):
            if not os.fork():  # and one of that
                time.sleep(1000)
            time.sleep(1000)
        parent.say(fork)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    fork = child.hear()
    assert child.hear() is None
    assert lives(fork)
    child.close()
    assert gone(fork)


def test_after_an_exception_it_is_ended_at_once_with_all_that_it_started(start):
    child = start(SLEEPS.format(first=""))
    sleeper = child.hear()
    assert lives(sleeper)
    with pytest.raises(ZeroDivisionError), child:
        raise ZeroDivisionError
    assert child.status() < 0
    assert gone(sleeper)


def test_one_that_does_not_listen_is_killed(start, monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE", 0.2)
    with start(SLEEPS.format(first="signal.signal(signal.SIGTERM, signal.SIG_IGN)")) as child:
        sleeper = child.hear()
    assert child.status() == -9
    assert gone(sleeper)


def test_it_ends_with_a_parent_that_is_killed(tmp_path):
    """Else its engine would go on to hold a GPU's memory."""
    (tmp_path / "stand_in.py").write_text(
        "import os, subprocess, time\nfrom confident_decoding.engines.process import Parent\n"
        "Parent().say([os.getpid(), subprocess.Popen(['sleep', '1000']).pid])\ntime.sleep(1000)\n"
    )
    code = "from confident_decoding.engines.process import Process\nchild = Process('stand_in', 2, {})\n"
    code += "print(*child.hear(), flush=True)\nimport time\ntime.sleep(1000)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    started = [int(number) for number in parent.stdout.readline().split()]
    assert all(map(lives, started))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert len(started) == 2
    assert all(map(gone, started))


def test_one_that_cannot_be_started_leaves_nothing_open(monkeypatch):
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(processes.sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        Process("stand_in", 2, {})
    assert len(os.listdir("/proc/self/fd")) == before
