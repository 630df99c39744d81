"""Each requirement of the specification is proved by a vector, or says where else or why not."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.vectors.reading import VECTORS, Case, files

__all__: list[str] = []

ROOT = VECTORS.parents[1]
REQUIREMENTS = set(re.findall(r"\[([A-Z]{3}-\d+)\]", (VECTORS.parent / "SPEC.md").read_text("utf-8")))


def content(path: Path) -> Case:
    value: Case = json.loads(path.read_text("utf-8"))
    return value


UNTESTED = content(VECTORS / "untested.json")


def all_cases() -> Iterator[tuple[Path, Case]]:
    """All cases of all files; a session script is one case."""
    for path in files():
        value = content(path)
        for case in value.get("cases", [value]):
            yield path.relative_to(VECTORS), case


def named() -> set[str]:
    return {name for _, case in all_cases() for name in case["requirements"]}


def test_the_specification_has_requirements() -> None:
    assert len(REQUIREMENTS) > 100


def test_every_requirement_is_named_by_a_vector_or_listed() -> None:
    assert sorted(REQUIREMENTS - named() - set(UNTESTED)) == []


def test_vectors_and_the_list_name_only_requirements_that_exist() -> None:
    assert sorted((named() | set(UNTESTED)) - REQUIREMENTS) == []


def test_the_list_holds_no_requirement_that_a_vector_names() -> None:
    assert sorted(set(UNTESTED) & named()) == []


def functions_of(path: Path) -> set[str]:
    """The names of the functions of a module."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


def test_the_list_says_for_each_requirement_a_test_that_exists_or_a_reason() -> None:
    for name, entry in UNTESTED.items():
        match entry:
            case {"reason": str(reason)}:
                assert len(reason) > 20, name
            case {"test": str(test)}:
                path, _, function = test.partition("::")
                assert function.startswith("test_"), name
                assert function in functions_of(ROOT / path), name
            case _:
                raise AssertionError(name)


def test_every_session_script_is_counted() -> None:
    scripts = set((VECTORS / "sessions").glob("*.json"))
    assert scripts
    assert scripts <= {VECTORS / path for path, case in all_cases() if case["requirements"]}


def test_every_case_has_a_sentence_and_requirements() -> None:
    for path, case in all_cases():
        description = case["description"]
        # It begins with a capital, a digit or a quoted name, and does not end like a paragraph.
        assert re.match(r"[A-Z0-9`]", description), (path, description)
        assert not description.endswith((".", " ")), (path, description)
        assert case["requirements"], (path, description)


def test_descriptions_are_unique_in_their_file() -> None:
    counts = Counter((path, case["description"]) for path, case in all_cases())
    assert [key for key, count in counts.items() if count > 1] == []
