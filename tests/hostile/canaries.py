"""Strings that are planted where nothing may come out, and the events that carry them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    Cursor,
    DesignNode,
    DesignOpen,
    DesignPage,
    DesignSelection,
    DesignTool,
    Diagnostic,
    Diagnostics,
    Edit,
    Event,
    Focus,
    Mention,
    Part,
    Save,
    Selection,
    Snapshot,
    State,
    Version,
    Viewport,
)
from tests.hostile.raw import hash_of

__all__ = ["CANARY", "Canaries", "design_of", "events_of"]

CANARY = re.compile(r"C4N4RY-[a-z]+-\d+")


class Canaries:
    """Strings that occur nowhere else; `kind` says where one was planted."""

    def __init__(self) -> None:
        self._count = 0

    def new(self, kind: str) -> str:
        self._count += 1
        return f"C4N4RY-{kind}-{self._count:04}"


def events_of(alias: int, canaries: Canaries) -> Iterator[Event]:
    """Every kind of event about a document that was refused."""
    text = canaries.new("text")
    yield Edit(document=alias, base=1, version=2, changes=(Change(0, 0, 0, 0, canaries.new("edit")),))
    yield Cursor(document=alias, version=1, position=(0, 0), view=canaries.new("cursor"))
    yield Selection(document=alias, version=1, ranges=((0, 0, 0, 1),), view=canaries.new("selection"))
    yield Viewport(document=alias, version=1, first_line=0, last_line=0, view=canaries.new("viewport"))
    yield Focus(document=alias, view=canaries.new("focus"))
    item = Diagnostic(
        range=(0, 0, 0, 1), severity=1, message=canaries.new("message"), source=canaries.new("source")
    )
    yield Diagnostics(document=alias, version=1, items=(item,))
    yield State(document=alias, dirty=True, language=canaries.new("language"))
    yield Mention(
        document=alias, version=1, range=(0, 0, 0, 1), text=canaries.new("mention"), note=canaries.new("note")
    )
    yield Save(document=alias, version=1)
    yield Version(document=alias, version=1, length=1, hash=canaries.new("hash"), cause=canaries.new("cause"))
    yield Snapshot(document=alias, version=3, length=len(text), hash=hash_of(text), text=text)
    yield Snapshot(document=alias, version=4, length=len(text), hash=hash_of(text), parts=1)
    yield Part(document=alias, version=4, index=0, text=text)
    node = DesignNode(
        id=canaries.new("id"), kind="k", name=canaries.new("name"), text=canaries.new("nodetext")
    )
    yield DesignSelection(document=alias, page=canaries.new("page"), nodes=(node,), total=1)


def design_of(alias: int, uri: str, file_name: str, canaries: Canaries) -> DesignOpen:
    page = DesignPage(id=canaries.new("pageid"), name=canaries.new("pagename"), order=0)
    return DesignOpen(
        document=alias,
        uri=uri,
        tool=DesignTool(name=canaries.new("tool")),
        file_name=file_name,
        pages=(page,),
        capture="file",
    )
