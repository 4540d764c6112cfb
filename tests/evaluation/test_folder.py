"""The folder of a run: what is finished is kept, what is of another run is refused, nothing is half written."""

import contextlib
import json
import os
import resource

import pytest
import typer

from confident_decoding.cli.outputs import write_text
from confident_decoding.evaluation.folder import FolderError, RunFolder
from confident_decoding.evaluation.sharing import Unit

RUN = {"model": "m", "limit": None, "versions": {"vllm": "1", "torch": "2"}}
UNIT, ON = Unit("task", "p=0.5,window=3", {"confident_p": 0.5}), {"task": "digest"}


@contextlib.contextmanager
def small_disk(size):
    """No file of this process grows beyond ``size`` bytes: a write fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def opened(path, run=RUN):
    return RunFolder(path, run, write_text)


def everything(path):
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


def test_nothing_is_made_before_something_is_finished(tmp_path):
    opened(tmp_path / "new" / "run")
    assert everything(tmp_path) == []


def test_a_finished_unit_is_found_again(tmp_path):
    path = tmp_path / "new" / "run"
    opened(path).keep(UNIT, ON, {"scores": {"ä": 1.5}})
    again = opened(path)
    assert again.load(UNIT, ON) == {"scores": {"ä": 1.5}}
    for other in (Unit("task", "trough"), Unit("other", UNIT.setting)):
        assert again.load(other, ON) is None


def test_names_that_files_cannot_have(tmp_path):
    names = ["a/b", "a_b", "../a", "x" * 300, "x" * 299 + "y"]
    for name in names:
        opened(tmp_path).keep(Unit(name, "trough"), ON, {"name": name})
    assert [opened(tmp_path).load(Unit(name, "trough"), ON) for name in names] == [{"name": name} for name in names]
    assert len(list((tmp_path / "answers").iterdir())) == len(names)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({**RUN, "limit": 5}, ["limit (None there, 5 now)"]),
        ({**RUN, "versions": {"vllm": "1", "torch": "3"}}, ["versions.torch ('2' there, '3' now)"]),
        ({"model": "m", "limit": None}, ["versions.vllm ('1' there, None now)"]),
    ],
)
def test_another_runs_folder_is_refused_by_what_differs(tmp_path, run, words):
    opened(tmp_path).keep(UNIT, ON, {})
    with pytest.raises(FolderError) as refused:
        opened(tmp_path, run)
    for word in [*words, "Give another --output"]:
        assert word in str(refused.value)
    assert "vllm" not in str(refused.value) or "vllm" in words[0], "what is the same is not named"


def test_a_unit_of_other_data_is_refused(tmp_path):
    opened(tmp_path).keep(UNIT, ON, {})
    with pytest.raises(FolderError, match="the task's file or data has changed"):
        opened(tmp_path).load(UNIT, {"task": "another"})


def test_somebody_elses_folder_and_files_are_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FolderError, match="other files"):
        opened(tmp_path)
    with pytest.raises(FolderError, match="not a folder"):
        opened(tmp_path / "thesis.txt")
    with pytest.raises(FolderError, match=r"thesis\.txt is no folder that you may write in"):
        opened(tmp_path / "thesis.txt" / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text("{")
    with pytest.raises(FolderError, match=r"run\.json cannot be read"):
        opened(tmp_path / "run")


def test_a_full_disk_at_the_first_unit_leaves_nothing(tmp_path, capsys):
    with pytest.raises(typer.Exit) as failed, small_disk(1000):
        opened(tmp_path / "new" / "run").keep(UNIT, ON, {"samples": ["x" * 5000]})
    assert failed.value.exit_code == 1
    assert everything(tmp_path) == []
    assert "cannot write" in capsys.readouterr().err


def test_a_full_disk_later_leaves_what_was_finished(tmp_path, capsys):
    opened(tmp_path).keep(UNIT, ON, {"kept": True})
    before = everything(tmp_path)
    with pytest.raises(typer.Exit), small_disk(1000):
        opened(tmp_path).keep(Unit("task", "trough"), ON, {"samples": ["x" * 5000]})
    assert everything(tmp_path) == before
    assert opened(tmp_path).load(UNIT, ON) == {"kept": True}
    assert capsys.readouterr().err.count("error:") == 1


def test_an_interruption_leaves_nothing_half_written(tmp_path):
    def interrupted(path, text):
        write_text(path, text)
        if "answers" in str(path):
            raise KeyboardInterrupt

    opened(tmp_path / "run").keep(UNIT, ON, {})
    kept = everything(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        RunFolder(tmp_path / "run", RUN, interrupted).keep(Unit("task", "trough"), ON, {})
    files = [name for name in everything(tmp_path) if name not in kept]
    assert all(json.loads((tmp_path / name).read_text()) for name in files)
    assert not any(".partial" in name for name in os.listdir(tmp_path / "run/answers"))
