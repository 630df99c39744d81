"""Each requirement of the specification is proved, and its last section says by what."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from tests.vectors.proof import ADVICE_MAX, SPEC, all_cases, problems, proofs, requirements, with_table
from tests.vectors.reading import VECTORS

__all__: list[str] = []

TEXT = SPEC.read_text("utf-8")
STATED = requirements(TEXT)
FOUND = proofs()


def test_the_specification_has_requirements() -> None:
    assert len(STATED) > 100
    assert set(STATED) == set(re.findall(r"\[([A-Z]{3}-\d+)\]", TEXT))


def test_every_requirement_is_proved_and_nothing_else_is() -> None:
    assert problems(STATED, FOUND) == []


def test_the_last_section_says_what_proves_each() -> None:
    assert with_table(TEXT, FOUND) == TEXT, "run `make proof`"


def test_a_requirement_without_a_proof_is_found() -> None:
    for name in ("SEQ-7", "SEQ-3", "RSM-9"):
        kinds = ("checkers", "vectors", "tests")
        less = replace(
            FOUND,
            **{kind: {**getattr(FOUND, kind), name: []} for kind in kinds},
        )
        assert problems(STATED, less) == [f"{name} has no checker, no vector and no test"]


@pytest.mark.parametrize("test", ["tests/vectors/none.py::test_a", "tests/vectors/proof.py::test_a", "x"])
def test_a_named_test_that_does_not_exist_is_found(test: str) -> None:
    assert len(problems(STATED, replace(FOUND, tests={**FOUND.tests, "SEQ-1": [test]}))) == 1


def test_advice_is_rare_and_binds_nobody() -> None:
    assert len(FOUND.advice) <= ADVICE_MAX
    nothing = replace(FOUND, checkers={}, vectors={}, tests={}, advice=dict.fromkeys(STATED, "why"))
    found = problems(STATED, nothing)
    assert f"{len(STATED)} requirements are called advice, at most {ADVICE_MAX} may be" in found
    assert "COA-1 is called advice, and says 'MUST'" in found
    assert "RSM-7 is called advice, and says 'never'" in found


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
