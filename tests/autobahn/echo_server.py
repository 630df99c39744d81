"""A server for Autobahn, in a process of its own: production in everything but the hub, which echoes.

`python -m tests.autobahn.echo_server '{"loop": "asyncio"}'` prints its address and token as a line of JSON,
listens on loopback alone, and ends when its input does, at the latest after `LIFETIME_S`. Its last line is
an `EchoReport`.

The code under test runs as `streamctx serve` runs it: `streamctx.server.serve` makes the same uvicorn set-up
and HTTP class, which hands over to the same `WebSocketConnection` on the same path, after the same checks of
Host, Origin, subprotocol and bearer token, and with the same limits. This differs:

- The hub is `EchoHub`: it knows one token, and each connection is established at once and answers every
  message with itself, where a real one waits for HELLO.
- The token is made up, the server does not announce itself, and signals are left alone.
- `take_messages` is wrapped in order to count what takes the fast path, or, without `is_fast`, replaced by
  one that takes nothing, so that every byte goes to the full parser.
- With `are_limits_raised` messages may have 4 MiB, in as many fragments as they like. It is there to show
  that only our limits, and not the code, fail those cases.

Nothing is done to let wstest in: it sends the subprotocol that its specification names, and the token in a
header that its specification appends to the Origin.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import Iterator
from unittest.mock import patch

import msgspec

from streamctx.hub.ports import ConnectionHandler, ConnectionInfo, Peer, Principal
from streamctx.limits import DEFAULT_LIMITS, MIB, Limits
from streamctx.server.config import ServerConfig
from streamctx.server.frames import take_messages
from streamctx.server.serve import serve
from tests.server.echo_hub import BareHub

__all__ = ["LIFETIME_S", "Address", "EchoReport", "Settings"]

LIFETIME_S = 900.0

_RAISED_LIMITS = Limits(websocket_message_bytes_max=4 * MIB, websocket_fragment_count_max=4 * MIB)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is varied: the event loop, the fast path, the limits."""

    loop: str
    is_fast: bool = True
    are_limits_raised: bool = False


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: where the server is, and what it wants to see."""

    url: str
    origin: str
    token: str


class EchoReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last line: messages that the hub received, those of them by the fast path, the shell's counts."""

    messages: int
    fast_messages: int
    measurements: dict[str, int]


class EchoHandler:
    is_established = True

    def __init__(self, hub: EchoHub, peer: Peer) -> None:
        self._hub = hub
        self._peer = peer

    def receive(self, message: bytes | str, now: float) -> None:
        self._hub.message_count += 1
        self._peer.send([message])

    def read_done(self, now: float) -> None:
        pass

    def writable(self, now: float) -> None:
        pass

    def handle_timeout(self, now: float) -> None:
        pass

    def closed(self, now: float, code: int | None) -> None:
        pass

    def drain(self, now: float) -> None:
        pass


class EchoHub(BareHub):
    def __init__(self, token: str) -> None:
        self._token = token
        self.message_count = 0

    def connect(self, peer: Peer, info: ConnectionInfo, now: float) -> ConnectionHandler:
        return EchoHandler(self, peer)

    def authenticate(self, token: str) -> Principal | None:
        return Principal("wstest", frozenset()) if secrets.compare_digest(token, self._token) else None


class FastPath:
    """Stands before `take_messages`: counts, or takes nothing."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self.message_count = 0

    def take(self, data: bytes, message_bytes_max: int, messages: list[bytes | str]) -> tuple[int, bool]:
        if not self._is_on:
            return 0, False
        before = len(messages)
        taken = take_messages(data, message_bytes_max, messages)
        self.message_count += len(messages) - before
        return taken

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        with patch("streamctx.server.websocket.take_messages", self.take):
            yield


async def _main(settings: Settings) -> None:
    limits = _RAISED_LIMITS if settings.are_limits_raised else DEFAULT_LIMITS
    config = ServerConfig(ephemeral=True, discovery=False, limits=limits)
    assert config.token is not None
    hub = EchoHub(config.token)
    fast_path = FastPath(is_on=settings.is_fast)
    stopping = asyncio.Event()
    with fast_path.installed():
        async with serve(hub, config) as server:
            _say(Address(url=server.url, origin=server.http_url, token=config.token))
            # The end of a pipe is readable too.
            asyncio.get_running_loop().add_reader(sys.stdin, stopping.set)
            async with asyncio.timeout(LIFETIME_S):
                await stopping.wait()
            measurements = server.measurements()
    _say(
        EchoReport(
            messages=hub.message_count, fast_messages=fast_path.message_count, measurements=measurements
        )
    )


def _say(line: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    factory = None
    if settings.loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_main(settings))


if __name__ == "__main__":
    main()
