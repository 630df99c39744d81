from __future__ import annotations

from pathlib import Path

import pytest

from streamctx.hub.redaction import SECRET_PATTERNS, Redaction

__all__: list[str] = []


@pytest.mark.parametrize("pattern", SECRET_PATTERNS)
@pytest.mark.parametrize(
    "form", ["{}", "file:///work/{}", "C:\\work\\{}", "file:///w/{}?v=1", "git:/w/{}#L1"]
)
def test_every_secret_name_is_found_in_every_spelling(pattern: str, form: str) -> None:
    redaction = Redaction()
    for name in (pattern.replace("*", ""), pattern.replace("*", ".x"), pattern.replace("*", "").upper()):
        assert redaction.is_excluded(form.format(name))
        encoded = "".join(f"%{ord(character):02x}" for character in name)
        assert redaction.is_excluded(f"file:///work/{encoded}")


@pytest.mark.parametrize("name", ["env.py", "environment", "key.py", "my_id_rsa", "pem.txt", "monkey"])
def test_names_that_only_look_alike_are_taken(name: str) -> None:
    assert not Redaction().is_excluded(f"file:///work/{name}")


@pytest.mark.parametrize(
    ("lines", "excluded", "taken"),
    [
        ("notes.txt", ["notes.txt", "a/NOTES.txt", "notes.txt/x"], ["notes.txt.py"]),
        ("\ufeffnotes.txt\r\n", ["notes.txt"], []),
        ("# notes.txt\n\n", [], ["notes.txt", "# notes.txt"]),
        ("private/", ["private/a", "b/private/c/d"], ["private", "private2/a"]),
        ("/plans/*.md", ["plans/a.md", "x/../plans/a.md", "plans//a.md"], ["a/plans/b.md", "plans/a.txt"]),
        ("a/b/", ["a/b/c", "a/b/c/d"], ["a/b", "x/a/b/c"]),
        ("a/b", ["a/b", "a/b/c"], ["a/bc"]),
        ("**/deep", ["deep", "x/deep", "x/deep/y"], ["deeper"]),
    ],
)
def test_the_ignore_file_excludes_what_it_names(
    tmp_path: Path, lines: str, excluded: list[str], taken: list[str]
) -> None:
    (tmp_path / ".streamctxignore").write_text(lines, "utf-8")
    for folder in (str(tmp_path), tmp_path.as_uri(), tmp_path.as_uri() + "/"):
        redaction = Redaction([folder])
        for name in excluded:
            assert redaction.is_excluded(f"{tmp_path.as_uri()}/{name}"), (folder, name)
        for name in taken:
            assert not redaction.is_excluded(f"{tmp_path.as_uri()}/{name}"), (folder, name)
        assert not redaction.is_excluded("file:///elsewhere/notes.txt")
