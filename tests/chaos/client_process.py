"""Clients in a process of their own: `python -m tests.chaos.client_process URL TOKEN LIMITS KIND …`.

An `editor` types into its documents, an `idle` one has them and does nothing, an `observer` watches all
sessions. LIMITS is JSON. It prints a line once all are connected, and when its input ends, one in JSON with
the counters of each: then all that the editors did is confirmed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable

import streamctx
from streamctx.client.client import Client
from tests.chaos.editing import Editor, type_until

__all__: list[str] = []


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _be(
    kind: str, client: Client, is_over: asyncio.Event, is_ready: Callable[[], None]
) -> dict[str, object]:
    """Be a client until it is over; returns what it was."""
    editor = Editor(client, kind)
    async with contextlib.AsyncExitStack() as stack:
        if kind == "observer":
            await stack.enter_async_context(await client.observe("*"))
        else:
            await editor.open()
            await client.flush()
        is_ready()
        if kind == "editor":
            await type_until(editor, is_over, 0.02)
        else:
            await is_over.wait()
        await client.flush()
        return {"session": client.session_id, "edits": editor.edits, **dataclasses.asdict(client.counters)}


async def _main(url: str, token: str, limits: str, *kinds: str) -> None:
    settings = streamctx.Limits(**json.loads(limits))
    # Not a thread that reads: a clock that jumps would confuse its locks.
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    is_over = asyncio.Event()
    ready: list[str] = []

    def is_ready() -> None:
        ready.append("")
        if len(ready) == len(kinds):
            _say("ready")

    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        tasks = []
        for kind in kinds:
            client = await stack.enter_async_context(
                streamctx.connect(url, token, name=kind, limits=settings)
            )
            tasks.append(group.create_task(_be(kind, client, is_over, is_ready)))
        await reader.read()
        is_over.set()
        _say(json.dumps([await task for task in tasks]))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
