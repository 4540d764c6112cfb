"""The ``confident-decoding`` command: one command per file, registered in `cli.app`."""

import importlib.util
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

    app()
