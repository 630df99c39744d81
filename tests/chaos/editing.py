"""Editors that type through real clients, what their documents must be, and whether all copies are that."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

import streamctx
from streamctx.client.client import Client
from streamctx.client.document import Document
from streamctx.client.observation import Observation
from streamctx.vocabulary import Encoding
from tests.hostile.arena import Arena

__all__ = ["Copy", "Editor", "check_copies", "converge", "editors", "find_difference", "type_until", "typing"]

_PIECES = ("a", "word ", "\n", "    return x\n", "é", "😀", "tres\n\nlines", "=" * 70)
_TEXT_MAX = 3000
_START = "start\n" * 20


@dataclass(frozen=True)
class Copy:
    """What a document is."""

    version: int
    text: str


class Editor:
    """One client that edits its documents at random, and keeps by itself what they must be."""

    def __init__(self, client: Client, seed: object) -> None:
        self.client = client
        self.name = f"editor-{seed}"
        self.random = random.Random(f"{seed}")
        self.edits = 0
        self._opened = 0
        self._documents: list[Document] = []
        self._texts: dict[int, str] = {}
        self._hashes: dict[tuple[str, int], int] = {}

    @property
    def copies(self) -> dict[str, Copy]:
        """What every document must be everywhere, by its URI."""
        for document in self._documents:
            assert document.text == self._texts[document.alias], f"{self.name}: the client has another text"
        return {
            document.uri: Copy(document.version, self._texts[document.alias]) for document in self._documents
        }

    async def open(self, count: int = 2) -> None:
        """Open documents."""
        for _ in range(count):
            self._opened += 1
            document = await self.client.open(f"file:///work/{self.name}/{self._opened - 1}.py", _START)
            self._documents.append(document)
            self._set(document, _START)

    def step(self) -> None:
        """Make one edit and whatever goes with it."""
        chance = self.random
        document = chance.choice(self._documents)
        text = self._texts[document.alias]
        start = chance.randint(0, len(text))
        is_long = len(text) > _TEXT_MAX
        end = min(len(text), start + chance.choice((0, 0, 0, 1, 5, 500 if is_long else 20)))
        inserted = "" if is_long else chance.choice(_PIECES)
        document.edit((*_position(text, start), *_position(text, end), inserted))
        self._set(document, text[:start] + inserted + text[end:])
        self.edits += 1
        if chance.random() < 0.5:
            document.cursor(_position(text, min(start, end)))
        if chance.random() < 0.02:
            document.save()

    def paste(self, characters: int) -> None:
        """Replace the text of a document by a large one, which goes in parts, or by a short one."""
        document = self.random.choice(self._documents)
        is_long = len(self._texts[document.alias]) > _TEXT_MAX
        text = "short\n" if is_long else f"pasted {self.random.random()}\n" * (characters // 20)
        document.replace(text)
        self._set(document, text)
        self.edits += 1

    async def turn_over(self) -> None:
        """Close a document, and open another one."""
        document = self._documents.pop(0)
        del self._texts[document.alias]
        document.close()
        await self.open(1)

    def had(self, uri: str, copy: Copy) -> bool:
        """Whether a document was ever that."""
        return self._hashes.get((uri, copy.version)) == hash(copy.text)

    def _set(self, document: Document, text: str) -> None:
        self._texts[document.alias] = text
        self._hashes[document.uri, document.version] = hash(text)


def _position(text: str, index: int) -> tuple[int, int]:
    """Line and UTF-16 character of a place; all lines end with a line feed."""
    line_start = text.rfind("\n", 0, index) + 1
    return text.count("\n", 0, line_start), len(text[line_start:index].encode("utf-16-le")) // 2


@contextlib.asynccontextmanager
async def editors(
    url: str, token: str, count: int, *, limits: streamctx.Limits, documents: int = 2
) -> AsyncIterator[list[Editor]]:
    """So many editors with open documents; every other one speaks JSON."""
    async with contextlib.AsyncExitStack() as stack:
        found: list[Editor] = []
        for index in range(count):
            encoding = list(Encoding)[index % 2]
            client = await stack.enter_async_context(
                streamctx.connect(
                    url, token, name=f"editor {index}", encoding=encoding, limits=limits, flush_s=0.2
                )
            )
            found.append(Editor(client, index))
            await found[-1].open(documents)
        yield found


async def type_until(editor: Editor, is_over: asyncio.Event, interval_s: float) -> None:
    """Type until told to stop, at least once."""
    while True:
        editor.step()
        if is_over.is_set():
            return
        await asyncio.sleep(editor.random.uniform(0.5, 1.5) * interval_s)


@contextlib.asynccontextmanager
async def typing(found: Iterable[Editor], interval_s: float) -> AsyncIterator[None]:
    """All type while the block runs, every so often."""
    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for editor in found:
            group.create_task(type_until(editor, is_over, interval_s))
        yield
        is_over.set()


async def converge(
    found: Sequence[Editor], arena: Arena, observations: Iterable[Observation], *, within_s: float
) -> float:
    """Wait until the server and every observer have what the editors have; returns how long it took.

    Raises:
        AssertionError: If it takes longer; it names a copy that differs.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    observed = list(observations)
    difference = "nothing was compared"
    try:
        async with asyncio.timeout(within_s):
            for editor in found:
                difference = f"{editor.name} waits for {editor.client.pending} acknowledgements"
                await editor.client.flush()
            while difference := await find_difference(found, arena, observed):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not equal after {within_s:g} s: {difference}") from None
    return loop.time() - started


async def find_difference(found: Sequence[Editor], arena: Arena, observations: Sequence[Observation]) -> str:
    """Say which copy differs from its editor's; nothing if all are equal."""
    for editor in found:
        for uri, copy in editor.copies.items():
            for place, other in (await _copies(editor, uri, arena, observations)).items():
                if other != copy:
                    version = None if other is None else other.version
                    return f"{place} has version {version} of {uri}, and not {copy.version}"
    return ""


async def check_copies(found: Sequence[Editor], arena: Arena, observations: Sequence[Observation]) -> int:
    """See that every copy that is shown is a text that its editor had; returns how many there are.

    Raises:
        AssertionError: If one is not.
    """
    seen = 0
    for editor in found:
        for uri in editor.copies:
            for place, copy in (await _copies(editor, uri, arena, observations)).items():
                assert copy is None or editor.had(uri, copy), f"{place} has a wrong {uri}: {copy}"
                seen += copy is not None
    return seen


async def _copies(
    editor: Editor, uri: str, arena: Arena, observations: Sequence[Observation]
) -> dict[str, Copy | None]:
    """The copies of a document that are shown as good, by where they are."""
    session = editor.client.session_id or "none"
    copies = {"the server": await _stored(arena, session, uri)}
    for index, observation in enumerate(observations):
        copies[f"observer {index}"] = _shown(observation, session, uri)
    return copies


async def _stored(arena: Arena, session: str, uri: str) -> Copy | None:
    response = await arena.get(f"/v1/sessions/{session}/documents/{uri}")
    if response.status != 200:
        return None
    view = json.loads(response.body)
    return None if view["stale"] else Copy(view["version"], view["text"])


def _shown(observation: Observation, session: str, uri: str) -> Copy | None:
    observed = observation.sessions.get(session)
    document = None if observed is None else observed.document(uri)
    if document is None or document.buffer is None or document.is_stale:
        return None
    return Copy(document.version, document.buffer.text())
