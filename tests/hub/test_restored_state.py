"""Whatever a client sends, what is stored makes the session that there was."""

from __future__ import annotations

from typing import Literal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from streamctx.core.session.server_session import ServerSession
from streamctx.core.session.stored import SessionState
from streamctx.engine.memory import MemoryEngine
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    Close,
    DesignClose,
    DesignOpen,
    DesignTool,
    Edit,
    Event,
    Mention,
    Part,
    Save,
    Skip,
    Snapshot,
    Version,
    Welcome,
)
from tests.hub.peers import Raw, Stage, opened

__all__: list[str] = []

Kind = Literal[
    "open",
    "parts",
    "part",
    "edit",
    "version",
    "save",
    "snapshot",
    "close",
    "design",
    "mention",
    "gap",
    "skip",
]
KINDS: tuple[Kind, ...] = Kind.__args__  # type: ignore[attr-defined]
URIS = ("file:///a.py", "file:///b.py", "file:///.env")
STEPS = st.lists(
    st.tuples(st.sampled_from((*KINDS, "edit", "edit", "open")), st.integers(1, 3), st.integers(0, 3)),
    max_size=40,
)


class Script:
    """A client that sends what it is told, fitting or not."""

    def __init__(self, snapshot_batches: int) -> None:
        self.disk = MemoryEngine(durability="full", snapshot_batches=snapshot_batches)
        self.stage = Stage(engine=self.disk)
        self.raw = self.stage.joined()
        self.next = 1
        self.versions = dict.fromkeys(range(1, 4), 0)

    def do(self, kind: Kind, alias: int, draw: int) -> None:
        if kind == "gap":
            self.next += 1
            self._send(Save(document=alias, version=0))
            self.stage.pass_time(self.raw, self.stage.now + 11.0)
        elif kind == "skip":
            self.raw.send(
                Skip(
                    ranges=((self.next, self.next + 2),), reason="evicted", documents=(alias,) if draw else ()
                )
            )
            self.next += 2
        else:
            self._send(self._event(kind, alias, draw))

    def _send(self, event: Event) -> None:
        self.raw.send(event, self.next)
        self.next += 1

    def _event(self, kind: Kind, alias: int, draw: int) -> Event:
        version = self.versions[alias]
        text = "text\n" * draw
        whole = opened(text, document=alias, uri=URIS[(alias + draw // 3) % 3])
        if kind == "open":
            self.versions[alias] = 1
            return whole
        if kind == "parts":
            self.versions[alias] = 1
            return msgspec.structs.replace(whole, text=None, parts=2)
        if kind == "part":
            return Part(document=alias, version=version, index=draw % 2, text="text\n" * (draw // 2))
        if kind == "edit":
            self.versions[alias] += draw > 0
            change = Change(draw // 3, 0, draw // 3, draw // 2, "é" * draw)
            return Edit(document=alias, base=version, version=version + 1, changes=(change,))
        if kind == "version":
            return Version(document=alias, version=version, length=whole.length, hash=whole.hash)
        if kind == "save":
            return Save(document=alias, version=version)
        if kind == "snapshot":
            return Snapshot(document=alias, version=version, length=whole.length, hash=whole.hash, text=text)
        if kind == "mention":
            return Mention(document=alias, version=version, range=(0, 0, 0, draw))
        if kind == "design":
            if draw:
                return DesignOpen(
                    document=alias, uri=URIS[draw - 1], tool=DesignTool(name="t"), file_name="f", pages=()
                )
            return DesignClose(document=alias, reason="plugin_closed")
        return Close(document=alias)


def state_of(stage: Stage, raw: Raw) -> SessionState:
    held = stage.hub.registry.get(raw.of(Welcome)[-1].session)
    assert held is not None
    session: ServerSession = held.session
    return session.stored_state()


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from([1, 3, 1000]))
def test_the_restored_session_is_the_one_that_was_stored(
    steps: list[tuple[Kind, int, int]], snapshot_batches: int
) -> None:
    script = Script(snapshot_batches)
    for step in steps:
        script.do(*step)
    before = state_of(script.stage, script.raw)
    after = Stage(engine=script.disk)
    raw = after.raw()
    raw.hello(attempt=2, resume=script.raw.resume(next=script.next))
    assert raw.of(Welcome)[-1].verdict == "resumed"
    assert state_of(after, raw) == before
