"""Our server with its real hub, in memory: `python -m benchmarks.peers.streamctx_server [--uvloop]`.

It prints its port, and serves until SIGTERM.
"""

from __future__ import annotations

import asyncio
import sys

from benchmarks.peers.loads import TOKEN
from streamctx import __version__
from streamctx.hub.hub import Hub
from streamctx.hub.ports import Principal
from streamctx.server.config import ServerConfig
from streamctx.server.serve import Server, serve_until_signal

__all__: list[str] = []


def main() -> None:
    hub = Hub(tokens={TOKEN: Principal("me", frozenset({"produce", "observe"}))}, version=__version__)
    config = ServerConfig(token=TOKEN, discovery=False)

    def say_ready(server: Server) -> None:
        print(server.port, flush=True)

    loop_factory = None
    if "--uvloop" in sys.argv:
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(serve_until_signal(hub, config, on_ready=say_ready))


if __name__ == "__main__":
    main()
