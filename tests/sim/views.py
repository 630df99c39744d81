"""What observers are shown: joined, theirs to see, within their filter, and true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamctx.core.session.client_session import ClientSession
from streamctx.vocabulary import Unit
from streamctx.wire.messages import (
    SUPERSEDABLE_TYPES,
    Cursor,
    Edit,
    Message,
    Open,
    Part,
    Selection,
    Snapshot,
    Sync,
    Synced,
    Update,
    Version,
)
from tests.sim.ledger import SECRET

if TYPE_CHECKING:
    from tests.sim.watch import Watch

__all__ = ["Views", "is_inside"]

_SUPERSEDABLE: frozenset[type[object]] = frozenset(SUPERSEDABLE_TYPES)
_TEXT_CHANGES: frozenset[type[object]] = frozenset({Open, Part, Edit, Snapshot, Version})
_POSITIONED = (Cursor, Selection)
_UNIT_CODEC = {Unit.UTF_8: "utf-8", Unit.UTF_16: "utf-16-le", Unit.UTF_32: "utf-32-le"}
_UNIT_WIDTH = {Unit.UTF_8: 1, Unit.UTF_16: 2, Unit.UTF_32: 4}


class Views:
    """The checkers of feeds, from the clients that take them."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._offsets: dict[tuple[ClientSession, int, str], int] = {}
        """Up to where each observer has come in each feed."""

    def forked(self, original: ClientSession, copy: ClientSession) -> None:
        """A client's state was copied."""
        for (session, subscription, source), offset in list(self._offsets.items()):
            if session is original:
                self._offsets[copy, subscription, source] = offset

    def fed(self, session: ClientSession, subscription: int, message: Message) -> None:
        """An observer has taken a message of a feed."""
        source: str = message.session  # type: ignore[attr-defined]
        principal = session.settings.token
        if self._watch.principal_of[source] != principal:
            self._watch.fail(
                "Isolation", f"{principal} is shown {source} of {self._watch.principal_of[source]}"
            )
        self._check_continuity((session, subscription, source), message)
        observed = session.observed.get((subscription, source))
        if observed is None:
            return
        if isinstance(message, Update):
            self._check_update(session, subscription, message)
        elif isinstance(message, Synced) and observed.is_synced:
            for alias in observed.documents:
                self._check_observed_text(session, subscription, source, alias)

    def _check_continuity(self, key: tuple[ClientSession, int, str], message: Message) -> None:
        if isinstance(message, Sync):
            self._offsets[key] = message.offset
        elif isinstance(message, Update):
            if message.from_ != self._offsets.get(key):
                self._watch.fail(
                    "FeedContinuity", f"update from {message.from_} after {self._offsets.get(key)}"
                )
            self._offsets[key] = message.to

    def did_not_fit(self, session: ClientSession, message: Message) -> None:
        """An observer threw its copy away, because what came does not fit it."""
        if not self._watch.diverged_uris and session not in self._watch.misplaced:
            self._watch.fail("FeedContinuity", f"a copy is not fit for {message!r:.300}")

    def _check_update(self, session: ClientSession, subscription: int, update: Update) -> None:
        subscribe = session.subscriptions[subscription]
        observed = session.observed[subscription, update.session]
        touched: dict[int, None] = {}
        for event in update.events:
            kind = type(event)
            if kind in _SUPERSEDABLE and not subscribe.presence:
                self._watch.fail("FilterHolds", f"{event!r} without presence")
            alias = getattr(event, "document", None)
            if alias is None:
                continue
            document = observed.documents.get(alias)
            if (
                subscribe.documents is not None
                and document is not None
                and not document.uri.endswith("/0.py")
            ):
                self._watch.fail("FilterHolds", f"{document.uri} under {subscribe.documents}")
            if kind in _TEXT_CHANGES:
                touched[alias] = None
            elif kind in _POSITIONED and document is not None:
                self._check_positions(event, document.uri, session.settings.unit)
                # A stranger opens a document anew at a lower version.
                is_honest = not document.uri.startswith("file:///rogue/")
                is_ahead = is_honest and event.version > document.version  # type: ignore[union-attr]
                if is_ahead and not document.is_stale and not document.is_receiving:
                    self._watch.fail("PositionValid", f"{event!r}, the text is at {document.version}")
        if observed.is_synced:
            for alias in touched:
                self._check_observed_text(session, subscription, update.session, alias)

    def _check_observed_text(
        self, session: ClientSession, subscription: int, source: str, alias: int
    ) -> None:
        document = session.observed[subscription, source].documents.get(alias)
        if document is None or document.buffer is None or document.is_stale or document.is_receiving:
            return
        if document.uri in self._watch.diverged_uris:
            return
        texts = self._watch.texts.get((document.uri, document.version))
        if texts is None and document.uri.startswith("file:///rogue/"):
            return
        text = document.buffer.text()
        if SECRET in text:
            self._watch.fail("Secret", f"{document.uri} is shown")
        if texts is None or text not in texts:
            self._watch.fail(
                "TextAtVersion",
                f"an observer has {document.uri} at {document.version} as {text[:200]!r}, not {texts!r:.300}",
            )

    def _check_positions(self, event: object, uri: str, unit: Unit) -> None:
        texts = self._watch.texts.get((uri, event.version))  # type: ignore[attr-defined]
        if texts is None or uri in self._watch.diverged_uris:
            return
        if isinstance(event, Cursor):
            spans: list[tuple[int, int]] = [event.position]
        else:
            assert isinstance(event, Selection)
            spans = [point for span in event.ranges for point in (span[:2], span[2:])]
        if not any(all(is_inside(text, point, unit) for point in spans) for text in texts):
            self._watch.fail("PositionValid", f"{event!r} of {uri}, texts {texts!r:.300}")


def is_inside(text: str, point: tuple[int, int], unit: Unit) -> bool:
    """Whether a position is in a text, by the plainest way to find out."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    line, character = point
    if line >= len(lines):
        return False
    return character <= len(lines[line].encode(_UNIT_CODEC[unit])) // _UNIT_WIDTH[unit]
