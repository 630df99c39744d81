"""A text as plain as can be: a string, whose positions are found by reading it from its start."""

from __future__ import annotations

from functools import lru_cache

from streamctx.vocabulary import Unit

__all__ = ["positions_of", "without_surrogates"]


def _width(character: str, unit: Unit) -> int:
    if unit is Unit.UTF_8:
        return len(character.encode())
    return 2 if unit is Unit.UTF_16 and character > "\uffff" else 1


@lru_cache(maxsize=64)
def positions_of(text: str, unit: Unit) -> list[tuple[int, tuple[int, int]]]:
    """Every place between two characters where an edit may be made: its index, and its line and character."""
    points: list[tuple[int, tuple[int, int]]] = []
    line = character = 0
    before = ""
    for index, here in enumerate(text):
        is_inside_line_end = before == "\r" and here == "\n"
        if not is_inside_line_end:
            if before in ("\n", "\r") and before:
                line, character = line + 1, 0
            points.append((index, (line, character)))
        character += _width(here, unit)
        before = here
    if before in ("\n", "\r") and before:
        line, character = line + 1, 0
    points.append((len(text), (line, character)))
    return points


def without_surrogates(text: str) -> str:
    """The text as it is sent: lone surrogates become U+FFFD."""
    return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
