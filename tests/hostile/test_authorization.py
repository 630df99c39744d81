"""Two principals on one server: what is another's looks exactly like what does not exist (SEC-4)."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import msgspec
import pytest
import pytest_asyncio

from streamctx.hub.hub import Hub
from streamctx.hub.ports import Principal
from streamctx.server.config import ServerConfig
from streamctx.server.serve import serve
from streamctx.vocabulary import Encoding
from streamctx.wire.messages import (
    ErrorMessage,
    Focus,
    Message,
    Resume,
    Subscribe,
    Subscribed,
    Synced,
    Update,
    Welcome,
)
from tests.hostile.arena import LIMITS, Arena, log_faults, neighbour
from tests.hostile.raw import HELLO, Closed, Raw, opening

__all__: list[str] = []

pytestmark = pytest.mark.asyncio

_ALL = frozenset({"produce", "observe", "resource", "admin"})
_TOKENS = {name: f"{name}-token-{'0' * 32}" for name in ("ann", "bob", "reader", "writer")}
_PRINCIPALS: Mapping[str, Principal] = {
    _TOKENS["ann"]: Principal("ann", _ALL),
    _TOKENS["bob"]: Principal("bob", _ALL),
    _TOKENS["reader"]: Principal("ann", frozenset({"observe"})),
    _TOKENS["writer"]: Principal("ann", frozenset({"produce"})),
}
_URI = "file:///w/secret-plan.py"


@dataclass(frozen=True)
class Two:
    """Ann's producer and Bob's, both connected, each with one document of the same alias and URI."""

    ann: Arena
    bob: Arena
    ann_session: Welcome
    bob_session: Welcome
    ann_raw: Raw


@pytest_asyncio.fixture
async def two(log: list[str]) -> AsyncIterator[Two]:
    """A server with two principals, and a neighbour of each."""
    hub = Hub(tokens=_PRINCIPALS, version="test", limits=LIMITS)
    config = ServerConfig(token=_TOKENS["ann"], discovery=False, limits=LIMITS)
    async with serve(hub, config) as server:
        ann = Arena(server.port, _TOKENS["ann"], LIMITS)
        bob = Arena(server.port, _TOKENS["bob"], LIMITS)
        async with neighbour(ann), neighbour(bob), ann.raw() as ann_raw, bob.raw() as bob_raw:
            ann_session = await ann_raw.greet()
            bob_session = await bob_raw.greet()
            await ann_raw.applied(await ann_raw.push(opening(1, "ann's text", uri=_URI)))
            await bob_raw.applied(await bob_raw.push(opening(1, "bob's text", uri=_URI)))
            yield Two(ann, bob, ann_session, bob_session, ann_raw)
    assert log_faults(log) == []
    assert not [line for line in log for token in _TOKENS.values() if token in line]


async def test_rest_answers_for_unknown_and_foreign_are_the_same_bytes(two: Two) -> None:
    names = {"own": two.ann_session.session, "foreign": two.bob_session.session, "unknown": "A" * 43}
    documents = ("1", "2", _URI, "file%3A%2F%2F%2Fw%2Fsecret-plan.py", "..%2F..", "0001", "%00", "1/")
    paths = ["", *(f"/documents/{document}" for document in documents)]
    for path, method in itertools.product(paths, ("GET", "DELETE", "POST")):
        answers = {}
        for which in ("foreign", "unknown"):
            response = await two.ann.get(f"/v1/sessions/{names[which]}{path}", method=method)
            answers[which] = (response.status, response.body, _stable(response.headers))
            assert b"text" not in response.body
        assert answers["foreign"] == answers["unknown"], path
    assert (await two.ann.get(f"/v1/sessions/{names['own']}/documents/1")).status == 200
    # Without a document of that name an own session answers like a foreign one.
    own = await two.ann.get(f"/v1/sessions/{names['own']}/documents/2")
    foreign = await two.ann.get(f"/v1/sessions/{names['foreign']}/documents/2")
    assert (own.status, own.body) == (foreign.status, foreign.body)


def _stable(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name != "date"}


async def test_rest_lists_hold_what_is_ones_own(two: Two) -> None:
    for arena, own, foreign in (
        (two.ann, two.ann_session, two.bob_session),
        (two.bob, two.bob_session, two.ann_session),
    ):
        body = (await arena.get("/v1/sessions")).body.decode()
        assert own.session in body
        for secret in (foreign.session, foreign.epoch, own.secret, foreign.secret):
            assert secret not in body
    metrics = (await two.ann.get("/metrics")).body.decode()
    assert two.ann_session.session not in metrics
    assert "secret-plan" not in metrics


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_subscribing_to_unknown_and_foreign_is_answered_by_the_same_bytes(
    two: Two, encoding: Encoding
) -> None:
    bodies = []
    for session in (two.bob_session.session, "A" * 43):
        async with two.ann.greeted(encoding) as raw:
            await raw.push(Subscribe(subscription=3, session=session, documents=("*",)))
            bodies.append(await raw.error())
    assert bodies[0] == bodies[1]
    assert bodies[0].code == "not_found"


async def test_observing_all_shows_what_is_ones_own(two: Two) -> None:
    async with two.ann.greeted() as raw:
        await raw.push(Subscribe(subscription=1, session="*"))
        subscribed: Subscribed = await raw.find(Subscribed)
        assert two.ann_session.session in subscribed.sessions
        assert two.bob_session.session not in subscribed.sessions
        seen: list[Message] = []
        # A new session of the other, and events of both.
        async with two.bob.greeted() as other:
            await other.applied(await other.push(opening(1, "bob again", uri=_URI)))
        await two.ann_raw.push(opening(2, "the end"))
        while "the end" not in repr(seen[-1:]):
            message = await raw.next()
            if isinstance(message, Update | Synced):
                seen.append(message)
        told = repr(seen)
        assert "ann's text" in told
        assert two.bob_session.session not in told
        assert "bob" not in told


async def test_resume_of_unknown_and_foreign_is_rejected_with_one_answer(two: Two) -> None:
    answers = []
    resume = Resume(
        session=two.bob_session.session,
        secret=two.bob_session.secret,
        epoch=two.bob_session.epoch,
        expects=1,
        next=2,
    )
    for changed in (
        resume,
        msgspec.structs.replace(resume, session="A" * 43),
        msgspec.structs.replace(resume, secret="x"),
    ):
        # An attempt that is too low for it tells nothing either.
        for attempt in (1, 2):
            async with two.ann.raw() as raw:
                await raw.send(msgspec.structs.replace(HELLO, attempt=attempt, resume=changed))
                welcome: Welcome = await raw.find(Welcome)
                plain = msgspec.to_builtins(welcome)
                for name in ("session", "secret", "epoch", "attempt"):
                    del plain[name]
                answers.append(plain)
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["verdict"] == "rejected"
    # Bob still has it.
    assert (await two.bob.get(f"/v1/sessions/{two.bob_session.session}")).status == 200


async def test_scopes_decide_about_roles(two: Two) -> None:
    for token, roles in (
        ("reader", {"observe"}),
        ("writer", {"produce"}),
        ("ann", {"observe", "produce", "both"}),
    ):
        for role in ("observe", "produce", "both"):
            hello = msgspec.structs.replace(HELLO, role=role)
            in_hello = msgspec.structs.replace(hello, auth=_TOKENS[token])
            for request_token, greeting in ((_TOKENS[token], hello), (None, in_hello)):
                async with two.ann.raw(token=request_token) as raw:
                    answer = await raw.answer(greeting)
                    if role in roles:
                        assert isinstance(answer, Welcome)
                    else:
                        assert isinstance(answer, Closed)
                        assert (answer.code, answer.last_error) == (4005, "forbidden")


async def test_token_in_hello_does_not_override_that_of_the_request(two: Two) -> None:
    async with two.ann.raw() as raw:
        welcome = await raw.greet(msgspec.structs.replace(HELLO, auth=_TOKENS["bob"]))
    async with two.ann.raw() as raw:
        welcome = await raw.greet(msgspec.structs.replace(HELLO, auth=_TOKENS["bob"]))
        assert (await two.ann.get(f"/v1/sessions/{welcome.session}")).status == 200
        assert (await two.bob.get(f"/v1/sessions/{welcome.session}")).status == 404


async def test_one_principal_cannot_disturb_the_session_of_another(two: Two) -> None:
    # The same alias and URI, refused and closed, belong to another session.
    async with two.bob.greeted() as raw:
        await raw.push(opening(1, "overwritten", uri=_URI))
        await raw.applied(await raw.push(Focus(document=1)))
        errors: list[ErrorMessage] = raw.errors
        assert not errors
    response = await two.ann.get(f"/v1/sessions/{two.ann_session.session}/documents/1")
    assert b"ann's text" in response.body
