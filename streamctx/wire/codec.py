"""Message bodies: structs to bytes and back, in the encoding of a connection.

A body that cannot be decoded is a value, `Malformed` or `UnknownType`: the
session answers it by its number and goes on (FRM-4, FRM-5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from streamctx.vocabulary import Encoding
from streamctx.wire.messages import (
    CLIENT_MESSAGES,
    SERVER_MESSAGES,
    ClientMessage,
    Message,
    ServerMessage,
)
from streamctx.wire.relations import RELATIONS

__all__ = [
    "BodyDecoder",
    "Malformed",
    "UnknownType",
    "client_decoder",
    "encode_body",
    "server_decoder",
]

M_co = TypeVar("M_co", covariant=True)

_encode_msgpack = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
# Looking up a member through its class costs as much as to encode a short message.
_MSGPACK = Encoding.MSGPACK


@dataclass(frozen=True, slots=True)
class Malformed:
    """The body cannot be decoded or breaks its schema; `message` says how, without text."""

    message: str


@dataclass(frozen=True, slots=True)
class UnknownType:
    """The body is an object of a type that is not known here."""

    type: str


class _Probe(msgspec.Struct):
    type: str


class BodyDecoder(Generic[M_co]):
    """Decodes the messages of one direction in one encoding."""

    __slots__ = ("_decode", "_probe", "_types")

    def __init__(
        self,
        encoding: Encoding,
        union: object,
        types: tuple[type[Message], ...],
    ) -> None:
        module = msgspec.msgpack if encoding is Encoding.MSGPACK else msgspec.json
        self._decode = module.Decoder(union).decode
        self._probe = module.Decoder(_Probe).decode
        self._types = frozenset(message.__struct_config__.tag for message in types)

    def decode(self, body: bytes | memoryview) -> M_co | Malformed | UnknownType:
        """Decode one body; never raises for what a peer sent."""
        try:
            message: M_co = self._decode(body)
        except msgspec.ValidationError as error:
            return self._classify(body, error)
        except msgspec.DecodeError as error:
            return Malformed(_one_line(error))
        except RecursionError:
            # msgspec raises this, and not DecodeError, for deep nesting.
            return Malformed("nested too deeply")
        relation = RELATIONS.get(type(message))  # type: ignore[arg-type]
        if relation is not None and (problem := relation(message)) is not None:
            return Malformed(problem)
        return message

    def _classify(self, body: bytes | memoryview, error: msgspec.ValidationError) -> Malformed | UnknownType:
        try:
            name = self._probe(body).type
        except (msgspec.DecodeError, RecursionError):
            return Malformed(_one_line(error))
        if name in self._types:
            return Malformed(_one_line(error))
        return UnknownType(name[:100])


def encode_body(message: Message, encoding: Encoding) -> bytes:
    """Encode a message.

    Raises:
        UnicodeEncodeError: A text holds a lone surrogate; the caller must have replaced it (CNV-4).
    """
    return _encode_msgpack(message) if encoding is _MSGPACK else _encode_json(message)


_QUOTED = re.compile(r" '.*'", re.DOTALL)


def _one_line(error: Exception) -> str:
    """What msgspec says of types and paths of fields, without the value that it quotes (ERR-3)."""
    return " ".join(_QUOTED.sub("", str(error)).split())[:400]


_CLIENT: dict[Encoding, BodyDecoder[ClientMessage]] = {
    encoding: BodyDecoder(encoding, ClientMessage, CLIENT_MESSAGES) for encoding in Encoding
}
_SERVER: dict[Encoding, BodyDecoder[ServerMessage]] = {
    encoding: BodyDecoder(encoding, ServerMessage, SERVER_MESSAGES) for encoding in Encoding
}


def client_decoder(encoding: Encoding) -> BodyDecoder[ClientMessage]:
    """The decoder of what clients send."""
    return _CLIENT[encoding]


def server_decoder(encoding: Encoding) -> BodyDecoder[ServerMessage]:
    """The decoder of what servers send."""
    return _SERVER[encoding]
