"""A client that says exactly what it is told to, right or wrong."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RawClient", "Response", "frame", "upgrade_head"]

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error_code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, where: int | Path) -> AsyncIterator[RawClient]:
        if isinstance(where, Path):
            reader, writer = await asyncio.open_unix_connection(where)
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", where)
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def response(self) -> Response:
        async with asyncio.timeout(_TIMEOUT_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status_line, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Response(int(status_line.split()[1]), headers, body)

    async def upgrade(self, *extra: str, **changes: str | None) -> Response:
        await self.send(upgrade_head(*extra, **changes))
        return await self.response()

    async def frame(self) -> tuple[int, bytes]:
        """The next frame: its first byte and payload."""
        async with asyncio.timeout(_TIMEOUT_S):
            first, length = await self.reader.readexactly(2)
            if length >= 126:
                length = int.from_bytes(await self.reader.readexactly(2 if length == 126 else 8), "big")
            return first, await self.reader.readexactly(length)

    async def close_code(self) -> int:
        """The code of the close frame, after whatever comes before it."""
        while True:
            first, payload = await self.frame()
            if first == 0x88:
                return int.from_bytes(payload[:2], "big")

    async def is_closed(self) -> bool:
        """Wait for the end of the connection, by close or by reset."""
        async with asyncio.timeout(_TIMEOUT_S):
            try:
                while await self.reader.read(1 << 16):
                    pass
            except ConnectionError:
                pass
        return True


def upgrade_head(
    *extra: str,
    target: str | None = "/v1/stream",
    host: str | None = "localhost",
    subprotocol: str | None = "streamctx.v1",
) -> bytes:
    lines = [
        f"GET {target} HTTP/1.1",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        *_optional("Host", host),
        *_optional("Sec-WebSocket-Protocol", subprotocol),
        *extra,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def frame(first: int, payload: bytes = b"", *, is_masked: bool = True) -> bytes:
    """One frame; the mask of zeroes leaves the payload readable."""
    length = len(payload)
    flag = 0x80 if is_masked else 0
    if length < 126:
        head = bytes((first, flag | length))
    elif length < 0x10000:
        head = bytes((first, flag | 126)) + length.to_bytes(2, "big")
    else:
        head = bytes((first, flag | 127)) + length.to_bytes(8, "big")
    return head + bytes(4 if is_masked else 0) + payload


def _optional(name: str, value: str | None) -> Iterable[str]:
    return () if value is None else (f"{name}: {value}",)
