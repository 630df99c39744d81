"""Documents, presence and subscriptions that break the rules of sections 10 to 13, and what they may cost."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from streamctx.limits import KIB, MIB
from streamctx.vocabulary import Encoding
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    Close,
    Cursor,
    DesignClose,
    DesignNode,
    DesignOpen,
    DesignSelection,
    DesignTool,
    Diagnostic,
    Diagnostics,
    Edit,
    Ended,
    ErrorMessage,
    Focus,
    Mention,
    Message,
    Open,
    Part,
    Save,
    Selection,
    Snapshot,
    SnapshotRequest,
    Subscribe,
    Subscribed,
    Sync,
    Synced,
    Unsubscribe,
    Update,
    Version,
    Viewport,
)
from tests.hostile.arena import Arena
from tests.hostile.raw import HELLO, Raw, hash_of, opening

__all__: list[str] = []

pytestmark = pytest.mark.asyncio

_TEXT = "one\r\ntwo 😀\n"
_FAR = 2**53 - 1


def _edit(*change: object, base: int = 1, version: int = 2, **fields: object) -> Edit:
    changes = (Change(*change),) if change else (Change(0, 0, 0, 0, ""),)  # type: ignore[arg-type]
    return Edit(document=1, base=base, version=version, **({"changes": changes} | fields))  # type: ignore[arg-type]


async def _refused(raw: Raw, message: Message, code: str) -> ErrorMessage:
    number = await raw.push(message)
    error = await raw.error(number)
    assert error.code == code, message
    return error


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (_edit(9, 0, 9, 0, "x"), "bad_position"),
        (_edit(0, 4, 0, 4, "x"), "bad_position"),
        (_edit(1, 5, 1, 5, "x"), "bad_position"),
        (_edit(0, 0, 2, 1, "x"), "bad_position"),
        (_edit(_FAR, _FAR, _FAR, _FAR, "x"), "bad_position"),
        (_edit(1, 0, 0, 0, "x"), "bad_change"),
        (_edit(0, 2, 0, 1, "x"), "bad_change"),
        (_edit(0, 0, 0, 3, "x", 2), "old_len_mismatch"),
        (_edit(0, 0, 0, 0, "x", length=1), "length_mismatch"),
        (_edit(base=0), "bad_version"),
        (_edit(base=2, version=3), "bad_version"),
        (_edit(base=1, version=1), "bad_version"),
        (_edit(base=_FAR, version=_FAR), "bad_version"),
        (_edit(changes=(Change(0, 0, 0, 2, ""), Change(0, 1, 0, 3, "")), mode="sim"), "bad_change"),
        (_edit(changes=(Change(0, 0, 0, 3, ""),) * 2), "bad_position"),
        (Version(document=1, version=1, length=0, hash=hash_of(_TEXT)), "length_mismatch"),
        (Version(document=1, version=1, length=12, hash="xxh3-64:0"), "hash_mismatch"),
        (Version(document=1, version=0, length=12, hash=hash_of(_TEXT)), "bad_version"),
        (Snapshot(document=1, version=0, length=0, hash=hash_of(""), text=""), "bad_version"),
        (Snapshot(document=1, version=2, length=1, hash="\x1b[2J" * 40, text="a"), "hash_mismatch"),
        (Part(document=1, version=1, index=0, text="x"), "bad_part"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_unfit_event_is_refused_and_the_document_heals(arena: Arena, event: Message, code: str) -> None:
    async with arena.greeted() as raw:
        await raw.push(opening(1, _TEXT))
        await _refused(raw, event, code)
        request = await raw.find(SnapshotRequest)
        assert (request.document, request.version) == (1, 1)
        # Until the snapshot comes nothing is answered; then all is well.
        await raw.push(
            _edit(), Save(document=1, version=9), event, Version(document=1, version=9, length=0, hash="")
        )
        healing = opening(1, "healed", version=3)
        await raw.push(Snapshot(document=1, version=3, length=6, hash=healing.hash, text="healed"))
        await raw.applied(await raw.push(_edit(0, 6, 0, 6, "!", base=3, version=4)))
        assert len(raw.errors) <= 2


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (Save(document=1, version=2), "bad_version"),
        # Not exactly one of text and parts.
        (Snapshot(document=1, version=2, length=0, hash=hash_of("")), "malformed"),
        (Snapshot(document=1, version=2, length=0, hash=hash_of(""), text="", parts=1), "malformed"),
        (Cursor(document=1, version=1, position=(0, 4)), "bad_position"),
        (Cursor(document=1, version=1, position=(_FAR, 0)), "bad_position"),
        (Selection(document=1, version=1, ranges=((0, 0, 9, 9),)), "bad_position"),
        (Viewport(document=1, version=1, first_line=2, last_line=1), "bad_position"),
        (Viewport(document=1, version=1, first_line=0, last_line=_FAR), "bad_position"),
        (
            Diagnostics(
                document=1, version=1, items=(Diagnostic(range=(1, 0, 0, 0), severity=1, message=""),)
            ),
            "bad_change",
        ),
        (Mention(document=1, version=1, range=(0, 0, 0, 99)), "bad_position"),
        (opening(1, "x", uri="file:///w/other"), "alias_in_use"),
        (DesignClose(document=1), "unknown_document"),
        (DesignSelection(document=1, page="p", nodes=(), total=0), "unknown_document"),
        *(
            (event, "unknown_document")
            for event in (
                Edit(document=7, base=1, version=2, changes=(Change(0, 0, 0, 0, ""),)),
                Part(document=7, version=1, index=0, text=""),
                Version(document=7, version=1, length=0, hash=""),
                Save(document=7, version=1),
                Close(document=7),
                Snapshot(document=7, version=1, length=0, hash=hash_of(""), text=""),
                Mention(document=7, version=1, range=(0, 0, 0, 0)),
                Cursor(document=7, version=1, position=(0, 0)),
                Focus(document=7),
                DesignClose(document=7),
                DesignSelection(document=7, page="p", nodes=(), total=0),
            )
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_event_that_fails_alone_leaves_the_document_as_it_was(
    arena: Arena, event: Message, code: str
) -> None:
    async with arena.greeted() as raw:
        await raw.push(opening(1, _TEXT))
        await _refused(raw, event, code)
        await raw.applied(await raw.push(_edit(0, 0, 0, 0, "x")))
        assert len(raw.errors) == 1


async def test_three_unfit_texts_close_the_document(arena: Arena) -> None:
    async with arena.greeted() as raw:
        bad = msgspec.structs.replace(opening(1, "text"), hash="xxh3-64:0000000000000000")
        for code in ("hash_mismatch", "hash_mismatch", "unverifiable"):
            await _refused(raw, bad, code)
        await raw.applied(await raw.push(_edit(), Close(document=1)))
        assert len(raw.errors) == 3


async def test_201_documents_are_answered_with_limit(arena: Arena) -> None:
    async with arena.greeted() as raw:
        await raw.push(*(opening(alias, "x") for alias in range(1, 201)))
        await _refused(raw, opening(201, "x"), "limit")
        await raw.push(Close(document=1))
        await raw.applied(await raw.push(opening(201, "x")))
        assert len(raw.errors) == 1


async def test_endless_refused_documents_cost_nothing(arena: Arena) -> None:
    async with arena.greeted() as raw:
        for start in range(1, 12_000, 1000):
            for alias in range(start, start + 1000):
                await raw.push(Open(document=alias, uri="/.env", version=1, length=0, hash="", text=""))
            await raw.applied(start + 999)
        assert {error.code for error in raw.errors} == {"excluded"}
        # The newest are remembered as refused, whatever came before.
        count = len(raw.errors)
        await raw.applied(
            await raw.push(Edit(document=12_000, base=1, version=2, changes=(Change(0, 0, 0, 0, ""),)))
        )
        assert len(raw.errors) == count


async def test_document_of_60_mb_is_refused_by_its_announcement(arena: Arena) -> None:
    async with arena.greeted() as raw:
        big = Open(document=1, uri="/big", version=1, length=60_000_000, hash="", parts=1000)
        error = await _refused(raw, big, "too_large")
        assert error.expected == 50_000_000
        # Whatever still comes of it is dropped.
        part = Part(document=1, version=1, index=0, text="p" * 64 * KIB)
        for _ in range(100):
            await raw.push(part)
            await raw.applied(await raw.push(_edit()))
        assert len(raw.errors) == 1
        assert (await arena.session(raw))["documents"] == []
        assert await arena.metric("document_bytes") < 8 * MIB


async def test_document_that_grows_past_50_mb_by_parts_is_refused(arena: Arena) -> None:
    async with arena.greeted() as raw:
        await raw.push(Open(document=1, uri="/big", version=1, length=1, hash="", parts=_FAR))
        piece = "p" * (64 * KIB)
        for index in range(763):
            await raw.push(Part(document=1, version=1, index=index, text=piece))
            if index % 8 == 0:
                await raw.applied(index + 2)
        assert (await raw.error()).code == "too_large"
        assert (await arena.session(raw))["documents"] == []
        assert await arena.metric("document_bytes") < 8 * MIB


async def test_parts_without_text_do_not_pile_up(arena: Arena) -> None:
    async with arena.greeted() as raw:
        await raw.push(Open(document=1, uri="/big", version=1, length=0, hash="", parts=_FAR))
        for start in range(0, 20_000, 1000):
            await raw.push(
                *(Part(document=1, version=1, index=index, text="") for index in range(start, start + 1000))
            )
            await raw.applied(start + 1001)
        assert not raw.errors
        # Parts are ended by what is not the next of them.
        await _refused(raw, Part(document=1, version=1, index=5, text=""), "bad_part")


async def test_texts_over_64_kib_in_one_message_are_refused(arena: Arena) -> None:
    async with arena.greeted() as raw:
        await _refused(raw, opening(1, "é" * (32 * KIB + 1)), "too_large")
        await raw.push(opening(2, "é" * (32 * KIB)))
        await raw.push(Open(document=3, uri="/x", version=1, length=1, hash="", parts=2))
        await _refused(raw, Part(document=3, version=1, index=0, text="a" * (64 * KIB + 1)), "too_large")
        assert len(raw.errors) == 2


async def test_edits_count_towards_the_text_of_all_documents(arena: Arena) -> None:
    async with arena.greeted() as raw:
        await raw.push(opening(1, ""))
        text = "x" * 200_000
        await raw.applied(await raw.push(_edit(0, 0, 0, 0, text)))
        before = await arena.metric("document_bytes")
        await raw.applied(await raw.push(Close(document=1)))
        assert await arena.metric("document_bytes") < before - len(text) // 2


async def test_alias_is_a_text_or_a_design_and_never_both(arena: Arena) -> None:
    design = DesignOpen(document=1, uri="figma:///f", tool=DesignTool(name="t"), file_name="f", pages=())
    async with arena.greeted() as raw:
        await raw.push(opening(1, "text", uri="figma:///f"))
        await _refused(raw, design, "alias_in_use")
        await raw.push(Close(document=1), design)
        await _refused(raw, opening(1, "text", uri="figma:///f"), "alias_in_use")
        await _refused(raw, _edit(), "unknown_document")
        session = await arena.session(raw)
        assert len(session["designs"]) == 1
        assert session["documents"] == []


async def test_design_text_is_dropped_while_capture_is_off(arena: Arena) -> None:
    async with arena.greeted() as raw, arena.greeted() as observer:
        await observer.push(Subscribe(subscription=1, session=raw.session))
        await raw.push(DesignOpen(document=1, uri="/f", tool=DesignTool(name="t"), file_name="f", pages=()))
        node = DesignNode(id="1", kind="k", name="n", text="CANARY")
        await raw.push(DesignSelection(document=1, page="p", nodes=(node,), total=1))
        update = await observer.find(
            Update, lambda update: any(isinstance(event, DesignSelection) for event in update.events)
        )
        assert "CANARY" not in repr(update)
        assert "CANARY" not in repr(await arena.session(raw))


async def test_flood_of_presence_keys_forgets_the_oldest(arena: Arena) -> None:
    async with arena.greeted() as raw:
        await raw.push(opening(1, _TEXT))
        for start in range(0, 6000, 500):
            await raw.push(
                *(
                    Cursor(document=1, version=1, position=(0, 0), view=f"v{index}")
                    for index in range(start, start + 500)
                )
            )
            await raw.applied(start + 501)
        assert len((await arena.session(raw))["presence"]) == 2048
        # Ahead of a gap, of documents that nobody knows, for versions that never come.
        first = next(raw.numbers)
        frames = []
        for index in range(3000):
            event = Cursor(document=index + 2, version=9, position=(0, 0), view="x")
            frames.append(raw.frame_of(event, sequence=next(raw.numbers)))
        await raw.send_frames(*frames)
        await raw.send(Focus(), sequence=first)
        await raw.applied(first + 3000)
        assert len((await arena.session(raw))["presence"]) <= 2048


async def test_flood_of_large_presence_is_bounded_by_bytes(arena: Arena) -> None:
    ranges = tuple((0, index % 3, 0, 3) for index in range(1000))
    async with arena.greeted() as raw:
        await raw.push(opening(1, _TEXT))
        for index in range(100):
            number = await raw.push(Selection(document=1, version=1, ranges=ranges, view=f"v{index}"))
            if index % 10 == 0:
                await raw.applied(number)
        # The newest are kept. Those for a version that never comes count likewise.
        views = await _views_shown(arena, raw)
        assert 10 < len(views) < 60
        assert views[-1] == "v99"
        for index in range(100):
            number = await raw.push(Selection(document=1, version=9, ranges=ranges, view=f"w{index}"))
            if index % 10 == 0:
                await raw.applied(number)
        assert await _views_shown(arena, raw) == []


async def _views_shown(arena: Arena, raw: Raw) -> list[str]:
    """The views of all selections that an observer is shown who comes now."""
    views: list[str] = []
    async with arena.greeted() as observer:
        await observer.push(Subscribe(subscription=1, session=raw.session))
        while not isinstance(message := await observer.next(), Synced):
            if isinstance(message, Update):
                views += [event.view for event in message.events if isinstance(event, Selection)]
    return views


# Observing


async def test_65_subscriptions_are_answered_with_limit(arena: Arena) -> None:
    async with arena.greeted() as raw:
        for subscription in range(1, 65):
            await raw.push(Subscribe(subscription=subscription, session="*"))
        error = await _refused(raw, Subscribe(subscription=65, session="*"), "limit")
        assert (error.subscription, error.temporary) == (65, True)
        # One in use is replaced, and one that was given up makes room.
        await raw.push(Subscribe(subscription=64, session="*"), Unsubscribe(subscription=1))
        await raw.push(Subscribe(subscription=2**31 - 1, session="*"))
        await raw.find(Subscribed, lambda answer: answer.subscription == 2**31 - 1)
        assert len(raw.errors) == 1


async def test_unknown_session_is_answered_with_not_found(arena: Arena) -> None:
    async with arena.greeted() as raw:
        for name in ("x", "**", "?", "\x00", "*" * 200):
            error = await _refused(raw, Subscribe(subscription=1, session=name), "not_found")
            assert name not in error.message
        await raw.applied(await raw.push(Unsubscribe(subscription=9)))


async def test_roles_are_kept(arena: Arena) -> None:
    for role, message in (
        ("observe", opening(1)),
        ("observe", Focus()),
        ("produce", Subscribe(subscription=1, session="*")),
    ):
        async with arena.raw() as raw:
            await raw.greet(msgspec.structs.replace(HELLO, role=role))
            await _refused(raw, message, "forbidden")
    # What only observes is not shown either.
    async with arena.raw() as quiet, arena.greeted() as raw:
        welcome = await quiet.greet(msgspec.structs.replace(HELLO, role="observe"))
        await quiet.push(opening(1, "x"))
        await _refused(raw, Subscribe(subscription=1, session=welcome.session), "not_found")


async def test_subscription_flood_is_bounded(arena: Arena) -> None:
    async with arena.greeted() as raw:
        for _ in range(150):
            for _ in range(10):
                await raw.push(Subscribe(subscription=1, session="*"), Unsubscribe(subscription=1))
            # What comes back is read meanwhile: who does not read is cut off, which is another test's.
            last = await raw.push(Focus())
            await raw.applied(last)


async def test_patterns_that_are_costly_elsewhere_are_cheap(arena: Arena) -> None:
    costly = ("*a" * 1900, "a*" * 1900, "[" * 3800, "?" * 3800)
    async with arena.greeted() as raw, arena.greeted() as observer:
        for subscription in range(1, 5):
            patterns = tuple(f"{pattern}{subscription}" for pattern in costly)
            await observer.push(Subscribe(subscription=subscription, session="*", documents=patterns))
        error = await _refused(
            observer, Subscribe(subscription=5, session="*", documents=("?" * 4096,) * 10), "limit"
        )
        assert error.subscription == 5
        started = asyncio.get_running_loop().time()
        await raw.applied(await raw.push(opening(1, "x", uri="a" * 4096)))
        assert asyncio.get_running_loop().time() - started < 0.5


async def test_session_may_observe_itself_by_id(arena: Arena) -> None:
    async with arena.raw() as raw, arena.greeted() as observer:
        welcome = await raw.greet()
        await raw.push(Subscribe(subscription=1, session=welcome.session))
        await observer.push(Subscribe(subscription=1, session=welcome.session))
        await raw.find(Synced)
        for version in range(1, 50):
            await raw.push(opening(1, f"text {version}", version=version))
        await observer.find(Update, lambda update: update.to >= 49)
        await raw.client.send(b"\x88\x82" + bytes(4) + (1000).to_bytes(2, "big"))
        assert (await observer.find(Ended)).reason == "closed"


async def test_min_interval_is_kept_without_losing_the_last_value(arena: Arena) -> None:
    async with arena.greeted(Encoding.JSON) as observer, arena.greeted() as raw:
        await raw.push(opening(1, _TEXT))
        await raw.applied(1)
        await observer.push(Subscribe(subscription=1, session=raw.session, min_interval_ms=400))
        await observer.find(Sync)
        await raw.push(*(Cursor(document=1, version=1, position=(0, 0), view="a") for _ in range(900)))
        await raw.push(Cursor(document=1, version=1, position=(0, 3), view="a"))
        await observer.find(
            Update,
            lambda update: any(isinstance(e, Cursor) and e.position == (0, 3) for e in update.events),
        )
        assert observer.received_bytes < 100_000
