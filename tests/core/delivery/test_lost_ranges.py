from __future__ import annotations

from streamctx.core.delivery.lost_ranges import LOST_RANGES_MAX, LostRanges

__all__: list[str] = []


def test_a_range_is_told_until_a_number_is_used_that_the_limit_did_not_allow() -> None:
    lost = LostRanges()
    lost.add(1, 3, limit=10)
    lost.add(5, 6, limit=12)
    assert lost.to_tell(10) == ((1, 3), (5, 6))
    assert lost.to_tell(11) == ((5, 6),)
    assert lost.to_tell(12) == ((5, 6),)
    assert lost.to_tell(13) == ()
    assert not lost


def test_what_a_welcome_allows_shows_nothing() -> None:
    lost = LostRanges()
    lost.add(1, 3, limit=10)
    lost.expect_welcome(20)
    lost.add(5, 6, limit=15)
    assert lost.to_tell(20) == ((1, 3), (5, 6))
    assert lost.to_tell(21) == ()


def test_what_is_restored_is_told_until_the_limit_of_the_welcome_is_passed() -> None:
    lost = LostRanges()
    lost.restore([(1, 3)])
    assert lost.to_tell(1_000_000) == ((1, 3),)
    lost.expect_welcome(20)
    assert lost.to_tell(20) == ((1, 3),)
    assert lost.to_tell(21) == ()


def test_the_first_are_forgotten_where_there_are_more_than_a_message_takes() -> None:
    lost = LostRanges()
    ranges = [(number, number + 1) for number in range(1, 2 * LOST_RANGES_MAX + 3, 2)]
    for start, stop in ranges[:-1]:
        lost.add(start, stop, limit=1)
    assert lost.to_tell(1) == tuple(ranges[:-1])
    lost.add(*ranges[-1], limit=1)
    assert lost.to_tell(1) == tuple(ranges[1:])
