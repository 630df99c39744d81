"""Numbers, acknowledgements and requests that no honest peer sends, and sessions that are not one's own."""

from __future__ import annotations

import msgspec
import pytest

from streamctx.vocabulary import INTEGER_MAX, Encoding
from streamctx.wire.messages import (
    Ack,
    Close,
    Focus,
    Heartbeat,
    Hello,
    Message,
    Nack,
    Skip,
    Subscribe,
    Welcome,
)
from tests.hostile.arena import Arena
from tests.hostile.raw import HELLO, Closed, Raw, body_of, opening, resuming

__all__: list[str] = []

pytestmark = pytest.mark.asyncio

_TOP = INTEGER_MAX


def _ack(received: int = 1, **fields: object) -> Ack:
    good = {"received": received, "applied": received, "durable": received, "limit": received + 1024}
    return Ack(**(good | fields))  # type: ignore[arg-type]


async def _attempt(arena: Arena, hello: Hello, encoding: Encoding = Encoding.MSGPACK) -> Welcome | Closed:
    async with arena.raw(encoding) as raw:
        return await raw.answer(hello)


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (0, Focus()),
        (0, opening(1)),
        (0, Subscribe(subscription=1, session="*")),
        (1, _ack()),
        (1, Heartbeat(next=2, received=1, applied=1, durable=1, limit=1025)),
        (1, Nack(ranges=((1, 2),))),
        (1, Skip(ranges=((1, 2),), reason="evicted")),
        (1, HELLO),
        (8194, Focus()),
        (8195, Close(document=1)),
        (2**31, Focus()),
        (_TOP, Focus()),
        # Numbers that were never sent, and watermarks that contradict each other.
        (0, _ack(2)),
        (0, _ack(_TOP, limit=_TOP)),
        (0, _ack(ranges=((1, 2),))),
        (0, _ack(ranges=((0, 1),))),
        (0, _ack(ranges=((_TOP - 1, _TOP),))),
        (0, _ack(applied=2)),
        (0, Heartbeat(next=1, received=9, applied=1, durable=1, limit=1)),
        # Ranges that no honest peer has.
        (0, Nack(ranges=((0, 5),))),
        (0, Skip(ranges=((0, 2),), reason="superseded")),
        (0, Skip(ranges=((1, _TOP),), reason="evicted")),
        (0, Skip(ranges=((_TOP - 1, _TOP),), reason="superseded")),
        (0, Skip(ranges=((1, 8195),), reason="superseded")),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else str(value),
)
async def test_impossible_number_is_answered_with_4102(arena: Arena, sequence: int, message: Message) -> None:
    async with arena.greeted() as raw:
        await raw.send(message, sequence=sequence)
        closed = await raw.closed()
        assert (closed.code, closed.last_error) == (4102, "bad_sequence")


async def test_range_that_is_empty_or_backwards_is_malformed(arena: Arena) -> None:
    async with arena.greeted() as raw:
        for range_ in ((3, 3), (9, 2), (_TOP, 0)):
            for message in (
                _ack(ranges=(range_,)),
                Nack(ranges=((1, 2), range_)),
                Skip(ranges=(range_,), reason="superseded"),
            ):
                await raw.send(message)
                error = await raw.error()
                assert (error.code, error.reference) == ("malformed", None)


async def test_largest_number_within_bounds_is_taken(arena: Arena) -> None:
    async with arena.greeted() as raw:
        await raw.send(Focus(), sequence=8193)
        ack = await raw.find(Ack, lambda ack: bool(ack.ranges))
        assert ack.ranges == ((8193, 8194),)
    async with arena.greeted() as raw:
        await raw.send(Skip(ranges=((1, 8194),), reason="superseded"))
        await raw.applied(8193)


async def test_absurd_but_legal_announcements_end_nothing(arena: Arena) -> None:
    async with arena.greeted() as raw:
        # A credit without end, requests for what was not sent yet, and a gap up to the last number.
        await raw.send(_ack(limit=_TOP))
        await raw.send(Nack(ranges=((1, _TOP),) * 64, reason="\x1b[2J"))
        await raw.find(Heartbeat)
        await raw.send(Heartbeat(next=_TOP, received=1, applied=1, durable=1, limit=_TOP))
        nack = await raw.find(Nack)
        assert nack.ranges[0][0] == 1
        assert nack.ranges[-1][1] <= 1 + 8193
        # It is given up after a while, by bounded steps.
        await raw.find(Ack | Heartbeat, lambda ack: ack.received > 1)
        assert not raw.errors


async def test_two_frames_of_one_number_end_the_session(arena: Arena) -> None:
    for ahead in (False, True):
        async with arena.greeted() as raw:
            first = 3 if ahead else 1
            await raw.send(opening(1, "one"), sequence=first)
            await raw.send(opening(1, "two"), sequence=first)
            closed = await raw.closed()
            assert (closed.code, closed.last_error) == (4009, "conflict")
    await arena.has_connected(0)


async def test_duplicates_change_nothing(arena: Arena) -> None:
    async with arena.greeted() as raw:
        frame = raw.frame_of(opening(1, "one"), sequence=1)
        await raw.send_frames(*[frame] * 2000)
        await raw.applied(1)
        session = await arena.session(raw)
        assert session["counters"]["duplicates"] == 1999
        assert session["offset"] == 2


async def test_reorder_buffer_is_bounded(arena: Arena) -> None:
    async with arena.greeted() as raw:
        body = body_of(Encoding.MSGPACK, type="mention", document=1, version=1, range=[0] * 4, x="a" * 8000)
        frames = [raw.frame_of(body, sequence=number) for number in range(2, 3000)]
        await raw.send_frames(*frames)
        ack = await raw.find(Ack, lambda ack: bool(ack.ranges))
        assert sum(stop - start for start, stop in ack.ranges) <= 1024 * 1024 // 8000
        assert not raw.errors


async def test_second_producer_with_a_stale_attempt_is_answered_with_4010(arena: Arena) -> None:
    async with arena.greeted(hello=msgspec.structs.replace(HELLO, attempt=5)) as raw:
        welcome = await _welcome_of(raw)
        for attempt in (1, 4, 5):
            closed = await _attempt(arena, resuming(welcome, attempt))
            assert isinstance(closed, Closed)
            assert (closed.code, closed.last_error) == (4010, "superseded")
        # The owner has not noticed.
        await raw.applied(await raw.push(Focus()))


async def _welcome_of(raw: Raw) -> Welcome:
    """The present WELCOME, by a repeated HELLO."""
    await raw.send(msgspec.structs.replace(HELLO, attempt=5))
    welcome: Welcome = await raw.find(Welcome)
    return welcome


async def test_copied_secret_is_of_use_once_and_the_loser_is_told(arena: Arena) -> None:
    async with arena.raw() as owner, arena.raw() as thief:
        welcome = await owner.greet()
        await owner.applied(await owner.push(opening(1, "text")))
        stolen = await thief.greet(resuming(welcome, 2, next=2))
        assert (stolen.verdict, stolen.session) == ("resumed", welcome.session)
        assert stolen.secret != welcome.secret
        closed = await owner.closed()
        assert (closed.code, closed.last_error) == (4010, "superseded")
        # The old secret is nothing now: a new session, and one answer for all that cannot be resumed.
        again = await _attempt(arena, resuming(welcome, 3, next=2))
        assert isinstance(again, Welcome)
        assert again.verdict == "rejected"
        assert again.session != welcome.session
        await thief.applied(await _push_from(thief, 2, Focus()))


async def _push_from(raw: Raw, number: int, message: Message) -> int:
    await raw.send(message, sequence=number)
    return number


async def test_resume_that_does_not_fit_is_rejected_with_one_answer(arena: Arena) -> None:
    async with arena.raw() as owner, arena.raw(Encoding.JSON) as other:
        welcome = await owner.greet()
        await owner.applied(await owner.push(opening(1, "text"), Focus()))
        other_welcome = await other.greet()
        answers = set()
        changes: tuple[dict[str, object], ...] = (
            {"session": "unknown"},
            {"session": "x" * 200},
            {"session": "\x00"},
            {"session": other_welcome.session},
            {"secret": other_welcome.secret},
            {"secret": welcome.secret[:-1]},
            {"secret": welcome.secret + "x"},
            {"secret": "é" * 200},
            {"epoch": other_welcome.epoch},
            {"next": 1},
            {"next": 2},
            {"expects": 2},
            {"expects": _TOP},
            {"next": 3, "lost": ((0, 1),)},
            {"next": 3, "lost": ((1, 5),)},
        )
        for fields in changes:
            answer = await _attempt(arena, resuming(welcome, 2, **({"next": 3} | fields)))
            assert isinstance(answer, Welcome), fields
            assert answer.session not in (welcome.session, other_welcome.session)
            assert not answer.documents
            answers.add((answer.verdict, answer.reason, answer.expects, answer.next, answer.lost))
        assert answers == {("rejected", answers.copy().pop()[1], 1, 1, ())}
        answer = await _attempt(arena, resuming(welcome, 2, next=3), Encoding.JSON)
        assert isinstance(answer, Welcome)
        assert answer.verdict == "rejected"
        # None of them has taken the session.
        await owner.applied(await owner.push(Focus()))


async def test_resume_with_absurd_numbers_is_truthful_and_bounded(arena: Arena) -> None:
    spread = tuple((number, number + 1) for number in range(1, 2048, 2))
    cases: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = (
        (_TOP, ()),
        (_TOP, ((1, _TOP),)),
        (_TOP, ((1, 2), (2**52, _TOP))),
        (9000, spread),
    )
    for next_, lost in cases:
        async with arena.raw() as raw:
            welcome = await raw.greet()
            await raw.applied(await raw.push(Focus()))
        async with arena.raw() as raw:
            hello = resuming(welcome, 2, next=next_, lost=lost, documents=tuple(range(1, 1025)))
            await raw.send(hello)
            answer = await raw.find(Welcome)
            assert answer.verdict == ("resynced" if answer.lost else "resumed")
            # It tells of what it lacks, and of no more than it would have held.
            assert all(2 <= start < stop <= 2 + 8193 for start, stop in answer.lost)
            await raw.send(_ack())
            # Whatever it has brought on itself, it is told in whole messages.
            await raw.find(Ack | Nack | Heartbeat)


async def test_new_hello_cannot_choose_its_session(arena: Arena) -> None:
    body = msgspec.to_builtins(HELLO) | {"session": "mine", "secret": "mine", "epoch": "mine"}
    async with arena.raw() as raw:
        await raw.send(body_of(Encoding.MSGPACK, **body))
        welcome: Welcome = await raw.find(Welcome)
        assert len({"mine", welcome.session, welcome.secret, welcome.epoch}) == 4
        assert min(len(welcome.session), len(welcome.secret), len(welcome.epoch)) >= 43


async def test_close_with_1000_ends_the_session_and_nothing_else_does(arena: Arena) -> None:
    for code, is_kept in ((1000, False), (1001, True), (3000, True), (4009, False), (4010, True)):
        async with arena.raw() as raw:
            welcome = await raw.greet()
            await raw.applied(await raw.push(Focus()))
            await raw.client.send(b"\x88\x82" + bytes(4) + code.to_bytes(2, "big"))
            await raw.closed()
        answer = await _attempt(arena, resuming(welcome, 2, next=2))
        assert isinstance(answer, Welcome)
        assert answer.verdict == ("resumed" if is_kept else "rejected")
