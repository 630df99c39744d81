from __future__ import annotations

from collections.abc import Hashable

import pytest

from streamctx.core.delivery.retransmit_ring import Answer, RetransmitRing
from streamctx.errors import CloseCode, ErrorCode, LocalProtocolError, RemoteProtocolError

__all__: list[str] = []


def _ring(*, events_max: int = 100, bytes_max: int = 10_000) -> RetransmitRing:
    return RetransmitRing(events_max=events_max, bytes_max=bytes_max)


def _record(
    ring: RetransmitRing,
    *,
    now: float = 0.0,
    size_bytes: int = 10,
    key: Hashable | None = None,
    durable: bool = True,
) -> int:
    sequence = ring.next_sequence
    ring.record(sequence, f"frame {sequence}", size_bytes, now, key=key, durable=durable)
    return sequence


def _ring_of(count: int) -> RetransmitRing:
    """A ring with durable frames, the n-th sent at instant n."""
    ring = _ring()
    for number in range(1, count + 1):
        _record(ring, now=float(number))
    return ring


def _ask(ring: RetransmitRing, *ranges: tuple[int, int], now: float = 100.0, bytes_max: int = 1000) -> Answer:
    return ring.frames_for(ranges, now, 0.01, bytes_max)


def _numbers(answer: Answer) -> list[int]:
    return [sequence for sequence, _ in answer.frames]


def test_what_was_recorded_is_sent_again_unchanged() -> None:
    ring = _ring()
    frame = b"\x00\x01"
    ring.record(1, frame, 2, 0.0, key=None, durable=True)
    answer = _ask(ring, (1, 2))
    assert answer == Answer([(1, frame)], [], is_unsent=False)
    assert answer.frames[0][1] is frame


@pytest.mark.parametrize("sequence", [1, 3])
def test_frames_are_recorded_in_number_order_only(sequence: int) -> None:
    ring = _ring_of(1)
    with pytest.raises(LocalProtocolError, match=f"recorded sequence {sequence}, expected 2"):
        ring.record(sequence, b"", 0, 0.0, key=None, durable=True)
    assert ring.next_sequence == 2


def test_it_holds_as_many_bytes_as_allowed_and_no_more() -> None:
    ring = _ring(bytes_max=20)
    assert ring.has_room(20)
    assert not ring.has_room(21)
    _record(ring, size_bytes=15)
    with pytest.raises(LocalProtocolError, match="no room for 6 bytes beside 15, limit 20"):
        _record(ring, size_bytes=6)
    assert (ring.next_sequence, len(ring), ring.held_bytes, ring.in_flight_events) == (2, 1, 15, 1)
    _record(ring, size_bytes=5)


def test_it_holds_as_many_events_as_allowed_and_no_more() -> None:
    ring = _ring(events_max=2)
    _record(ring)
    assert ring.has_room(1)
    _record(ring)
    assert not ring.has_room(1)
    with pytest.raises(LocalProtocolError, match="more than 2 events, limit 2"):
        _record(ring)
    ring.acknowledge(2, [], 2)
    _record(ring)


def test_a_superseded_frame_takes_an_event_until_it_is_received() -> None:
    ring = _ring(events_max=2)
    _record(ring, key="cursor", durable=False)
    _record(ring, key="cursor", durable=False)
    assert len(ring) == 1
    assert not ring.has_room(1)
    ring.acknowledge(2, [], 2)
    assert ring.has_room(1)


def test_a_durable_frame_is_kept_until_it_is_released() -> None:
    ring = _ring_of(3)
    ring.acknowledge(4, [], 2)
    assert (ring.received, ring.released, len(ring), ring.held_bytes) == (4, 2, 2, 20)
    assert (ring.in_flight_events, ring.in_flight_bytes) == (0, 0)
    ring.acknowledge(4, [], 4)
    assert (len(ring), ring.held_bytes) == (0, 0)


def test_a_supersedable_frame_is_freed_once_received() -> None:
    ring = _ring()
    _record(ring, key="cursor", durable=False)
    _record(ring, key="view", durable=False)
    _record(ring)
    ring.acknowledge(1, [(2, 4)], 1)
    assert len(ring) == 2
    ring.acknowledge(2, [], 1)
    assert (ring.received, len(ring)) == (4, 1)
    ring.acknowledge(4, [], 4)
    assert len(ring) == 0


def test_a_selectively_acknowledged_frame_is_not_sent_again_and_not_freed() -> None:
    ring = _ring_of(4)
    ring.acknowledge(2, [(3, 4)], 2)
    assert (ring.in_flight_events, ring.in_flight_bytes) == (2, 20)
    assert _numbers(_ask(ring, (1, 5))) == [2, 4]
    assert (len(ring), ring.held_bytes) == (3, 30)
    assert ring.unreceived() == [(2, 3), (4, 5)]
    ring.acknowledge(5, [], 5)
    assert (len(ring), ring.in_flight_events) == (0, 0)


def test_a_selective_range_may_continue_the_watermark() -> None:
    ring = _ring_of(4)
    ring.acknowledge(2, [(2, 4)], 2)
    assert ring.received == 4
    assert ring.unreceived() == [(4, 5)]


def test_an_older_acknowledgement_changes_nothing() -> None:
    ring = _ring_of(3)
    ring.acknowledge(4, [], 3)
    assert ring.acknowledge(2, [(2, 3)], 1) is None
    assert (ring.received, ring.released, len(ring), ring.in_flight_events) == (4, 3, 1, 0)


@pytest.mark.parametrize(
    ("received", "ranges", "release_below"),
    [(5, [], 1), (1, [(2, 5)], 1), (1, [(3, 3)], 1), (1, [(3, 2)], 1), (1, [(0, 2)], 1), (2, [], 3)],
)
def test_an_acknowledgement_of_what_was_never_sent_is_refused(
    received: int, ranges: list[tuple[int, int]], release_below: int
) -> None:
    ring = _ring_of(3)
    with pytest.raises(RemoteProtocolError) as refused:
        ring.acknowledge(received, ranges, release_below)
    assert (refused.value.code, refused.value.close_code) == (ErrorCode.BAD_SEQUENCE, CloseCode.BAD_FRAME)
    assert (ring.received, ring.in_flight_events, len(ring)) == (1, 3, 3)
    ring.acknowledge(4, [(2, 4)], 4)


def test_the_round_trip_is_sampled_from_the_highest_frame_newly_received() -> None:
    ring = _ring_of(6)
    assert ring.acknowledge(3, [], 3) == 2.0
    assert ring.acknowledge(3, [(4, 5), (6, 7)], 3) == 6.0
    assert ring.acknowledge(3, [(4, 5), (6, 7)], 3) is None
    assert ring.acknowledge(7, [], 7) == 5.0


def test_a_frame_sent_at_the_zero_of_the_clock_gives_a_sample() -> None:
    ring = _ring()
    _record(ring, now=-1.0)
    _record(ring, now=0.0)
    assert ring.acknowledge(2, [(2, 3)], 2) == 0.0


def test_a_retransmitted_frame_gives_no_sample() -> None:
    ring = _ring_of(3)
    _ask(ring, (2, 4))
    assert ring.acknowledge(3, [], 3) == 1.0
    assert ring.acknowledge(4, [], 4) is None


def test_a_frame_is_sent_again_at_most_once_while_the_answer_lingers() -> None:
    ring = _ring_of(2)
    assert _numbers(ring.frames_for([(1, 2)], 1.0, 0.5, 1000)) == [1]
    assert _numbers(ring.frames_for([(1, 3)], 1.25, 0.5, 1000)) == [2]
    assert _numbers(ring.frames_for([(1, 2)], 1.49, 0.5, 1000)) == []
    assert _numbers(ring.frames_for([(1, 2)], 1.5, 0.5, 1000)) == [1]


def test_an_answer_is_bounded_in_bytes_and_the_rest_is_left_to_ask_for() -> None:
    ring = _ring_of(5)
    assert _numbers(_ask(ring, (1, 6), bytes_max=29)) == [1, 2]
    assert _numbers(_ask(ring, (1, 6), bytes_max=30)) == [3, 4, 5]


def test_one_frame_is_sent_again_however_large() -> None:
    assert _numbers(_ask(_ring_of(2), (1, 3), bytes_max=1)) == [1]


def test_numbers_not_yet_sent_are_reported() -> None:
    ring = _ring_of(2)
    assert not _ask(ring, (2, 3)).is_unsent
    answer = _ask(ring, (1, 2), (3, 2**53), now=200.0)
    assert answer == Answer([(1, "frame 1")], [], is_unsent=True)


def test_ranges_that_overlap_are_answered_once() -> None:
    assert _numbers(_ask(_ring_of(4), (2, 4), (1, 3), (3, 4))) == [1, 2, 3]


@pytest.mark.parametrize("asked", [(0, 2), (2, 2), (3, 2)])
def test_a_request_that_is_no_range_is_refused(asked: tuple[int, int]) -> None:
    with pytest.raises(RemoteProtocolError, match="was asked for"):
        _ask(_ring_of(3), asked)


def test_a_newer_frame_of_a_key_supersedes_the_older_one() -> None:
    ring = _ring()
    _record(ring, key="cursor", durable=False)
    _record(ring, key="view", durable=False)
    _record(ring, key="cursor", durable=False)
    assert (len(ring), ring.held_bytes) == (2, 20)
    assert (ring.in_flight_events, ring.in_flight_bytes) == (3, 30)
    assert _ask(ring, (1, 4)) == Answer([(2, "frame 2"), (3, "frame 3")], [(1, 2)], is_unsent=False)
    assert _ask(ring, (1, 4), now=200.0).gone == [(1, 2)]


def test_a_key_is_superseded_before_its_newer_value_is_sent() -> None:
    ring = _ring()
    _record(ring, key="cursor", durable=False)
    ring.supersede("cursor", 1)
    assert len(ring) == 1
    ring.supersede("cursor", 2)
    ring.supersede("cursor", 2)
    ring.supersede("view", 2)
    assert (len(ring), ring.held_bytes) == (0, 0)
    assert _ask(ring, (1, 2)).gone == [(1, 2)]
    _record(ring, key="cursor", durable=False)
    assert _numbers(_ask(ring, (1, 3), now=200.0)) == [2]


def test_a_received_frame_cannot_be_superseded() -> None:
    ring = _ring()
    _record(ring, key="cursor", durable=False)
    ring.acknowledge(2, [], 2)
    ring.supersede("cursor", 2)
    assert (len(ring), ring.held_bytes, ring.in_flight_events) == (0, 0, 0)


def test_durable_frames_do_not_supersede_each_other() -> None:
    ring = _ring()
    _record(ring, key="document")
    _record(ring, key="document")
    ring.supersede("document", 3)
    assert _numbers(_ask(ring, (1, 3))) == [1, 2]


def test_evicted_frames_are_gone_and_those_received_are_not_announced() -> None:
    ring = _ring()
    for key in ("a", "b", "a", "a", "b"):
        _record(ring, key=key)
    _record(ring, key="a", durable=False)
    ring.acknowledge(2, [], 1)
    assert ring.evict(lambda sequence, key: key == "a" and sequence < 9) == [(3, 5), (6, 7)]
    assert (len(ring), ring.held_bytes) == (2, 20)
    assert (ring.in_flight_events, ring.in_flight_bytes) == (5, 50)
    assert ring.evict(lambda _, key: key == "a") == []
    answer = _ask(ring, (1, 7))
    assert (_numbers(answer), answer.gone) == ([2, 5], [(3, 5), (6, 7)])
    _record(ring, key="a", durable=False)
    ring.acknowledge(8, [], 8)
    assert (len(ring), ring.held_bytes, ring.in_flight_events, ring.in_flight_bytes) == (0, 0, 0, 0)


def test_a_resume_returns_all_that_the_peer_lacks_in_order() -> None:
    ring = _ring_of(3)
    _record(ring, key="cursor", durable=False)
    _record(ring, key="cursor", durable=False)
    answer = ring.resume(2, [(3, 4)], 50.0)
    assert answer == Answer([(2, "frame 2"), (5, "frame 5")], [(4, 5)], is_unsent=False)
    assert (ring.received, ring.in_flight_events, ring.in_flight_bytes) == (2, 3, 30)
    assert ring.frames_for([(2, 6)], 50.0, 0.01, 1000).frames == []
    assert ring.acknowledge(6, [], 6) is None


def test_a_resume_takes_back_what_was_received_and_not_released() -> None:
    ring = _ring_of(2)
    _record(ring, key="cursor", durable=False)
    _record(ring)
    ring.acknowledge(5, [], 2)
    answer = ring.resume(2, [], 50.0)
    assert (_numbers(answer), answer.gone) == ([2, 4], [(3, 4)])
    assert (ring.received, ring.in_flight_events) == (2, 2)
    ring.acknowledge(5, [], 5)
    assert (len(ring), ring.in_flight_events, ring.in_flight_bytes) == (0, 0, 0)


def test_a_resume_below_what_was_released_reports_it_as_gone() -> None:
    ring = _ring_of(3)
    ring.acknowledge(4, [], 3)
    answer = ring.resume(1, [], 50.0)
    assert (_numbers(answer), answer.gone) == ([3], [(1, 3)])
    assert _ask(ring, (1, 3)).gone == [(1, 3)]
    ring.acknowledge(4, [], 4)
    assert (ring.received, len(ring)) == (4, 0)


def test_a_resume_frees_what_turns_out_to_be_received() -> None:
    ring = _ring_of(1)
    _record(ring, key="cursor", durable=False)
    _record(ring, key="cursor", durable=False)
    assert ring.resume(4, [], 50.0) == Answer([], [], is_unsent=False)
    assert (len(ring), ring.held_bytes, ring.in_flight_events) == (1, 10, 0)
    ring.supersede("cursor", 4)


def test_resuming_twice_gives_the_same_answer() -> None:
    ring = _ring_of(3)
    assert ring.resume(2, [], 50.0) == ring.resume(2, [], 50.0)


@pytest.mark.parametrize(("received", "ranges"), [(0, []), (5, []), (1, [(2, 5)])])
def test_a_resume_at_what_was_never_sent_is_refused(received: int, ranges: list[tuple[int, int]]) -> None:
    ring = _ring_of(3)
    with pytest.raises(RemoteProtocolError):
        ring.resume(received, ranges, 0.0)
    assert (ring.received, ring.in_flight_events) == (1, 3)


def test_a_new_epoch_starts_from_one_with_nothing_held() -> None:
    ring = _ring_of(3)
    ring.acknowledge(2, [(3, 4)], 2)
    ring.reset()
    assert (ring.next_sequence, ring.received, ring.released) == (1, 1, 1)
    assert (len(ring), ring.held_bytes, ring.in_flight_events, ring.in_flight_bytes) == (0, 0, 0, 0)
    assert ring.unreceived() == []
    _record(ring, now=1.0)
    assert ring.acknowledge(2, [], 2) == 1.0


def test_what_the_peer_has_given_up_is_returned_while_it_is_held_and_once() -> None:
    ring = _ring_of(5)
    ring.acknowledge(2, [(3, 4)], 2)
    assert ring.given_up([(4, 5), (1, 3)]) == [(2, "frame 2"), (4, "frame 4")]
    assert ring.given_up([(4, 5), (1, 3)]) == []
    assert ring.given_up([(4, 6)]) == [(5, "frame 5")]
    ring.acknowledge(6, [], 6)
    assert ring.given_up([(1, 6)]) == []


def test_what_was_received_and_is_not_safe_yet_can_be_given_up() -> None:
    ring = _ring_of(3)
    ring.acknowledge(4, [], 2)
    assert ring.given_up([(1, 4)]) == [(2, "frame 2"), (3, "frame 3")]


def test_a_superseded_frame_that_the_peer_has_given_up_is_not_returned() -> None:
    ring = _ring()
    for _ in range(2):
        _record(ring, key="cursor", durable=False)
    assert ring.given_up([(1, 3)]) == [(2, "frame 2")]


@pytest.mark.parametrize("ranges", [[(1, 2), (3, 5)], [(1, 2), (0, 1)], [(1, 2), (3, 3)], [(1, 2**53 - 1)]])
def test_numbers_that_were_never_sent_cannot_be_given_up(ranges: list[tuple[int, int]]) -> None:
    ring = _ring_of(3)
    with pytest.raises(RemoteProtocolError) as raised:
        ring.given_up(ranges)
    assert raised.value.code is ErrorCode.BAD_SEQUENCE
    assert ring.given_up([(1, 2)]) == [(1, "frame 1")]
