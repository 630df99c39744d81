"""Which names are secrets, however a hostile or careless client writes them."""

from __future__ import annotations

import os
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
