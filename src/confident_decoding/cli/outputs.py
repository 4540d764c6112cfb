"""What commands write: a whole file or none, and JSON on standard output."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confident_decoding.cli.inputs import fail


def check_target(path: Path) -> None:
    """Before long work: whether a file can be written there.

    Raises:
        typer.Exit: The folder is missing or not writable, or ``path`` is something else than a file.
    """
    folder = path.parent
    if not folder.is_dir():
        fail(f"cannot write {path}: there is no folder {folder}. Make it first, or give another path.")
    if path.exists() and not path.is_file():
        fail(f"cannot write {path}: it is not a regular file. Give the path of a file.")
    if not os.access(folder, os.W_OK | os.X_OK):
        fail(f"cannot write {path}: no permission to write in {folder}. Give another path.")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, with its suffix, for a writer that takes a file name.

    What the block wrote there becomes ``path`` when it ends. If it raises, nothing is left behind and
    an older ``path`` stays as it was. Do nothing but write in the block: every ``OSError`` in it
    is reported as one of writing.

    Raises:
        typer.Exit: The file could not be written (a full disk, for example), with the system's reason.

    Example:
        >>> with writing(Path("table.parquet")) as partial:  # doctest: +SKIP
        ...     pyarrow.parquet.write_table(table, partial)
    """
    check_target(path)
    target = path.resolve()  # a link stays one
    partial = target.with_name(f".partial-{os.getpid()}-{target.name}")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())  # some file systems tell of a full disk no earlier
        partial.replace(target)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror or error}. Nothing was left there.", status=1)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8) to ``path``, whole or not at all.

    Raises:
        typer.Exit: As `writing`.
    """
    with writing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def print_json(value: Any) -> None:
    """``value`` as one JSON document on standard output.

    Raises:
        typer.Exit: Standard output could not be written.
    """
    try:
        sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # a reader that has seen enough: click ends quietly
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (what is left in the buffer would fail again at exit)
        fail(f"cannot write to standard output: {error.strerror or error}.", status=1)
