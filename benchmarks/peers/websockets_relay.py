"""The plain way with `websockets`: JSON in, an acknowledgement out, and the message to every observer.

`python -m benchmarks.peers.websockets_relay [--uvloop]` prints its port, and serves until SIGTERM. It has no
checksum, no numbers to check, no text and no session.
"""

from __future__ import annotations

import asyncio
import json
import sys

from websockets.asyncio.server import ServerConnection, broadcast, serve

__all__: list[str] = []


async def relay_forever() -> None:
    observers: set[ServerConnection] = set()

    async def handle(connection: ServerConnection) -> None:
        assert connection.request is not None
        if connection.request.path == "/observe":
            observers.add(connection)
        async for message in connection:
            edit = json.loads(message)
            await connection.send(json.dumps({"type": "ack", "sequence": edit["sequence"]}))
            broadcast(observers, message)

    # Without keepalive and compression, to its advantage.
    async with serve(handle, "127.0.0.1", 0, compression=None, ping_interval=None) as server:
        print(next(iter(server.sockets)).getsockname()[1], flush=True)
        await server.serve_forever()


def main() -> None:
    loop_factory = None
    if "--uvloop" in sys.argv:
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(relay_forever())


if __name__ == "__main__":
    main()
