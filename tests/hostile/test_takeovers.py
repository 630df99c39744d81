"""Whose a session is: races for it, secrets and tokens that are good no more, and what is left behind."""

from __future__ import annotations

import asyncio
import hmac
import inspect
from typing import Any

import msgspec
import pytest

from streamctx.hub.hub import Hub
from streamctx.hub.ports import HubPort, Principal
from streamctx.server.embedding import serve
from streamctx.vocabulary import Encoding
from streamctx.wire.messages import (
    Ended,
    Focus,
    Hello,
    Open,
    Part,
    Subscribe,
    Subscribed,
    Synced,
    Welcome,
)
from tests.hostile.arena import LIMITS, Arena, log_faults, neighbour
from tests.hostile.raw import HELLO, Closed, hash_of, opening, resuming
from tests.hub.peers import Stage

__all__: list[str] = []

_TOKENS = ("a" * 40, "b" * 40)


async def _attempt(arena: Arena, hello: Hello, *, token: str | None = "") -> Welcome | Closed:
    async with arena.raw(token=token) as raw:
        return await raw.answer(hello)


@pytest.mark.asyncio
async def test_of_many_that_race_for_a_session_one_has_it_in_the_end(arena: Arena) -> None:
    async with arena.raw() as owner:
        welcome = await owner.greet()
        await owner.applied(await owner.push(opening(1, "text")))
        raws = [arena.raw() for _ in range(20)]
        connections = await asyncio.gather(*(raw.__aenter__() for raw in raws))
        # Half of them with one number, the others each with another, all in one instant.
        attempts = [50] * 10 + list(range(41, 51))
        hellos = [resuming(welcome, attempt, next=2) for attempt in attempts]
        await asyncio.gather(*(raw.send(hello) for raw, hello in zip(connections, hellos, strict=True)))

        async def outcome(raw: Any) -> tuple[str, int]:
            try:
                answer = await raw.find(Welcome)
            except Closed as closed:
                return closed.last_error, closed.code
            return answer.verdict, answer.lease

        outcomes = await asyncio.gather(*map(outcome, connections))
        assert {verdict for verdict, _ in outcomes} <= {"resumed", "superseded"}
        assert 1 <= [verdict for verdict, _ in outcomes].count("resumed") <= 11
        leases = [lease for verdict, lease in outcomes if verdict == "resumed"]
        assert len(set(leases)) == len(leases)
        assert (await owner.closed()).code == 4010
        # Who had the highest number first is the one, and the only one, that is still connected.
        winner = connections[outcomes.index(("resumed", max(leases)))]
        await winner.send(Focus(), sequence=2)
        await winner.applied(2)
        await arena.has_connected(1)
        for raw in raws:
            await raw.__aexit__(None, None, None)


@pytest.mark.asyncio
async def test_resume_needs_a_token_besides_the_secret(arena: Arena) -> None:
    async with arena.raw() as owner:
        welcome = await owner.greet()
        await owner.applied(await owner.push(opening(1, "text")))
        hello = resuming(welcome, 2, next=2)
        for auth in (None, "", "w" * 43, welcome.secret, welcome.session):
            closed = await _attempt(arena, msgspec.structs.replace(hello, auth=auth), token=None)
            assert isinstance(closed, Closed)
            assert (closed.code, closed.last_error) == (4003, "unauthorized")
        # A secret is no token, nor the other way round.
        assert (await arena.get("/v1/sessions", token=welcome.secret)).status == 401
        answer = await _attempt(arena, resuming(welcome, 2, next=2, secret=arena.token))
        assert isinstance(answer, Welcome)
        assert answer.verdict == "rejected"
        await owner.send(Focus(), sequence=2)
        await owner.applied(2)


@pytest.mark.asyncio
async def test_recorded_connection_that_is_played_again_changes_nothing(arena: Arena) -> None:
    async with arena.raw() as first:
        welcome = await first.greet()
        await first.applied(await first.push(opening(1, "text")))
    recorded = resuming(welcome, 2, next=2)
    async with arena.raw() as second:
        again = await second.greet(recorded)
        await second.send(Focus(), sequence=2)
        await second.applied(2)
        before = await arena.session(second)
        for hello in (HELLO, recorded):
            async with arena.raw() as thief:
                await thief.send(hello)
                try:
                    answer = await thief.find(Welcome)
                except Closed as closed:
                    assert (closed.code, closed.last_error) == (4010, "superseded")
                else:
                    assert answer.session != welcome.session
        after = await arena.session(second)
        assert [after[name] for name in ("offset", "documents", "connected")] == [
            before[name] for name in ("offset", "documents", "connected")
        ]
        assert again.secret != welcome.secret


@pytest.mark.asyncio
async def test_takeover_in_the_middle_of_a_text_loses_nothing_and_the_loser_adds_nothing(
    arena: Arena,
) -> None:
    text = "x" * 50_000 + "y" * 50_000
    announced = Open(document=1, uri="/big", version=1, length=100_000, hash=hash_of(text), parts=2)
    async with arena.raw() as loser, arena.raw() as winner:
        welcome = await loser.greet()
        await loser.push(announced, Part(document=1, version=1, index=0, text=text[:50_000]))
        await loser.applied(2)
        await winner.greet(resuming(welcome, 2, next=3))
        await loser.send(Part(document=1, version=1, index=1, text="z" * 50_000), sequence=3)
        assert (await loser.closed()).code == 4010
        await winner.send(Part(document=1, version=1, index=1, text=text[50_000:]), sequence=3)
        await winner.applied(3)
        document = (await arena.session(winner))["documents"][0]
        assert (document["complete"], document["stale"], document["length"]) == (True, False, 100_000)


@pytest.mark.asyncio
async def test_secret_of_a_session_that_ended_is_nothing(arena: Arena) -> None:
    async with arena.raw() as raw:
        welcome = await raw.greet()
        await raw.applied(await raw.push(Focus()))
        await raw.client.send(b"\x88\x82" + bytes(4) + (1000).to_bytes(2, "big"))
        await raw.closed()
    answers = []
    for session in (welcome.session, "unknown"):
        answer = await _attempt(arena, resuming(welcome, 2, next=2, session=session))
        assert isinstance(answer, Welcome)
        answers.append(
            (answer.verdict, answer.reason, answer.expects, answer.next, answer.lost, answer.documents)
        )
    assert answers[0] == answers[1]
    assert answers[0][0] == "rejected"


@pytest.mark.asyncio
async def test_observers_of_sessions_that_vanish_are_told_and_keep_nothing(arena: Arena) -> None:
    async with arena.greeted(Encoding.JSON) as observer:
        for code in (1000, 3000, 4009) * 10:
            async with arena.greeted() as raw:
                for subscription in range(1, 21):
                    await observer.push(
                        Subscribe(subscription=subscription, session=raw.session, documents=("*",))
                    )
                await raw.push(opening(1, "x" * 1000))
                await raw.applied(1)
                await observer.find(Subscribed, lambda answer: answer.subscription == 20)
                await raw.client.send(b"\x88\x82" + bytes(4) + code.to_bytes(2, "big"))
                await raw.closed()
            if code != 3000:
                assert (await observer.find(Ended)).session == raw.session
                number = await observer.push(Subscribe(subscription=1, session=raw.session))
                assert (await observer.error(number)).code == "not_found"
        # They take no place among those that may be had.
        for subscription in range(1, 65):
            await observer.push(Subscribe(subscription=subscription, session="*"))
        await observer.find(Subscribed, lambda answer: answer.subscription == 64)
        assert {error.code for error in observer.errors} == {"not_found"}


@pytest.mark.asyncio
async def test_intervals_and_patterns_may_change_at_any_rate(arena: Arena) -> None:
    async with arena.greeted(Encoding.JSON) as observer, arena.greeted() as raw:
        await raw.push(opening(1, "text"))
        await raw.applied(1)
        for round_ in range(30):
            interval = (0, 60_000, 1)[round_ % 3]
            patterns = (None, ("*",) * 100, ())[round_ % 3]
            await observer.push(
                Subscribe(
                    subscription=1, session=raw.session, min_interval_ms=interval, documents=patterns,
                    presence=bool(round_ % 2),
                )
            )  # fmt: skip
            await raw.push(*[Focus(document=1)] * 20)
        await observer.push(Subscribe(subscription=1, session=raw.session))
        number = await raw.push(Focus(document=1))
        await raw.applied(number)
        await observer.find(Synced, lambda synced: synced.offset >= 1)
        assert not observer.errors


@pytest.mark.asyncio
async def test_token_that_was_replaced_opens_nothing_any_more(log: list[str]) -> None:
    # Tokens are opaque and a server has one for its life; so to revoke it is to start again with another.
    async with serve(token=_TOKENS[0], limits=LIMITS) as server:
        old = Arena(server.port, _TOKENS[0], LIMITS)
        async with old.raw() as raw:
            welcome = await raw.greet()
            await raw.applied(await raw.push(opening(1, "text")))
            stopping = asyncio.create_task(server.stop())
            # Who was let in with it is let out.
            assert (await raw.closed()).code == 4200
        await stopping
    async with serve(port=old.port, token=_TOKENS[1], limits=LIMITS) as server:
        new = Arena(server.port, _TOKENS[1], LIMITS)
        async with neighbour(new):
            for path in ("/v1/sessions", f"/v1/sessions/{welcome.session}", "/metrics"):
                assert (await old.get(path)).status == 401
            async with old.tcp() as client:
                assert (await client.upgrade(f"Authorization: Bearer {_TOKENS[0]}")).status == 401
            hello = resuming(welcome, 2, next=2)
            closed = await _attempt(new, msgspec.structs.replace(hello, auth=_TOKENS[0]), token=None)
            assert isinstance(closed, Closed)
            assert (closed.code, closed.last_error) == (4003, "unauthorized")
            # With the new one the session is as unknown as any other of the server's former life.
            answer = await _attempt(new, hello)
            assert isinstance(answer, Welcome)
            assert answer.verdict == "rejected"
            assert answer.epoch != welcome.epoch
    assert log_faults(log) == []
    assert not [line for line in log for token in (*_TOKENS, welcome.secret) if token in line]


def test_secrets_are_compared_as_hashes_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def recording(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    stage = Stage()
    first = stage.joined()
    monkeypatch.setattr(hmac, "compare_digest", recording)
    counts = set()
    for secret in ("x", "x" * 200, "id-3"[:-1], "id-33", "é\x00", first.resume().secret.swapcase()):
        compared.clear()
        answer = stage.raw().hello(attempt=2, resume=first.resume(secret=secret))
        assert answer is not None
        assert answer.verdict == "rejected"
        assert set(compared) == {(32, 32)}
        counts.add(len(compared))
    # Nor does their number tell of the guess.
    assert len(counts) == 1


def test_hub_keeps_hashes_of_tokens_and_finds_them_by_hash() -> None:
    token = "t" * 40
    hub = Hub(tokens={token: Principal("p", frozenset())}, version="1")
    kept = [value for value in vars(hub).values() if isinstance(value, dict)]
    assert [len(key) for found in kept for key in found if isinstance(key, bytes)] == [32]
    assert token not in repr(vars(hub))
    for guess in ("", "t", "t" * 39, "t" * 41, "T" * 40, "\ud800", "t" * 40 + "\n", "t" * 100_000):
        assert hub.authenticate(guess) is None
    assert hub.authenticate(token) is not None


def test_nothing_of_a_session_is_told_without_naming_who_asks() -> None:
    names = ("session", "sessions", "document", "recall", "past", "stored")
    told = {name: inspect.signature(getattr(HubPort, name)) for name in names}
    for signature in told.values():
        assert list(signature.parameters)[1] == "principal"
        assert signature.parameters["principal"].default is inspect.Parameter.empty
    # Whatever is added to the port shows here, and has to be thought about.
    public = {name for name in vars(HubPort) if not name.startswith("_")}
    assert public == {*told, "connect", "authenticate", "sweep", "prune", "is_in_use", "forget", "counters"}
