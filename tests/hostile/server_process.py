"""A server under attack as a process of its own: `python -m tests.hostile.server_process LOG`.

It prints its port and its token, logs everything to the file, and ends when its input does.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from streamctx.server.embedding import serve
from tests.hostile.arena import LIMITS

__all__: list[str] = []


async def _main() -> None:
    async with serve(limits=LIMITS) as server:
        sys.stdout.write(f"{server.port} {server.token}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    logging.basicConfig(
        filename=sys.argv[1], level=logging.DEBUG, format="%(name)s %(levelname)s %(message)s"
    )
    asyncio.run(_main())
