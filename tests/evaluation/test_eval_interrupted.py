"""``confident-decoding eval``, stopped, on a full disk, and without the plugin."""

import resource
import signal

import pytest

from evaluation.commands import CAPITALS, OPPOSITES, kept

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_and_gives_the_numbers_of_one_that_was_not(command, tmp_path):
    """Also where log-likelihoods mix."""
    arguments = ["--tasks", f"{CAPITALS},{OPPOSITES}", "-s", "trough", "-s", "p=0.5", "-o"]
    folder = tmp_path / "run"
    # Started in the background of a shell, pytest ignores the signal, and so would its children.
    process = command.start(
        *arguments, folder, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    )
    for line in process.stderr:
        if "done" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Finished parts are kept" in err
    assert "Traceback" not in err
    assert not (folder / "results.json").exists()
    finished = {path: path.stat().st_mtime_ns for path in (folder / "answers").iterdir()}
    assert finished
    command(*arguments, folder)
    assert all(path.stat().st_mtime_ns == time for path, time in finished.items()), "computed again"
    command(*arguments, tmp_path / "at once")
    files = sorted((tmp_path / "at once").rglob("*.json"))
    assert len(files) == 8
    for path in files:
        assert (folder / path.relative_to(tmp_path / "at once")).read_bytes() == path.read_bytes(), path.name
    answers = [str(kept(folder, "shipped_opposites", name)[1]["samples"]) for name in ("standard", "trough", "p=0.5")]
    assert len(set(answers)) == 3


@pytest.mark.slow
def test_a_full_disk_is_one_message_and_leaves_nothing(command, sums, tmp_path):
    """No file of the command and its children grows beyond 20 kB: a write fails as on a full disk."""

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    _, err = command("--tasks", sums[0], "-o", tmp_path / "run", status=1, preexec_fn=full)
    assert err.count("error:") == 1
    assert "cannot write" in err
    assert "sums--standard" in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_without_the_plugin_nothing_is_compared(command, tmp_path):
    """Every setting would be standard decoding."""
    env = {**command.env, "CONFIDENT_DECODING_DISABLE": "1"}
    _, err = command("--tasks", CAPITALS, "-o", tmp_path / "run", status=2, env=env)
    assert "did not load the confident-decoding plugin" in err
    assert "CONFIDENT_DECODING_DISABLE" in err
    assert list(tmp_path.iterdir()) == []
