"""An editor with an outbox, to be killed: `python -m tests.e2e.outbox_process URL TOKEN DIRECTORY`.

It goes on with what it finds, and types by a script that the version decides: so anybody can tell what the
text of a version has to be. It says, one line each, what it found, and each version and note once the call
has returned. When a line comes it stops, says so once the server has confirmed everything, and leaves when
its input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys

import streamctx
from streamctx.client.document import Document
from streamctx.wire.changes import Change

__all__ = ["NAMES", "change_at", "first_text"]

NAMES = ("one", "two")
_PIECES = ("a", "word ", "\n", "é", "😀", "x = 1\n")


def first_text(name: str) -> str:
    """What a document begins with: the second one goes out in parts."""
    return f"# {name}\n" * (1 if name == NAMES[0] else 6000)


def change_at(version: int) -> Change:
    """The edit that is made on that version."""
    if version % 11:
        return Change(0, 0, 0, 0, _PIECES[version % len(_PIECES)])
    # Now and then what the edit before has put there goes again.
    before = _PIECES[(version - 1) % len(_PIECES)] if version else ""
    end = (1, 0) if before.endswith("\n") else (0, len(before.encode("utf-16-le")) // 2)
    return Change(0, 0, *end, "")


def _say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def _type(documents: list[Document], is_over: asyncio.Event) -> None:
    turn = 0
    while not is_over.is_set():
        document = documents[turn % len(documents)]
        version = document.edit(change_at(document.version))
        _say(name=document.uri.rpartition("/")[2], version=version)
        document.cursor((0, 0))
        if version % 10 == 0:
            document.save()
        if version % 25 == 0:
            document.mention((0, 0, 0, 0), note=f"{document.alias}/{version}")
            _say(note=f"{document.alias}/{version}")
        turn += 1
        # Now at once, now after the loop has turned, so that it is killed with much or little under way.
        if turn % 5:
            await asyncio.sleep(0.001 * (turn % 3))


async def _main(url: str, token: str, directory: str) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    is_over = asyncio.Event()
    async with streamctx.connect(url, token, outbox=directory) as client:
        assert client.outbox is not None
        restored = {document.uri: document for document in client.restored}
        _say(
            found=client.outbox.found,
            texts={uri: [document.text, document.version] for uri, document in restored.items()},
        )
        documents = []
        for name in NAMES:
            uri = f"file:///work/{name}"
            known = restored.get(uri)
            if known is None:
                documents.append(await client.open(uri, first_text(name)))
            else:
                documents.append(await client.open(uri, known.text, version=known.version))
        assert client.restored == ()
        async with asyncio.TaskGroup() as group:
            group.create_task(_type(documents, is_over))
            await reader.readline()
            is_over.set()
        await client.flush()
        _say(
            session=client.session_id,
            resumes=client.counters.resumes,
            resets=client.counters.resets,
            outbox=client.outbox.size_bytes,
        )
        await reader.read()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
