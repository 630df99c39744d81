"""Bodies that cannot be decoded, break their schema, or are built to cost much."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from streamctx.limits import KIB
from streamctx.vocabulary import Encoding
from streamctx.wire.messages import DesignNode, DesignSelection, Focus, Subscribe, Update
from tests.hostile.arena import Arena
from tests.hostile.raw import Raw, body_of, hash_of, opening, text_frame

__all__: list[str] = []

pytestmark = pytest.mark.asyncio

_pack = msgspec.msgpack.encode
_LEVELS = 100_000
_LENGTHS = (
    (b"\xd9", 1), (b"\xda", 2), (b"\xdb", 4), (b"\xc4", 1), (b"\xc5", 2), (b"\xc6", 4), (b"\xc7", 2),
    (b"\xc8", 3), (b"\xc9", 5), (b"\xdc", 2), (b"\xdd", 4), (b"\xde", 2), (b"\xdf", 4), (b"\xd8", 1),
    (b"\xcf", 7), (b"\xcb", 7),
)  # fmt: skip
"""Heads of strings, bytes, extensions, arrays, maps and numbers, and how many bytes say how long they are."""


def _with(name: str, raw_value: bytes, kind: str = "focus") -> bytes:
    """A MessagePack body whose last value is given as bytes."""
    return b"\x82" + _pack("type") + _pack(kind) + _pack(name) + raw_value


async def _is_malformed(raw: Raw, body: bytes) -> None:
    number = await raw.push(body)
    error = await raw.error(number)
    assert (error.code, error.temporary) == ("malformed", False)
    assert len(error.message) <= 500
    # It failed alone.
    await raw.applied(await raw.push(Focus()))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\xc0",
        b"\x90",
        b"\x80",
        b"\x81\x01\x02",
        _pack({"type": "focus"}) + b"\x00",
        _pack({"type": "focus"})[:-1],
        _pack({"type": 1}),
        _pack({"type": "focus", "document": 2**53}),
        _pack({"type": "focus", "document": -1}),
        _pack({"type": "focus", "document": 1.0}),
        _pack({"type": "focus", "document": True}),
        _pack({"type": "focus", "document": "1"}),
        _pack({"type": "focus", "view": "v" * 101}),
        _pack({"type": "focus", "queued_ms": 2**64 - 1}),
        _pack({"type": "focus", "is_offline": 1}),
        _with("view", b"\xa2\xff\xfe"),
        _with("view", b"\xa3\xed\xa0\x80"),
        _with("view", b"\xa2\xc0\x80"),
        _with("view", b"\xc4\x01a"),
        # Declared lengths of 2^32 - 1.
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        _with("view", b"\xdb\xff\xff\xff\xffaa"),
        _with("view", b"\xc6\xff\xff\xff\xffaa"),
        _with("x", b"\xdf\xff\xff\xff\xff" + b"\xa1a\x01" * 1000),
        _with("x", b"\xdd\xff\xff\xff\xff" * 500),
        _with("x", b"\xc9\xff\xff\xff\xff\x01"),
        _with("changes", b"\xdd\xff\xff\xff\xff", kind="edit"),
        _with("ranges", b"\xdd\xff\xff\xff\xff", kind="selection"),
        # Deep nesting, in known and in unknown fields and in place of the body.
        b"\x91" * _LEVELS,
        b"\x81\xa1a" * (_LEVELS // 2),
        _with("view", b"\x91" * _LEVELS),
        _with("ranges", b"\x91" * _LEVELS, kind="selection"),
        _with("x", b"\x91" * _LEVELS + b"\xc0"),
        _with("x", b"\x81\xa1a" * (_LEVELS // 2) + b"\xc0"),
        # Two tags that contradict each other.
        b"\x82" + _pack("type") + _pack("focus") + _pack("type") + _pack("cursor"),
    ],
    ids=lambda body: body[:16].hex() + f"-{len(body)}",
)
async def test_bad_messagepack_fails_alone(arena: Arena, body: bytes) -> None:
    async with arena.greeted() as raw:
        await _is_malformed(raw, body)


_MORE_BODIES: tuple[bytes, ...] = (
    # Around the depth at which the decoder gives up: whole and cut short, read and not read.
    *(
        _with(name, head * levels + tail, kind)
        for levels in (33, 900, 999, 1000, 1001, 1100, 5000)
        for name, kind, head in (("view", "focus", b"\x91"), ("ranges", "selection", b"\x91"))
        for tail in (b"\xc0", b"")
    ),
    *(_with("x", b"\x91" * levels) for levels in (33, 900, 999, 1000, 1001, 1100)),
    _with("x", b"\xdd\x00\x00\x00\x01" * 50_000),
    _with("x", b"\xdd\xff\xff\xff\xff" * 900 + bytes(200 * KIB)),
    _with("x", b"\xdf\xff\xff\xff\xff" * 900 + bytes(200 * KIB)),
    # Every kind of length, stated and not there.
    *(_with("x", head + b"\xff" * size) for head, size in _LENGTHS),
    *(_with("view", head + b"\xff" * size) for head, size in _LENGTHS),
    # Over the bound of a list, which is known before the first element is.
    _with("changes", b"\xdd\x00\x00\x27\x11", kind="edit"),
    _with("items", b"\xdc\x03\xe9", kind="diagnostics"),
    # An extension where a value should be, and a map whose keys are no names.
    _with("view", b"\xd4\x05a"),
    _with("document", b"\xd6\xff\x00\x00\x00\x01"),
    b"\x82\x91\x01\x02" + _pack("type") + _pack("focus"),
    b"\x82\x81\x01\x02\x03" + _pack("type") + _pack("focus"),
    b"\x82\xc4\x04type" + _pack("focus"),
    _with("document", _pack(float("nan"))),
    _with("document", _pack(float("inf"))),
    _with("queued_ms", _pack(-(2**63))),
    _with("queued_ms", _pack(2.0)),
    _with("view", b"\xc3"),
)


async def test_bodies_at_the_edges_of_the_decoder_fail_alone(arena: Arena) -> None:
    async with arena.greeted() as raw:
        for body in _MORE_BODIES:
            await _is_malformed(raw, body)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"type":"focus"',
        b'{"type":"focus"} x',
        b'{"type":"focus",}',
        b"{'type':'focus'}",
        b'{"type":"focus","view":"\\ud800"}',
        b'{"type":"focus","view":"\\udc00\\ud800"}',
        b'{"type":"focus","view":"\\u12"}',
        b'{"type":"focus","view":"a\x00b"}',
        b'{"type":"focus","view":"a\nb"}',
        b'{"type":"focus","document":1e999}',
        b'{"type":"focus","document":9007199254740992}',
        b'{"type":"focus","document":1' + b"0" * 10_000 + b"}",
        b'{"type":"focus","x":NaN}',
        b'{"type":"focus","x":Infinity}',
        b'{"type":"focus","x":' + b"[" * _LEVELS,
        b'{"type":"focus","x":' + b"[" * _LEVELS + b"]" * _LEVELS + b"}",
        b'{"type":"focus","x":' + b'{"a":' * 40_000 + b"1" + b"}" * 40_000 + b"}",
        b'{"type":"focus","view":' + b"[" * _LEVELS + b"]" * _LEVELS + b"}",
        b'{"type":"selection","document":1,"version":1,"ranges":' + b"[" * _LEVELS + b"}",
        b'{"type":"open","type":"focus"}',
    ],
    ids=lambda body: body[:40].decode("ascii", "replace") + f"-{len(body)}",
)
async def test_bad_json_fails_alone(arena: Arena, body: bytes) -> None:
    async with arena.greeted(Encoding.JSON) as raw:
        await _is_malformed(raw, body)


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_fields_out_of_their_bounds_fail_alone(arena: Arena, encoding: Encoding) -> None:
    edit = {"type": "edit", "document": 1, "base": 1, "version": 2}
    bodies: list[dict[str, object]] = [
        msgspec.to_builtins(opening(1)) | {"document": 0},
        msgspec.to_builtins(opening(1)) | {"document": 2**31},
        msgspec.to_builtins(opening(1)) | {"uri": ""},
        msgspec.to_builtins(opening(1)) | {"uri": "u" * 4097},
        msgspec.to_builtins(opening(1)) | {"length": 2**53},
        msgspec.to_builtins(opening(1)) | {"eol": "nel"},
        msgspec.to_builtins(opening(1)) | {"parts": 0, "text": None},
        edit | {"changes": []},
        edit | {"changes": [[0, 0, 0, 0, ""]] * 10_001},
        edit | {"changes": [[0, 0, 0, 0]]},
        edit | {"changes": [[-1, 0, 0, 0, ""]]},
        edit | {"changes": [{"start_line": 0}]},
        edit | {"changes": [[0, 0, 0, 0, "", 2**53]]},
        edit | {"changes": [[0, 0, 0, 0, ""]], "mode": "both"},
        {"type": "selection", "document": 1, "version": 1, "ranges": [[0, 0, 0, 0]] * 1001},
        {"type": "selection", "document": 1, "version": 1, "ranges": [[0, 0, 0]]},
        {"type": "mention", "document": 1, "version": 1, "range": [0, 0, 0, 0], "text": "t" * 16_385},
        {
            "type": "diagnostics",
            "document": 1,
            "version": 1,
            "items": [{"range": [0, 0, 0, 0], "severity": 5}],
        },
        {"type": "subscribe", "subscription": 0, "session": "*"},
        {"type": "subscribe", "subscription": 1, "session": ""},
        {"type": "subscribe", "subscription": 1, "session": "*", "min_interval_ms": 60_001},
        {"type": "subscribe", "subscription": 1, "session": "*", "documents": ["*"] * 101},
    ]
    async with arena.greeted(encoding) as raw:
        for body in bodies:
            await _is_malformed(raw, body_of(encoding, **body))


async def test_unknown_fields_are_ignored_at_every_depth(arena: Arena) -> None:
    odd = {"a": [None, 1.5, -1, "x", b"bytes", msgspec.msgpack.Ext(5, b"e")], "b": {"c": {}}}
    async with arena.greeted() as raw:
        await raw.push(
            _pack({"type": "focus", "x": odd}),
            # A string that is no UTF-8 in a field that nobody reads.
            _with("x", b"\xa2\xff\xfe"),
            _pack(msgspec.to_builtins(opening(1, "a")) | {"x": odd, "secret": "s"}),
        )
        await raw.applied(3)
        assert not raw.errors
    async with arena.greeted(Encoding.JSON) as raw:
        await raw.push(b'{"type":"focus","x":[1e999,-0,"\\u0000",{"":null}]}')
        await raw.applied(1)
        assert not raw.errors


@pytest.mark.parametrize(
    "value",
    [
        b"\xdd" + (250_000).to_bytes(4, "big") + b"\xc0" * 250_000,
        b"\xdd" + (250_000).to_bytes(4, "big") + b"\x90" * 250_000,
        b"\xdd" + (250_000).to_bytes(4, "big") + b"\x80" * 250_000,
        b"\xdf"
        + (50_000).to_bytes(4, "big")
        + b"".join(_pack(2**20 * n) + b"\xc0" for n in range(50_000))[:250_000],
        b"\xde\xff\xff" + b"".join(b"\xcd" + n.to_bytes(2, "big") + b"\xc0" for n in range(0xFFFF))[:250_000],
        b"\xc6" + (250_000).to_bytes(4, "big") + bytes(250_000),
        b"\xc9" + (250_000).to_bytes(4, "big") + b"\x05" + bytes(250_000),
        b"\xdd" + (800).to_bytes(4, "big") + (b"\x91" * 300 + b"\xc0") * 800,
    ],
    ids=lambda value: f"{value[:8].hex()}-{len(value)}",
)
async def test_large_value_that_nobody_reads_is_skipped_quickly(arena: Arena, value: bytes) -> None:
    async with arena.greeted() as raw:
        loop = asyncio.get_running_loop()
        started = loop.time()
        numbers = [await raw.push(_with("x", value)) for _ in range(8)]
        await raw.applied(numbers[-1])
        # Some of them are cut short, which is malformed, and all of them cost next to nothing.
        assert {error.code for error in raw.errors} <= {"malformed"}
        assert loop.time() - started < 1


async def test_last_of_two_equal_keys_is_the_one_that_counts_everywhere(arena: Arena) -> None:
    fields = f'"document":1,"version":1,"length":0,"hash":"{hash_of("")}","text":""'
    async with arena.greeted(Encoding.JSON) as raw:
        await raw.push(f'{{"type":"open","uri":"file:///w/a.py","uri":"file:///w/.env",{fields}}}'.encode())
        assert (await raw.error(1)).code == "excluded"
        await raw.push(f'{{"type":"open","uri":"file:///w/.env","uri":"file:///w/b.py",{fields}}}'.encode())
        await raw.applied(2)
        told = json.dumps(await arena.session(raw))
        assert "b.py" in told
        assert ".env" not in told


async def test_nul_and_control_characters_in_uris_and_names_harm_nobody(arena: Arena) -> None:
    names = [
        "a\x00b",
        "a\nb",
        "\x1b[2J",
        "\x7f",
        "\u2028",
        "\ufffe",
        "\U0010ffff",
        "../../etc",
        "%00%2e",
        "http://[",
        "//℀",
    ]
    async with arena.greeted() as raw, arena.greeted(Encoding.JSON) as observer:
        await observer.push(Subscribe(subscription=1, session=raw.session))
        for alias, name in enumerate(names, 1):
            await raw.push(opening(alias, name, uri=name), Focus(document=alias, view=name[:100]))
        await raw.applied(2 * len(names))
        assert not raw.errors
        told = await arena.session(raw)
        assert [document["uri"] for document in told["documents"]] == names
        await observer.find(
            Update, lambda update: any(getattr(event, "uri", "") == names[-1] for event in update.events)
        )


async def test_box_that_is_no_rectangle_reaches_no_observer(arena: Arena) -> None:
    design = {
        "type": "design.open",
        "document": 1,
        "uri": "figma:///f",
        "tool": {"name": "t"},
        "file_name": "f",
        "pages": [],
    }
    async with arena.greeted() as raw, arena.greeted(Encoding.JSON) as observer:
        await observer.push(Subscribe(subscription=1, session=raw.session))
        await raw.push(_pack(design))
        for value in (float("nan"), float("inf"), float("-inf"), 1e300):
            for field in ("x", "y", "width", "height"):
                box = {"x": 0.0, "y": 0.0, "width": 1.0, "height": 1.0} | {field: value}
                node = {"id": "1", "kind": "k", "name": "n", "box": box}
                selection = {
                    "type": "design.selection",
                    "document": 1,
                    "page": "p",
                    "nodes": [node],
                    "total": 1,
                }
                await _is_malformed(raw, _pack(selection))
        last = DesignSelection(
            document=1, page="last", nodes=(DesignNode(id="1", kind="k", name="n"),), total=1
        )
        await raw.push(last)
        await observer.find(Update, lambda update: last in update.events)


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_unknown_and_foreign_types_are_unsupported_or_ignored(arena: Arena, encoding: Encoding) -> None:
    kinds = [
        "welcome", "goaway", "snapshot_request", "subscribed", "sync", "update", "synced", "ended", "stale",
        "attachment", "", "x" * 10_000, "HELLO", "open ", "__class__", "type", "\x1b[2J\x00", "design",
    ]  # fmt: skip
    async with arena.greeted(encoding) as raw:
        for kind in kinds:
            number = await raw.push(body_of(encoding, type=kind, session="s", events=[], document=1))
            error = await raw.error(number)
            assert error.code == "unsupported"
            assert len(error.message) <= 500
        for kind in kinds:
            await raw.send(body_of(encoding, type=kind))
        await raw.applied(await raw.push(Focus()))
        assert len(raw.errors) == len(kinds)


async def test_error_of_a_client_is_counted_and_not_answered(arena: Arena) -> None:
    async with arena.greeted() as raw:
        body = body_of(Encoding.MSGPACK, type="error", code="internal\x1b[2J", message="m" * 500)
        for _ in range(200):
            await raw.send(body)
        await raw.applied(await raw.push(body))
        assert not raw.errors


async def test_json_body_of_only_white_space_and_names_is_bounded(arena: Arena) -> None:
    async with arena.greeted(Encoding.JSON) as raw:
        await raw.send_frames(text_frame('1 0 {"type":"focus"' + " " * 200_000 + "}"))
        await raw.send_frames(
            text_frame("2 0 {" + ",".join(f'"k{i}":0' for i in range(15_000)) + ',"type":"focus"}')
        )
        await raw.applied(2)
        assert not raw.errors
