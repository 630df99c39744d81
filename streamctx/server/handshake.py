"""The WebSocket upgrade: who may, to which path, with which subprotocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from websockets.datastructures import Headers as WebSocketHeaders
from websockets.exceptions import NegotiationError
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from streamctx.errors import ErrorCode
from streamctx.hub.ports import Principal
from streamctx.server.logs import library_logger
from streamctx.server.security import (
    BearerError,
    Client,
    Headers,
    Refusal,
    bearer_token,
    check_request,
    identify_client,
)
from streamctx.server.shell import Shell
from streamctx.vocabulary import Encoding

__all__ = ["STREAM_PATH", "SUBPROTOCOLS", "Upgrade", "accept_upgrade", "unauthorized"]

STREAM_PATH = b"/v1/stream"

SUBPROTOCOLS = {"streamctx.v1": Encoding.MSGPACK, "streamctx.v1.json": Encoding.JSON}


@dataclass(frozen=True, slots=True)
class Upgrade:
    """An accepted upgrade: write `response`, then speak WebSocket with `protocol`."""

    response: bytes
    protocol: ServerProtocol
    encoding: Encoding
    principal: Principal | None
    client: Client


def accept_upgrade(
    shell: Shell,
    *,
    method: str,
    target: bytes,
    http_version: str,
    headers: Headers,
    peer_address: str,
    scheme: str,
) -> Upgrade | Refusal:
    """Decide about a request to upgrade.

    Args:
        shell: The server's policy, limits and hub.
        method: The HTTP method.
        target: The request target as it came.
        http_version: Such as `1.1`.
        headers: Names in lower case.
        peer_address: Of the socket's peer.
        scheme: `http` or `https`, as the socket has it.
    """
    path, _, query = target.partition(b"?")
    client = identify_client(shell.policy, headers, peer_address=peer_address, scheme=scheme)
    refusal = check_request(shell.policy, headers, scheme=client.scheme, query=query, target=target)
    if refusal is not None:
        return refusal
    if path != STREAM_PATH:
        return Refusal(
            HTTPStatus.NOT_FOUND, ErrorCode.NOT_FOUND, f"the only WebSocket here is {STREAM_PATH.decode()}"
        )
    if _has_body(headers):
        # What follows the head would be a body to a proxy in front of us, and frames to us.
        return Refusal(HTTPStatus.BAD_REQUEST, ErrorCode.MALFORMED, "a request to upgrade has no body")
    if shell.is_draining:
        return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, ErrorCode.DRAINING, "the server is shutting down")
    try:
        token = bearer_token(headers)
    except BearerError:
        return unauthorized("the Authorization header is not `Bearer <token>`")
    principal = None if token is None else shell.hub.authenticate(token)
    if token is not None and principal is None:
        return unauthorized("the token is wrong")
    if principal is None and shell.unauthenticated_count >= shell.limits.unauthenticated_connections_max:
        return Refusal(
            HTTPStatus.SERVICE_UNAVAILABLE,
            ErrorCode.LIMIT,
            "too many connections have not authenticated yet; retry later",
            (("retry-after", "1"),),
        )
    limits = shell.limits
    protocol = ServerProtocol(
        # The head has been parsed by the HTTP side, so the parser starts with frames; `accept` only computes.
        state=State.OPEN,
        select_subprotocol=_select_subprotocol,
        # A stranger cannot make us hold more than it may send at all.
        max_size=limits.before_welcome_bytes_max if principal is None else limits.websocket_message_bytes_max,
        logger=library_logger,
    )
    response = protocol.accept(
        Request(
            path=target.decode("latin-1"),
            headers=WebSocketHeaders(
                [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
            ),
            method=method,
            protocol=f"HTTP/{http_version}",
        )
    )
    if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
        return _refusal_of(response)
    assert protocol.subprotocol is not None
    return Upgrade(response.serialize(), protocol, SUBPROTOCOLS[protocol.subprotocol], principal, client)


def unauthorized(message: str) -> Refusal:
    """A 401 that says how to do better."""
    return Refusal(
        HTTPStatus.UNAUTHORIZED,
        ErrorCode.UNAUTHORIZED,
        message,
        (("www-authenticate", 'Bearer realm="streamctx"'),),
    )


def _has_body(headers: Headers) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in headers
    )


def _select_subprotocol(_: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol:
    for name in offered:
        if name in SUBPROTOCOLS:
            return name
    raise NegotiationError(f"a subprotocol must be offered: {' or '.join(SUBPROTOCOLS)}")


def _refusal_of(response: Response) -> Refusal:
    names = {"allow", "upgrade", "sec-websocket-version"}
    kept = tuple((name, value) for name, value in response.headers.raw_items() if name.lower() in names)
    message = (
        bytes(response.body)
        .decode()
        .split("\n", 1)[0]
        .removeprefix("Failed to open a WebSocket connection: ")
    )
    return Refusal(HTTPStatus(response.status_code), ErrorCode.MALFORMED, message, kept)
