"""A vLLM engine inside a command: its output put aside, one message where it fails."""

import contextlib
import importlib.util
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Iterator

from rich.console import Console

from confident_decoding.cli.inputs import fail
from confident_decoding.cli.progress import terminal
from confident_decoding.engines.options import WrongUseError, text_of
from confident_decoding.plugin.compat import RANGE

_PREFIX = re.compile(r"^(?:\([^)]*\) )*(?:[A-Z]+ [\d-]+ [\d:]+ \[[^\]]+\] ?)?")
"""Of vLLM's log lines: process, level, time, place."""
_CAUSE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): (\S.*)")
_ELSEWHERE = re.compile(r"[Rr]oot cause|initialization failed|ended with status")
"""What an exception says whose cause is in the log."""


def require_vllm() -> None:
    """vLLM must be installed.

    Raises:
        typer.Exit: It is not.
    """
    if importlib.util.find_spec("vllm") is None:
        fail(
            f"vLLM is not installed in this environment. Install it ({RANGE} are supported), or "
            "confident-decoding[vllm] (CPU: confident-decoding[cpu]).",
            status=1,
        )


def require_plugin() -> None:
    """vLLM must load the plugin: without it "confident" would silently be standard decoding.

    Raises:
        RuntimeError: It does not; the message has the remedy.
    """
    from confident_decoding.plugin import visible

    if problem := visible.why_not_loaded():
        raise RuntimeError(f"vLLM does not load the plugin. {problem.what} {problem.remedy}")


@contextlib.contextmanager
def output_aside(verbose: bool) -> Iterator[Console]:
    """Put aside what this process and its children print while the block runs, and report why it fails.

    Standard output and error, of libraries and child processes too, go to a temporary file, so that a
    command's own output stays readable; with ``verbose`` to standard error, so that ``--json`` stays JSON.
    `fail` would print there too: raise in the block.

    Yields:
        Standard error, for progress.

    Raises:
        typer.Exit: The block raised; the message is the reason, also where vLLM says that the log holds it.
    """
    _flush()
    saved = os.dup(1), os.dup(2)
    stderr = os.fdopen(os.dup(2), "w")
    log = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (closed below)
    reason, status = None, 1
    try:
        os.dup2(2 if verbose else log.fileno(), 1)
        if not verbose:
            os.dup2(log.fileno(), 2)
        yield terminal(verbose, file=stderr)
    except WrongUseError as error:
        reason, status = str(error), 2
    except Exception as error:
        hint = "" if verbose else " Run it again with --verbose to see all that vLLM says."
        _flush()
        log.seek(0)
        reason = f"{explain(error, log.read())}{hint}"
    finally:
        _flush()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for descriptor in saved:
            os.close(descriptor)
        stderr.close()
        log.close()
    if reason:
        fail(reason, status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def explain(error: BaseException, log: str) -> str:
    """The reason of a failure, as a sentence: the exception's own text, or its cause in the log.

    Args:
        error: What was raised.
        log: What was printed before it.
    """
    text = text_of(error)
    if _ELSEWHERE.search(text):
        text = cause_in(log) or text
    text = " ".join(text.split())
    if "infer device type" in text:
        return (
            "vLLM found no device that it can run on: no GPU that this build supports. Run on a machine with one, or "
            "install vLLM's CPU build (confident-decoding[cpu])."
        )
    return text if text.endswith((".", ")")) else f"{text}."


def cause_in(log: str) -> str | None:
    """The last exception in a log that does not point elsewhere, with the lines that belong to it."""
    lines = [_PREFIX.sub("", line, count=1) for line in log.splitlines()]
    for number in reversed(range(len(lines))):
        found = _CAUSE.match(lines[number])
        if found and not _ELSEWHERE.search(found[1]):
            rest = itertools.takewhile(lambda line: line.startswith("  "), lines[number + 1 :])
            return " ".join([found[1], *itertools.islice(rest, 4)])
    return None
