"""What a producer's events make of its documents and presence, and what observers are shown of it.

`apply` takes one event, in the order that the delivery rules ask for, and returns
the answers to send: nothing, or an ERROR and perhaps a `snapshot_request`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias, cast

import msgspec

from streamctx.core.documents.document import Document
from streamctx.core.documents.presence import Key, Presence, Variants, check_positions, check_span, key_of
from streamctx.core.documents.translation import translations
from streamctx.core.documents.units import length_in
from streamctx.core.session.feed_log import FeedLog
from streamctx.core.session.stored import Refused, SessionState, Spoilt
from streamctx.errors import ErrorCode, EventRefused
from streamctx.limits import Limits
from streamctx.vocabulary import HashAlgorithm, Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    SUPERSEDABLE_TYPES,
    Attachment,
    Close,
    Cursor,
    DesignClose,
    DesignNode,
    DesignOpen,
    DesignSelection,
    Diagnostics,
    Edit,
    ErrorMessage,
    Event,
    FeedEvent,
    Focus,
    Mention,
    Open,
    Part,
    Save,
    Selection,
    Snapshot,
    SnapshotRequest,
    Stale,
    State,
    SupersedableEvent,
    Version,
)

__all__ = ["Answers", "ContextCounters", "LiveContext", "TextBudget"]

Answers: TypeAlias = Sequence[ErrorMessage | SnapshotRequest]
Reason: TypeAlias = Literal["refused", "mismatch"]

_NOTHING: Answers = ()
_SUPERSEDABLE = frozenset(SUPERSEDABLE_TYPES)
_CLOSES_DOCUMENT = frozenset({ErrorCode.TOO_LARGE, ErrorCode.LIMIT, ErrorCode.EXCLUDED})
"""Refusals after which the document is not open, and its events are dropped (DOC-7)."""


@dataclass(slots=True)
class TextBudget:
    """Bytes of text that all sessions of a server may hold together."""

    limit_bytes: int
    used_bytes: int = 0


@dataclass(slots=True)
class ContextCounters:
    """What became of events, but for those that wait: `LiveContext.counts` has them all."""

    applied: int = 0
    superseded: int = 0
    dropped: int = 0
    refused: int = 0
    healed: int = 0


class LiveContext:
    """The documents and presence of one producer's session.

    An alias is in at most one of `_documents`, `_designs` and `_refused`; `_shown` are the
    documents whose text observers have seen.
    """

    __slots__ = (
        "_budget",
        "_designs",
        "_documents",
        "_handlers",
        "_hash_algorithm",
        "_is_excluded",
        "_limits",
        "_presence",
        "_refused",
        "_shown",
        "_stale_designs",
        "_text_bytes",
        "_unit",
        "counters",
        "feed",
        "has_excluded_past",
        "is_connected",
    )

    def __init__(
        self,
        *,
        unit: Unit,
        hash_algorithm: HashAlgorithm,
        limits: Limits,
        is_excluded: Callable[[str], bool],
        budget: TextBudget,
    ) -> None:
        """Start with no document.

        Args:
            is_excluded: Whether a URI is on the redaction list (SEC-3).
            budget: Shared by all sessions of the server.
        """
        self._unit = unit
        self._hash_algorithm = hash_algorithm
        self._limits = limits
        self._is_excluded = is_excluded
        self._budget = budget
        self._text_bytes = 0
        self._documents: dict[int, Document] = {}
        self._designs: dict[int, DesignOpen] = {}
        self._stale_designs: set[int] = set()
        self._refused: dict[int, ErrorCode] = {}
        self._shown: set[int] = set()
        self._presence = Presence(limits.supersedable_keys_max)
        self.feed = FeedLog(limits)
        self.counters = ContextCounters()
        self.is_connected = False
        self.has_excluded_past = False
        """Whether something was stored that is excluded by now, of which nothing may be found (SEC-3)."""
        self._handlers: dict[type[Event], Callable[[int, Event], Answers]] = {
            Open: self._open,  # type: ignore[dict-item]
            Part: self._part,  # type: ignore[dict-item]
            Edit: self._edit,  # type: ignore[dict-item]
            Version: self._version,  # type: ignore[dict-item]
            Save: self._save,  # type: ignore[dict-item]
            Close: self._close,  # type: ignore[dict-item]
            Snapshot: self._snapshot,  # type: ignore[dict-item]
            Mention: self._mention,  # type: ignore[dict-item]
            DesignOpen: self._design_open,  # type: ignore[dict-item]
            DesignClose: self._design_close,  # type: ignore[dict-item]
        }

    # What outlives the server: all but presence, which the client sends again (RSM-6).

    def state(self, *, stop: int, lost: tuple[tuple[int, int], ...]) -> SessionState:
        """All of it as a value; texts are copied. For the arguments see `SessionState`."""
        return SessionState(
            stop=stop,
            lost=lost,
            documents=tuple(document.state() for document in self._documents.values()),
            designs=tuple(self._designs.values()),
            stale_designs=tuple(self._stale_designs),
            refused=tuple((alias, str(code)) for alias, code in self._refused.items()),
        )

    def restore(self, state: SessionState) -> None:
        """Take over a state, in a context that has none yet. What is excluded by now is left out (SEC-3)."""
        for stored in state.documents:
            document = Document.restore(
                stored, unit=self._unit, hash_algorithm=self._hash_algorithm, limits=self._limits
            )
            if self._excludes(document.metadata):
                self._refused[document.alias] = ErrorCode.EXCLUDED
                self.has_excluded_past = True
                continue
            self._documents[document.alias] = document
            if document.buffer is not None:
                self._shown.add(document.alias)
        for design in state.designs:
            if self._excludes(design):
                self._refused[design.document] = ErrorCode.EXCLUDED
                self.has_excluded_past = True
            else:
                self._designs[design.document] = design
        self._stale_designs.update(alias for alias in state.stale_designs if alias in self._designs)
        self._refused.update((alias, ErrorCode(code)) for alias, code in state.refused)
        self._account()

    def replay(self, sequence: int, item: Event | Spoilt | Refused) -> None:
        """Let happen again what was journalled; what was answered then is not answered again."""
        if isinstance(item, Open | DesignOpen) and self._excludes(item):
            self.has_excluded_past = True
        if isinstance(item, Spoilt):
            self.lose(item.documents, ask=False)
        elif isinstance(item, Refused):
            self.refuse(item.document, ErrorCode(item.code))
        else:
            self.apply(sequence, item, in_order=True)

    def move_to(self, budget: TextBudget) -> None:
        """Let the texts count in another budget, though it may be over its limit then."""
        self._budget.used_bytes -= self._text_bytes
        budget.used_bytes += self._text_bytes
        self._budget = budget

    # What it looks like.

    @property
    def documents(self) -> Mapping[int, Document]:
        """The open text documents by alias."""
        return self._documents

    @property
    def designs(self) -> Mapping[int, DesignOpen]:
        """The open design documents by alias."""
        return self._designs

    @property
    def unit(self) -> Unit:
        """The producer's unit."""
        return self._unit

    def presence(self) -> Iterator[SupersedableEvent]:
        """The present value of every key."""
        return (event for _, event, _ in self._presence.current())

    def state_events(self, unit: Unit) -> list[tuple[FeedEvent, str | None]]:
        """The whole state as events, each with the URI that it is about, for a `sync` (OBS-3).

        It is that of this moment: texts are copied. An `open` always has its text
        whole, and its length in the producer's unit. A presence event whose
        positions cannot be said in `unit` is left out.
        """
        events: list[tuple[FeedEvent, str | None]] = [(Attachment(connected=self.is_connected), None)]
        for alias, document in self._documents.items():
            if document.buffer is None:
                continue
            text = document.buffer.text()
            events.append(
                (
                    msgspec.structs.replace(
                        document.metadata,
                        version=document.version,
                        length=document.buffer.length,
                        hash=document.buffer.hash(self._hash_algorithm),
                        text=text,
                        parts=None,
                        is_offline=False,
                        queued_ms=0,
                    ),
                    document.uri,
                )
            )
            if document.is_stale:
                events.append((Stale(document=alias, reason=document.stale_reason), document.uri))
        for alias, design in self._designs.items():
            events.append((design, design.uri))
            if alias in self._stale_designs:
                events.append((Stale(document=alias, reason="plugin_closed"), design.uri))
        for _, event, variants in self._presence.current():
            shown = self._in_unit(event, variants, unit)
            if shown is not None:
                events.append((shown, self._uri_shown(event)))
        return events

    def _in_unit(self, event: SupersedableEvent, variants: Variants, unit: Unit) -> SupersedableEvent | None:
        """A present value in a unit; `None` if it speaks of a text that is gone and cannot be said."""
        if unit is self._unit:
            return event
        if unit not in variants:
            document = self._documents.get(event.document or 0)
            if document is None or document.buffer is None:
                return event
            variants = _variants(event, document, (unit,))
        return variants.get(unit, event)

    def _uri_shown(self, event: SupersedableEvent) -> str | None:
        """The URI that a filter looks at: that of a document which is gone is empty."""
        return None if event.document is None else self._uri_of(event.document) or ""

    def _uri_of(self, alias: int) -> str | None:
        document = self._documents.get(alias)
        if document is not None:
            return document.uri
        design = self._designs.get(alias)
        return None if design is None else design.uri

    def counts(self) -> dict[str, int]:
        """What became of events: each that was applied to the session counts once, in all but `healed`.

        `waiting` is how many wait now for their documents, `superseded` includes those that waited in vain.
        """
        counts = asdict(self.counters)
        counts["superseded"] += self._presence.discarded
        counts["waiting"] = self._presence.waiting
        return counts

    # What happens.

    def set_connected(self, connected: bool) -> None:
        """Tell observers whether the producer is there."""
        if connected is not self.is_connected:
            self.is_connected = connected
            self.feed.append(Attachment(connected=connected))

    def apply(self, sequence: int, event: Event, *, in_order: bool) -> Answers:
        """Apply one event.

        Args:
            sequence: Its number.
            in_order: Whether all numbers below have been applied; false only for
                supersedable events over an open gap.
        """
        try:
            if type(event) in _SUPERSEDABLE:
                self._put(sequence, cast(SupersedableEvent, event), in_order=in_order)
                return _NOTHING
            return self._handlers[type(event)](sequence, event)
        except EventRefused as refusal:
            alias = getattr(event, "document", None)
            document = self._documents.get(alias or 0)
            if document is not None and isinstance(event, Edit | Version):
                if refusal.code in _CLOSES_DOCUMENT:
                    return self._refuse_document(document.alias, refusal, sequence)
                reason: Reason = "mismatch" if isinstance(event, Version) else "refused"
                return self._diverge(document, refusal, sequence, reason=reason)
            return (self._error(refusal, sequence, alias),)

    def lose(self, aliases: Sequence[int] | None, *, ask: bool) -> Answers:
        """Mark documents stale because events are lost for good.

        Args:
            aliases: Which documents; `None` for all.
            ask: Whether to ask for snapshots: false where the client sends them anyway.
        """
        requests: list[SnapshotRequest] = []
        for alias in list(self._documents) if aliases is None else aliases:
            document = self._documents.get(alias)
            if document is None:
                continue
            document.abandon_text()
            if not document.is_stale:
                self._mark_stale(document, "lost")
            if ask:
                # Also of one that is stale already: the snapshot on its way may be what was lost.
                requests.append(SnapshotRequest(document=alias, reason="lost", version=document.version))
        return requests

    @property
    def refusals(self) -> Mapping[int, ErrorCode]:
        """The aliases that were refused, and why."""
        return self._refused

    def refuse(self, alias: int, code: ErrorCode) -> None:
        """Close a document, or never open it: its later events are dropped (DOC-7)."""
        if self._forget(alias):
            # The person has gone to a document that is not shown; the event that said so is counted already.
            key = key_of(Focus())
            self._present(key, self._presence.sequence_of(key), Focus(), None, {})
        self._refused.pop(alias, None)  # The newest one is kept longest.
        if len(self._refused) >= self._limits.supersedable_keys_max:
            del self._refused[next(iter(self._refused))]
        self._refused[alias] = code

    def refusals_again(self) -> Answers:
        """What was answered where documents were refused: that answer may not have arrived (RSM-12)."""
        return [
            ErrorMessage(
                code=code,
                message="the document was refused before the server was started again",
                document=alias,
                temporary=code is ErrorCode.LIMIT,
            )
            for alias, code in self._refused.items()
        ]

    def exclude(self, is_excluded: Callable[[str], bool]) -> list[tuple[int, ErrorMessage]]:
        """Take over another redaction list, and refuse what is open and on it.

        Returns:
            Each alias that was refused, and what is to be answered.
        """
        self._is_excluded = is_excluded
        opened: list[Open | DesignOpen] = [document.metadata for document in self._documents.values()]
        opened += self._designs.values()
        found = [each.document for each in opened if self._excludes(each)]
        self.has_excluded_past |= bool(found)
        refusal = EventRefused(ErrorCode.EXCLUDED, "the document is on the redaction list")
        return [
            (alias, answer)
            for alias in found
            for answer in self._refuse_document(alias, refusal, 0)
            if isinstance(answer, ErrorMessage)
        ]

    def _excludes(self, opened: Open | DesignOpen) -> bool:
        """Whether a document is on the redaction list, by its URI or the name that its tool shows."""
        if isinstance(opened, DesignOpen) and self._is_excluded(opened.file_name):
            return True
        return self._is_excluded(opened.uri)

    def is_refused(self, alias: int) -> bool:
        """Whether a document was refused: nothing of it is to be kept (DOC-7, SEC-3)."""
        return alias in self._refused

    def end(self) -> None:
        """Forget everything, and give the session's share of the text budget back.

        At once: the collector does not count events, and could leave them for hours.
        """
        self._documents.clear()
        self._designs.clear()
        self._presence = Presence(self._limits.supersedable_keys_max)
        self._handlers.clear()
        self.feed = FeedLog(self._limits)
        self._account()

    # Documents.

    def _open(self, sequence: int, event: Open) -> Answers:
        alias = event.document
        self._refused.pop(alias, None)
        known = self._documents.get(alias)
        try:
            if self._excludes(event):
                raise EventRefused(ErrorCode.EXCLUDED, "the document is on the redaction list")
            self._check_alias(alias, event.uri, is_design=False)
            if known is None:
                self._check_count()
                known = Document(
                    event, unit=self._unit, hash_algorithm=self._hash_algorithm, limits=self._limits
                )
                self._documents[alias] = known
            return self._take_text(known, event)
        except EventRefused as refusal:
            return self._refuse_text(known, alias, refusal, sequence)

    def _snapshot(self, sequence: int, event: Snapshot) -> Answers:
        document = self._text_document(event.document)
        if document is None:
            return self._drop()
        try:
            return self._take_text(document, event)
        except EventRefused as refusal:
            return self._refuse_text(document, event.document, refusal, sequence)

    def _part(self, sequence: int, event: Part) -> Answers:
        document = self._text_document(event.document)
        if document is None or (document.is_stale and not document.is_receiving):
            return self._drop()
        was_stale = document.is_stale
        announced = document.announced
        try:
            if not document.add_part(event):
                self._account()
                self._check_budget()
                self.counters.applied += 1
                return _NOTHING
            assert announced is not None
            self._show_text(document, announced, was_stale=was_stale)
        except EventRefused as refusal:
            return self._refuse_text(document, event.document, refusal, sequence)
        return _NOTHING

    def _take_text(self, document: Document, event: Open | Snapshot) -> Answers:
        was_stale = document.is_stale
        if document.begin_text(event):
            self._show_text(document, event, was_stale=was_stale)
        else:
            self.counters.applied += 1
        return _NOTHING

    def _show_text(self, document: Document, event: Open | Snapshot, *, was_stale: bool) -> None:
        self._account()
        self._check_budget()
        assert document.buffer is not None
        text = event.text if event.text is not None else document.buffer.text()
        if isinstance(event, Snapshot) and document.alias not in self._shown:
            # Its `open` was never complete, so observers do not know the document.
            event = msgspec.structs.replace(
                document.metadata, version=event.version, length=event.length, hash=event.hash
            )
        whole = msgspec.structs.replace(event, text=text, parts=None)
        document.unfit_count = 0
        self.counters.applied += 1
        self.counters.healed += was_stale
        self._shown.add(document.alias)
        self.feed.append(whole, uri=document.uri)
        self._release_parked(document)

    def _refuse_text(
        self, document: Document | None, alias: int, refusal: EventRefused, sequence: int
    ) -> Answers:
        """Answer an `open`, `snapshot` or `part` that cannot be accepted (DIV-2, DIV-3, DOC-7)."""
        if refusal.code in _CLOSES_DOCUMENT:
            return self._refuse_document(alias, refusal, sequence)
        if document is None or refusal.code is ErrorCode.ALIAS_IN_USE:
            return (self._error(refusal, sequence, alias),)
        document.unfit_count += 1
        if document.unfit_count >= self._limits.snapshot_failures_max:
            unverifiable = EventRefused(
                ErrorCode.UNVERIFIABLE,
                f"{document.unfit_count} texts in a row were refused, the last one with {refusal}",
            )
            return self._refuse_document(alias, unverifiable, sequence)
        return self._diverge(document, refusal, sequence)

    def _refuse_document(self, alias: int, refusal: EventRefused, sequence: int) -> Answers:
        """Close a document, or never open it; its later events are dropped (DOC-7)."""
        self.refuse(alias, refusal.code)
        return (self._error(refusal, sequence, alias),)

    def _edit(self, sequence: int, event: Edit) -> Answers:
        document = self._documents.get(event.document)
        if document is None or document.is_stale or document.is_receiving:
            document = self._settled_document(event.document)
            if document is None:
                return self._drop()
        feed = self.feed
        before = document.byte_length
        if self._budget.used_bytes > self._budget.limit_bytes - self._limits.websocket_message_bytes_max:
            self._check_budget(sum(len(change.text.encode()) for change in event.changes))
        converted = document.edit(event, feed.units)
        grown = document.byte_length - before
        self._text_bytes += grown
        self._budget.used_bytes += grown
        self.counters.applied += 1
        if converted:
            feed.append(event, uri=document.uri, variants=_edit_variants(event, converted))
        else:
            feed.append(event, uri=document.uri)
        if self._presence.has_parked:
            self._release_parked(document)
        return _NOTHING

    def _version(self, sequence: int, event: Version) -> Answers:
        document = self._settled_document(event.document)
        if document is None:
            return self._drop()
        document.verify(event)
        self.counters.applied += 1
        variants: dict[Unit, FeedEvent] = {}
        assert document.buffer is not None
        if self.feed.units:
            text = document.buffer.text()
            variants = {
                unit: msgspec.structs.replace(event, length=length_in(text, unit)) for unit in self.feed.units
            }
        self.feed.append(event, uri=document.uri, variants=variants)
        self._release_parked(document)
        return _NOTHING

    def _save(self, sequence: int, event: Save) -> Answers:
        document = self._settled_document(event.document)
        if document is None:
            return self._drop()
        document.save(event)
        self.counters.applied += 1
        self.feed.append(event, uri=document.uri)
        return _NOTHING

    def _close(self, sequence: int, event: Close) -> Answers:
        if self._refused.pop(event.document, None) is not None:
            self._presence.forget_document(event.document)
            return self._drop()
        if event.document not in self._documents:
            raise _unknown(event.document)
        self._forget(event.document)
        self.counters.applied += 1
        return _NOTHING

    def _mention(self, sequence: int, event: Mention) -> Answers:
        document = self._text_document(event.document)
        if document is not None and document.is_receiving:
            raise _between_parts()
        if document is None or document.buffer is None:
            return self._drop()
        variants: Mapping[Unit, FeedEvent] = {}
        if event.version == document.version and not document.is_stale:
            check_span(event.range, document.buffer)
            variants = translations(event, document.buffer, self.feed.units)
        else:
            with contextlib.suppress(EventRefused):
                variants = translations(event, document.buffer, self.feed.units)
        self.counters.applied += 1
        self.feed.append(event, uri=document.uri, variants=variants)
        return _NOTHING

    # Presence.

    def _put(self, sequence: int, event: SupersedableEvent, *, in_order: bool) -> None:
        key = key_of(event)
        if not self._presence.is_newer(key, sequence):
            self.counters.superseded += 1
            return
        alias = event.document
        if alias is not None and alias in self._refused:
            if isinstance(event, Focus):
                # The person has gone to a document that is not shown.
                self._show(key, sequence, Focus(), None)
            else:
                self._drop()
            return
        if isinstance(event, DesignSelection):
            self._put_design_selection(key, sequence, event, in_order=in_order)
            return
        if alias is None:
            self._show(key, sequence, event, None)
            return
        document = self._documents.get(alias)
        if document is None:
            if isinstance(event, Focus) and alias in self._designs:
                self._show(key, sequence, event, None)
            elif in_order:
                raise _unknown(alias)
            else:
                self._presence.park(key, sequence, event)
            return
        if isinstance(event, Focus | State):
            self._show(key, sequence, event, document)
        elif document.is_stale or document.buffer is None or event.version > document.version:
            self._presence.park(key, sequence, event)
        else:
            self._show_checked(key, sequence, event, document)

    def _show_checked(self, key: Key, sequence: int, event: SupersedableEvent, document: Document) -> None:
        assert document.buffer is not None
        if getattr(event, "version", None) == document.version:
            check_positions(event, document.buffer)
        variants = _variants(event, document, self.feed.units)
        self._show(key, sequence, event, document, variants)

    def _show(
        self,
        key: Key,
        sequence: int,
        event: SupersedableEvent,
        document: Document | None,
        variants: Variants | None = None,
    ) -> None:
        self.counters.applied += 1
        self._present(key, sequence, event, document, variants or {})

    def _present(
        self,
        key: Key,
        sequence: int,
        event: SupersedableEvent,
        document: Document | None,
        variants: Variants,
    ) -> None:
        self._presence.show(key, sequence, event, variants)
        uri = self._uri_shown(event) if document is None else document.uri
        self.feed.append(event, uri=uri, key=key, variants=variants)

    def _put_design_selection(
        self, key: Key, sequence: int, event: DesignSelection, *, in_order: bool
    ) -> None:
        design = self._designs.get(event.document)
        if design is None:
            if in_order:
                raise _unknown(event.document)
            self._presence.park(key, sequence, event)
            return
        self._show(key, sequence, _captured(event, design), None)

    def _release_parked(self, document: Document) -> None:
        """Show what waited for the document to be known, whole, or at this version."""
        if not self._presence.has_parked or document.is_stale or document.buffer is None:
            return
        for key, sequence, event in self._presence.take_parked(document.alias, document.version):
            try:
                self._show_checked(key, sequence, event, document)
            except EventRefused:
                # The text may be what is wrong: it waits for the next one.
                self._presence.park(key, sequence, event)

    # Design documents.

    def _design_open(self, sequence: int, event: DesignOpen) -> Answers:
        alias = event.document
        self._refused.pop(alias, None)
        try:
            if self._excludes(event):
                raise EventRefused(ErrorCode.EXCLUDED, "the document is on the redaction list")
            self._check_alias(alias, event.uri, is_design=True)
            if alias not in self._designs:
                self._check_count()
        except EventRefused as refusal:
            return self._refuse_text(None, alias, refusal, sequence)
        self._designs[alias] = event
        self._stale_designs.discard(alias)
        self.counters.applied += 1
        self.feed.append(event, uri=event.uri)
        for key, parked_sequence, parked in self._presence.take_parked(alias, None):
            shown = _captured(parked, event) if isinstance(parked, DesignSelection) else parked
            self._show(key, parked_sequence, shown, None)
        return _NOTHING

    def _design_close(self, sequence: int, event: DesignClose) -> Answers:
        if self._refused.pop(event.document, None) is not None:
            return self._drop()
        design = self._designs.get(event.document)
        if design is None:
            raise _unknown(event.document)
        self.counters.applied += 1
        if event.reason == "plugin_closed":
            self._stale_designs.add(event.document)
            self.feed.append(Stale(document=event.document, reason=event.reason), uri=design.uri)
        else:
            self.feed.append(event, uri=design.uri)
            del self._designs[event.document]
            self._stale_designs.discard(event.document)
            self._presence.forget_document(event.document)
        return _NOTHING

    # What the handlers share.

    def _text_document(self, alias: int) -> Document | None:
        """The document, or `None` if its events are to be dropped.

        Raises:
            EventRefused: `unknown_document`.
        """
        document = self._documents.get(alias)
        if document is None and alias not in self._refused:
            raise _unknown(alias)
        return document

    def _settled_document(self, alias: int) -> Document | None:
        """As `_text_document`, and `None` while the document waits for a snapshot.

        Raises:
            EventRefused: `unknown_document`, or `bad_part` in the midst of a text in parts.
        """
        document = self._text_document(alias)
        if document is not None and document.is_receiving:
            raise _between_parts()
        return None if document is None or document.is_stale else document

    def _diverge(
        self,
        document: Document,
        refusal: EventRefused,
        sequence: int,
        *,
        reason: Reason = "refused",
    ) -> Answers:
        """Mark a document stale and ask for one snapshot (DIV-2)."""
        document.abandon_text()
        if not document.is_stale:
            self._mark_stale(document, reason)
        return (
            self._error(refusal, sequence, document.alias),
            SnapshotRequest(document=document.alias, reason=reason, version=document.version),
        )

    def _mark_stale(self, document: Document, reason: str) -> None:
        document.is_stale = True
        document.stale_reason = reason
        if document.alias in self._shown:
            self.feed.append(Stale(document=document.alias, reason=reason), uri=document.uri)

    def _forget(self, alias: int) -> bool:
        """Close a document, if it is open, tell observers that saw it, and say whether a focus waited."""
        document = self._documents.pop(alias, None)
        design = self._designs.pop(alias, None)
        self._stale_designs.discard(alias)
        had_focus = self._presence.forget_document(alias)
        if document is not None:
            if alias in self._shown:
                self._shown.discard(alias)
                self.feed.append(Close(document=alias), uri=document.uri)
            self._account()
        if design is not None:
            self.feed.append(DesignClose(document=alias), uri=design.uri)
        return had_focus

    def _check_alias(self, alias: int, uri: str, *, is_design: bool) -> None:
        known = self._uri_of(alias)
        if known is not None and (known != uri or is_design is not (alias in self._designs)):
            raise EventRefused(ErrorCode.ALIAS_IN_USE, f"alias {alias} is open with another URI")

    def _check_count(self) -> None:
        if len(self._documents) + len(self._designs) >= self._limits.documents_per_session_max:
            raise EventRefused(
                ErrorCode.LIMIT,
                f"{self._limits.documents_per_session_max} documents are open, which is the limit",
                expected=self._limits.documents_per_session_max,
            )

    def _account(self) -> None:
        text_bytes = sum(document.byte_length for document in self._documents.values())
        self._budget.used_bytes += text_bytes - self._text_bytes
        self._text_bytes = text_bytes

    def _check_budget(self, more_bytes: int = 0) -> None:
        if self._budget.used_bytes + more_bytes > self._budget.limit_bytes:
            raise EventRefused(
                ErrorCode.LIMIT,
                f"all documents of the server together are over {self._budget.limit_bytes} bytes",
                expected=self._budget.limit_bytes,
            )

    def _drop(self) -> Answers:
        self.counters.dropped += 1
        return _NOTHING

    def _error(self, refusal: EventRefused, sequence: int, alias: int | None) -> ErrorMessage:
        self.counters.refused += 1
        return ErrorMessage(
            code=refusal.code,
            message=refusal.message[:500],
            reference=sequence or None,
            document=alias,
            expected=refusal.expected,
            change=refusal.change_index,
            temporary=refusal.code is ErrorCode.LIMIT,
        )


def _unknown(alias: int) -> EventRefused:
    return EventRefused(ErrorCode.UNKNOWN_DOCUMENT, f"no document is open under alias {alias}")


def _between_parts() -> EventRefused:
    return EventRefused(ErrorCode.BAD_PART, "a text in parts is under way")


def _variants(event: SupersedableEvent, document: Document, units: Sequence[Unit]) -> Variants:
    """Say an event in units that observers want, where its positions can be said (OBS-5).

    The text that an event of an earlier version speaks of is gone, unless it is the present one still. Where
    all units have counted alike since then, none is needed.
    """
    if not units or not isinstance(event, Cursor | Selection | Diagnostics):
        return {}
    if document.text_since <= event.version <= document.version:
        assert document.buffer is not None
        # An event of a version that was raised since was not checked (PRS-2).
        with contextlib.suppress(EventRefused):
            return translations(event, document.buffer, units)
    elif document.plain_since is not None and document.plain_since <= event.version <= document.version:
        return {}
    return dict.fromkeys(units, None)


def _edit_variants(event: Edit, converted: Mapping[Unit, tuple[Change, ...]]) -> dict[Unit, FeedEvent]:
    return {
        unit: msgspec.structs.replace(event, changes=changes, length=None)
        for unit, changes in converted.items()
        if changes is not event.changes or event.length is not None
    }


def _captured(selection: DesignSelection, design: DesignOpen) -> DesignSelection:
    """A selection without what its document does not let be captured (DSG-2)."""
    if design.capture != "off":
        return selection
    return msgspec.structs.replace(selection, nodes=tuple(_without_text(node) for node in selection.nodes))


def _without_text(node: DesignNode) -> DesignNode:
    return node if node.text is None else msgspec.structs.replace(node, text=None)
