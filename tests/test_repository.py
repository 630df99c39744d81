"""What holds for the files of the repository as a whole."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__: list[str] = []

ROOT = Path(__file__).parent.parent
# Made by tools, and ignored by git.
GENERATED = {
    ".git",
    ".hypothesis",
    ".import_linter_cache",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".venv",
    ".venv-autobahn",
    ".venv-lock",
    "__pycache__",
    "build",
    "dist",
    "htmlcov",
    "node_modules",
}
# Another project holds the bare name on the index; the command after an option such as `--from` is ours.
WRONG_INSTALL = re.compile(
    r"\b(?:pipx? install|pipx run|uv add|uv tool install|uvx)\s+(?:-\S+\s+)*[\"'`]?streamctx(?!-server|\w)"
)
INDEX_HOST = re.compile(r"\b(?:pypi|npmjs|\w+hosted)\.(?:org|com)\b")
INDEX_OPTION = re.compile(r"^\s*(?:-i|-f|--(?:extra-)?index-url|--find-links|--trusted-host)\b", re.MULTILINE)


def texts() -> Iterator[tuple[Path, str]]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(set(folders) - GENERATED)
        for name in sorted(names):
            path = Path(folder, name)
            try:
                yield path.relative_to(ROOT), path.read_text("utf-8")
            except (UnicodeDecodeError, FileNotFoundError):
                continue  # Not a text, or a temporary file of a tool at work.


def matches(pattern: re.Pattern[str]) -> list[str]:
    return [f"{path}: {match[0]}" for path, text in texts() for match in pattern.finditer(text)]


def declares_exports(module: Path) -> bool:
    for statement in ast.parse(module.read_text("utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.AnnAssign(target=ast.Name(id="__all__")):
                return True
            case _:
                continue
    return False


def test_every_module_says_what_it_exports() -> None:
    modules = sorted((ROOT / "streamctx").rglob("*.py"))
    assert modules
    assert [str(path) for path in modules if not declares_exports(path)] == []


def test_no_text_installs_the_other_project_of_that_name() -> None:
    assert matches(WRONG_INSTALL) == []


@pytest.mark.parametrize(
    ("command", "is_wrong"),
    [
        ("pip install {}", True),
        ("pip install -U {}", True),
        ("uvx '{}[watch]'", True),
        ("pip install {}-server", False),
        ("uvx --from {}-server {} demo", False),
    ],
)
def test_wrong_install_commands_are_told_from_right_ones(command: str, is_wrong: bool) -> None:
    assert bool(WRONG_INSTALL.search(command.replace("{}", "streamctx"))) is is_wrong


def test_no_text_names_a_package_index() -> None:
    assert matches(INDEX_HOST) == []


def test_no_text_names_the_folder_it_lies_in() -> None:
    if len(ROOT.parts) < 3:
        pytest.skip(f"{ROOT} is too short a path to tell from others")
    assert matches(re.compile(rf"{re.escape(str(ROOT))}\b")) == []


def test_locks_hold_hashes_and_no_addresses() -> None:
    locks = sorted((ROOT / "requirements").glob("*.txt"))
    assert locks
    for lock in locks:
        text = lock.read_text("utf-8")
        assert "://" not in text, lock
        assert not INDEX_OPTION.search(text), lock
        assert text.count("==") <= text.count("--hash=sha256:"), lock
