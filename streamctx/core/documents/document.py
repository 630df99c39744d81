"""One open document: its text, its version, and whether it can be trusted.

A document refuses what does not fit (`EventRefused`) and stays as it was. What a
refusal leads to, a request for a snapshot, is the session's to decide.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamctx.core.documents.document_state import DocumentState, TransferState
from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.core.documents.translation import is_plain
from streamctx.errors import ErrorCode, EventRefused
from streamctx.limits import Limits
from streamctx.vocabulary import HashAlgorithm, Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import Edit, Open, Part, Save, Snapshot, Version

__all__ = ["Document"]


_JOINED_PIECES = 1024
"""So many parts are made one string, since a string of two characters takes as much as one of fifty."""


class _Transfer:
    """A text that comes in parts: what announced it, and what has come."""

    __slots__ = ("_joined", "_pieces", "announced", "byte_length", "part_count")

    def __init__(self, announced: Open | Snapshot) -> None:
        self.announced = announced
        self.part_count = 0
        self.byte_length = 0
        self._joined: list[str] = []
        self._pieces: list[str] = []

    @classmethod
    def restore(cls, state: TransferState) -> _Transfer:
        """Go on where `state` was taken."""
        transfer = cls(state.announced)
        transfer.part_count = state.part_count
        transfer.byte_length = len(state.text.encode())
        transfer._joined.append(state.text)
        return transfer

    def add(self, text: str, byte_length: int) -> None:
        """Take the next part."""
        self.part_count += 1
        self.byte_length += byte_length
        if text:
            self._pieces.append(text)
        if len(self._pieces) >= _JOINED_PIECES:
            self._joined.append("".join(self._pieces))
            self._pieces.clear()

    def text(self) -> str:
        """All that has come."""
        return "".join((*self._joined, *self._pieces))


class Document:
    """The server's copy of one document.

    `buffer` is `None` until the first text is complete. `version` is that of the
    text in `buffer`. While `is_stale`, the text is not, or cannot be proved to
    be, the editor's; only a text that fits its hash ends that.
    """

    __slots__ = (
        "_limits",
        "_transfer",
        "buffer",
        "edit_count",
        "hash_algorithm",
        "is_stale",
        "metadata",
        "plain_since",
        "saved_version",
        "stale_reason",
        "text_since",
        "unfit_count",
        "unit",
        "verified_version",
        "version",
    )

    def __init__(self, opened: Open, *, unit: Unit, hash_algorithm: HashAlgorithm, limits: Limits) -> None:
        """Make the document known; `begin_text` with the same message gives it its text."""
        self._limits = limits
        self._transfer: _Transfer | None = None
        self.unit = unit
        self.hash_algorithm = hash_algorithm
        self.metadata = _without_text(opened)
        self.buffer: TextBuffer | None = None
        self.version = opened.version
        self.verified_version: int | None = None
        """The last version at which the editor's hash was equal to ours."""
        self.saved_version: int | None = None
        self.is_stale = False
        self.stale_reason = ""
        """Why it is stale, if it is."""
        self.unfit_count = 0
        """Texts in a row that were refused; counted by the session, reset by a fitting one."""
        self.edit_count = 0
        self.text_since = opened.version
        """The lowest version that had the present text."""
        self.plain_since: int | None = None
        """The lowest version since which the text has been plain (`is_plain`); `None` if it is not now."""

    @classmethod
    def restore(
        cls, state: DocumentState, *, unit: Unit, hash_algorithm: HashAlgorithm, limits: Limits
    ) -> Document:
        """Make the document that `state` was taken of."""
        document = cls(state.metadata, unit=unit, hash_algorithm=hash_algorithm, limits=limits)
        if state.text is not None:
            document.buffer = TextBuffer(state.text, unit=unit)
        if state.transfer is not None:
            document._transfer = _Transfer.restore(state.transfer)
        document.version = state.version
        document.text_since = state.text_since
        document.plain_since = state.plain_since
        document.verified_version = state.verified_version
        document.saved_version = state.saved_version
        document.is_stale = state.stale_reason is not None
        document.stale_reason = state.stale_reason or ""
        document.unfit_count = state.unfit_count
        document.edit_count = state.edit_count
        return document

    def state(self) -> DocumentState:
        """All of it as a value."""
        transfer = self._transfer
        return DocumentState(
            metadata=self.metadata,
            text=None if self.buffer is None else self.buffer.text(),
            version=self.version,
            text_since=self.text_since,
            plain_since=self.plain_since,
            verified_version=self.verified_version,
            saved_version=self.saved_version,
            stale_reason=self.stale_reason if self.is_stale else None,
            unfit_count=self.unfit_count,
            edit_count=self.edit_count,
            transfer=None
            if transfer is None
            else TransferState(transfer.announced, transfer.part_count, transfer.text()),
        )

    @property
    def alias(self) -> int:
        """The producer's number for it."""
        return self.metadata.document

    @property
    def uri(self) -> str:
        """Where the editor has it from."""
        return self.metadata.uri

    @property
    def is_receiving(self) -> bool:
        """Whether a text in parts is under way."""
        return self._transfer is not None

    @property
    def announced(self) -> Open | Snapshot | None:
        """The message whose text in parts is under way."""
        return None if self._transfer is None else self._transfer.announced

    @property
    def byte_length(self) -> int:
        """UTF-8 bytes of all text held for it."""
        held = 0 if self.buffer is None else self.buffer.byte_length
        return held + (0 if self._transfer is None else self._transfer.byte_length)

    def begin_text(self, message: Open | Snapshot) -> bool:
        """Take a whole text, or the announcement of one in parts.

        Returns:
            Whether the text is complete now.

        Raises:
            EventRefused: `bad_part` if not exactly one of `text` and `parts` is there, `too_large`,
                `bad_version` for a snapshot from the past, or as `_accept`.
        """
        self._transfer = None
        if (message.text is None) is (message.parts is None):
            raise EventRefused(ErrorCode.BAD_PART, "exactly one of text and parts is expected")
        if isinstance(message, Snapshot) and message.version < self.version:
            raise EventRefused(
                ErrorCode.BAD_VERSION,
                f"snapshot of version {message.version}, after version {self.version}",
                expected=self.version,
            )
        self._check_size(message.length)
        if message.text is None:
            self._transfer = _Transfer(message)
            return False
        self._check_text_bytes(len(message.text.encode()))
        self._accept(message, message.text)
        return True

    def add_part(self, part: Part) -> bool:
        """Take the next part.

        Returns:
            Whether the text is complete now.

        Raises:
            EventRefused: `bad_part` if it is not the next one of the text under way,
                `too_large`, or as `_accept`; the transfer is over then.
        """
        transfer = self._transfer
        if transfer is None:
            raise EventRefused(ErrorCode.BAD_PART, "no text in parts is under way")
        announced = transfer.announced
        expected = transfer.part_count
        if part.index != expected or part.version != announced.version:
            self._transfer = None
            raise EventRefused(
                ErrorCode.BAD_PART,
                f"part {part.index} of version {part.version}, "
                f"expected part {expected} of version {announced.version}",
                expected=expected,
            )
        part_bytes = len(part.text.encode())
        try:
            self._check_text_bytes(part_bytes)
            self._check_size(transfer.byte_length + part_bytes)
        except EventRefused:
            self._transfer = None
            raise
        transfer.add(part.text, part_bytes)
        if transfer.part_count != announced.parts:
            return False
        self._transfer = None
        self._accept(announced, transfer.text())
        return True

    def abandon_text(self) -> None:
        """Forget a text that is under way."""
        self._transfer = None

    def _accept(self, message: Open | Snapshot, text: str) -> None:
        """Make a complete text the document's, if it fits its length and hash.

        Raises:
            EventRefused: `length_mismatch` or `hash_mismatch`; the text before stays.
        """
        buffer = TextBuffer(text, unit=self.unit)
        _check_whole(buffer, length=message.length, hash_=message.hash, algorithm=self.hash_algorithm)
        if isinstance(message, Open):
            self.metadata = _without_text(message)
        self.buffer = buffer
        self.version = self.text_since = message.version
        self.plain_since = message.version if is_plain(buffer) else None
        self.verified_version = message.version
        self.is_stale = False
        self.unfit_count = 0

    def edit(self, edit: Edit, units: Sequence[Unit] = ()) -> dict[Unit, tuple[Change, ...]]:
        """Apply a batch of changes, whole or not at all.

        Args:
            units: Other units in which the same changes are wanted.

        Returns:
            The changes in each of `units`.

        Raises:
            EventRefused: `bad_version`, `length_mismatch`, `too_large`, or as `TextBuffer.apply`.
        """
        buffer = self.buffer
        if buffer is None:
            raise EventRefused(ErrorCode.BAD_PART, "the document's text has not come yet")
        if edit.base != self.version or edit.version <= edit.base:
            raise EventRefused(
                ErrorCode.BAD_VERSION,
                f"edit from version {edit.base} to {edit.version}, the document is at {self.version}",
                expected=self.version,
            )
        if edit.length is not None and edit.length != buffer.length:
            raise EventRefused(
                ErrorCode.LENGTH_MISMATCH,
                f"length {edit.length} before the edit, found {buffer.length}",
                expected=buffer.length,
            )
        simultaneous = edit.mode == "sim"
        if buffer.byte_length > self._limits.document_bytes_max - self._limits.websocket_message_bytes_max:
            # Only near the limit is it worth the count, and only where that is not enough a copy.
            added = sum(len(change.text.encode()) for change in edit.changes)
            if buffer.byte_length + added > self._limits.document_bytes_max:
                copy = TextBuffer(buffer.text(), unit=self.unit)
                copy.apply(edit.changes, simultaneous=simultaneous)
                self._check_size(copy.byte_length)
        if units:
            converted = buffer.apply_and_convert(edit.changes, units, simultaneous=simultaneous)
        else:
            buffer.apply(edit.changes, simultaneous=simultaneous)
            converted = {}
        self.version = self.text_since = edit.version
        self.edit_count += 1
        if self.plain_since is None:
            if is_plain(buffer):
                self.plain_since = edit.version
        else:
            # What was all ASCII stays so unless something else comes in, which is quicker to see.
            for change in edit.changes:
                if not change.text.isascii():
                    self.plain_since = edit.version if is_plain(buffer) else None
                    break
        return converted

    def verify(self, version: Version) -> None:
        """Compare the whole text with what the editor says of its own (DIV-1).

        Raises:
            EventRefused: `bad_version`, `length_mismatch` or `hash_mismatch`.
        """
        if self.buffer is None:
            raise EventRefused(ErrorCode.BAD_PART, "the document's text has not come yet")
        if version.version < self.version:
            raise EventRefused(
                ErrorCode.BAD_VERSION,
                f"version {version.version}, the document is at {self.version}",
                expected=self.version,
            )
        _check_whole(self.buffer, length=version.length, hash_=version.hash, algorithm=self.hash_algorithm)
        self.version = version.version
        self.verified_version = version.version

    def save(self, save: Save) -> None:
        """Note that a version is on disk.

        Raises:
            EventRefused: `bad_version` if the document has not reached it.
        """
        if save.version > self.version:
            raise EventRefused(
                ErrorCode.BAD_VERSION,
                f"save of version {save.version}, the document is at {self.version}",
                expected=self.version,
            )
        self.saved_version = save.version

    def _check_size(self, size: int) -> None:
        # A length in any unit is at most the UTF-8 bytes, so this refuses no legal text.
        if size > self._limits.document_bytes_max:
            raise EventRefused(
                ErrorCode.TOO_LARGE,
                f"a text of {size}, limit {self._limits.document_bytes_max} bytes",
                expected=self._limits.document_bytes_max,
            )

    def _check_text_bytes(self, size: int) -> None:
        if size > self._limits.part_text_bytes_max:
            raise EventRefused(
                ErrorCode.TOO_LARGE,
                f"{size} bytes of text in one message, limit {self._limits.part_text_bytes_max}: send parts",
                expected=self._limits.part_text_bytes_max,
            )


def _without_text(message: Open) -> Open:
    return msgspec.structs.replace(message, text=None, parts=None)


def _check_whole(buffer: TextBuffer, *, length: int, hash_: str, algorithm: HashAlgorithm) -> None:
    if buffer.length != length:
        raise EventRefused(
            ErrorCode.LENGTH_MISMATCH,
            f"the whole text has length {buffer.length}, stated is {length}",
            expected=buffer.length,
        )
    found = buffer.hash(algorithm)
    if found != hash_:
        raise EventRefused(
            ErrorCode.HASH_MISMATCH,
            f"the whole text has the hash {found}, stated is {hash_[:100]}",
            expected=found,
        )
