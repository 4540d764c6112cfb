"""Memory does not grow with the text."""

import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.slow
def test_a_million_tokens(tmp_path):
    peaks = {}
    for tokens in (20_000, 1_000_000):
        folder = tmp_path / str(tokens)
        folder.mkdir()
        command = [sys.executable, "-m", "analysis.long_trace", str(tokens), str(folder)]
        done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        peaks[tokens] = int(done.stdout)
        assert (folder / "report.html").stat().st_size < 5e6
    print("peak memory, MiB:", peaks)
    assert peaks[1_000_000] - peaks[20_000] < 100
