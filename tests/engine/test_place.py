from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from streamctx.engine.sqlite.place import prepare
from streamctx.errors import ConfigurationError

__all__: list[str] = []


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_directory_and_file_are_made_for_their_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        path = prepare(tmp_path / "a" / "data")
    finally:
        os.umask(old)
    assert path == tmp_path / "a" / "data" / "store.db"
    assert _mode(path) == 0o600
    assert _mode(path.parent) == 0o700


def test_what_is_there_is_taken_again(tmp_path: Path) -> None:
    path = prepare(tmp_path / "data")
    path.write_text("x")
    assert prepare(tmp_path / "data").read_text() == "x"


def _linked_directory(path: Path) -> None:
    (path / "real").mkdir(mode=0o700)
    (path / "data").symlink_to("real")


def _linked_file(path: Path) -> None:
    (path / "data").mkdir(mode=0o700)
    (path / "data" / "store.db").symlink_to(path / "elsewhere")


def _open_file(path: Path) -> None:
    prepare(path / "data").chmod(0o640)


def _directory_in_place_of_the_file(path: Path) -> None:
    (path / "data" / "store.db").mkdir(parents=True)
    (path / "data").chmod(0o700)


@pytest.mark.parametrize(
    ("arrange", "reason"),
    [
        (lambda path: (path / "data").mkdir(mode=0o755), "chmod 700"),
        (lambda path: (path / "data").mkdir(mode=0o710), "chmod 700"),
        (_open_file, "chmod 600"),
        (_linked_directory, "not a plain directory"),
        (_linked_file, "not a plain file"),
        (_directory_in_place_of_the_file, "not a plain file"),
        (lambda path: (path / "data").write_text(""), "cannot be used"),
    ],
)
def test_a_place_that_is_not_safe_is_refused(
    tmp_path: Path, arrange: Callable[[Path], object], reason: str
) -> None:
    arrange(tmp_path)
    with pytest.raises(ConfigurationError, match=reason):
        prepare(tmp_path / "data")


def test_what_belongs_to_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path / "data")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigurationError, match="belongs to user"):
        prepare(tmp_path / "data")


@pytest.mark.parametrize(
    ("mounts", "is_refused"),
    [
        ("server:/x {path} nfs4 rw 0 0\n", True),
        ("//server/x {path}/data cifs rw 0 0\n", True),
        ("a / ext4 rw 0 0\nserver:/x {path} fuse.sshfs rw 0 0\n", True),
        # Only what lies deepest counts, and of that only what was mounted last.
        ("server:/x {path} nfs rw 0 0\nb {path}/data ext4 rw 0 0\n", False),
        ("server:/x {path} nfs rw 0 0\nb {path} ext4 rw 0 0\n", False),
        ("server:/x {path}/dat nfs rw 0 0\n", False),
        ("strange\n", False),
    ],
)
def test_a_network_file_system_is_refused(tmp_path: Path, mounts: str, is_refused: bool) -> None:
    listed = tmp_path / "mounts"
    listed.write_text(mounts.format(path=tmp_path.resolve()))
    if is_refused:
        with pytest.raises(ConfigurationError, match="network file system"):
            prepare(tmp_path / "data", mounts=listed)
    else:
        prepare(tmp_path / "data", mounts=listed)


def test_without_a_list_of_mounts_nothing_is_refused(tmp_path: Path) -> None:
    prepare(tmp_path / "data", mounts=tmp_path / "nowhere")
