"""The list of what an attacker may try, and of the test that proves each defence: none of them may vanish."""

from __future__ import annotations

import ast
import functools
import json
from pathlib import Path

import msgspec
import pytest

__all__: list[str] = []

_ROOT = Path(__file__).parents[2]
_ROWS = Path(__file__).with_name("rows.json")


class _Clause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    defence: str
    tests: tuple[str, ...] = ()
    because: str | None = None
    """Why the defence does not apply, or is another one; tests may prove that."""


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"name": "row", "of": "class"}):
    section: str
    name: str
    of: str
    clauses: tuple[_Clause, ...]


_READ = msgspec.json.decode(_ROWS.read_bytes(), type=tuple[_Row, ...])


@functools.cache
def _tests_in(file: str) -> frozenset[str]:
    tree = ast.parse((_ROOT / file).read_text())
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("row", _READ, ids=lambda row: row.name)
def test_every_defence_is_proved_or_explained(row: _Row) -> None:
    assert row.clauses
    for clause in row.clauses:
        assert clause.tests or clause.because, clause.defence
        for test in clause.tests:
            file, _, name = test.partition("::")
            assert name.startswith("test_")
            assert name in _tests_in(file), test


def test_rows_are_these_and_each_is_there_once() -> None:
    counts: dict[str, int] = {}
    for row in _READ:
        counts[row.section] = counts.get(row.section, 0) + 1
    assert counts == {"getting in": 11, "bringing it down": 11, "decoding": 17}
    assert len({row.name for row in _READ}) == len(_READ)


def test_list_is_written_one_way() -> None:
    text = _ROWS.read_text("utf-8")
    assert text == json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"
