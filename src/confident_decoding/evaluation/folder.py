"""The folder of a run: what is finished stays there, so that a run that was interrupted goes on where it was."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confident_decoding.evaluation.sharing import Unit

RUN, RESULTS, ANSWERS = "run.json", "results.json", "answers"
Write = Callable[[Path, str], None]
"""Writes a text to a path, whole or not at all."""


class FolderError(ValueError):
    """The folder cannot be used for this run; the message says why and what to do."""


class RunFolder:
    """Finished units of one run.

    Args:
        path: The folder; made when the first unit is finished.
        run: JSON data that all numbers depend on. Units of another run are never mixed in.
        write: How files are written.

    Raises:
        FolderError: The folder holds another run, or something else.
    """

    def __init__(self, path: Path, run: dict[str, Any], write: Write) -> None:
        self._path, self._run, self._write = path, run, write
        if path.exists() and not path.is_dir():
            raise FolderError(f"{path} is not a folder. Give a folder for the results; it need not exist.")
        ancestor = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
        if not ancestor.is_dir() or not os.access(ancestor, os.W_OK | os.X_OK):
            raise FolderError(f"{path} cannot be written: {ancestor} is no folder that you may write in. Give another.")
        if not path.exists() or not any(path.iterdir()):
            return
        other = "Give another --output, or delete the folder if it is no longer wanted."
        if not (path / RUN).exists():
            raise FolderError(f"{path} holds other files than a run of this command. {other}")
        before = self._read(path / RUN)
        there, now = _flat(before), _flat(run)
        keys = [key for key in {**there, **now} if there.get(key) != now.get(key)]
        if keys:
            differences = "; ".join(f"{key} ({there.get(key)!r} there, {now.get(key)!r} now)" for key in keys)
            raise FolderError(f"{path} holds the results of a run that differs in {differences}. {other}")

    def load(self, unit: Unit, depends_on: Any) -> dict[str, Any] | None:
        """Result of a unit, if it is finished.

        Args:
            unit: Which.
            depends_on: JSON data of the task and the setting that the result depends on.

        Raises:
            FolderError: There is a result of another task or setting of this name.
        """
        path = self._file(unit)
        if not path.exists():
            return None
        kept = self._read(path)
        if kept.get("depends_on") != depends_on:
            raise FolderError(
                f"{path} is of another {unit.task!r} or {unit.setting!r}: the task's file or data has changed. "
                "Give another --output, or delete that file to have it computed again."
            )
        result: dict[str, Any] = kept["result"]
        return result

    def keep(self, unit: Unit, depends_on: Any, result: dict[str, Any]) -> None:
        """Write a finished unit."""
        answers = self._path / ANSWERS
        made = [folder for folder in (answers, *answers.parents) if not folder.exists()]
        kept = {"task": unit.task, "setting": unit.setting, "arguments": unit.arguments, "depends_on": depends_on}
        with _unmade(made):
            answers.mkdir(parents=True, exist_ok=True)
            if not (self._path / RUN).exists():
                self._write(self._path / RUN, _text(self._run))
            self._write(self._file(unit), json.dumps({**kept, "result": result}, ensure_ascii=False) + "\n")

    def finish(self, results: dict[str, Any]) -> Path:
        """Write the comparison; its path."""
        self._write(self._path / RESULTS, _text(results))
        return self._path / RESULTS

    def _file(self, unit: Unit) -> Path:
        name = re.sub(r"[^A-Za-z0-9._=,-]", "_", f"{unit.task}--{unit.setting}")
        exact = hashlib.blake2b(repr((unit.task, unit.setting)).encode(), digest_size=4).hexdigest()
        return self._path / ANSWERS / f"{name[:150]}--{exact}.json"

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FolderError(f"{path} cannot be read ({error}). Delete it, or give another --output.") from None
        return value


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= {f"{key}.{inner}": one for inner, one in value.items()} if isinstance(value, dict) else {key: value}
    return flat


@contextlib.contextmanager
def _unmade(folders: list[Path]) -> Iterator[None]:
    """Take folders away again if the block fails and they are empty."""
    try:
        yield
    except BaseException:
        for folder in folders:
            with contextlib.suppress(OSError):
                (folder / RUN).unlink(missing_ok=True)
                folder.rmdir()
        raise


def _text(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
