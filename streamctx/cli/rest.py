"""Small GET requests to a server's HTTP side, on TCP, TLS or a Unix socket."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from urllib.parse import urlsplit

from streamctx.cli.target import Target
from streamctx.errors import StreamctxError
from streamctx.limits import DEFAULT_LIMITS, MIB

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["RequestFailed", "get_json"]

_TIMEOUT_S = 5.0

# JSON writes a control character of one byte as six.
_BODY_BYTES_MAX = 6 * DEFAULT_LIMITS.document_bytes_max + MIB


class RequestFailed(StreamctxError):
    """The server could not be asked, or answered with an error.

    `status` is `None` if no answer came.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    @override
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def get_json(target: Target, path: str) -> object:
    """The JSON at a path, which begins with a slash; with the target's token, without redirects.

    Raises:
        RequestFailed: If there is no answer within 5 s, it is an error, or it is no JSON.
    """
    connection = _connection(target)
    base = urlsplit(target.http_url).path
    headers = {"Accept": "application/json"}
    if target.token:
        headers["Authorization"] = f"Bearer {target.token}"
    try:
        connection.request("GET", base + path, headers=headers)
        response = connection.getresponse()
        body = response.read(_BODY_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise RequestFailed(f"{target.http_url} cannot be reached: {reason}") from error
    finally:
        connection.close()
    try:
        value: object = json.loads(body)
    except ValueError as error:
        raise RequestFailed(
            f"{target.http_url} answered {response.status} without JSON; it is no streamctx server",
            status=response.status,
        ) from error
    if response.status != 200:
        raise RequestFailed(
            f"{target.http_url} answered {response.status}: {_message_of(value)}", status=response.status
        )
    return value


def _connection(target: Target) -> http.client.HTTPConnection:
    if target.uds is not None:
        return _UnixConnection(str(target.uds))
    parts = urlsplit(target.http_url)
    assert parts.hostname is not None
    if parts.scheme == "https":
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)


def _message_of(value: object) -> str:
    match value:
        case {"error": {"code": str(code), "message": str(message)}}:
            return f"{code}: {message}"
        case _:
            return "an error without a message"
