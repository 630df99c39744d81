from __future__ import annotations

import pytest

from streamctx.core.documents.changes import last_to_first
from streamctx.errors import ErrorCode, EventRefused
from streamctx.wire.changes import Change

__all__: list[str] = []


def test_changes_are_made_from_the_last_to_the_first() -> None:
    assert last_to_first([Change(0, 1, 0, 2, "a"), Change(3, 0, 3, 1, "b"), Change(1, 0, 1, 0, "c")]) == [
        Change(3, 0, 3, 1, "b"),
        Change(1, 0, 1, 0, "c"),
        Change(0, 1, 0, 2, "a"),
    ]


def test_changes_that_touch_become_one() -> None:
    batch = [Change(1, 0, 2, 0, "x", 5), Change(2, 0, 2, 3, "y"), Change(1, 0, 1, 0, "w")]
    assert last_to_first(batch) == [Change(1, 0, 2, 3, "wxy")]


def test_of_two_that_overlap_the_later_is_named() -> None:
    with pytest.raises(EventRefused) as caught:
        last_to_first([Change(0, 2, 0, 2, "x"), Change(5, 0, 5, 0, ""), Change(0, 1, 0, 3, "")])
    assert (caught.value.code, caught.value.change_index) == (ErrorCode.BAD_CHANGE, 0)
    assert caught.value.message == "it starts at 0:2 within another that ends at 0:3"


def test_nothing_gives_nothing() -> None:
    assert last_to_first([]) == []
