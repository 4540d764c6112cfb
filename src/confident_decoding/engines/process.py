"""A process of its own for whatever loads vLLM: its memory, its noise and its crashes stay there.

It is told JSON lines on its standard input, and says JSON lines on a pipe that nothing else writes to. A second pipe,
on which nothing is ever said, closes when the parent is gone.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any, Self

PATIENCE = 15
"""Seconds that a process has to end by itself, and again when it is asked to."""


class Process:
    """The parent's side. As a context: at its end the process may finish, after an exception it is ended at once.

    Args:
        module: Run as ``python -m``; it has a `Parent`.
        output: File (or its descriptor) for its standard output and error.
        env: Environment variables where the user has set none.
    """

    def __init__(self, module: str, output: IO[Any] | int, env: Mapping[str, str]) -> None:
        # The user's folder is none to import from.
        isolated = ["-P"] if module.startswith("confident_decoding.") else []
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            reading, writing = os.pipe()
            theirs.callback(os.close, writing)
            pipe = ours.enter_context(os.fdopen(reading, encoding="utf-8"))
            listening, lifeline = os.pipe()
            theirs.callback(os.close, listening)
            ours.callback(os.close, lifeline)
            self._process = subprocess.Popen(
                [sys.executable, *isolated, "-m", module, str(writing), str(listening)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                pass_fds=[writing, listening],
                env={**env, **os.environ},
                start_new_session=True,
            )
            self._pipe, self._ours = pipe, ours.pop_all()

    def tell(self, message: Any) -> None:
        """Send one JSON value; a process that has ended takes no notice."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            if not self._process.stdin.closed:
                self._process.stdin.write(json.dumps(message) + "\n")
                self._process.stdin.flush()

    def hear(self) -> Any | None:
        """What it says next, or None: it has ended, perhaps in the middle of a word."""
        line = "" if self._pipe.closed else self._pipe.readline()
        return json.loads(line) if line.endswith("\n") else None

    def status(self) -> int:
        """Its exit status, once it has ended; negative for a signal."""
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._ours:
            try:
                self._hang_up()
                if kind is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(PATIENCE)
            finally:
                end_group(self._process, PATIENCE)

    def close(self) -> None:
        """Let it finish; then it is gone. Idempotent."""
        if not self._pipe.closed:
            self.__exit__(None)

    def _hang_up(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def end_group(process: "subprocess.Popen[Any]", patience: float) -> None:
    """End a process that leads a group, and all that it started there: politely, then not.

    Args:
        process: Started with ``start_new_session``; it may have ended.
        patience: Seconds from the one to the other.
    """
    deadline = time.monotonic() + patience
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            process.poll()  # or it stays in the group
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Parent:
    """The process's side; one of them in a process."""

    def __init__(self) -> None:
        self._descriptor, lifeline = map(int, sys.argv[1:3])
        # Else the parent would wait for a word from a process that was forked from this one.
        _close_in_forks(self._descriptor)
        for descriptor in (self._descriptor, lifeline):
            os.set_inheritable(descriptor, False)
        threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()

    def messages(self) -> Iterator[Any]:
        """What the parent tells, until it hangs up."""
        return map(json.loads, sys.stdin)

    def say(self, message: Any) -> None:
        """Send one JSON value."""
        line = (json.dumps(message) + "\n").encode()
        while line:  # a pipe may take less
            line = line[os.write(self._descriptor, line) :]


def _close_in_forks(descriptor: int) -> None:
    still_open = [descriptor]

    def close() -> None:
        while still_open:  # not again in a fork of the fork, where the number is another's
            os.close(still_open.pop())

    os.register_at_fork(after_in_child=close)


def _end_with_parent(lifeline: int) -> None:
    """A command that is killed leaves no engine behind that holds a GPU's memory."""
    os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGTERM)
