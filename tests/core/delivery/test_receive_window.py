from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from streamctx.core.delivery.receive_window import ReceiveWindow, Verdict
from streamctx.errors import CloseCode, ErrorCode, LocalProtocolError, RemoteProtocolError
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import INTEGER_MAX

__all__: list[str] = []

LIMITS = replace(
    DEFAULT_LIMITS,
    part_text_bytes_max=9,
    frame_bytes_max=10,
    window_events_max=3,
    window_bytes_max=30,
    reorder_events_max=3,
    reorder_bytes_max=30,
    reorder_span_max=8,
    digest_history=4,
)


def _digest(sequence: int, variant: int = 0) -> bytes:
    return (sequence * 256 + variant).to_bytes(8, "big")


def _receive(
    window: ReceiveWindow[str],
    sequence: int,
    *,
    variant: int = 0,
    size_bytes: int = 1,
    ordered: bool = True,
) -> Verdict:
    return window.receive(
        sequence, _digest(sequence, variant), f"item {sequence}", size_bytes, ordered=ordered
    )


def _released(window: ReceiveWindow[str]) -> list[int]:
    return [sequence for sequence, _ in window.release()]


def _window(*received: int, limits: Limits = LIMITS) -> ReceiveWindow[str]:
    window: ReceiveWindow[str] = ReceiveWindow(limits)
    for sequence in received:
        _receive(window, sequence)
        list(window.release())
    return window


def test_frames_in_order_are_accepted_and_leave_nothing_behind() -> None:
    window: ReceiveWindow[str] = ReceiveWindow(LIMITS)
    for sequence in range(1, 300):
        assert _receive(window, sequence) is Verdict.ACCEPT
        assert not window.has_gap
        assert not window.has_ready
    assert window.expected == 300
    assert window.known_stop == 300
    assert window.missing() == []
    assert window.selective_ranges(9) == []
    assert window.held_count == 0


@pytest.mark.parametrize("unordered", [(), (1,), (4,), (2, 5), (1, 3, 6), (1, 2, 3, 4, 5, 6)], ids=str)
def test_all_orders_of_six_events_apply_ordered_ones_in_order_and_each_once(
    unordered: tuple[int, ...],
) -> None:
    limits = replace(LIMITS, reorder_events_max=8)
    for order in itertools.permutations(range(1, 7)):
        window: ReceiveWindow[str] = ReceiveWindow(limits)
        applied: list[int] = []
        for sequence in order:
            verdict = _receive(window, sequence, ordered=sequence not in unordered)
            if verdict in (Verdict.ACCEPT, Verdict.APPLY_NOW):
                applied.append(sequence)
            else:
                assert verdict is Verdict.HELD
            applied += _released(window)
            assert sequence not in unordered or sequence in applied
        assert sorted(applied) == [1, 2, 3, 4, 5, 6], order
        ordered = [sequence for sequence in applied if sequence not in unordered]
        assert ordered == sorted(ordered), order
        assert window.expected == 7
        assert not window.has_gap
        assert window.held_bytes == 0


def test_a_held_item_comes_out_with_its_content_once_the_gap_is_closed() -> None:
    window = _window(2, 3)
    assert window.next_ready() is None
    assert _receive(window, 1) is Verdict.ACCEPT
    assert window.has_ready
    assert list(window.release()) == [(2, "item 2"), (3, "item 3")]
    assert list(window.release()) == []


def test_a_release_that_was_broken_off_goes_on_where_it_stopped() -> None:
    window = _window(2, 3)
    _receive(window, 1)
    assert next(window.release()) == (2, "item 2")
    assert _released(window) == [3]


def test_a_frame_before_the_release_was_drained_is_a_local_error() -> None:
    window = _window(2)
    _receive(window, 1)
    with pytest.raises(LocalProtocolError, match="drained"):
        _receive(window, 3)
    assert window.expected == 3
    assert _released(window) == [2]
    assert _receive(window, 3) is Verdict.ACCEPT


def test_an_unordered_event_applies_over_a_gap_and_does_not_release_what_waits() -> None:
    window = _window(2)
    assert _receive(window, 3, ordered=False) is Verdict.APPLY_NOW
    assert _released(window) == []
    assert window.selective_ranges(9) == [(2, 4)]
    assert window.missing() == [(1, 2)]


def test_a_duplicate_changes_nothing_and_is_counted() -> None:
    window = _window(1, 3)
    for sequence in (1, 3):
        assert _receive(window, sequence) is Verdict.DUPLICATE
    assert window.expected == 2
    assert window.counters.duplicates == 2
    assert window.held_count == 1


def test_other_content_under_a_known_number_is_a_conflict_and_changes_nothing() -> None:
    window = _window(1, 3)
    for sequence in (1, 3):
        assert _receive(window, sequence, variant=1) is Verdict.CONFLICT
    assert window.counters.conflicts == 2
    _receive(window, 2)
    assert list(window.release()) == [(3, "item 3")]


def test_the_digests_of_the_last_numbers_are_remembered_and_no_more() -> None:
    window = _window(*range(1, 9))
    assert _receive(window, 5, variant=1) is Verdict.CONFLICT
    assert _receive(window, 4, variant=1) is Verdict.DUPLICATE


def test_digests_are_remembered_however_long_the_history_is() -> None:
    window = _window(*range(1, 1001), limits=replace(DEFAULT_LIMITS, digest_history=1024))
    assert {_receive(window, sequence, variant=1) for sequence in range(1, 1001)} == {Verdict.CONFLICT}


def test_digests_of_frames_far_ahead_are_remembered() -> None:
    window: ReceiveWindow[str] = ReceiveWindow(DEFAULT_LIMITS)
    assert _receive(window, 5000) is Verdict.HELD
    assert _receive(window, 4000) is Verdict.HELD
    assert _receive(window, 5000, variant=1) is Verdict.CONFLICT
    assert _receive(window, 4000, variant=1) is Verdict.CONFLICT


def test_a_late_frame_does_not_displace_the_digest_of_a_newer_one() -> None:
    window = _window(2, 5, 1)
    assert _receive(window, 5, variant=1) is Verdict.CONFLICT
    assert _receive(window, 1, variant=1) is Verdict.DUPLICATE


def test_a_frame_beyond_the_event_bound_is_dropped_and_missing_still() -> None:
    window = _window(2, 3)
    assert _receive(window, 4) is Verdict.HELD
    assert _receive(window, 5) is Verdict.OVERFLOW
    assert window.selective_ranges(9) == [(2, 5)]
    assert window.missing() == [(1, 2), (5, 6)]
    assert window.counters.overflowed == 1
    _receive(window, 1)
    assert _released(window) == [2, 3, 4]
    assert _receive(window, 5) is Verdict.ACCEPT


def test_a_frame_beyond_the_byte_bound_is_dropped() -> None:
    window: ReceiveWindow[str] = ReceiveWindow(LIMITS)
    assert _receive(window, 2, size_bytes=20) is Verdict.HELD
    assert _receive(window, 3, size_bytes=11) is Verdict.OVERFLOW
    assert _receive(window, 3, size_bytes=10) is Verdict.HELD
    assert window.held_bytes == 30


def test_an_unordered_event_needs_no_room() -> None:
    window = _window(2, 3, 4)
    assert _receive(window, 5, ordered=False) is Verdict.APPLY_NOW


def test_it_is_full_when_the_largest_frame_would_not_fit() -> None:
    by_bytes: ReceiveWindow[str] = ReceiveWindow(LIMITS)
    by_count: ReceiveWindow[str] = ReceiveWindow(LIMITS)
    seen = []
    for sequence, size_bytes in ((2, 20), (3, 1)):
        _receive(by_bytes, sequence, size_bytes=size_bytes)
        seen.append(by_bytes.is_full)
    for sequence in (2, 3, 4):
        _receive(by_count, sequence)
        seen.append(by_count.is_full)
    assert seen == [False, True, False, False, True]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_frame_beyond_the_span_is_refused(ordered: bool) -> None:
    window = _window(1)
    with pytest.raises(RemoteProtocolError, match="sequence 11 is 9 ahead, limit 8") as refused:
        _receive(window, 11, ordered=ordered)
    assert (refused.value.code, refused.value.close_code) == (ErrorCode.BAD_SEQUENCE, CloseCode.BAD_FRAME)
    assert not window.has_gap
    assert _receive(window, 10, ordered=ordered) in (Verdict.HELD, Verdict.APPLY_NOW)


@pytest.mark.parametrize("sequence", [-1, 0, INTEGER_MAX + 1])
def test_a_number_out_of_range_is_refused(sequence: int) -> None:
    with pytest.raises(RemoteProtocolError, match="out of range"):
        _window().receive(sequence, b"", "", 0, ordered=True)


def test_a_skip_closes_a_gap_and_releases_what_waited() -> None:
    window = _window(1, 4)
    assert window.skip(2, 4) == [(2, 4)]
    assert _released(window) == [4]
    assert window.expected == 5
    assert window.counters.skipped == 2


def test_a_skip_never_discards_a_held_item() -> None:
    window = _window(3)
    assert window.skip(1, 6) == [(1, 3), (4, 6)]
    assert list(window.release()) == [(3, "item 3")]
    assert window.expected == 6


def test_a_skip_is_idempotent() -> None:
    window = _window(1, 4)
    window.skip(2, 3)
    assert window.skip(2, 3) == []
    assert window.skip(1, 2) == []
    assert window.counters.skipped == 1
    assert window.missing() == [(3, 4)]


def test_a_skip_above_a_gap_is_remembered_and_is_no_sign_of_the_gap() -> None:
    window = _window()
    assert window.skip(3, 5) == [(3, 5)]
    assert window.missing() == []
    assert window.known_stop == 5
    assert _receive(window, 1) is Verdict.ACCEPT
    assert _receive(window, 2) is Verdict.ACCEPT
    assert window.expected == 5
    assert _receive(window, 5) is Verdict.ACCEPT


def test_a_skipped_frame_that_comes_late_is_a_duplicate() -> None:
    window = _window()
    window.skip(1, 2)
    assert _receive(window, 1) is Verdict.DUPLICATE


def test_a_skip_may_reach_as_far_as_a_frame_and_no_further() -> None:
    window = _window()
    with pytest.raises(RemoteProtocolError, match="reaches 9 ahead, limit 8"):
        window.skip(1, 11)
    assert window.expected == 1
    assert window.skip(1, 10) == [(1, 10)]
    assert window.expected == 10


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (2, 2), (3, 2)])
def test_a_skip_that_is_no_range_is_refused(start: int, stop: int) -> None:
    with pytest.raises(RemoteProtocolError, match="empty or begins below 1"):
        _window().skip(start, stop)


def test_lost_numbers_count_as_present_and_are_returned_to_be_announced() -> None:
    window = _window(3, 5)
    assert window.lose(1, 6) == [(1, 3), (4, 5)]
    assert _released(window) == [3, 5]
    assert window.counters.lost == 3
    assert window.counters.skipped == 0
    assert window.lose(1, 6) == []


def test_only_numbers_that_were_used_can_be_lost() -> None:
    window = _window(1)
    window.announce_next(4)
    with pytest.raises(LocalProtocolError, match="cannot be lost"):
        window.lose(2, 5)
    assert window.lose(2, 4) == [(2, 4)]


def test_an_announcement_makes_the_tail_missing() -> None:
    window = _window(1)
    window.announce_next(2)
    assert window.missing() == []
    window.announce_next(4)
    assert window.has_gap
    assert window.missing() == [(2, 4)]
    window.announce_next(3)
    assert window.known_stop == 4
    assert _receive(window, 2) is Verdict.ACCEPT
    assert window.missing() == [(3, 4)]


def test_what_a_new_connection_sends_again_is_missing_only_when_something_behind_it_has_come() -> None:
    window = _window(1, 4)
    assert window.missing() == [(2, 4)]
    window.restart(8)
    assert window.missing() == []
    assert not window.has_gap
    assert window.known_stop == 8
    assert window.absent_within(1, 100) == [(2, 4), (5, 8)]
    assert _receive(window, 2) is Verdict.ACCEPT
    assert window.missing() == []
    assert _receive(window, 5) is Verdict.HELD
    assert window.missing() == [(3, 4)]
    window.announce_next(8)
    assert window.missing() == [(3, 4), (6, 8)]


def test_what_a_liar_announces_is_missing_within_the_span_only() -> None:
    window = _window(2)
    window.announce_next(INTEGER_MAX + 1)
    assert window.missing() == [(1, 2), (3, 10)]
    for next_sequence in (0, INTEGER_MAX + 2):
        with pytest.raises(RemoteProtocolError, match="out of range"):
            window.announce_next(next_sequence)


def test_at_most_so_many_selective_ranges_are_given_lowest_first() -> None:
    window = _window(3, 5, 7)
    assert window.selective_ranges(2) == [(3, 4), (5, 6)]
    assert window.selective_ranges(3) == [(3, 4), (5, 6), (7, 8)]
