"""The ``confident-decoding`` command: one command per file, registered in `cli.app`."""

import importlib.util
import os
import sys


def main() -> None:
    """Entry point of the ``confident-decoding`` script.

    Raises:
        SystemExit: With the command's status; 2 for wrong use, 1 for what failed.
    """
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"confident-decoding: the command line needs {' and '.join(missing)}: install confident-decoding[cli]."
        )
    from confident_decoding.cli.app import app

    try:
        app()
    except OSError as error:  # a full disk behind standard output or for temporary files, a folder that may not be read
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (what is left in the buffer would fail again at exit)
        where = f": {error.filename}" if error.filename else ""
        print(f"error: the system does not do it: {error.strerror or error}{where}.", file=sys.stderr)
        sys.exit(1)
