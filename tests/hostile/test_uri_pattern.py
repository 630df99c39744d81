"""Patterns of observers against their definition, and at their most costly."""

from __future__ import annotations

import itertools
import re
import time

import pytest

from streamctx.core.session.uri_pattern import uri_matches

__all__: list[str] = []


def _expected(pattern: str, uri: str) -> bool:
    wild = {"*": ".*", "?": "."}
    expression = "".join(wild.get(character, re.escape(character)) for character in pattern)
    return re.fullmatch(expression, uri, re.DOTALL) is not None


def test_every_short_pattern_matches_as_defined() -> None:
    patterns = [letters for length in range(5) for letters in itertools.product("a*?[", repeat=length)]
    uris = [
        "".join(letters) for length in range(5) for letters in itertools.product("ab*?"[:3], repeat=length)
    ]
    for letters in patterns:
        pattern = "".join(letters)
        for uri in uris:
            assert uri_matches(pattern, uri) is _expected(pattern, uri), (pattern, uri)


@pytest.mark.parametrize(
    ("pattern", "uri", "matches"),
    [
        ("file:///w/*.py", "file:///w/a/b.py", True),
        ("file:///w/*.py", "file:///w/a.pyc", False),
        ("*", "", True),
        ("*", "\n\x00", True),
        ("?", "\U0001f600", True),
        ("?", "", False),
        ("[ab]", "[ab]", True),
        ("[ab]", "a", False),
        ("[!", "[!", True),
        ("a\\*", "a\\b", True),
        ("A", "a", False),
        ("what?*", "what?x", True),
    ],
)
def test_only_star_and_question_mark_are_special(pattern: str, uri: str, matches: bool) -> None:
    assert uri_matches(pattern, uri) is matches


@pytest.mark.parametrize(
    "pattern",
    ["*a" * 2047 + "b", "a*" * 2048, "?" * 4096, "*?" * 2048, "[" * 4096, "".join(map(chr, range(32, 4128)))],
)
def test_no_pattern_takes_long(pattern: str) -> None:
    for uri in ("a" * 4096, "[" * 4096, pattern):
        started = time.perf_counter()
        uri_matches(pattern, uri)
        assert time.perf_counter() - started < 0.1
