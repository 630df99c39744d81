"""A WebSocket client that costs the load process as little as Python can: frames made ready beforehand."""

from __future__ import annotations

import os
import socket

from websockets.speedups import apply_mask

__all__ = ["BINARY", "TEXT", "RawClient", "masked"]

TEXT = 0x81
BINARY = 0x82
_READ_BYTES = 256 * 1024


def masked(first: int, payload: bytes) -> bytes:
    """One whole frame of a client."""
    mask = os.urandom(4)
    length = len(payload)
    if length < 126:
        head = bytes((first, 0x80 | length))
    elif length < 0x10000:
        head = bytes((first, 0x80 | 126)) + length.to_bytes(2, "big")
    else:
        head = bytes((first, 0x80 | 127)) + length.to_bytes(8, "big")
    return head + mask + apply_mask(payload, mask)


class RawClient:
    """One connection after its upgrade."""

    def __init__(self, port: int, target: str, *headers: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = (
            f"GET {target} HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            *headers,
        )
        self.socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        head = b""
        while b"\r\n\r\n" not in head:
            received = self.socket.recv(_READ_BYTES)
            if not received:
                raise SystemExit(f"the upgrade of {target} was refused: {head!r}")
            head += received
        head, _, self._rest = head.partition(b"\r\n\r\n")
        if b" 101 " not in head.partition(b"\r\n")[0]:
            raise SystemExit(f"the upgrade of {target} was refused: {head!r}")

    def send(self, frames: bytes) -> None:
        """Send frames that are ready."""
        self.socket.sendall(frames)

    def read(self) -> list[bytes]:
        """Read once, and return the payloads of the data frames that are complete."""
        received = self.socket.recv(_READ_BYTES)
        if not received:
            raise SystemExit("the server closed the connection")
        return self._take(self._rest + received if self._rest else received)

    def _take(self, data: bytes) -> list[bytes]:
        payloads = []
        offset, end = 0, len(data)
        while end - offset >= 2:
            length = data[offset + 1]
            start = offset + 2
            if length == 126:
                start = offset + 4
                length = int.from_bytes(data[offset + 2 : start], "big")
            elif length == 127:
                start = offset + 10
                length = int.from_bytes(data[offset + 2 : start], "big")
            if start + length > end:
                break
            if data[offset] == 0x88:
                raise SystemExit(f"the server closed: {data[start : start + length]!r}")
            payloads.append(data[start : start + length])
            offset = start + length
        self._rest = data[offset:]
        return payloads

    def next_payloads(self) -> list[bytes]:
        """Read until there is at least one payload; it may have come with the upgrade already."""
        payloads = self._take(self._rest)
        while not payloads:
            payloads = self.read()
        return payloads

    def close(self) -> None:
        """Drop the connection."""
        self.socket.close()
