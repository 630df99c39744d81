"""Read the vector files; `protocol/vectors/README.md` describes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

__all__ = ["VECTORS", "Case", "cases", "expand", "files", "parameters"]

VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"

Case: TypeAlias = dict[str, Any]


def files() -> list[Path]:
    """All files that hold cases or a session script."""
    return sorted(VECTORS.rglob("*.json"))


def cases(name: str) -> Iterator[Case]:
    """The cases of one file, with what the head of the file says of each."""
    content = json.loads((VECTORS / name).read_text("utf-8"))
    head = {key: value for key, value in content.items() if key != "cases"}
    for case in content["cases"]:
        yield {**head, **case}


def parameters(*names: str) -> pytest.MarkDecorator:
    """Parametrize a test by all cases of some files, with their descriptions as ids."""
    return pytest.mark.parametrize(
        "case", [parameter(Path(name).stem, case) for name in names for case in cases(name)]
    )


def parameter(stem: str, case: Case) -> Any:
    """One case with its id."""
    name = f"{stem}: {case['description']}"
    return pytest.param(case, id=name)


def expand(value: Any, names: Mapping[str, Any] | None = None, repetition: int = 0) -> Any:
    """Replace what stands for another value; the READMEs of the vectors and of the sessions list it.

    Args:
        names: The values that `$use` names.
        repetition: How many repetitions of the enclosing `repeat` came before.
    """
    match value:
        case {"$repeat": [item, count]}:
            return expand(item, names, repetition) * count
        case {"$concatenate": [*parts]}:
            return "".join(str(expand(part, names, repetition)) for part in parts)
        case {"$step": [first, increment]}:
            return first + increment * repetition
        case {"$use": name} if names is not None:
            return names[name]
        case dict():
            return {key: expand(item, names, repetition) for key, item in value.items()}
        case list():
            return [expand(item, names, repetition) for item in value]
        case _:
            return value
