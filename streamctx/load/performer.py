"""Makes the events of a script with a client, and times how long their acknowledgement takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from streamctx.client.client import Client
from streamctx.client.document import Document
from streamctx.core.session.client_session import ClientSession
from streamctx.load.recording import RecordableEvent
from streamctx.load.report import Latencies
from streamctx.wire.messages import (
    Close,
    Cursor,
    DesignClose,
    DesignOpen,
    DesignSelection,
    Edit,
    Focus,
    Mention,
    Open,
    Save,
    Snapshot,
    State,
    Version,
)

__all__ = ["AckTimer", "Performer"]

_EDIT_BYTES = 150


class _Waiting(NamedTuple):
    number: int
    """The edit has a sequence number up to this."""
    made_at: float
    bytes: int


class AckTimer:
    """Times edits from the call to the acknowledgement that covers them.

    A session numbers an edit when it leaves. But presence leaves behind all durable
    events that wait, so the number is known before: it is the last one of all that is
    pending at the call, or less by the presence that waits.
    """

    __slots__ = ("_resets", "_session", "_waiting", "bytes", "latencies")

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._waiting: deque[_Waiting] = deque()
        self._resets = 0
        self.latencies = Latencies()
        self.bytes = 0
        """About what the edits that are not acknowledged weigh."""

    @property
    def waiting(self) -> int:
        """Edits that are not acknowledged."""
        return len(self._waiting)

    def edited(self, made_at: float, size_bytes: int) -> None:
        """An edit was just made, by a call at that time."""
        self._waiting.append(_Waiting(self._last_number(), made_at, size_bytes))
        self.bytes += size_bytes

    def settle(self, now: float) -> None:
        """Count what has been acknowledged by now."""
        session = self._session
        if session.resets != self._resets:
            # Numbers began anew, and one snapshot stands for all edits.
            self._resets = session.resets
            last = self._last_number()
            self._waiting = deque(waiting._replace(number=last) for waiting in self._waiting)
        waiting = self._waiting
        is_all = session.is_settled
        acknowledged = session.acknowledged
        while waiting and (is_all or waiting[0].number < acknowledged):
            done = waiting.popleft()
            self.bytes -= done.bytes
            self.latencies.add(now - done.made_at)

    def _last_number(self) -> int:
        return self._session.acknowledged + self._session.pending - 1


class Performer:
    """Plays events into one client; aliases and versions of the script become those of the session."""

    def __init__(self, client: Client) -> None:
        self.acks = AckTimer(client.session)
        self.edits = 0
        self.events = 0
        self.documents: dict[int, Document] = {}
        """By the script's alias."""
        self.cursor: Cursor | None = None
        """The last one, as it was sent."""
        self._client = client
        self._designs: dict[int, int] = {}
        self._versions: dict[int, int] = {}

    def texts(self) -> Mapping[int, str]:
        """The text of each open document, by the script's alias."""
        return {alias: document.text for alias, document in self.documents.items()}

    def perform(self, event: RecordableEvent) -> Document | None:
        """Make one event; returns the document, if it was an edit of one.

        Raises:
            EventRefused: If it does not fit the text.
            SessionClosed: If the session has ended.
        """
        if isinstance(event, Edit):
            return self._edit(event)
        if isinstance(event, Version):
            return None  # The client proves its texts by itself.
        self.events += 1
        if isinstance(event, Open):
            self._open(event)
        elif isinstance(event, DesignOpen):
            self._designs[event.document] = self._client.open_design(event)
        elif isinstance(event, DesignClose):
            if event.document in self._designs:
                self._client.close_design(self._designs.pop(event.document), event.reason)
        elif isinstance(event, Close):
            document = self.documents.pop(event.document, None)
            if document is not None:
                document.close()
        elif isinstance(event, Save | Snapshot | Mention):
            self._make(event)
        else:
            self._put(event)
        return None

    def _open(self, event: Open) -> None:
        known = self.documents.pop(event.document, None)
        if known is not None:
            known.close()
        self.documents[event.document] = self._client.open_nowait(
            event.uri, event.text or "", language=event.language, eol=event.eol
        )
        self._versions[event.document] = event.version

    def _edit(self, event: Edit) -> Document | None:
        document = self.documents.get(event.document)
        if document is None:
            return None
        made_at = self._client.now()
        document.edit(event.changes, mode=event.mode)
        self._versions[event.document] = event.version
        self.edits += 1
        self.events += 1
        self.acks.edited(made_at, _EDIT_BYTES + sum(len(change.text) for change in event.changes))
        return document

    def _make(self, event: Save | Snapshot | Mention) -> None:
        document = self.documents.get(event.document)
        if document is None:
            return
        if isinstance(event, Save):
            document.save()
        elif isinstance(event, Snapshot):
            document.replace(event.text or "")
            self._versions[event.document] = event.version
        else:
            document.mention(event.range, text=event.text, note=event.note)

    def _put(self, event: RecordableEvent) -> None:
        """Put presence, under the session's alias and version."""
        assert not isinstance(event, Open | Edit | Version | Save | Close | Snapshot | Mention)
        assert not isinstance(event, DesignOpen | DesignClose)
        alias = event.document
        fresh = {"is_offline": False, "queued_ms": 0}
        if isinstance(event, DesignSelection):
            if alias in self._designs:
                self._client.put(
                    msgspec.structs.replace(event, document=self._designs[event.document], **fresh)
                )
            return
        document = self.documents.get(alias or 0)
        if isinstance(event, Focus):
            known = self._designs.get(alias or 0) if document is None else document.alias
            self._client.put(msgspec.structs.replace(event, document=known, **fresh))
            return
        if document is None:
            return
        if isinstance(event, State):
            self._client.put(msgspec.structs.replace(event, document=document.alias, **fresh))
            return
        # One that speaks of an earlier text stays so: the server does not check its positions.
        is_present = event.version >= self._versions[event.document]
        version = document.version if is_present else max(0, document.version - 1)
        put = msgspec.structs.replace(event, document=document.alias, version=version, **fresh)
        if isinstance(put, Cursor):
            self.cursor = put
        self._client.put(put)
