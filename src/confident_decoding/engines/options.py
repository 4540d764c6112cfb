"""Options of a vLLM engine as users give them, checked before one starts."""

import shlex
from collections.abc import Mapping
from typing import Any, NoReturn

from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.plugin import stages

_TERSE = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)
"""Exceptions whose text alone says little: they are mostly mistakes in a program."""


class WrongUseError(ValueError):
    """Something that the user gave cannot be used: `output_aside` ends the command with it and status 2."""


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
