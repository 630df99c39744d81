"""URI patterns against the table that everybody would write first, and within their time."""

from __future__ import annotations

import time

from streamctx.core.session.uri_pattern import uri_matches
from tests.fuzz.program import Program, Violation

__all__ = ["fuzz"]

_PIECES = (
    "*",
    "?",
    "**",
    "a",
    "b",
    "*a",
    "?*",
    "ab",
    "/",
    "é",
    "😀",
    "\n",
    "[",
    "]",
    "\\",
    ".",
    "^",
    "(a+)+",
    "\0",
)
_CHARACTERS_MAX = 4096
_COMPARED_MAX = 64
_SECONDS_MAX = 0.5
"""Of processor time. It takes 3 ms, or some ten times as long where every branch is counted."""


def fuzz(data: bytes) -> None:
    """Match one pattern with one URI."""
    program = Program(data)
    pattern = _text(program)
    uri = _text(program)
    start = time.process_time()
    found = uri_matches.__wrapped__(pattern, uri)
    taken_s = time.process_time() - start
    if taken_s > _SECONDS_MAX:
        raise Violation(f"{taken_s:.2f} s for {len(pattern)} and {len(uri)} characters")
    if len(pattern) <= _COMPARED_MAX and len(uri) <= _COMPARED_MAX and found is not _model(pattern, uri):
        raise Violation(f"{pattern!r} and {uri!r}: {found}")


def _text(program: Program) -> str:
    text = "".join(
        program.choose(_PIECES) * (program.choose((1, 1, 1, 3, 64, 4096)) if program.rarely(4) else 1)
        for _ in range(program.below(16))
    )
    return text[:_CHARACTERS_MAX]


def _model(pattern: str, uri: str) -> bool:
    row = [True, *[False] * len(uri)]
    for token in pattern:
        if token == "*":
            reached = False
            row = [reached := reached or cell for cell in row]
        else:
            row = [False, *[row[i] and token in ("?", character) for i, character in enumerate(uri)]]
    return row[-1]
