"""Recordings of editing: files of what an editor did and when, to be played again.

A recording is JSON Lines in UTF-8. The first line is the header, `{"streamctx_recording": 1, …}`; every
other one is `{"t": seconds, "event": {…}}`, where the event is one of SPEC sections 10 to 12 without a
sequence number, and `t` counts from the start of the recording and never goes back. A text stands whole in
its `open` or `snapshot`, whatever its length: how it travels is the player's affair. Positions and lengths
are in the header's unit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Literal, Self, TypeAlias

import msgspec
from msgspec import Meta

from streamctx.errors import StreamctxError
from streamctx.limits import DEFAULT_LIMITS, KIB
from streamctx.vocabulary import Unit
from streamctx.wire.messages import (
    Close,
    DesignClose,
    DesignOpen,
    Edit,
    Mention,
    Open,
    Save,
    Snapshot,
    SupersedableEvent,
    Version,
)

__all__ = [
    "RecordableEvent",
    "RecordedEvent",
    "RecordingError",
    "RecordingHeader",
    "RecordingWriter",
    "read_header",
    "read_recording",
]

RecordableEvent: TypeAlias = (
    Open | Edit | Version | Save | Close | Snapshot | Mention | DesignOpen | DesignClose | SupersedableEvent
)
"""Every event but `part`, which is a way to travel."""

# JSON writes a control character of one byte as six.
_LINE_BYTES_MAX = 6 * DEFAULT_LIMITS.document_bytes_max + 64 * KIB


class RecordingError(StreamctxError):
    """A file is no recording of ours, or a line of it is broken; the message says which, without its text."""


class RecordingHeader(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a recording."""

    streamctx_recording: Literal[1] = 1
    """Version of the format."""
    created: str
    """When it was started, RFC 3339."""
    source: str
    """What made it, for people."""
    unit: Unit = Unit.UTF_16


class RecordedEvent(msgspec.Struct, frozen=True):
    """One line: what happened, and how many seconds after the start."""

    at_s: Annotated[float, Meta(ge=0)] = msgspec.field(name="t")
    event: RecordableEvent


_HEADER = msgspec.json.Decoder(RecordingHeader)
_EVENT = msgspec.json.Decoder(RecordedEvent)
_ENCODER = msgspec.json.Encoder()


def read_header(path: Path) -> RecordingHeader:
    """Read the first line of a recording.

    Raises:
        RecordingError: If the file is no recording.
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        return _header_of(file, path)


def read_recording(path: Path) -> Iterator[RecordedEvent]:
    """Read the events of a recording one after the other, in constant memory.

    Raises:
        RecordingError: If the file is no recording, or at the first broken line; what came before stands. A
            recorder that was killed can leave such a line at the end.
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        _header_of(file, path)
        line_number = 1
        last_at_s = 0.0
        while line := file.readline(_LINE_BYTES_MAX):
            line_number += 1
            if line.isspace():
                continue
            try:
                recorded = _EVENT.decode(line)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                reason = str(error) or "nested too deeply"
                raise RecordingError(f"{path} line {line_number}: {reason}") from error
            if recorded.at_s < last_at_s:
                raise RecordingError(
                    f"{path} line {line_number}: t is {recorded.at_s:g}, after {last_at_s:g}"
                )
            last_at_s = recorded.at_s
            yield recorded


def _header_of(file: IO[bytes], path: Path) -> RecordingHeader:
    try:
        return _HEADER.decode(file.readline(64 * KIB))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RecordingError(
            f'{path} is not a recording: its first line must be {{"streamctx_recording": 1, …}} ({error})'
        ) from error


class RecordingWriter:
    """Writes a recording; every event is in the file when `write` returns.

    The file holds document texts, so only its owner can read it.
    """

    def __init__(
        self, path: Path, *, source: str, unit: Unit = Unit.UTF_16, is_overwriting: bool = False
    ) -> None:
        """Create the file with its header.

        Raises:
            FileExistsError: If it is there, and `is_overwriting` is not set.
            OSError: If it cannot be written.
        """
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if is_overwriting else os.O_EXCL)
        self._file = open(os.open(path, flags, 0o600), "wb", buffering=0)  # noqa: SIM115
        self._last_at_s = 0.0
        self.event_count = 0
        created = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        header = RecordingHeader(created=created, source=source, unit=unit)
        self._write_line(_ENCODER.encode(header))

    def write(self, at_s: float, event: RecordableEvent) -> None:
        """Append an event.

        Raises:
            ValueError: If the time goes back.
            OSError: If it cannot be written.
        """
        if at_s < self._last_at_s:
            raise ValueError(f"t is {at_s:g}, after {self._last_at_s:g}; it never goes back")
        self._last_at_s = at_s
        self._write_line(_ENCODER.encode(RecordedEvent(round(at_s, 6), event)))
        self.event_count += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write_line(self, line: bytes) -> None:
        remaining = memoryview(line + b"\n")
        while remaining:
            remaining = remaining[self._file.write(remaining) :]
