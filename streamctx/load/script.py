"""What a player plays: events with positions in the session's unit, from a trace or a recording.

Events are those of SPEC sections 10 to 12, with aliases and versions of the script's own;
the player gives them those of its session.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.core.documents.text_digest import text_hash
from streamctx.core.documents.translation import translations
from streamctx.core.documents.units import well_formed
from streamctx.errors import EventRefused
from streamctx.load.line_text import LineText
from streamctx.load.recording import RecordedEvent, RecordingError, read_header, read_recording
from streamctx.load.traces import Trace, TraceError, parse_trace, read_bytes
from streamctx.vocabulary import HashAlgorithm, Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import Close, Cursor, Edit, Event, Open, Snapshot

__all__ = ["RecordingScript", "Script", "TraceScript", "read_script"]

_HASH = HashAlgorithm.XXH3_64


class Script(Protocol):
    """Something to be played, once or again."""

    @property
    def name(self) -> str:
        """What it is, for people."""

    @property
    def edit_count(self) -> int:
        """How many edit batches it has."""

    @property
    def duration_s(self) -> float:
        """How long it took when it was recorded."""

    def events(self, unit: Unit) -> Iterator[RecordedEvent]:
        """The events from the first on, times rising from 0.

        Raises:
            TraceError, RecordingError: At the first one that does not fit the text.
        """

    def expected_texts(self) -> Mapping[int, str]:
        """The text of each document that is open at the end, by the script's alias.

        It is right after `events` has come to its end.
        """


class TraceScript:
    """An editing trace: one document, an edit for each transaction, and the cursor after it."""

    def __init__(self, trace: Trace, name: str) -> None:
        """Prepare a trace that was read."""
        self.name = name
        self._trace = trace

    @property
    def edit_count(self) -> int:
        """How many edit batches it has."""
        return len(self._trace.transactions)

    @property
    def duration_s(self) -> float:
        """How long it took when it was recorded; 0 where the trace holds no times."""
        return self._trace.transactions[-1].at_s if self._trace.transactions else 0.0

    def events(self, unit: Unit) -> Iterator[RecordedEvent]:
        """The events from the first on.

        Raises:
            TraceError: If a patch is outside the text, or the end is not the recorded one.
        """
        trace = self._trace
        text = LineText(trace.start, unit)
        yield RecordedEvent(
            0.0,
            Open(
                document=1,
                uri=f"trace:///{self.name}",
                version=0,
                length=0,
                hash=text_hash(trace.start, _HASH),
                text=trace.start,
            ),
        )
        for version, transaction in enumerate(trace.transactions, 1):
            changes: list[Change] = []
            try:
                for position, deleted, inserted in transaction.patches:
                    changes.append(text.patch(position, deleted, inserted))
            except TraceError as error:
                raise TraceError(f"{self.name}, transaction {version - 1}: {error}") from None
            at_s = transaction.at_s
            yield RecordedEvent(
                at_s, Edit(document=1, base=version - 1, version=version, changes=tuple(changes))
            )
            position, _, inserted = transaction.patches[-1]
            yield RecordedEvent(
                at_s,
                Cursor(document=1, version=version, position=text.position(position + len(inserted))),
            )
        if text.text() != trace.end:
            raise TraceError(f"{self.name}: the patches do not lead to endContent")

    def expected_texts(self) -> Mapping[int, str]:
        """The recorded end."""
        return {1: self._trace.end}


class RecordingScript:
    """A recording of our own: any events, of any number of documents."""

    def __init__(self, recorded: Sequence[RecordedEvent], name: str, *, unit: Unit) -> None:
        """Prepare a recording that was read; `unit` is that of its positions."""
        self.name = name
        self._recorded = recorded
        self._unit = unit
        self._mirrors: dict[int, TextBuffer] = {}

    @property
    def edit_count(self) -> int:
        """How many edit batches it has."""
        return sum(isinstance(recorded.event, Edit) for recorded in self._recorded)

    @property
    def duration_s(self) -> float:
        """How long it took when it was recorded."""
        return self._recorded[-1].at_s if self._recorded else 0.0

    def events(self, unit: Unit) -> Iterator[RecordedEvent]:
        """The events from the first on.

        Raises:
            RecordingError: If an event does not fit the text of its document.
        """
        self._mirrors = {}
        for number, recorded in enumerate(self._recorded, 1):
            try:
                event = self._follow(recorded.event, unit)
            except EventRefused as refusal:
                raise RecordingError(
                    f"{self.name}, event {number}: {refusal.code}: {refusal.message}"
                ) from None
            yield recorded if event is recorded.event else RecordedEvent(recorded.at_s, event)  # type: ignore[arg-type]

    def expected_texts(self) -> Mapping[int, str]:
        """What the events led to."""
        return {alias: mirror.text() for alias, mirror in self._mirrors.items()}

    def _follow(self, event: Event, unit: Unit) -> Event:
        """Make an event in the mirror and say it in a unit."""
        if isinstance(event, Open | Snapshot):
            self._mirrors[event.document] = TextBuffer(well_formed(event.text or ""), unit=self._unit)
            return event
        buffer = self._mirrors.get(getattr(event, "document", None) or 0)
        if buffer is None:
            return event
        if isinstance(event, Close):
            del self._mirrors[event.document]
            return event
        if isinstance(event, Edit):
            changes = tuple(
                msgspec.structs.replace(change, text=well_formed(change.text)) for change in event.changes
            )
            is_simultaneous = event.mode == "sim"
            if unit is self._unit:
                buffer.apply(changes, simultaneous=is_simultaneous)
                return event
            converted = buffer.apply_and_convert(changes, (unit,), simultaneous=is_simultaneous)[unit]
            return msgspec.structs.replace(event, changes=converted, length=None)
        if unit is self._unit:
            return event
        return translations(event, buffer, (unit,)).get(unit, event)


def read_script(path: Path) -> Script:
    """Read an editing trace or a recording of ours, plain or gzipped; its first line tells which.

    Raises:
        TraceError: If it is neither, or a trace that is damaged.
        RecordingError: If it is a recording that is damaged.
    """
    content = read_bytes(path)
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".jsonl")
    if b'"streamctx_recording"' not in content.split(b"\n", 1)[0]:
        return TraceScript(parse_trace(content, str(path)), name)
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        file.write(content)
        file.flush()
        unpacked = Path(file.name)
        try:
            return RecordingScript(list(read_recording(unpacked)), name, unit=read_header(unpacked).unit)
        except RecordingError as error:
            raise RecordingError(str(error).replace(file.name, str(path))) from error
