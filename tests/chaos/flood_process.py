"""Attackers in a process of their own: `python -m tests.chaos.flood_process PORT TOKEN`.

It prints a line once they are at work, and when its input ends, how often each of them came, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from streamctx.wire.messages import Subscribe
from tests.hostile.raw import HELLO, Raw, opening
from tests.server.raw_client import RawClient, frame, upgrade_head

__all__ = ["ATTACKS"]

_HOLD_S = 20.0
_DRIP_S = 0.1
_TEXT = "x" * 20_000
_PAUSE_S_MAX = 1.0


async def _handshake(client: RawClient, token: str) -> None:
    """Upgrade, and leave at once."""
    await client.upgrade(f"Authorization: Bearer {token}")


async def _hold(client: RawClient, _: str) -> None:
    """Connect, and say nothing."""
    await client.reader.read()


async def _stranger(client: RawClient, _: str) -> None:
    """Upgrade without a token, and say no HELLO."""
    await client.upgrade()
    await client.reader.read()


async def _slow_head(client: RawClient, token: str) -> None:
    """Ask for an upgrade one byte at a time."""
    await _drip(client, upgrade_head(f"Authorization: Bearer {token}"))


async def _slow_hello(client: RawClient, token: str) -> None:
    """Say HELLO one byte at a time."""
    await client.upgrade(f"Authorization: Bearer {token}")
    await _drip(client, frame(0x82, Raw(client).frame_of(HELLO)))


async def _slow_body(client: RawClient, token: str) -> None:
    """Send a body one byte at a time."""
    head = f"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    await client.send(f"{head}Content-Length: 10000\r\n\r\n".encode())
    await _drip(client, bytes(10_000))


async def _deaf_observer(client: RawClient, token: str) -> None:
    """Observe everything, and read nothing."""
    _keep_small(client)
    await client.upgrade(f"Authorization: Bearer {token}")
    raw = Raw(client)
    await raw.greet()
    await raw.push(opening(1, _TEXT), Subscribe(subscription=1, session="*"))
    await _do_not_read(client)


async def _deaf_browser(client: RawClient, token: str) -> None:
    """Ask for every session again and again, and read nothing."""
    _keep_small(client)
    await client.send(
        f"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        * 300
    )
    await _do_not_read(client)


ATTACKS: Final[dict[Callable[[RawClient, str], Awaitable[None]], int]] = {
    _handshake: 20,
    _hold: 60,
    _stranger: 60,
    _slow_head: 60,
    _slow_hello: 40,
    _slow_body: 20,
    _deaf_observer: 20,
    _deaf_browser: 20,
}
"""How many of each there are at a time."""


def _keep_small(client: RawClient) -> None:
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)


async def _drip(client: RawClient, data: bytes) -> None:
    for index in range(len(data)):
        await client.send(data[index : index + 1])
        await asyncio.sleep(_DRIP_S)


async def _do_not_read(client: RawClient) -> None:
    transport: Any = client.writer.transport
    transport.pause_reading()
    while not transport.is_closing():
        # Notices the end of a connection that is not read from.
        await client.send(frame(0x8A, b""))
        await asyncio.sleep(_DRIP_S)


async def _attack(
    attack: Callable[[RawClient, str], Awaitable[None]], port: int, token: str, counts: Counter[str]
) -> None:
    while True:
        # Whatever the server does to an attacker is its right.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_HOLD_S), RawClient.open(port) as client:
                counts[attack.__name__] += 1
                await attack(client, token)
        # Not all at the same moment, which would only be another kind of work.
        await asyncio.sleep(random.uniform(0, _PAUSE_S_MAX) if attack is not _handshake else 0)


async def _main(port: int, token: str) -> None:
    # The machine may have few processors: what is measured is the server, and not how they are shared.
    os.nice(10)
    counts: Counter[str] = Counter()
    attackers = [
        asyncio.create_task(_attack(attack, port, token, counts))
        for attack, count in ATTACKS.items()
        for _ in range(count)
    ]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    for attacker in attackers:
        attacker.cancel()
    await asyncio.gather(*attackers, return_exceptions=True)
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), sys.argv[2]))
