"""What commands read: prompts, settings. Everything wrong with them ends a command with one message."""

import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console

from confident_decoding.config import SWITCH, ConfidentDecodingConfig

_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?|\w+://.+")
"""``name``, ``owner/name``, or an address that vLLM streams from."""


def require(what: str, *modules: str, extra: str) -> None:
    """``modules`` must be installed.

    Args:
        what: Needs them.
        *modules: Names to import.
        extra: Of this package, which brings them.

    Raises:
        typer.Exit: Some are not.
    """
    if missing := [name for name in modules if importlib.util.find_spec(name) is None]:
        fail(f'{what} needs {" and ".join(missing)}: pip install "confident-decoding[{extra}]".', status=1)


def fail(message: str, status: int = 2) -> NoReturn:
    """End the command: ``message`` on standard error says what was wrong, what is valid, and what to do.

    Raises:
        typer.Exit: Always, with ``status`` (2: wrong use; 1: something failed).
    """
    Console(stderr=True).print(f"[bold red]error:[/] {_escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(status)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


@dataclass(frozen=True)
class Prompt:
    """One line of a prompts file.

    Attributes:
        line: Its number, from 1.
        prompt: Text that the model continues as it is, or None.
        messages: Chat messages for the model's chat template, or None.
    """

    line: int
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a JSON-lines file: each line a string, ``{"prompt": ...}`` or ``{"messages": [...]}``.

    Args:
        path: The file. Empty lines are skipped.

    Raises:
        typer.Exit: No such file, no prompt in it, or a malformed line (its number is in the message).
    """
    form = 'each line must be a JSON string, {"prompt": "..."} or {"messages": [{"role": ..., "content": ...}]}'
    try:
        # A byte-order mark is no part of the text, and only a line feed ends a line of JSON.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        fail(f"cannot read the prompts in {path}: {error.strerror}. Give a JSON-lines file; {form}.")
    except UnicodeDecodeError as error:
        fail(f"{path} is not UTF-8 text (byte {error.start}). Give a JSON-lines file; {form}.")
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            json.dumps(value, ensure_ascii=False).encode()
        except json.JSONDecodeError as error:
            fail(f"{path}, line {number}: not JSON ({error.msg}, column {error.colno}); {form}.")
        except RecursionError:
            fail(f"{path}, line {number}: nested too deeply; {form}.")
        except UnicodeEncodeError:
            fail(f"{path}, line {number}: not text (it holds half of a surrogate pair); {form}.")
        match value:
            case str() if value:
                prompts.append(Prompt(number, value))
            case {"prompt": str() as text, **rest} if text and not rest:
                prompts.append(Prompt(number, text))
            case {"messages": [_, *_] as messages, **rest} if not rest and all(_is_message(m) for m in messages):
                prompts.append(Prompt(number, messages=messages))
            case _:
                fail(f"{path}, line {number}: not a prompt; {form}.")
    if not prompts:
        fail(f"{path} holds no prompt; {form}.")
    return prompts


def _is_message(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("role"), str)
        and "content" in value
        and isinstance(value["content"], str | list | None)  # a list: parts, of which some are images
    )


def check_model(model: str) -> None:
    """What can be said about MODEL before vLLM is asked: a path must be there, a folder must hold a model.

    Args:
        model: A folder, a file, or a name on a model hub, which is left to vLLM.

    Raises:
        typer.Exit: A path without a model.
    """
    path = Path(model)  # a ~ is left to the shell, as vLLM leaves it
    valid = "Give a folder with a model's config.json, or a name as on a model hub (owner/model)."
    try:
        if model and path.is_dir():
            if not any((path / name).is_file() for name in ("config.json", "params.json")):
                fail(f"{model} is a folder without a config.json. {valid}")
        elif not path.is_file() and not _HUB_NAME.fullmatch(model):
            fail(f"there is no model at {model!r}. {valid}")
    except OSError as error:  # no permission to look, a name that is too long
        fail(f"cannot read {model}: {error.strerror}. {valid}")


def shown_name(model: str) -> str:
    """MODEL as results name it: of a path the last part, for where it lies is nobody's business."""
    return Path(model).resolve().name if Path(model).exists() else model


def read_additional_config(text: str | None) -> dict[str, Any]:
    """The object of ``--additional-config``, other plugins' keys included; the switch is on unless it says otherwise.

    Args:
        text: JSON as vLLM takes it, the name of a file that holds it, or None for the defaults.

    Raises:
        typer.Exit: Not a JSON object, or a key or value of ours that is not valid.
    """
    source = "{}" if text is None else text
    if not source.lstrip().startswith("{"):
        try:
            source = Path(source).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the name
            why = getattr(error, "strerror", None) or error
            fail(f"--additional-config is neither a JSON object nor a readable file: {text!r} ({why}).")
    try:
        value = json.loads(source)
    except json.JSONDecodeError as error:
        fail(f"--additional-config is not JSON: {error.msg}, line {error.lineno}, column {error.colno}, in {source!r}.")
    if not isinstance(value, dict):
        fail(f"--additional-config must be a JSON object, not {source!r}.")
    value = {SWITCH: True, **value}
    try:
        ConfidentDecodingConfig.from_additional_config(value)
    except ValueError as error:  # as the server would refuse them, with its message
        fail(str(error))
    return value
