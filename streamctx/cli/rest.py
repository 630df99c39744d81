"""Requests to a server's HTTP side, on TCP, TLS or a Unix socket."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import IO
from urllib.parse import urlsplit

from streamctx.cli.output import printable
from streamctx.cli.target import Target
from streamctx.errors import StreamctxError
from streamctx.limits import DEFAULT_LIMITS, MIB

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["Answer", "Progress", "RequestFailed", "asked", "download", "get_json", "send_json", "upload"]

Progress = Callable[[int, int | None], object]
"""Told how many bytes are done, and of how many, if that is known."""

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})

_TIMEOUT_S = 5.0

# A server that copies its whole store says nothing until it has.
_LONG_TIMEOUT_S = 600.0

_CHUNK_BYTES = 256 * 1024

# JSON writes a control character of one byte as six.
_BODY_BYTES_MAX = 6 * DEFAULT_LIMITS.document_bytes_max + MIB


class RequestFailed(StreamctxError):
    """The server could not be asked, or answered with an error.

    `status` is `None` if no answer came; `told` is the message of the answer, if it had one; `headers` are
    those of the answer, their names in small letters.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        told: str | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.told = told
        self.headers = headers


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    @override
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def get_json(target: Target, path: str, *, is_long: bool = False) -> object:
    """The JSON at a path, which begins with a slash; with the target's token, without redirects.

    Args:
        target: The server.
        path: Which begins with a slash.
        is_long: Whether the server may take minutes, and not only 5 s.

    Raises:
        RequestFailed: If there is no answer in time, it is an error, or it is no JSON.
    """
    with _Exchange(target, is_long=is_long) as exchange:
        return exchange.json(exchange.ask("GET", path))


def send_json(target: Target, method: str, path: str, value: object = None) -> object:
    """What a server answers to a request with a JSON body.

    Raises:
        RequestFailed: As `get_json`.
    """
    body = None if value is None else json.dumps(value).encode()
    with _Exchange(target, is_long=True) as exchange:
        return exchange.json(exchange.ask(method, path, body))


def download(target: Target, path: str, file: IO[bytes], on_progress: Progress) -> None:
    """Write what is at a path into a file.

    Raises:
        RequestFailed: As `get_json`, or if it ends too early.
    """
    with asked(target, path, {}) as answer:
        done = 0
        for chunk in answer.pieces():
            file.write(chunk)
            done += len(chunk)
            on_progress(done, answer.length)


def upload(target: Target, path: str, file: IO[bytes], on_progress: Progress) -> object:
    """What a server answers to a file that is sent to it.

    Raises:
        RequestFailed: As `get_json`.
    """
    length = file.seek(0, 2)
    file.seek(0)
    with _Exchange(target, is_long=True) as exchange:
        exchange.begin("POST", path, length)
        done = 0
        while chunk := file.read(_CHUNK_BYTES):
            if not exchange.send(chunk):
                break
            done += len(chunk)
            on_progress(done, length)
        return exchange.json(exchange.response())


@contextlib.contextmanager
def asked(target: Target, path: str, headers: Mapping[str, str], *, method: str = "GET") -> Iterator[Answer]:
    """The answer to a request of bytes, which is 200 or 206, to be read within the block.

    Raises:
        RequestFailed: As `get_json`, with the status of any other answer.
    """
    with _Exchange(target, is_long=True) as exchange:
        response = exchange.ask(method, path, headers=headers)
        if response.status not in (200, 206):
            if response.length == 0 or method == "HEAD":
                raise RequestFailed(
                    f"{target.http_url} answered {response.status}: {printable(response.reason)}",
                    status=response.status,
                    headers=_headers_of(response),
                )
            exchange.json(response)
        yield Answer(response, exchange)


class Answer:
    """An answer whose body is read piece by piece."""

    def __init__(self, response: http.client.HTTPResponse, exchange: _Exchange) -> None:
        self._response = response
        self._exchange = exchange
        self.status = response.status
        self.length = response.length
        """Of the body; `None` if only its end will tell."""

    def header(self, name: str) -> str:
        """The value of a header; the empty text if it did not come."""
        return self._response.headers.get(name, "")

    def pieces(self) -> Iterator[bytes]:
        """The body.

        Raises:
            RequestFailed: If it ends before it should.
        """
        done = 0
        while chunk := self._exchange.read(self._response, _CHUNK_BYTES):
            yield chunk
            done += len(chunk)
        if self.length is not None and done != self.length:
            raise RequestFailed(f"the server sent {done} bytes of {self.length}: try again")


class _Exchange:
    """One request on a connection of its own, whose failures are those of the server."""

    def __init__(self, target: Target, *, is_long: bool) -> None:
        self._target = target
        self._connection = _connection(target, _LONG_TIMEOUT_S if is_long else _TIMEOUT_S)
        self._base = urlsplit(target.http_url).path

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = _NO_HEADERS
    ) -> http.client.HTTPResponse:
        try:
            self._connection.request(method, self._base + path, body, {**self._headers(), **headers})
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(error) from error
        return self.response()

    def begin(self, method: str, path: str, length: int) -> None:
        try:
            self._connection.putrequest(method, self._base + path)
            for name, value in {**self._headers(), "Content-Length": str(length)}.items():
                self._connection.putheader(name, value)
            self._connection.endheaders()
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(error) from error

    def send(self, chunk: bytes) -> bool:
        """Send more of a body; `False` if the server takes no more, as it does when it has refused it."""
        try:
            self._connection.send(chunk)
        except (BrokenPipeError, ConnectionResetError):
            return False
        except OSError as error:
            raise self._failure(error) from error
        return True

    def response(self) -> http.client.HTTPResponse:
        try:
            return self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(error) from error

    def read(self, response: http.client.HTTPResponse, byte_count: int) -> bytes:
        try:
            return response.read(byte_count)
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(error) from error

    def json(self, response: http.client.HTTPResponse) -> object:
        body = self.read(response, _BODY_BYTES_MAX)
        url = self._target.http_url
        try:
            value: object = json.loads(body)
        except ValueError as error:
            raise RequestFailed(
                f"{url} answered {response.status} without JSON; it is no streamctx server",
                status=response.status,
                headers=_headers_of(response),
            ) from error
        if response.status != 200:
            told = _message_of(value)
            raise RequestFailed(
                f"{url} answered {response.status}: {printable(_error_of(value))}",
                status=response.status,
                told=told,
                headers=_headers_of(response),
            )
        return value

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if self._target.token:
            headers["Authorization"] = f"Bearer {self._target.token}"
        return headers

    def _failure(self, error: OSError | http.client.HTTPException) -> RequestFailed:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return RequestFailed(f"{self._target.http_url} cannot be reached: {printable(reason)}")


def _connection(target: Target, timeout_s: float) -> http.client.HTTPConnection:
    if target.uds is not None:
        return _UnixConnection(str(target.uds), timeout_s)
    parts = urlsplit(target.http_url)
    assert parts.hostname is not None
    if parts.scheme == "https":
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)


def _headers_of(response: http.client.HTTPResponse) -> Mapping[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _error_of(value: object) -> str:
    match value:
        case {"error": {"code": str(code), "message": str(message)}}:
            return f"{code}: {message}"
        case _:
            return "an error without a message"


def _message_of(value: object) -> str | None:
    match value:
        case {"error": {"message": str(message)}}:
            return message
        case _:
            return None
