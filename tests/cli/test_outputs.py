"""Files that commands write: whole or not at all."""

import contextlib
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from confident_decoding.cli.outputs import check_target, print_json, write_text, writing


@contextlib.contextmanager
def small_disk(size):
    """No file of this process grows beyond ``size`` bytes: a write fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_text_replaces_what_was_there(tmp_path):
    path = tmp_path / "a.html"
    path.write_text("old")
    write_text(path, "neu: ü")
    assert path.read_bytes() == "neu: ü".encode()
    assert os.listdir(tmp_path) == ["a.html"]


def test_permissions_are_the_users(tmp_path):
    previous = os.umask(0o027)
    try:
        write_text(tmp_path / "a.txt", "text")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


@pytest.mark.parametrize("old", [None, "old"])
def test_a_full_disk_leaves_what_was_there(tmp_path, old, capsys):
    path = tmp_path / "a.html"
    if old:
        path.write_text(old)
    with pytest.raises(typer.Exit) as failed, small_disk(1000):
        write_text(path, "x" * 100_000)
    assert failed.value.exit_code == 1
    assert [p.read_text() for p in tmp_path.iterdir()] == ([old] if old else [])
    message = capsys.readouterr().err
    assert str(path) in message.replace("\n", "")
    assert "File too large" in message


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    def write(path):
        with writing(path) as partial:
            partial.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a.bin")
    assert os.listdir(tmp_path) == []


def test_a_writer_sees_the_suffix(tmp_path):
    with writing(tmp_path / "a.svg") as partial:
        assert partial.suffix == ".svg"
        assert partial.parent == tmp_path
        partial.write_bytes(b"<svg/>")
    assert (tmp_path / "a.svg").read_bytes() == b"<svg/>"


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there/real")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there/real").read_text() == "text"


@pytest.mark.parametrize(("name", "words"), [("missing/a.txt", "no folder"), (".", "not a regular file")])
def test_a_target_that_cannot_be_is_found_early(tmp_path, name, words, capsys):
    with pytest.raises(typer.Exit) as failed:
        check_target(tmp_path / name)
    assert failed.value.exit_code == 2
    assert words in capsys.readouterr().err


def test_a_device_is_not_replaced(capsys):
    with pytest.raises(typer.Exit):
        write_text(Path("/dev/null"), "text")
    assert "not a regular file" in capsys.readouterr().err


def test_json_is_one_document(capsys):
    print_json({"a": "ü", "b": [1]})
    assert capsys.readouterr().out == '{\n "a": "ü",\n "b": [\n  1\n ]\n}\n'


def test_json_to_a_full_disk():
    code = "from confident_decoding.cli.outputs import print_json; print_json({'a': 1})"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode
    assert "cannot write to standard output: No space left on device" in done.stderr.replace("\n", " ")
