"""Every case of the vector files, but the session scripts."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.core.documents.text_digest import text_hash
from streamctx.errors import EventRefused, RemoteProtocolError
from streamctx.vocabulary import DigestAlgorithm, Encoding, HashAlgorithm, Unit
from streamctx.wire.changes import Change
from streamctx.wire.codec import BodyDecoder, Malformed, UnknownType, client_decoder, server_decoder
from streamctx.wire.digests import DIGESTS
from streamctx.wire.frames import parse_frame
from tests.vectors.reading import VECTORS, Case, expand, parameters

__all__: list[str] = []

MESSAGE_FILES = sorted(f"messages/{path.name}" for path in (VECTORS / "messages").glob("*.json"))


@parameters("digests.json")
def test_digest(case: Case) -> None:
    match case:
        case {"hex": str(digits)}:
            data = bytes.fromhex(digits)
        case {"text": str(text)}:
            data = text.encode()
        case _:
            assert "131 * i + 17" in case["pattern_rule"]
            data = bytes((131 * i + 17) % 256 for i in range(case["pattern"]))
    assert len(data) == case["bytes"]
    for algorithm in DigestAlgorithm:
        assert DIGESTS[algorithm](data).hex() == case[algorithm]


@parameters("hashes.json")
def test_hash(case: Case) -> None:
    text = expand(case["text"])
    assert len(text.encode()) == case["utf8_bytes"]
    for algorithm in HashAlgorithm:
        assert text_hash(text, algorithm) == case[algorithm]
        assert TextBuffer(text).hash(algorithm) == case[algorithm]


@parameters("frames.json")
def test_frame(case: Case) -> None:
    data = bytes.fromhex(case["hex"]) if "hex" in case else case["text"].encode()
    try:
        frame = parse_frame(
            data, encoding=Encoding(case["encoding"]), digest=DIGESTS[DigestAlgorithm(case["digest"])]
        )
    except RemoteProtocolError as error:
        assert {"error": error.code, "close": error.close_code} == case["expected"]
        return
    if frame is None:
        assert case["expected"] == "corrupt"
        return
    body = bytes(frame.body)
    expected = dict(case["expected"])
    if "body" in expected:
        assert body == expected.pop("body").encode()
    else:
        assert body.hex() == expected.pop("body_hex")
    assert {"kind": frame.kind, "stream": frame.stream, "sequence": frame.sequence} == expected


def outcome(body: bytes, decoder: BodyDecoder[Any], canonical: object, encoding: Encoding) -> str:
    """What a body decodes to: `valid` where it says what `canonical` says."""
    message = decoder.decode(body)
    match message:
        case Malformed():
            return "malformed"
        case UnknownType():
            return "unsupported"
        case _:
            is_same = says(message, canonical) and message == again(canonical, decoder, encoding)
            return "valid" if is_same else "other"


def again(canonical: object, decoder: BodyDecoder[Any], encoding: Encoding) -> object:
    module = msgspec.json if encoding is Encoding.JSON else msgspec.msgpack
    return decoder.decode(module.encode(canonical))


def says(value: object, expected: object) -> bool:
    """Whether a decoded value holds all that the expected plain value says."""
    match value, expected:
        case msgspec.Struct(), dict():
            names = {field.encode_name: field.name for field in msgspec.structs.fields(value)}
            config = value.__struct_config__
            if config.tag is not None and expected.get("type") != config.tag:
                return False
            rest = {key: item for key, item in expected.items() if key != config.tag_field}
            return all(says(getattr(value, names[key]), item) for key, item in rest.items())
        case msgspec.Struct(), list():
            return all(map(says, msgspec.structs.astuple(value), expected))
        case tuple(), list():
            return len(value) == len(expected) and all(map(says, value, expected))
        case float(), int():
            return value == expected
        case _:
            return type(value) is type(expected) and value == expected


def decoders(direction: str, encoding: Encoding) -> list[BodyDecoder[Any]]:
    client: BodyDecoder[Any] = client_decoder(encoding)
    server: BodyDecoder[Any] = server_decoder(encoding)
    return {"client": [client], "server": [server], "both": [client, server], "update": [server]}[direction]


def in_update(event: object) -> dict[str, object]:
    return {"type": "update", "session": "s_4f", "from": 0, "to": 1, "events": [event]}


@parameters(*MESSAGE_FILES)
def test_message(case: Case) -> None:
    body = expand(case["body"])
    canonical = expand(case.get("canonical", case["body"]))
    if case["direction"] == "update":
        body, canonical = in_update(body), in_update(canonical)
    encoded = [
        (Encoding.JSON, json.dumps(body, ensure_ascii=False).encode()),
        (Encoding.MSGPACK, msgspec.msgpack.encode(body)),
    ]
    if "msgpack" in case and case["direction"] != "update":
        encoded.append((Encoding.MSGPACK, bytes.fromhex(case["msgpack"])))
    for encoding, data in encoded:
        for decoder in decoders(case["direction"], encoding):
            result = outcome(data, decoder, canonical, encoding)
            if case.get("beyond_schema"):
                # The decoder may leave a relation between fields to the session.
                assert result in ("malformed", "valid")
            else:
                assert result in case["expected"].split(" or ")


@parameters("bodies.json")
def test_body(case: Case) -> None:
    if "json" in case:
        encoding, body = Encoding.JSON, expand(case["json"]).encode()
    else:
        encoding, body = Encoding.MSGPACK, bytes.fromhex(expand(case["msgpack"]))
    decoder = client_decoder(encoding)
    assert outcome(body, decoder, case.get("canonical"), encoding) == case["expected"]


@parameters("positions.json")
def test_positions(case: Case) -> None:
    text = case["text"]
    for unit in Unit:
        buffer = TextBuffer(text, unit=unit)
        assert buffer.line_count == case["lines"]
        assert buffer.length == case["length"][unit]
        for position in case["positions"]:
            line, character, offset = position["line"], position[unit], position["offset"]
            buffer.check_position(line, character)
            for other in Unit:
                assert buffer.convert_character(line, character, other) == position[other]
            marked = TextBuffer(text, unit=unit)
            marked.apply([Change(line, character, line, character, "|")])
            assert marked.text() == f"{text[:offset]}|{text[offset:]}"
    for unit, line, character in case["bad_positions"]:
        buffer = TextBuffer(text, unit=Unit(unit))
        with pytest.raises(EventRefused) as refusal:
            buffer.check_position(line, character)
        assert refusal.value.code == "bad_position"
        with pytest.raises(EventRefused) as refusal:
            buffer.apply([Change(line, character, line, character, "|")])
        assert refusal.value.code == "bad_position"
        assert buffer.text() == text


@parameters("edits.json")
def test_edit(case: Case) -> None:
    buffer = TextBuffer(case["text"], unit=Unit(case["unit"]))
    expected = case["expected"]
    for index, step in enumerate(case["steps"]):
        changes = [Change(*change) for change in step["changes"]]
        is_simultaneous = step["mode"] == "sim"
        if index == expected.get("step"):
            with pytest.raises(EventRefused) as refusal:
                buffer.apply(changes, simultaneous=is_simultaneous)
            assert refusal.value.code == expected["error"]
            if "change" in expected:
                assert refusal.value.change_index == expected["change"]
        else:
            buffer.apply(changes, simultaneous=is_simultaneous)
    assert buffer.text() == expected["text"]
