"""What a command writes is whole or not there, and never in the place of something else."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import nullcontext
from pathlib import Path

import pytest

from streamctx.cli.private_output import new_file
from streamctx.errors import ConfigurationError

__all__: list[str] = []


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_name_is_there_at_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with new_file(path, force=False) as temporary:
        temporary.write_text("content")
        temporary.chmod(0o600)
        assert not path.exists()
        assert temporary.parent == tmp_path
    assert path.read_text() == "content"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(tmp_path) == ["out"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("mine")
    with pytest.raises(ZeroDivisionError), new_file(path, force=True) as temporary:
        temporary.write_text("half")
        _ = 1 / 0
    assert path.read_text() == "mine"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("is_early", [True, False])
def test_what_is_there_stays_unless_forced(tmp_path: Path, is_early: bool) -> None:
    path = tmp_path / "out"
    if is_early:
        path.write_text("mine")
    with pytest.raises(ConfigurationError, match="exists already"), new_file(path, force=False) as temporary:
        temporary.write_text("new")
        path.write_text("mine")
    assert path.read_text() == "mine"
    assert names(tmp_path) == ["out"]
    with new_file(path, force=True) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("name", ["store.db", "store.db-wal", "ballast", "new"])
@pytest.mark.parametrize("force", [True, False])
def test_nothing_is_written_where_a_store_lies(tmp_path: Path, name: str, force: bool) -> None:
    (tmp_path / "store.db").write_text("store")
    for directory in (tmp_path, tmp_path / "sub" / ".."):
        (tmp_path / "sub").mkdir(exist_ok=True)
        with (
            pytest.raises(ConfigurationError, match="is in a data directory"),
            new_file(directory / name, force=force),
        ):
            raise AssertionError
    assert (tmp_path / "store.db").read_text() == "store"


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "out"
    with pytest.raises(ConfigurationError) as raised, new_file(path, force=False):
        raise AssertionError
    assert str(raised.value) == f"{path} cannot be made: there is no directory {tmp_path / 'gone'}"


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "directory"])
@pytest.mark.parametrize("is_early", [True, False])
def test_only_a_file_is_replaced(tmp_path: Path, kind: str, is_early: bool) -> None:
    path = tmp_path / "out"
    (tmp_path / "other").write_text("other")

    def obstruct() -> None:
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        else:
            path.symlink_to("other" if kind == "link" else "nothing")

    if is_early:
        obstruct()
    with pytest.raises(ConfigurationError), new_file(path, force=True) as temporary:
        temporary.write_text("new")
        obstruct()
    assert names(tmp_path) == ["other", "out"]
    assert not stat.S_ISREG(path.lstat().st_mode)


@pytest.mark.parametrize("is_taken", [True, False])
def test_without_hard_links_nothing_is_replaced_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "out"
    expected = pytest.raises(ConfigurationError, match="exists already") if is_taken else nullcontext()
    with expected, new_file(path, force=False) as temporary:
        temporary.write_text("new")
        if is_taken:
            path.write_text("mine")
    assert path.read_text() == ("mine" if is_taken else "new")
    assert names(tmp_path) == ["out"]
