"""A process of its own for whatever loads vLLM: its memory, its noise and its crashes stay there.

It is told JSON lines on its standard input, and says JSON lines on a pipe that nothing else writes to.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
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
        reading, writing = os.pipe()
        # The user's folder is none to import from.
        isolated = ["-P"] if module.startswith("confident_decoding.") else []
        try:
            self._process = subprocess.Popen(
                [sys.executable, *isolated, "-m", module, str(writing)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                pass_fds=[writing],
                env={**env, **os.environ},
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._pipe = os.fdopen(reading, encoding="utf-8")

    def tell(self, message: Any) -> None:
        """Send one JSON value; a process that has ended takes no notice."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def hear(self) -> Any | None:
        """What it says next, or None: it has ended."""
        line = self._pipe.readline()
        return json.loads(line) if line else None

    def status(self) -> int:
        """Its exit status, once it has ended; negative for a signal."""
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pipe.closed:
            return
        try:
            if kind is None:
                self._hang_up()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(PATIENCE)
        finally:
            self._end()

    def close(self) -> None:
        """Let it finish; then it is gone. Idempotent."""
        self.__exit__(None)

    def _hang_up(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _end(self) -> None:
        """End the process and all that it started: politely, then not."""
        self._hang_up()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
        self._pipe.close()


class Parent:
    """The process's side; one of them in a process."""

    def __init__(self) -> None:
        _end_with_parent()
        self._descriptor = int(sys.argv[1])
        os.set_inheritable(self._descriptor, False)

    def messages(self) -> Iterator[Any]:
        """What the parent tells, until it hangs up."""
        return map(json.loads, sys.stdin)

    def say(self, message: Any) -> None:
        """Send one JSON value."""
        line = (json.dumps(message) + "\n").encode()
        while line:  # a pipe may take less
            line = line[os.write(self._descriptor, line) :]


def _end_with_parent() -> None:
    """A command that is killed leaves no engine behind that holds a GPU's memory."""
    if sys.platform == "linux":
        set_signal_at_parents_death = 1  # prctl(2)
        ctypes.CDLL(None).prctl(set_signal_at_parents_death, signal.SIGTERM)
