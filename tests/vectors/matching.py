"""Patterns of session scripts; `protocol/vectors/sessions/README.md` describes them under "Values"."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["mismatch", "shown"]

ABSENT: Any = object()
"""The value of a field that is not there."""


def mismatch(pattern: Any, value: Any, names: dict[str, Any], where: str = "") -> str | None:
    """Say where a value does not match and why, or `None` if it does; keep what is captured in `names`."""
    match pattern:
        case {"$capture": name}:
            if value is ABSENT:
                return f"{where} is missing"
            names[name] = value
            return None
        case {"$not": unwanted}:
            if value is ABSENT:
                return f"{where} is missing"
            is_same = mismatch(unwanted, value, names) is None
            return f"{where} is {shown(value)}, expected another value" if is_same else None
        case None:
            return None if value is ABSENT else f"{where} is {shown(value)}, expected none"
        case dict() if isinstance(value, dict):
            fields = (
                (key, mismatch(item, value.get(key, ABSENT), names, f"{where}.{key}"))
                for key, item in pattern.items()
            )
            return next((reason for _, reason in fields if reason is not None), None)
        case list() if isinstance(value, list):
            present = without_trailing_nulls(value)
            if len(present) != len(pattern):
                return f"{where} is {shown(value)}, expected {len(pattern)} elements"
            reasons = (
                mismatch(item, present[index], names, f"{where}[{index}]")
                for index, item in enumerate(pattern)
            )
            return next((reason for reason in reasons if reason is not None), None)
        case _:
            if value is ABSENT:
                return f"{where} is missing, expected {shown(pattern)}"
            is_same = value == pattern and isinstance(value, bool) is isinstance(pattern, bool)
            return None if is_same else f"{where} is {shown(value)}, expected {shown(pattern)}"


def without_trailing_nulls(array: list[Any]) -> list[Any]:
    """The elements that say something: the last of a change may be null (SPEC 10.3)."""
    length = len(array)
    while length and array[length - 1] is None:
        length -= 1
    return array[:length]


def shown(value: Any, limit: int = 400) -> str:
    """A value for people, with its middle cut out if it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[: limit - 80]} … {text[-60:]}"
