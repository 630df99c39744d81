from __future__ import annotations

import pytest

from streamctx.core.delivery.coalescer import Coalescer

__all__: list[str] = []


def _coalescer(keys_max: int = 3) -> Coalescer[str, int]:
    return Coalescer(keys_max)


def _pop_all(coalescer: Coalescer[str, int]) -> list[tuple[str, int]]:
    popped = []
    while (entry := coalescer.pop()) is not None:
        popped.append(entry)
    return popped


def test_the_latest_value_of_a_key_comes_out_once() -> None:
    coalescer = _coalescer()
    for value in range(5):
        coalescer.put("a", value)
    assert _pop_all(coalescer) == [("a", 4)]
    assert not coalescer.has_dirty


def test_a_value_put_after_the_pop_comes_out_too() -> None:
    coalescer = _coalescer()
    coalescer.put("a", 1)
    coalescer.pop()
    coalescer.put("a", 2)
    assert coalescer.has_dirty
    assert _pop_all(coalescer) == [("a", 2)]


def test_keys_come_out_in_the_order_in_which_they_became_dirty() -> None:
    coalescer = _coalescer()
    coalescer.put("a", 1)
    coalescer.put("b", 2)
    coalescer.put("a", 3)
    assert coalescer.pop() == ("a", 3)
    coalescer.put("a", 4)
    assert coalescer.dirty_count == 2
    assert _pop_all(coalescer) == [("b", 2), ("a", 4)]


def test_all_present_values_come_out_again_dirty_ones_first() -> None:
    coalescer = _coalescer()
    coalescer.put("a", 1)
    coalescer.put("b", 2)
    _pop_all(coalescer)
    coalescer.put("c", 3)
    assert coalescer.current() == [("c", 3), ("a", 1), ("b", 2)]
    coalescer.mark_all_dirty()
    assert _pop_all(coalescer) == [("c", 3), ("a", 1), ("b", 2)]
    assert len(coalescer) == 3


def test_a_forgotten_key_is_gone_whether_dirty_or_clean() -> None:
    coalescer = _coalescer()
    coalescer.put("a", 1)
    coalescer.pop()
    coalescer.put("b", 2)
    for key in ("a", "b", "never put"):
        coalescer.forget(key)
    assert coalescer.current() == []


def test_keys_are_forgotten_by_predicate() -> None:
    coalescer = _coalescer()
    coalescer.put("a1", 1)
    coalescer.pop()
    coalescer.put("a2", 2)
    coalescer.put("b1", 3)
    coalescer.forget_where(lambda key: key.startswith("a"))
    assert coalescer.current() == [("b1", 3)]


def test_beyond_the_bound_the_key_that_was_clean_longest_makes_room() -> None:
    coalescer = _coalescer()
    for key in "abc":
        coalescer.put(key, 1)
    _pop_all(coalescer)
    coalescer.put("a", 2)
    _pop_all(coalescer)
    assert coalescer.forgotten == 0
    coalescer.put("d", 3)
    assert coalescer.current() == [("d", 3), ("c", 1), ("a", 2)]
    assert (coalescer.forgotten, coalescer.dropped) == (1, 0)


def test_a_known_key_needs_no_room() -> None:
    coalescer = _coalescer()
    for key in "abc":
        coalescer.put(key, 1)
    coalescer.pop()
    coalescer.put("a", 2)
    coalescer.put("b", 2)
    assert coalescer.current() == [("b", 2), ("c", 1), ("a", 2)]
    assert (coalescer.forgotten, coalescer.dropped) == (0, 0)


def test_if_no_key_is_clean_the_one_dirty_longest_is_dropped_and_counted() -> None:
    coalescer = _coalescer()
    for key in "abcd":
        coalescer.put(key, 1)
    assert [key for key, _ in _pop_all(coalescer)] == ["b", "c", "d"]
    assert (coalescer.forgotten, coalescer.dropped) == (0, 1)


def test_a_bound_of_no_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="keys_max is 0"):
        Coalescer[str, int](0)
    one = _coalescer(1)
    one.put("a", 1)
    assert one.pop() == ("a", 1)


def test_one_value_comes_out_once_more_if_it_is_there_and_was_popped() -> None:
    coalescer = _coalescer()
    for key in "ab":
        coalescer.put(key, 1)
    coalescer.pop()
    for key in "abc":
        coalescer.mark_dirty(key)
    assert _pop_all(coalescer) == [("b", 1), ("a", 1)]
