"""Everything that imports vLLM or lm-eval runs in a child process: its memory, its noise and its crashes stay there."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from typing import IO, Any

from confident_decoding.engines.failures import VERBOSE, explain

TAIL = 15  # lines of a child's output that explain its end
PATIENCE = 15  # seconds that an engine has to end by itself, and again when it is asked to


class ChildError(RuntimeError):
    """The child could not do its work; the message says why.

    Attributes:
        status: Exit status for the command: 2 if what the user asked for is not valid, else 1.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def events(job: dict[str, Any], verbose: bool = False) -> Generator[dict[str, Any], None, None]:
    """Run `child` on ``job`` and yield what it reports until it has finished.

    Args:
        job: JSON data; ``job["work"]`` names the function.
        verbose: Let its output through to standard error.

    Raises:
        ChildError: It reported an error, or ended without a word.
    """
    reading, writing = os.pipe()
    with contextlib.ExitStack() as stack:
        pipe = stack.enter_context(os.fdopen(reading, encoding="utf-8"))
        log: IO[bytes] | None = None if verbose else stack.enter_context(tempfile.TemporaryFile())
        process = stack.enter_context(_child(job, writing, 2 if log is None else log))
        for line in pipe:
            event = json.loads(line)
            if event["event"] == "end":
                return
            if event["event"] == "error":
                raise ChildError(_reason(event, log), event["status"])
            yield event
        raise ChildError(f"a process of the evaluation ended with code {process.wait()}.{_tail(log)}")


@contextlib.contextmanager
def _child(job: dict[str, Any], writing: int, output: IO[bytes] | int) -> Iterator["subprocess.Popen[bytes]"]:
    """The child process with its job; it and all that it started are gone afterwards."""
    # The scheduler in the process of the caller: batches then do not depend on when messages arrive.
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TOKENIZERS_PARALLELISM": "false", **os.environ}
    command = [sys.executable, "-P", "-m", "confident_decoding.evaluation.child", str(writing)]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=env,
            pass_fds=[writing],
            start_new_session=True,
        )
    finally:
        os.close(writing)
    try:
        assert process.stdin
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(job).encode())
        yield process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process group: politely, then not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)


def _reason(event: dict[str, Any], log: IO[bytes] | None) -> str:
    """What the child says, or the cause in its log if that only says where to look."""
    message: str = event["message"]
    if event["status"] == 2:
        return message
    if log is None:
        return explain(RuntimeError(message), "")
    log.seek(0)
    return explain(RuntimeError(message), log.read().decode(errors="replace")) + VERBOSE


def _tail(log: IO[bytes] | None) -> str:
    if log is None:
        return ""
    log.seek(0)
    text = log.read().decode(errors="replace")
    lines = [line.rsplit("\r", 1)[-1] for line in text.splitlines() if line.strip()]
    return f" End of its output (all of it with --verbose):\n{os.linesep.join(lines[-TAIL:])}"
