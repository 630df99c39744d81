"""A text as plain as can be: a string, whose positions are found by reading it from its start."""

from __future__ import annotations

from streamctx.vocabulary import Unit

__all__ = ["positions_of", "without_surrogates"]


def positions_of(text: str, unit: Unit) -> list[tuple[int, tuple[int, int]]]:
    """Every place between two characters where an edit may be made: its index, and its line and character."""
    points: list[tuple[int, tuple[int, int]]] = []
    line = character = 0
    is_narrow = unit is Unit.UTF_32 or text.isascii()
    is_utf_16 = unit is Unit.UTF_16
    before = ""
    for index, here in enumerate(text):
        if before != "\r" or here != "\n":  # Within a line end no edit begins.
            if before == "\n" or before == "\r":
                line, character = line + 1, 0
            points.append((index, (line, character)))
        if is_narrow:
            character += 1
        elif is_utf_16:
            character += 2 if here > "\uffff" else 1
        else:
            character += len(here.encode())
        before = here
    if before == "\n" or before == "\r":
        line, character = line + 1, 0
    points.append((len(text), (line, character)))
    return points


def without_surrogates(text: str) -> str:
    """The text as it is sent: lone surrogates become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= each <= "\udfff" else each for each in text)
    return text
