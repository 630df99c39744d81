from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from streamctx.core.session.delivery import GivenUp, Item, TooLarge
from streamctx.core.session.outbox_journal import OutboxJournal
from streamctx.core.session.outbox_records import FrameSent, FramesEvicted, Marks
from streamctx.errors import CloseCode, RemoteProtocolError
from streamctx.limits import DEFAULT_LIMITS
from streamctx.vocabulary import INTEGER_MAX, Encoding
from streamctx.wire.codec import Malformed, UnknownType, client_decoder
from streamctx.wire.frames import pack_frame
from streamctx.wire.messages import Ack, Heartbeat, Message, Nack, Open, Skip
from tests.core.session.ends import DIGEST, LIMITS, End, cursor, frame, only, read, save

__all__: list[str] = []


def ack(
    received: int,
    *,
    applied: int | None = None,
    durable: int | None = None,
    limit: int = 100,
    ranges: tuple[tuple[int, int], ...] = (),
    lost: tuple[tuple[int, int], ...] = (),
) -> Ack:
    applied = received if applied is None else applied
    durable = applied if durable is None else durable
    return Ack(received=received, applied=applied, durable=durable, limit=limit, ranges=ranges, lost=lost)


def heartbeat(next_: int) -> Heartbeat:
    return Heartbeat(next=next_, received=1, applied=1, durable=1, limit=100)


def skip(*ranges: tuple[int, int], evicted: bool = False) -> Skip:
    return Skip(
        ranges=ranges, reason="evicted" if evicted else "superseded", documents=(1,) if evicted else ()
    )


def close_of(end: End, *frames: bytes) -> CloseCode:
    with pytest.raises(RemoteProtocolError) as raised:
        end.receive(*frames)
    return raised.value.close_code


def test_all_frames_of_one_read_are_acknowledged_once_and_last() -> None:
    end = End()
    end.receive(frame(save(1), 1), frame(save(2), 2))
    end.delivery.send(save(9), 0.0)
    assert [type(message) for _, message in end.flush()] == [type(save(9)), Ack]
    assert end.flush() == []


def test_an_acknowledgement_says_what_came_above_a_gap_and_never_goes_back() -> None:
    end = End()
    first = end.answers(frame(save(1), 1), frame(save(3), 3))[-1]
    assert isinstance(first, Ack)
    assert (first.received, first.applied, first.durable, first.ranges) == (2, 2, 2, ((3, 4),))
    second = end.answers(frame(save(1), 1))[-1]
    assert isinstance(second, Ack)
    assert (second.received, second.limit) == (2, first.limit)
    assert first.limit == 2 + LIMITS.window_events_max


def test_what_is_behind_a_gap_is_applied_in_order_once_the_gap_is_closed() -> None:
    end = End()
    assert end.receive(frame(save(3), 3), frame(save(2), 2)) == []
    assert [sequence for sequence, _ in end.receive(frame(save(1), 1))] == [1, 2, 3]


def test_a_supersedable_event_is_applied_over_a_gap_and_not_again() -> None:
    end = End()
    assert [sequence for sequence, _ in end.receive(frame(cursor(1), 2))] == [2]
    assert [sequence for sequence, _ in end.receive(frame(save(1), 1))] == [1]


def test_a_duplicate_changes_nothing_and_is_acknowledged_again() -> None:
    end = End()
    end.answers(frame(save(1), 1))
    assert end.receive(frame(save(1), 1)) == []
    assert isinstance(end.flush()[-1][1], Ack)
    assert end.delivery.duplicates == 1


def test_a_gap_is_asked_for_at_once_and_again_after_two_round_trips() -> None:
    end = End()
    assert only(end.answers(frame(save(2), 2)), Nack) == [((1, 2),)]
    assert only([message for _, message in end.wait(0.19)], Nack) == []
    assert only([message for _, message in end.wait(0.05)], Nack) == [((1, 2),)]


def test_a_heartbeat_tells_of_the_loss_of_the_last_frames_and_is_answered() -> None:
    end = End()
    messages = end.answers(frame(heartbeat(3)))
    assert only(messages, Nack) == [((1, 3),)]
    assert isinstance(messages[-1], Ack)


def test_a_heartbeat_of_ours_tells_the_next_number() -> None:
    end = End()
    end.send(3)
    sent = end.wait(0.21)
    assert [message.next for _, message in sent if isinstance(message, Heartbeat)] == [4]


def test_the_last_frame_of_a_burst_is_looked_for_also_after_an_ack_without_it() -> None:
    end = End()
    end.send(3)
    end.now = 0.01
    end.receive(frame(ack(3)))
    end.flush()
    assert any(isinstance(message, Heartbeat) for _, message in end.wait(0.1))


def test_probes_become_rarer_until_something_is_acknowledged() -> None:
    end = End(limits=replace(LIMITS, send_deadline_s=100.0))
    end.send(1)
    probes = []
    for _ in range(4):
        start = end.now
        while not end.wait(0.01):
            pass
        probes.append(end.now - start)
        end.answers(frame(ack(1)))
    assert probes == sorted(probes)
    assert probes[-1] > 4 * probes[0]


def test_an_idle_connection_has_a_heartbeat_every_fifteen_seconds_and_no_more() -> None:
    end = End()
    assert len(end.wait(44)) == 2


def test_a_silent_peer_is_given_up_after_forty_five_seconds() -> None:
    end = End()
    end.wait(44.9)
    with pytest.raises(RemoteProtocolError) as raised:
        end.wait(0.2)
    assert raised.value.close_code is CloseCode.HEARTBEAT


def test_a_peer_that_acknowledges_nothing_is_cut_off_after_fifteen_seconds() -> None:
    end = End()
    end.send(1)
    end.wait(14.9)
    end.receive(frame(heartbeat(1)))
    with pytest.raises(RemoteProtocolError) as raised:
        end.wait(31)
    assert raised.value.close_code is CloseCode.SLOW


def test_the_same_number_with_other_content_is_a_conflict() -> None:
    end = End()
    end.receive(frame(save(1), 1))
    assert close_of(end, frame(save(2), 1)) is CloseCode.CONFLICT


def test_more_than_half_of_the_last_frames_corrupt_ends_the_connection() -> None:
    end = End()
    bad = bytearray(frame(save(1), 1))
    bad[-1] ^= 1
    for _ in range(32):
        assert end.receive(bytes(bad)) == []
    assert close_of(end, bytes(bad)) is CloseCode.CORRUPTION


def test_every_single_flipped_bit_is_noticed_and_moves_nothing() -> None:
    good = frame(save(1), 1)
    for bit in range(8 * len(good)):
        end = End()
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        assert end.receive(bytes(bad)) == []
        assert end.delivery.expected == 1


def test_a_corrupt_frame_is_evidence_and_asked_for_once_a_round_trip() -> None:
    end = End()
    bad = frame(save(1), 1)[:-1]
    assert only(end.answers(bad, bad), Nack) == [((1, 2),)]


def test_a_full_reorder_buffer_drops_the_newest_and_does_not_acknowledge_it() -> None:
    end = End()
    last = end.answers(*[frame(save(number), number) for number in range(2, 12)])[-1]
    assert isinstance(last, Ack)
    assert last.ranges == ((2, 10),)
    end.receive(frame(save(1), 1))
    assert end.delivery.expected == 10


def test_a_frame_at_the_furthest_number_is_held_and_one_past_it_ends_the_connection() -> None:
    assert End().receive(frame(save(17), 17)) == []
    assert close_of(End(), frame(save(18), 18)) is CloseCode.BAD_FRAME


def test_a_full_buffer_does_not_make_the_furthest_number_an_offence() -> None:
    end = End()
    end.receive(*[frame(save(number), number) for number in range(2, 10)])
    assert end.receive(frame(save(17), 17)) == []


def test_a_skip_of_missing_numbers_lets_through_what_waited() -> None:
    end = End()
    end.receive(frame(save(3), 3))
    assert [sequence for sequence, _ in end.receive(frame(skip((1, 3))))] == [3]
    assert end.delivery.expected == 4


def test_a_skip_never_hides_a_frame_that_is_held_or_was_applied() -> None:
    end = End()
    end.receive(frame(save(2), 2))
    assert [sequence for sequence, _ in end.receive(frame(skip((1, 4))))] == [2]
    assert end.receive(frame(skip((1, 4)))) == []
    assert end.delivery.expected == 4


def test_a_frame_that_was_skipped_is_a_duplicate_when_it_comes_late() -> None:
    end = End()
    end.receive(frame(skip((1, 2))))
    assert end.receive(frame(save(1), 1)) == []


def test_an_evicted_skip_is_handed_up_before_what_it_lets_through_and_only_if_it_was_a_loss() -> None:
    end = End()
    end.receive(frame(save(2), 2))
    items = end.receive(frame(skip((1, 2), evicted=True)))
    assert [type(item) for _, item in items] == [Skip, type(save(2))]
    assert end.receive(frame(skip((1, 2), evicted=True))) == []


def test_a_skip_is_taken_whole_or_not_at_all() -> None:
    end = End()
    assert close_of(end, frame(skip((1, 2), (3, 40)))) is CloseCode.BAD_FRAME
    assert end.delivery.expected == 1


@pytest.mark.parametrize(
    "data",
    [
        frame(save(1)),
        frame(heartbeat(1), 1),
        frame(skip((0, 1))),
        frame(ack(2)),
        frame(ack(1, ranges=((1, 2),))),
        frame(ack(1, applied=2)),
        frame(ack(1, durable=2)),
    ],
)
def test_what_breaks_the_rules_of_numbers_ends_the_connection(data: bytes) -> None:
    assert close_of(End(), data) is CloseCode.BAD_FRAME


def test_a_number_above_the_largest_integer_ends_the_connection() -> None:
    assert close_of(End(), frame(save(1), INTEGER_MAX + 1)) is CloseCode.BAD_FRAME


def test_a_stream_number_on_another_message_means_nothing() -> None:
    assert close_of(End(), frame(heartbeat(1), 1, stream=3)) is CloseCode.BAD_FRAME
    assert End().answers(frame(heartbeat(1), stream=3)) != []
    assert [sequence for sequence, _ in End().receive(frame(cursor(1), 2, stream=3))] == [2]


@pytest.mark.parametrize(("body", "kind"), [(b"\xc1", Malformed), (b"\x81\xa4type\xa3odd", UnknownType)])
def test_a_bad_body_fails_alone_and_consumes_its_number(body: bytes, kind: type[object]) -> None:
    end = End()
    bad = pack_frame(body, encoding=Encoding.MSGPACK, digest=DIGEST, sequence=1)
    ((sequence, item),) = end.receive(bad)
    assert sequence == 1
    assert isinstance(item, kind)
    assert end.delivery.expected == 2


def test_a_frame_at_the_size_limit_is_taken_and_one_byte_more_fails_alone() -> None:
    def of_size(size: int) -> bytes:
        empty = frame(Open(document=1, uri="u", version=1, length=1, hash="h", text="x" * 70_000), 1)
        return frame(
            Open(document=1, uri="u", version=1, length=1, hash="h", text="x" * (size - len(empty) + 70_000)),
            1,
        )

    limit = LIMITS.frame_bytes_max
    ((_, item),) = End().receive(of_size(limit))
    assert isinstance(item, Open)
    end = End()
    ((_, item),) = end.receive(of_size(limit + 1))
    assert isinstance(item, TooLarge)
    assert end.delivery.expected == 2


def test_what_is_asked_for_is_sent_again_byte_for_byte_once_a_round_trip() -> None:
    end = End()
    sent = end.send(3)
    end.now = 1.0
    nack = frame(Nack(ranges=((1, 3),)))
    end.receive(nack, nack)
    assert [data for data in end.delivery.flush(end.now) if read(data)[0]] == sent[:2]
    end.now = 2.0
    end.receive(nack)
    assert [data for data in end.delivery.flush(end.now) if read(data)[0]] == sent[:2]


def test_a_number_that_was_not_sent_yet_is_answered_by_a_heartbeat() -> None:
    end = End()
    messages = end.answers(frame(Nack(ranges=((1, 2),))))
    assert [message.next for message in messages if isinstance(message, Heartbeat)] == [1]


def test_a_superseded_frame_is_answered_by_a_skip() -> None:
    end = End()
    for character in range(2):
        end.delivery.send(cursor(character), 0.0, key="k", durable=False)
    end.flush()
    end.now = 1.0
    messages = end.answers(frame(Nack(ranges=((1, 3),))))
    assert only(messages, Skip) == [((1, 2),)]
    assert [message for message in messages if isinstance(message, type(cursor(1)))] == [cursor(1)]


def test_credit_and_window_are_never_exceeded() -> None:
    end = End()
    end.send(8)
    assert not end.delivery.can_send()
    end.receive(frame(ack(8, limit=9)))
    assert not end.delivery.can_send()
    end.receive(frame(ack(9, limit=10)))
    assert end.delivery.can_send()
    end.send(1)
    assert not end.delivery.can_send()
    end.receive(frame(ack(10, limit=9)))
    assert not end.delivery.can_send()


def test_bytes_under_way_keep_to_the_window() -> None:
    size = len(frame(save(1), 1))
    end = End(
        limits=replace(LIMITS, window_bytes_max=3 * size, frame_bytes_max=2 * size, part_text_bytes_max=1)
    )
    end.send(2)
    assert end.delivery.can_send(size)
    assert not end.delivery.can_send(size + 1)
    end.receive(frame(ack(1, ranges=((2, 3),))))
    assert end.delivery.can_send(2 * size)
    assert not end.delivery.can_send(2 * size + 1)


def test_an_older_ack_changes_nothing() -> None:
    end = End()
    end.send(3)
    end.receive(frame(ack(4)), frame(ack(2)))
    assert end.delivery.is_settled


def test_a_durable_frame_is_kept_until_it_is_durable_where_that_was_promised() -> None:
    for durable, kept in ((False, 0), (True, 1)):
        end = End(durable=durable)
        end.send(1)
        end.receive(frame(ack(2, durable=1)))
        assert end.delivery.kept_events == kept
        end.receive(frame(ack(2)))
        assert end.delivery.kept_events == 0


def test_durable_stays_behind_what_is_not_in_the_journal() -> None:
    end = End()
    end.receive(*[frame(save(number), number) for number in range(1, 4)])
    end.delivery.hold_durable(2)
    assert end.flush() == []
    message = end.wait(LIMITS.ack_delay_s)[-1][1]
    assert isinstance(message, Ack)
    assert (message.received, message.applied, message.durable) == (4, 4, 2)
    assert end.ack().durable == 4


def test_an_acknowledgement_waits_for_what_is_becoming_durable() -> None:
    end = End()
    end.receive(frame(save(1), 1))
    end.delivery.hold_durable(1)
    assert end.flush() == []
    end.receive(frame(save(2), 2))
    assert end.flush() == []
    end.delivery.hold_durable(2)
    (first,) = end.flush()
    assert isinstance(first[1], Ack)
    assert (first[1].received, first[1].durable) == (3, 2)
    end.delivery.hold_durable(None)
    (second,) = end.flush()
    assert isinstance(second[1], Ack)
    assert (second[1].received, second[1].durable) == (3, 3)
    assert end.wait(LIMITS.ack_delay_s) == []


def test_an_acknowledgement_waits_for_what_is_becoming_durable_no_longer_than_it_may() -> None:
    end = End()
    end.receive(frame(save(1), 1))
    end.delivery.hold_durable(1)
    assert end.flush() == []
    due = end.delivery.next_timeout()
    assert due == LIMITS.ack_delay_s
    end.now = due - 0.001
    end.receive(frame(save(2), 2))
    assert end.flush() == []
    end.now = due
    (message,) = end.flush()
    assert isinstance(message[1], Ack)
    assert (message[1].received, message[1].durable) == (3, 1)
    # What comes next begins to wait anew.
    end.receive(frame(save(3), 3))
    assert end.flush() == []
    assert end.delivery.next_timeout() == 2 * LIMITS.ack_delay_s


@pytest.mark.parametrize(
    "arrives", [frame(save(3), 3), frame(heartbeat(2)), frame(heartbeat(9))], ids=["gap", "heartbeat", "lost"]
)
def test_what_repairs_is_answered_at_once_whatever_is_becoming_durable(arrives: bytes) -> None:
    end = End()
    end.receive(frame(save(1), 1))
    end.delivery.hold_durable(1)
    assert end.flush() == []
    end.receive(arrives)
    assert any(isinstance(message, Ack) for _, message in end.flush())


def test_a_resume_sends_what_is_lacking_in_order_and_skips_first_what_is_gone() -> None:
    end = End()
    end.delivery.send(cursor(0), 0.0, key="k", durable=False)
    end.send(1)
    end.delivery.send(cursor(1), 0.0, key="k", durable=False)
    end.flush()
    end.delivery.attach(1.0)
    end.delivery.resume_sending(1, (), 1.0)
    sent = end.flush()
    assert isinstance(sent[0][1], Skip)
    assert [sequence for sequence, _ in sent[1:]] == [2, 3]


def test_what_was_evicted_is_named_with_its_document_until_it_is_acknowledged() -> None:
    end = End()
    end.send(2)
    assert end.delivery.evict(lambda key: 7) == {1, 2}
    messages: list[Message] = [message for _, message in end.flush()]
    assert [
        (message.ranges, message.reason, message.documents)
        for message in messages
        if isinstance(message, Skip)
    ] == [(((1, 3),), "evicted", (7,))]
    assert end.delivery.evicted() == (((1, 3),), (7,))
    end.receive(frame(ack(3)))
    assert end.delivery.evicted() == ((), ())


def test_what_was_evicted_is_not_taken_for_superseded_by_a_peer_that_has_lost_it_again() -> None:
    end = End(durable=True)
    end.send(3)
    end.receive(frame(ack(4, durable=1)))
    assert end.delivery.evict(lambda key: 7) == set()
    assert end.delivery.evicted() == (((1, 4),), (7,))
    end.flush()
    end.delivery.attach(1.0)
    end.delivery.resume_sending(2, (), 1.0)
    skips = [message for _, message in end.flush() if isinstance(message, Skip)]
    assert [(message.ranges, message.reason) for message in skips] == [(((2, 4),), "evicted")]
    end.receive(frame(ack(4, durable=4)))
    assert end.delivery.evicted() == ((), ())


def test_a_gap_is_given_up_after_ten_seconds_and_what_waited_is_let_through() -> None:
    end = End()
    end.receive(frame(save(2), 2))
    end.flush()
    end.wait(9.9)
    assert end.lost == []
    end.wait(0.2)
    assert end.lost == [(1, 2)]
    assert [sequence for sequence, _, _ in end.delivery.lose(end.lost)] == [2]


def test_a_chunk_frame_is_ignored() -> None:
    data = bytearray(frame(save(1), 1))
    data[9] = 2
    data[:8] = DIGEST(bytes(data[8:]))
    end = End()
    assert end.receive(bytes(data)) == []
    assert end.delivery.expected == 1


@pytest.mark.parametrize("start", [0.1, 1 / 3, 1e5 + 0.7])
def test_a_timer_that_is_due_does_what_it_is_due_for(start: float) -> None:
    end = End()
    end.now = start
    end.answers(frame(save(1), 1))
    end.now = end.delivery.next_timeout()
    end.delivery.handle_timeout(end.now)
    assert [type(message) for _, message in end.flush()] == [Heartbeat]


def test_half_of_the_frames_corrupt_is_borne_for_ever() -> None:
    end = End()
    bad = frame(save(1), 1)[:-1]
    for number in range(1, 200):
        assert end.receive(bad) == []
        end.receive(frame(save(number), number))
    assert end.delivery.expected == 200


def given_up(items: list[tuple[int, Item]]) -> list[tuple[int, object]]:
    """What was handed up as given up by the peer, by number."""
    return [
        (number, client_decoder(Encoding.MSGPACK).decode(body))
        for _, item in items
        if isinstance(item, GivenUp)
        for number, body in item.messages
    ]


def test_what_was_given_up_is_told_in_every_acknowledgement_and_heartbeat_from_then_on() -> None:
    end = End()
    end.receive(frame(save(1), 1), frame(save(3), 3))
    assert end.ack().lost == ()
    end.delivery.lose([(2, 3)])
    assert end.ack().lost == ((2, 3),)
    end.receive(frame(save(5), 5))
    end.delivery.lose([(4, 5)])
    assert end.ack().lost == ((2, 3), (4, 5))
    end.delivery.attach(1.0)
    end.delivery.send_heartbeat()
    assert end.ack().lost == ((2, 3), (4, 5))


def test_of_a_range_only_what_had_not_come_is_told_as_given_up() -> None:
    end = End()
    end.receive(frame(save(2), 2), frame(save(5), 5))
    end.delivery.lose([(1, 5)])
    assert end.ack().lost == ((1, 2), (3, 5))


def test_what_was_given_up_is_told_until_the_peer_uses_a_number_that_only_such_an_ack_allows() -> None:
    end = End(limits=DEFAULT_LIMITS)
    end.receive(frame(save(100), 100))
    limit = end.ack().limit
    gaps = [(number, number + 1) for number in range(1, 100, 2)]
    end.receive(*(frame(save(number), number) for number in range(2, 100, 2)))
    end.delivery.lose(gaps)
    assert end.ack().lost == tuple(gaps)
    end.receive(*(frame(save(number), number) for number in range(101, limit)))
    assert end.ack().lost == tuple(gaps)
    end.receive(frame(save(limit), limit))
    assert end.ack().lost == ()


def test_a_number_that_the_welcome_of_a_resume_allows_shows_nothing_of_what_was_given_up() -> None:
    end = End(limits=DEFAULT_LIMITS)
    end.receive(frame(save(2), 2))
    end.delivery.lose([(1, 2)])
    end.delivery.attach(0.0)
    end.delivery.resume_receiving(3)
    end.delivery.expect_welcome()
    limit = end.delivery.expected + DEFAULT_LIMITS.window_events_max
    end.receive(*(frame(save(number), number) for number in range(3, limit)))
    assert end.ack().lost == ((1, 2),)
    end.receive(frame(save(limit), limit))
    assert end.ack().lost == ()


def test_a_restored_session_takes_no_limit_of_its_earlier_life_for_a_sign_of_an_ack() -> None:
    end = End(limits=DEFAULT_LIMITS)
    end.delivery.restart_receiving(10, [(4, 5)])
    end.delivery.resume_receiving(700)
    end.delivery.expect_welcome()
    # The peer was told so much when all below 700 had come.
    limit = 700 + DEFAULT_LIMITS.window_events_max
    end.receive(*(frame(save(number), number) for number in range(10, limit)))
    assert end.ack().lost == ((4, 5),)
    end.receive(frame(save(limit), limit))
    assert end.ack().lost == ()


@pytest.mark.parametrize("kind", [Ack, Heartbeat])
def test_what_the_peer_has_given_up_is_handed_up_once_and_before_it_is_forgotten(
    kind: type[Ack] | type[Heartbeat],
) -> None:
    end = End()
    end.send(5)
    message: Ack | Heartbeat = ack(5, lost=((2, 3), (4, 5)))
    if kind is Heartbeat:
        message = msgspec.structs.replace(heartbeat(1), received=5, applied=5, lost=message.lost)
    assert given_up(end.receive(frame(message))) == [(2, save(2)), (4, save(4))]
    assert given_up(end.receive(frame(message), frame(ack(6, lost=((2, 3),))))) == []


def test_a_number_above_the_acknowledged_ones_can_be_given_up_and_one_that_came_is_not() -> None:
    end = End()
    end.send(4)
    end.receive(frame(ack(1, ranges=((2, 3),))))
    # What is below `applied` and was acknowledged for good is forgotten, whatever is said of it.
    assert given_up(end.receive(frame(ack(3, lost=((1, 2),))))) == [(1, save(1))]
    assert given_up(end.receive(frame(ack(3, lost=((1, 3),))))) == []


def test_where_events_are_kept_until_they_are_durable_a_later_acknowledgement_tells_in_time() -> None:
    end = End(durable=True)
    end.send(3)
    assert given_up(end.receive(frame(ack(4, durable=1)))) == []
    assert given_up(end.receive(frame(ack(4, durable=1, lost=((2, 3),))))) == [(2, save(2))]
    assert given_up(end.receive(frame(ack(4, durable=1, lost=((2, 3),))))) == []
    assert given_up(end.receive(frame(ack(4, lost=((1, 4),))))) == [(1, save(1)), (3, save(3))]
    assert end.delivery.is_settled


def test_what_was_given_up_just_before_a_connection_broke_is_told_after_the_resume() -> None:
    end = End()
    end.send(3)
    end.delivery.attach(1.0)
    end.delivery.resume_sending(4, (), 1.0)
    assert given_up(end.receive(frame(ack(4, lost=((2, 3),))))) == [(2, save(2))]


def test_an_event_that_the_peer_has_given_up_is_skipped_where_the_peer_forgets_that() -> None:
    journal = OutboxJournal(is_kept=True)
    end = End(durable=True, journal=journal)
    for number in range(1, 6):
        end.delivery.send(save(number), 0.0, key=7)
    before = journal.take(Marks(6, 1, 1, 1, 0, 0))
    assert [type(record) for record in before] == [FrameSent] * 5 + [Marks]
    end.flush()
    # One of them is in flight, the other was acknowledged as received.
    end.receive(frame(ack(4, durable=1)))
    assert given_up(end.receive(frame(ack(4, durable=1, lost=((2, 3), (5, 6)))))) == [
        (2, save(2)),
        (5, save(5)),
    ]
    assert journal.take(Marks(6, 1, 1, 1, 0, 0)) == [FramesEvicted(((2, 7), (5, 7)))]
    assert end.delivery.evicted() == (((2, 3), (5, 6)), (7,))
    assert end.delivery.kept_events == 3
    end.flush()
    end.delivery.attach(1.0)
    end.delivery.resume_sending(2, (), 1.0)
    (first, *frames) = end.flush()
    assert first == (0, Skip(ranges=((2, 3), (5, 6)), reason="evicted", documents=(7,)))
    assert [sequence for sequence, _ in frames] == [3, 4]
    end.receive(frame(ack(6)))
    assert end.delivery.evicted() == ((), ())
    assert end.delivery.kept_bytes == 0


def test_requests_and_states_that_the_peer_has_given_up_are_kept_as_before() -> None:
    end = End(durable=True)
    end.send(1)
    end.delivery.send(cursor(0), 0.0, key=("cursor", 7), durable=False)
    end.flush()
    assert given_up(end.receive(frame(ack(1, lost=((1, 3),))))) == [(1, save(1)), (2, cursor(0))]
    assert end.delivery.evicted() == ((), ())
    end.delivery.attach(1.0)
    end.delivery.resume_sending(1, (), 1.0)
    assert [sequence for sequence, _ in end.flush()] == [1, 2]


@pytest.mark.parametrize("lost", [(3, 5), (0, 2), (1, INTEGER_MAX)])
def test_a_number_that_was_never_sent_cannot_be_given_up(lost: tuple[int, int]) -> None:
    end = End()
    end.send(3)
    assert close_of(end, frame(ack(4, lost=(lost,)))) is CloseCode.BAD_FRAME


def test_an_empty_range_given_up_is_malformed() -> None:
    end = End()
    end.send(3)
    ((_, item),) = end.receive(frame(ack(4, lost=((2, 2),))))
    assert isinstance(item, Malformed)


def test_a_long_range_given_up_again_and_again_is_looked_through_once() -> None:
    end = End(limits=replace(LIMITS, window_events_max=8), durable=True)
    for number in range(1, 2001):
        end.delivery.send(cursor(number), 0.0, key="cursor", durable=False)
        end.receive(frame(ack(number + 1, durable=1, limit=number + 8)))
    end.flush()
    message = frame(ack(2001, durable=1, lost=((1, 2001),)))
    assert end.receive(*[message] * 2000) == []


def test_a_lost_last_frame_is_looked_for_however_often_the_peer_says_nothing_new() -> None:
    end = End(limits=replace(LIMITS, heartbeat_s=1.0, dead_s=3.0, send_deadline_s=100.0))
    end.send(1)
    end.wait(2.0)  # By now probes are as rare as heartbeats.
    probes = 0
    for _ in range(10):
        sent = [message for _, message in end.wait(0.9)]
        end.receive(frame(heartbeat(1)))
        sent += [message for _, message in end.flush()]
        probes += sum(isinstance(message, Heartbeat) for message in sent)
    assert probes >= 5


def test_a_peer_may_lack_what_was_freed_only_if_it_was_not_durable() -> None:
    end = End(durable=True)
    end.send(2)
    for character in range(3):
        end.delivery.send(cursor(character), 0.0, key="k", durable=False)
    end.receive(frame(ack(6)))
    assert end.delivery.is_settled
    assert [end.delivery.can_resume_sending(expects) for expects in range(1, 8)] == [False, False] + [
        True
    ] * 4 + [False]


def test_a_long_row_of_numbers_that_are_gone_is_skipped_in_strides_among_the_frames() -> None:
    end, peer = End(durable=True), End()
    kept = (20, 41, 60)
    for number in range(1, 61):
        end.delivery.send(cursor(number), 0.0, key=number, durable=number in kept)
        end.receive(frame(ack(number + 1, durable=min(number + 1, 20), limit=1000)))
    end.delivery.attach(0.0)
    end.delivery.resume_sending(1, (), 0.0)
    frames = end.delivery.flush(0.0)
    sent = [read(data) for data in frames]
    assert [sequence for sequence, _ in sent if sequence] == [*kept]
    # Each is taken, and none of them lets the peer see a gap.
    for data in frames:
        if not isinstance(read(data)[1], Heartbeat):
            peer.receive(data)
    assert peer.delivery.expected == 61
    assert not [message for _, message in peer.flush() if isinstance(message, Nack)]


def test_one_that_restarts_forgets_what_it_held_and_takes_other_content_for_it() -> None:
    end = End()
    end.receive(frame(save(1), 1), frame(save(3), 3))
    end.delivery.restart_receiving(2)
    assert not end.delivery.has_gap
    assert [sequence for sequence, _ in end.receive(frame(save(7), 2), frame(save(8), 3))] == [2, 3]
    assert end.receive(frame(save(8), 3)) == []
    assert close_of(end, frame(save(9), 3)) is CloseCode.CONFLICT


def test_a_peer_that_forgets_what_was_given_up_has_lost_what_it_had_made_safe() -> None:
    end = End(durable=True)
    end.send(2)
    end.delivery.evict(lambda key: 7)
    end.receive(frame(ack(3, durable=1)))
    assert end.delivery.can_resume_sending(1)
    end.receive(frame(ack(3)))
    assert [end.delivery.can_resume_sending(expects) for expects in (1, 2, 3)] == [False, False, True]
