"""A vLLM engine inside a command: its options, its output put aside, one message where it fails."""

import contextlib
import importlib.util
import itertools
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from rich.console import Console

from confident_decoding.cli.inputs import fail
from confident_decoding.cli.progress import terminal
from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.plugin import stages
from confident_decoding.plugin.compat import RANGE

_PREFIX = re.compile(r"^(?:\([^)]*\) )*(?:[A-Z]+ [\d-]+ [\d:]+ \[[^\]]+\] ?)?")
"""Of vLLM's log lines: process, level, time, place."""
_CAUSE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): (\S.*)")
_ELSEWHERE = re.compile(r"[Rr]oot cause|initialization failed|ended with status")
"""What an exception says whose cause is in the log."""
_TERSE = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)
"""Exceptions whose text alone says little: they are mostly mistakes in a program."""


class WrongUseError(ValueError):
    """Something that the user gave cannot be used: `output_aside` ends the command with it and status 2."""


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


def require_active(arguments: Any) -> None:
    """Candidates must fit onto the last pipeline stage: else "confident" would be standard decoding.

    Args:
        arguments: vLLM's ``EngineArgs``, with ``additional_config``.

    Raises:
        WrongUseError: They do not fit.
        ConfigError: The settings cannot be.
        Exception: vLLM cannot read the model, in its own words.
    """
    if arguments.pipeline_parallel_size == 1:
        return
    layers = arguments.create_model_config().get_total_num_hidden_layers()
    plan = ConfidentDecodingConfig.from_additional_config(arguments.additional_config).resolve(layers)
    if why_not := stages.misfit(plan, arguments.pipeline_parallel_size):
        raise WrongUseError(f"Confident Decoding would not be active: {why_not}.")


SET_HERE = {"model": "MODEL", "additional_config": "--additional-config of this command"}
"""Engine arguments that a command sets itself, and what to use for them."""


def engine_args(
    model: str,
    options: str,
    additional_config: dict[str, Any],
    set_here: Mapping[str, str] = SET_HERE,
    **defaults: Any,
) -> Any:
    """vLLM's ``EngineArgs`` from options as ``vllm serve`` takes them.

    Args:
        model: Folder or name.
        options: Options of ``vllm serve``, quoted as in a shell.
        additional_config: The user's, checked.
        set_here: Engine arguments that ``options`` must not have, with what to use instead.
        **defaults: Engine arguments where ``options`` says nothing.

    Raises:
        WrongUseError: An option that vLLM does not know, one of ``set_here``, a bad value, or a name of a model that is
            not on this machine while vLLM may not ask for it (``HF_HUB_OFFLINE``).
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    def refuse(message: str) -> NoReturn:
        message = message.replace("unrecognized arguments:", "vLLM's engine does not know")
        raise WrongUseError(
            f"--vllm {options!r}: {message}. Give options of `vllm serve` (see `vllm serve --help=all`)."
        )

    try:
        words = shlex.split(options)
    except ValueError as error:
        refuse(f"{error}".lower())
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(prog="vllm serve", add_help=False))
    parser.error = refuse
    known = {name: value for name, value in defaults.items() if any(a.dest == name for a in parser._actions)}
    own = {name: parser.get_default(name) for name in set_here}
    own |= {"model": model, "additional_config": additional_config}
    # Seen by what became of its default: an option has many spellings (underscores, abbreviations, keys after a dot).
    unset = object()
    parser.set_defaults(**known, **dict.fromkeys(own, unset))
    try:
        arguments = parser.parse_args(words)  # also --max_model_len, -O3 and --compilation-config.mode 3
    except IndexError:  # a key after a dot, and nothing behind it
        refuse(f"{words[-1]} has no value")
    except ValueError as error:
        refuse(text_of(error))
    for name, value in own.items():
        if getattr(arguments, name) is not unset:
            refuse(f"--{name.replace('_', '-')} belongs elsewhere: use {set_here[name]}")
        setattr(arguments, name, value)
    try:
        return EngineArgs.from_cli_args(arguments)
    except OSError as error:
        raise WrongUseError(f"the model {model!r} cannot be read: {text_of(error)}") from error


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


def text_of(error: BaseException) -> str:
    """What an exception says, on one line, without the frame that pydantic puts around it.

    Its kind comes first where the text is not written to be read alone (``KeyError: 'layers'``).
    """
    from pydantic import ValidationError

    text = str(error)
    if isinstance(error, ValidationError):  # vLLM's configuration classes
        text = "; ".join(str(e["msg"]).removeprefix("Value error, ") for e in error.errors())
    kind, text = type(error).__name__, " ".join(text.split())
    return ": ".join(filter(None, (kind, text))) if isinstance(error, _TERSE) or not text else text
