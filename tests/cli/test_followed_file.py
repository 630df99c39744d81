"""States of a file become the events that an editor would have sent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamctx.cli.followed_file import FollowedFile, UnreadableFile, followed_files
from streamctx.core.documents.text_digest import text_hash
from streamctx.errors import ConfigurationError
from streamctx.limits import DEFAULT_LIMITS
from streamctx.vocabulary import HashAlgorithm
from streamctx.wire.changes import Change
from streamctx.wire.messages import Close, Edit, Open, Save, Version


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "é 1.py"
    path.write_bytes(b"one\n")
    return path


@pytest.fixture
def file(path: Path) -> FollowedFile:
    [file] = followed_files([str(path)])
    return file


def test_file_is_opened_with_its_text(file: FollowedFile, path: Path) -> None:
    [opened] = file.look()
    assert opened == Open(
        document=1,
        uri=path.as_uri(),
        version=0,
        length=4,
        hash=text_hash("one\n", HashAlgorithm.XXH3_64),
        text="one\n",
        language="python",
        eol="lf",
    )


def test_change_is_an_edit_that_is_proved_and_saved(file: FollowedFile, path: Path) -> None:
    file.look()
    path.write_bytes(b"one\ntwo\n")
    edit, proof, save = file.look()
    assert edit == Edit(document=1, base=0, version=1, changes=(Change(1, 0, 1, 0, "two\n"),), mode="sim")
    assert isinstance(proof, Version)
    assert (proof.version, proof.hash) == (1, text_hash("one\ntwo\n", HashAlgorithm.XXH3_64))
    assert save == Save(document=1, version=1)


def test_file_that_was_not_touched_is_nothing(file: FollowedFile) -> None:
    file.look()
    assert file.look() == []


def test_file_written_with_the_same_text_is_saved(file: FollowedFile, path: Path) -> None:
    file.look()
    os.utime(path, ns=(1, 1))
    assert file.look() == [Save(document=1, version=0)]


def test_file_that_goes_is_closed_and_opened_when_it_is_back(file: FollowedFile, path: Path) -> None:
    file.look()
    path.unlink()
    assert file.look() == [Close(document=1)]
    assert file.look() == []
    path.write_bytes(b"new")
    [opened] = file.look()
    assert isinstance(opened, Open)
    assert opened.text == "new"


def test_byte_order_mark_is_no_text(file: FollowedFile, path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbfone\r\n")
    [opened] = file.look()
    assert isinstance(opened, Open)
    assert (opened.text, opened.bom, opened.eol) == ("one\r\n", True, "crlf")


@pytest.mark.parametrize(
    ("content", "eol"),
    [(b"a", None), (b"a\n", "lf"), (b"a\r\nb\r\n", "crlf"), (b"a\rb\r", "cr"), (b"a\nb\r\n", "mixed")],
)
def test_line_ends_are_told(file: FollowedFile, path: Path, content: bytes, eol: str | None) -> None:
    path.write_bytes(content)
    [opened] = file.look()
    assert isinstance(opened, Open)
    assert opened.eol == eol


def test_file_that_is_no_text_is_told_once_and_followed_again(file: FollowedFile, path: Path) -> None:
    file.look()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UnreadableFile, match="not UTF-8"):
        file.look()
    assert file.look() == []
    path.write_bytes(b"two\n")
    assert isinstance(file.look()[0], Edit)


def test_file_over_the_limit_is_told(file: FollowedFile, path: Path) -> None:
    os.truncate(path, DEFAULT_LIMITS.document_bytes_max + 1)
    with pytest.raises(UnreadableFile, match="limit 50,000,000"):
        file.look()


def test_files_are_named_by_path_or_uri(path: Path) -> None:
    other = path.with_name("b.md")
    other.touch()
    files = followed_files([str(path), other.as_uri()])
    assert [(file.path, file.alias) for file in files] == [(path, 1), (other, 2)]


@pytest.mark.parametrize("name", [".env", "server.pem", "id_rsa", "secret.txt"])
def test_secrets_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / ".streamctxignore").write_text("secret.*\n")
    (tmp_path / name).touch()
    with pytest.raises(ConfigurationError, match="never taken in"):
        followed_files([str(tmp_path / name)])


def test_wrong_names_are_refused(tmp_path: Path, path: Path) -> None:
    for names, message in [
        ([str(tmp_path)], "is not a file"),
        ([str(tmp_path / "nothing")], "is not there"),
        (["https://host/a"], "only files of this machine"),
        ([str(path), path.as_uri()], "named twice"),
        ([str(path)] * 201, "201 files, limit 200"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            followed_files(names)
