"""A vLLM engine inside a command: its output put aside, one message where it fails."""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator

from rich.console import Console

from confident_decoding.cli.inputs import fail
from confident_decoding.cli.progress import terminal
from confident_decoding.engines.failures import VERBOSE, explain
from confident_decoding.engines.options import WrongUseError


def end_politely() -> None:
    """From now on a signal to end is as Ctrl-C: what is half written goes, and so do processes that were started."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, signal.default_int_handler)


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
        hint = "" if verbose else VERBOSE
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
