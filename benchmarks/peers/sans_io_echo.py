"""What the protocol of `websockets` costs by itself: each message goes back to its sender, unread.

`python -m benchmarks.peers.sans_io_echo` prints its port, and serves until SIGTERM. It writes once a read.
"""

from __future__ import annotations

import asyncio
import sys

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__: list[str] = []


class Echo(asyncio.Protocol):
    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.protocol = ServerProtocol()

    @override
    def data_received(self, data: bytes) -> None:
        protocol = self.protocol
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Request):
                protocol.send_response(protocol.accept(event))
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                protocol.send_text(event.data)
        self.transport.write(b"".join(protocol.data_to_send()))


async def echo_forever() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(echo_forever())
