"""Bodies to messages and back; what a peer can do to the decoder."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamctx.vocabulary import INTEGER_MAX, Encoding
from streamctx.wire.codec import (
    BodyDecoder,
    Malformed,
    UnknownType,
    client_decoder,
    encode_body,
    server_decoder,
)
from streamctx.wire.messages import CLIENT_MESSAGES, SERVER_MESSAGES, Close, Message, Part
from tests.wire.strategies import MESSAGES

__all__: list[str] = []

CLOSE = {"type": "close", "document": 1}
DECODERS: list[tuple[Encoding, BodyDecoder[Any]]] = [
    (encoding, decoder(encoding)) for encoding in Encoding for decoder in (client_decoder, server_decoder)
]
every_encoding = pytest.mark.parametrize("encoding", Encoding)


def write(body: object, encoding: Encoding) -> bytes:
    return msgspec.json.encode(body) if encoding is Encoding.JSON else msgspec.msgpack.encode(body)


def nested(depth: int, encoding: Encoding) -> bytes:
    """A close whose unknown field holds arrays within arrays."""
    if encoding is Encoding.JSON:
        return b'{"type":"close","document":1,"x":' + b"[" * depth + b"]" * depth + b"}"
    head = write({**CLOSE, "x": 0}, encoding)[:-1]
    return head + b"\x91" * depth + b"\xc0"


@every_encoding
@pytest.mark.parametrize(
    ("direction", "message_type"),
    [("client", message) for message in CLIENT_MESSAGES]
    + [("server", message) for message in SERVER_MESSAGES],
    ids=lambda value: value if isinstance(value, str) else str(value.__struct_config__.tag),
)
@given(data=st.data())
def test_a_message_decodes_to_itself(
    encoding: Encoding, direction: str, message_type: type[Message], data: st.DataObject
) -> None:
    message = data.draw(MESSAGES[message_type])
    decoder: BodyDecoder[Any] = (client_decoder if direction == "client" else server_decoder)(encoding)
    assert decoder.decode(encode_body(message, encoding)) == message


@given(st.binary(max_size=100))
def test_random_bytes_are_never_an_exception(body: bytes) -> None:
    for _, decoder in DECODERS:
        decoder.decode(body)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=5), values, max_size=4),
    max_leaves=10,
)
ALL_FIELDS = sorted({name for message in MESSAGES for name in message.__struct_fields__})


@given(
    st.sampled_from(sorted(str(message.__struct_config__.tag) for message in MESSAGES)),
    st.dictionaries(st.sampled_from(ALL_FIELDS), json_values, max_size=5),
)
def test_fields_of_any_kind_are_never_an_exception(name: str, fields: dict[str, object]) -> None:
    body = {"type": name, **fields}
    for encoding, decoder in DECODERS:
        try:
            data = write(body, encoding)
        except UnicodeEncodeError:
            continue
        decoder.decode(data)


@every_encoding
@given(data=st.data())
def test_one_byte_changed_is_never_an_exception(encoding: Encoding, data: st.DataObject) -> None:
    message = data.draw(st.one_of(*MESSAGES.values()))
    body = bytearray(encode_body(message, encoding))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    client_decoder(encoding).decode(bytes(body))
    server_decoder(encoding).decode(bytes(body))


@every_encoding
@given(data=st.data())
def test_a_message_that_is_cut_is_malformed(encoding: Encoding, data: st.DataObject) -> None:
    body = encode_body(data.draw(MESSAGES[Part]), encoding)
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    assert isinstance(client_decoder(encoding).decode(cut), Malformed)


@every_encoding
def test_deep_nesting_is_malformed(encoding: Encoding) -> None:
    assert isinstance(client_decoder(encoding).decode(nested(100_000, encoding)), Malformed)


@every_encoding
def test_shallow_nesting_in_an_unknown_field_is_ignored(encoding: Encoding) -> None:
    assert client_decoder(encoding).decode(nested(100, encoding)) == Close(document=1)


def test_deep_nesting_behind_an_unknown_type_is_malformed() -> None:
    body = b'{"type":"x_future","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert isinstance(client_decoder(Encoding.JSON).decode(body), Malformed)


def test_the_last_of_two_equal_keys_counts() -> None:
    body = b'{"type":"close","document":1,"document":2}'
    assert client_decoder(Encoding.JSON).decode(body) == Close(document=2)
    packed = bytes.fromhex("83a474797065a5636c6f7365a8646f63756d656e7401a8646f63756d656e7402")
    assert client_decoder(Encoding.MSGPACK).decode(packed) == Close(document=2)


@every_encoding
def test_the_largest_integer_decodes_and_the_next_is_malformed(encoding: Encoding) -> None:
    decode = client_decoder(encoding).decode
    largest = decode(write({**CLOSE, "queued_ms": INTEGER_MAX}, encoding))
    assert largest == Close(document=1, queued_ms=INTEGER_MAX)
    for value in (INTEGER_MAX + 1, INTEGER_MAX + 2, 2**63, 2**64 - 1, -1, -(2**53)):
        assert isinstance(decode(write({**CLOSE, "queued_ms": value}, encoding)), Malformed), value


@every_encoding
def test_a_type_of_the_other_direction_is_unknown(encoding: Encoding) -> None:
    client_only = {message.__struct_config__.tag for message in set(CLIENT_MESSAGES) - set(SERVER_MESSAGES)}
    server_only = {message.__struct_config__.tag for message in set(SERVER_MESSAGES) - set(CLIENT_MESSAGES)}
    for name in client_only:
        assert server_decoder(encoding).decode(write({"type": name}, encoding)) == UnknownType(str(name))
    for name in server_only:
        assert client_decoder(encoding).decode(write({"type": name}, encoding)) == UnknownType(str(name))


@every_encoding
def test_the_name_of_an_unknown_type_is_cut(encoding: Encoding) -> None:
    assert client_decoder(encoding).decode(write({"type": "x" * 5000}, encoding)) == UnknownType("x" * 100)


@every_encoding
def test_what_is_said_of_a_malformed_body_holds_nothing_of_its_text(encoding: Encoding) -> None:
    secret = "hunter2"
    for body in (
        {"type": "part", "document": 1, "version": 1, "index": secret, "text": secret},
        {"type": "open", "document": 1, "uri": secret, "version": 1, "length": 1, "hash": 7, "text": secret},
        {"type": "edit", "document": 1, "base": 1, "version": 2, "changes": [[0, 0, 0, secret, secret]]},
        {"type": "hello", "attempt": secret, "auth": secret},
    ):
        result = client_decoder(encoding).decode(write(body, encoding))
        assert isinstance(result, Malformed)
        assert secret not in result.message
        assert len(result.message) <= 500


@every_encoding
def test_a_value_outside_an_enumeration_is_not_repeated(encoding: Encoding) -> None:
    body = write({**CLOSE, "type": "skip", "ranges": [[1, 2]], "reason": "hunter2"}, encoding)
    result = client_decoder(encoding).decode(body)
    assert isinstance(result, Malformed)
    assert "hunter2" not in result.message


@every_encoding
def test_a_lone_surrogate_cannot_be_encoded(encoding: Encoding) -> None:
    with pytest.raises(UnicodeEncodeError):
        encode_body(Part(document=1, version=1, index=0, text="\ud83d"), encoding)


def test_a_lone_surrogate_in_an_ignored_field_is_malformed_in_json() -> None:
    body = json.dumps({**CLOSE, "x": "\ud83d"}).encode()
    assert isinstance(client_decoder(Encoding.JSON).decode(body), Malformed)


@every_encoding
def test_a_body_may_be_a_view_of_a_frame(encoding: Encoding) -> None:
    frame = b"head" + write(CLOSE, encoding)
    assert client_decoder(encoding).decode(memoryview(frame)[4:]) == Close(document=1)
