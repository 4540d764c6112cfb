"""Runs `prove` for the tests: every tag once, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from conftest import ENGINE_ENV

TESTS = Path(__file__).resolve().parent.parent


def gather(tags, folder, *arguments, env=None):
    """``{tag: line of evidence}``."""
    out = folder / "evidence.jsonl"
    subprocess.run(
        [sys.executable, "-m", "models.prove", str(out), "--jobs", "1", *arguments, *tags],
        cwd=TESTS,
        env={**os.environ, **ENGINE_ENV, **(env or {})},
        check=True,
    )
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    logs = "".join(log.read_text()[-3000:] for log in folder.glob("*.log"))
    return {tag: {"tag": tag, "error": f"no evidence was written; logs:\n{logs}"} for tag in tags} | {
        row["tag"]: row for row in rows
    }
