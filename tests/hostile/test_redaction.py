"""Which names are secrets, however a hostile or careless client writes them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from streamctx.hub.redaction import Redaction

__all__: list[str] = []


@pytest.mark.parametrize(
    "uri",
    [
        "file:///w/.env",
        "file:///w/.env.local?x#y",
        "file:///w/%2Eenv",
        "file:///w/%2eENV",
        "file://host/w/.env",
        "FILE:///w/.env",
        "untitled:.env",
        "git:/w/.env?%7B%22ref%22%3A%22~%22%7D",
        "vscode-remote://ssh%2Bhost/w/.env",
        ".env",
        "/w/.env/",
        "/w\\.env",
        "C:\\w\\.env",
        "\\\\host\\share\\.env",
        # A plain path, or one put behind `file://` as it is, may hold these two.
        "/w/c#/.env",
        "/w/what?/.env",
        "C:\\c#\\.env",
        "file:///w/c#/.env",
        "#/.env",
        "?/.env",
        # What is no URI at all.
        "file://[/w/.env",
        "http://[::1/.env",
        "//℀/.env",
        "\x00/.env",
        "/w/.env\n",
        "/w/id_rsa.pub",
        "/w/ID_ED25519",
        "/w/server.PEM",
        "/w/server.pem.",
        "/w/server.key ",
        "/w/prod-Credentials.json",
        # A plain path behind `file://`, as if its beginning were a host.
        "file://.env",
        "file://server.pem",
        "file://C:\\w\\.env",
        "untitled://.env",
        # Behind a drive, a host or an archive, and before a stream or the end of a string.
        "C:.env",
        "/ssh:me@host:.env",
        "zipfile:///w/a.zip::.env",
        "jar:file:///w/a.jar!/.env",
        "\\\\?\\C:\\w\\.env",
        "/w/server.pem::$DATA",
        "file:///w/server.pem%00.txt",
        # What a file system makes of it.
        "/w/.env/.",
        "/w/.env/./",
        "/w/.env/x/..",
        "/w/x/..//.env//",
        "/w/server.pem\n",
        "/w/server.pem. .",
        "\t.env",
        "/w/id_r\u017fa",
        "/w/.e\u200cnv",
        "/w/credential\u017f",
        "/w/server.\u212aey",
        # Encoded more often than once, or in part.
        "file:///w/%252eenv",
        "file:///w/.e%6ev",
        "file:///w%5c.env",
        "file:///w%2f.env",
        "/w/id_rsa%2fx",
    ],
)
def test_secret_is_found_in_any_spelling(uri: str) -> None:
    assert Redaction().is_excluded(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "file:///w/main.py",
        "file:///w/.environment/main.py",
        "file:///w/a.py#.env",
        "git:/w/main.py?ref=/credentials",
        "file://[",
        "",
        "/",
        "\x00",
        "http://[::1",
        "//℀",
        "x" * 4096,
        "monkey",
        "file://",
        "C:\\w\\main.py",
        "http://example.com",
        "/w/.env/../main.py",
        "/w/%",
        ":",
        "/w/naïve.py",
    ],
)
def test_other_names_are_not_excluded_and_raise_nothing(uri: str) -> None:
    assert not Redaction().is_excluded(uri)


@pytest.mark.parametrize(
    "folder", ["file://[", "/a\x00b", "file:///%00", "http://[::1", "//℀", "", "/" + "a" * 300]
)
def test_folder_that_is_no_path_has_no_patterns(folder: str) -> None:
    assert not Redaction([folder]).is_excluded("/a/b")


def test_ignore_file_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".streamctxignore")

    assert not Redaction([str(tmp_path)]).is_excluded(f"{tmp_path}/main.py")


def test_ignored_file_is_found_in_any_spelling_of_its_path(tmp_path: Path) -> None:
    (tmp_path / ".streamctxignore").write_text("# local\nnotes.txt\n/plans/*.md\nprivate/\n")
    for folder in (str(tmp_path), tmp_path.as_uri(), f"{tmp_path}/"):
        redaction = Redaction([folder])
        for path in (
            "notes.txt",
            "a/NOTES.txt",
            "plans/q3.md",
            "private/x.py",
            "a/private/b/x.py",
            "c#/notes.txt",
        ):
            assert redaction.is_excluded(f"{tmp_path}/{path}"), path
            assert redaction.is_excluded(f"file://{tmp_path}/{path}"), path
            assert redaction.is_excluded((tmp_path / path).as_uri()), path
        assert not redaction.is_excluded(f"{tmp_path}/main.py")


def test_ignored_name_is_found_in_any_unicode_form(tmp_path: Path) -> None:
    (tmp_path / ".streamctxignore").write_text("café.txt\nStraße.md\n/plans/é?.md\n", "utf-8")
    redaction = Redaction([str(tmp_path)])
    for name in (
        "café.txt",
        "cafe\u0301.txt",
        "CAFÉ.TXT",
        "CAFE\u0301.txt",
        "STRASSE.md",
        "plans/E\u03013.md",
    ):
        assert redaction.is_excluded(f"{tmp_path}/{name}"), name
        assert redaction.is_excluded((tmp_path / name).as_uri()), name
    assert not redaction.is_excluded(f"{tmp_path}/cafe.txt")


def test_bracket_without_an_end_is_a_character(tmp_path: Path) -> None:
    (tmp_path / ".streamctxignore").write_text("a[b\nc[0-9]d[\n")
    redaction = Redaction([str(tmp_path)])
    for name, excluded in (("a[b", True), ("ab", False), ("c1d[", True), ("c1d", False), ("cd[", False)):
        assert redaction.is_excluded(f"{tmp_path}/{name}") is excluded, name


def test_ignore_file_may_be_a_link_and_no_other_thing(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("notes.txt\n")
    for name, target in (("a", tmp_path / "elsewhere"), ("b", Path("/dev/zero")), ("c", tmp_path / "none")):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".streamctxignore").symlink_to(target)
        assert Redaction([str(tmp_path / name)]).is_excluded(f"{tmp_path}/{name}/notes.txt") is (name == "a")


@pytest.mark.parametrize("content", ["x" * 64 * 1024 + "\n", "".join(f"n{i}\n" for i in range(2001))])
def test_ignore_file_that_is_too_long_excludes_its_folder(tmp_path: Path, content: str) -> None:
    (tmp_path / ".streamctxignore").write_text(content)
    redaction = Redaction([str(tmp_path)])
    assert redaction.is_excluded(f"{tmp_path}/main.py")
    assert not redaction.is_excluded("/elsewhere/main.py")
    (tmp_path / ".streamctxignore").write_text("".join(f"n{i}\n" for i in range(2000)))
    redaction = Redaction([str(tmp_path)])
    assert redaction.is_excluded(f"{tmp_path}/n1999")
    assert not redaction.is_excluded(f"{tmp_path}/main.py")


@pytest.mark.parametrize(
    "content",
    [
        "".join(f"*{i % 10}*{i}*a\n" for i in range(9000)),
        "".join(f"*{i % 10}*{i}*a\n" for i in range(2000)),
        "".join(f"/*{i % 10}*{i}/*a/*\n" for i in range(2000)),
        "".join(f"{i}[a-z]?*/\n" for i in range(2000)),
        ("*a" * 4000 + "b\n") * 8,
        "*" * 64_000,
        "[" * 64_000,
        "[" * 32_000 + "]" + "[]" * 15_000 + "[" * 1000,
        "*a" * 32_000,
        "a?" * 32_000,
    ],
    ids=lambda content: f"{content[:12]}-{len(content)}".replace("\n", " "),
)
def test_no_ignore_file_keeps_the_server_busy(tmp_path: Path, content: str) -> None:
    (tmp_path / ".streamctxignore").write_text(content)
    started = time.process_time()
    redaction = Redaction([str(tmp_path), tmp_path.as_uri()] * 50)
    assert time.process_time() - started < 2
    for path in ("a/" * 1900 + "x", "a" * 3900, "0/1/2/3/4/5/6/7/8/9/" * 190, "main.py"):
        started = time.process_time()
        redaction.is_excluded(f"{tmp_path}/{path}")
        assert time.process_time() - started < 0.5
