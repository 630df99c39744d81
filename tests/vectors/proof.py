"""What proves each requirement of the specification: `python -m tests.vectors.proof` checks it.

Three sources say it: `requirements` of the vectors, `proves` of the simulation's checkers, and
`named_tests.json` for what neither can reach, or not from both sides. With `--write` the table in the
last section of the specification is made anew.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.sim.ledger import CHECKERS
from tests.vectors.reading import VECTORS, Case, files

__all__ = [
    "ADVICE_MAX",
    "Proofs",
    "all_cases",
    "main",
    "problems",
    "proofs",
    "requirements",
    "with_table",
]

ROOT: Final = VECTORS.parents[1]
SPEC: Final = VECTORS.parent / "SPEC.md"
NAMED_TESTS: Final = Path(__file__).with_name("named_tests.json")
ADVICE_MAX: Final = 5
"""Requirements that only advise; more of them would be a way around the check."""

_ID: Final = re.compile(r"\[([A-Z]{3}-\d+)\]")
_FIRST_SECTION: Final = "\n## 1. "
_LAST_SECTION: Final = "\n## 20. "
_TABLE: Final = "\n| requirement | checkers | vectors | tests |\n|---|---|---|---|\n"
_BINDS: Final = re.compile(r"\b(must|must not|shall|never|required)\b", re.IGNORECASE)
_SHOWN_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Proofs:
    """What proves the requirements, by id; an id that nothing proves is absent.

    `checkers` are names in `CHECKERS`, `vectors` files without ending, relative to the folder of
    vectors, `tests` as pytest names them. `advice` says why there is nothing to prove.
    """

    checkers: Mapping[str, list[str]]
    vectors: Mapping[str, list[str]]
    tests: Mapping[str, list[str]]
    advice: Mapping[str, str]


def requirements(specification: str) -> dict[str, str]:
    """The requirements in the order in which the text states them, with the text of each."""
    start, stop = specification.index(_FIRST_SECTION), specification.index(_LAST_SECTION)
    stated: dict[str, str] = {}
    for paragraph in re.split(r"\n\n|\n(?=- )", specification[start:stop]):
        for name in _ID.findall(paragraph):
            stated.setdefault(name, paragraph)
    return stated


def all_cases() -> Iterator[tuple[Path, Case]]:
    """All cases of all vector files; a session script is one case."""
    for path in files():
        value: Case = json.loads(path.read_text("utf-8"))
        for case in value.get("cases", [value]):
            yield path.relative_to(VECTORS), case


def proofs() -> Proofs:
    """Read the three sources."""
    checkers: dict[str, list[str]] = {}
    for name, checker in CHECKERS.items():
        for requirement in checker.proves:
            checkers.setdefault(requirement, []).append(name)
    vectors: dict[str, list[str]] = {}
    for path, case in all_cases():
        label = path.with_suffix("").as_posix()
        for requirement in case["requirements"]:
            labels = vectors.setdefault(requirement, [])
            if label not in labels:
                labels.append(label)
    named = json.loads(NAMED_TESTS.read_text("utf-8"))
    return Proofs(checkers=checkers, vectors=vectors, tests=named["tests"], advice=named["advice"])


def problems(stated: Mapping[str, str], found: Proofs) -> list[str]:
    """What is missing, one line each: a requirement without a proof, or a proof of nothing."""
    wrong: list[str] = []
    for kind in ("checkers", "vectors", "tests", "advice"):
        unknown = set(getattr(found, kind)) - set(stated)
        wrong += [f"{name} is no requirement, {kind} name it" for name in sorted(unknown)]
    for name, text in stated.items():
        is_proved = bool(found.checkers.get(name) or found.vectors.get(name) or found.tests.get(name))
        if name in found.advice:
            if is_proved:
                wrong.append(f"{name} is called advice, and is proved")
            if binding := _BINDS.search(text):
                wrong.append(f"{name} is called advice, and says {binding[0]!r}")
        elif not is_proved:
            wrong.append(f"{name} has no checker, no vector and no test")
    if len(found.advice) > ADVICE_MAX:
        wrong.append(f"{len(found.advice)} requirements are called advice, at most {ADVICE_MAX} may be")
    for name, tests in found.tests.items():
        wrong += [f"{name}: there is no test {test}" for test in tests if not _exists(test)]
    return wrong


def _exists(test: str) -> bool:
    path, _, function = test.partition("::")
    return function.startswith("test_") and function in _functions_of(path)


@cache
def _functions_of(path: str) -> frozenset[str]:
    """The names of the functions of a module; none if there is no such file."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_text("utf-8"))
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def with_table(specification: str, found: Proofs) -> str:
    """The specification with the table made anew; it is all that follows the table's head."""
    head = specification.index(_TABLE)
    rows = "".join(_row(name, found) for name in requirements(specification))
    return specification[:head] + _TABLE + rows


def _row(name: str, found: Proofs) -> str:
    checkers = ", ".join(found.checkers.get(name, ()))
    vectors = [label.rpartition("/")[2] for label in found.vectors.get(name, ())]
    shown = ", ".join(dict.fromkeys(f"`{label}`" for label in vectors[:_SHOWN_MAX]))
    if len(vectors) > _SHOWN_MAX:
        shown += f" and {len(vectors) - _SHOWN_MAX} more"
    tests = "<br>".join(f"`{test}`" for test in found.tests.get(name, ()))
    if name in found.advice:
        tests = f"none: {found.advice[name]}"
    return f"| {name} | {checkers} | {shown} | {tests} |\n"


def main(arguments: list[str]) -> int:
    """Check or write the table; the exit status is 1 if anything is missing or out of date."""
    text, found = SPEC.read_text("utf-8"), proofs()
    wrong = problems(requirements(text), found)
    for line in wrong:
        sys.stderr.write(f"{line}\n")
    made = with_table(text, found)
    if arguments == ["--write"]:
        SPEC.write_text(made, "utf-8")
    elif made != text:
        sys.stderr.write(f"the last section of {SPEC} is out of date: run `make proof`\n")
        return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
