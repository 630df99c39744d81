"""Read the vector files; `protocol/vectors/README.md` describes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

__all__ = ["VECTORS", "Case", "cases", "expand", "files", "parameters"]

VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"

Case: TypeAlias = dict[str, Any]


def files() -> list[Path]:
    """All files that hold cases or a session script."""
    return sorted(path for path in VECTORS.rglob("*.json") if path.name != "untested.json")


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


def expand(value: Any) -> Any:
    """Replace `{"$repeat": [value, count]}` and `{"$concatenate": [value, …]}` by what they stand for."""
    match value:
        case {"$repeat": [item, count]}:
            return expand(item) * count
        case {"$concatenate": [*parts]}:
            return "".join(expand(part) for part in parts)
        case dict():
            return {key: expand(item) for key, item in value.items()}
        case list():
            return [expand(item) for item in value]
        case _:
            return value
