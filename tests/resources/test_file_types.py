from __future__ import annotations

import mimetypes
from pathlib import Path

import pytest

from streamctx.resources.file_types import mime_of

__all__: list[str] = []


@pytest.mark.parametrize(
    ("name", "mime"),
    [
        ("a.txt", "text/plain"),
        ("A.TXT", "text/plain"),
        ("a.md", "text/markdown"),
        ("a.js", "text/javascript"),
        ("a.py", "text/x-python"),
        ("a.png", "image/png"),
        ("a.pdf", "application/pdf"),
        ("a.tar.gz", "application/gzip"),
        ("a.svgz", "application/octet-stream"),
        ("a", "application/octet-stream"),
        (".txt", "application/octet-stream"),
        ("a.", "application/octet-stream"),
        ("a.unknown", "application/octet-stream"),
        ("data:text/html,a", "application/octet-stream"),
        ("a.png?b.txt", "text/plain"),
    ],
)
def test_the_last_suffix_tells_the_type(name: str, mime: str) -> None:
    assert mime_of(name) == mime


def test_what_the_machine_knows_makes_no_difference(tmp_path: Path) -> None:
    (tmp_path / "mime.types").write_text("text/odd unknown txt\n")
    before = mimetypes.types_map.copy()
    try:
        mimetypes.init([str(tmp_path / "mime.types")])
        assert mimetypes.guess_type("a.unknown")[0] == "text/odd"
        assert mime_of("a.unknown") == "application/octet-stream"
        assert mime_of("a.txt") == "text/plain"
    finally:
        mimetypes.init()
    assert mimetypes.types_map == before
