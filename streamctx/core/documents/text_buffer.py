"""The exact text of a document, edited in place.

Positions are strict: one outside the text, or inside a character or a line end,
is refused and never clamped, since a clamped edit makes two copies differ silently.

Source: SPEC POS-1 to POS-4, EDT-1 to EDT-5; LSP 3.17 for lines, units and sequential changes.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import NamedTuple

from streamctx.core.documents.block_text import BlockText, Place
from streamctx.core.documents.blocks import DEFAULT_LAYOUT, Layout
from streamctx.core.documents.changes import last_to_first
from streamctx.core.documents.text_digest import hash_of_parts
from streamctx.errors import ErrorCode, EventRefused
from streamctx.vocabulary import HashAlgorithm, Unit
from streamctx.wire.changes import Change

__all__ = ["TextBuffer"]


class _Undo(NamedTuple):
    """What takes one change back: where it starts, how long its text is, and what was there."""

    line: int
    character: int
    is_joined: bool
    inserted_bytes: int
    removed: bytes


class TextBuffer:
    r"""A text with line and character positions in one unit.

    Lines end at `\n`, `\r\n`, `\r` and nowhere else; the last line has no end and
    may be empty, so `""` has one line and `"a\n"` two. At every moment the lines
    are those of the whole text split anew.

    An edit costs the size of the change and of a block, half a kilobyte or one line up
    to 16 kB, whatever the length of the text. Memory is 1.4 times the text's UTF-8 for
    code, and below eight times for any text.

    Args:
        text: The text to start with; it holds no surrogate, see `units.well_formed`.
        unit: What a `character` counts, and `length`.
        layout: How the text is divided; it changes speed and memory only.

    Raises:
        EventRefused: `bad_text`, if the text holds a surrogate.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str = "", *, unit: Unit = Unit.UTF_16, layout: Layout = DEFAULT_LAYOUT) -> None:
        self._text = BlockText(_utf_8(text), unit, layout)

    @property
    def unit(self) -> Unit:
        """What a `character` of a position counts."""
        return self._text.unit

    @property
    def length(self) -> int:
        """The length of the whole text in `unit`."""
        return self._text.length

    @property
    def byte_length(self) -> int:
        """The length of the whole text as UTF-8."""
        return self._text.byte_length

    @property
    def line_count(self) -> int:
        """The number of lines, at least one."""
        return self._text.blocks.line_ends + 1

    def text(self) -> str:
        """Return the whole text."""
        return b"".join([block.data for block in self._text.blocks]).decode()

    def hash(self, algorithm: HashAlgorithm) -> str:
        """Return what `text_hash` gives for the whole text, without joining it."""
        groups = self._text.blocks.groups
        return hash_of_parts((b"".join([block.data for block in group]) for group in groups), algorithm)

    def line(self, index: int) -> str:
        """Return a line with its line end.

        Raises:
            IndexError: If there is no such line; negative ones do not exist.
        """
        if not 0 <= index < self.line_count:
            raise IndexError(f"line {index} is outside a text of {self.line_count} lines")
        return self._text.line(index)

    def check_position(self, line: int, character: int) -> None:
        """Check that a position exists.

        Raises:
            EventRefused: `bad_position`, if there is no such line, the line without its
                end is shorter, or the position is inside a character.
        """
        self._text.locate(line, character)

    def convert_character(self, line: int, character: int, unit: Unit) -> int:
        """Return the `character` of the same position in another unit.

        Raises:
            EventRefused: As `check_position`.
        """
        place = self._text.locate(line, character)
        return self._text.character_at(line, place, unit)

    def apply(self, changes: Sequence[Change], *, simultaneous: bool = False) -> None:
        """Make a batch of changes, all of them or none.

        Args:
            changes: Each is made on the result of the one before.
            simultaneous: All positions are of the text before the batch instead. Ranges
                may touch and not overlap; at one place insertions come first, in array order.

        Raises:
            EventRefused: With `change_index`, the text being as before: `bad_text` for a
                surrogate; `bad_change` for a range that ends before it starts or
                overlaps another; `bad_position` as `check_position`; `old_len_mismatch`
                if the replaced text has another length in `unit` than stated.
        """
        if len(changes) == 1 and self._text.replace_in_block(changes[0], ascii_only=False) is not None:
            return
        self.apply_and_convert(changes, (), simultaneous=simultaneous)

    def apply_and_convert(
        self, changes: Sequence[Change], units: Collection[Unit], *, simultaneous: bool = False
    ) -> dict[Unit, tuple[Change, ...]]:
        """Make a batch of changes and say it in other units.

        Returns:
            For each of `units` the batch that does the same to the same text there. Where
            the units agree, as in all ASCII lines, it is the very tuple that was given.

        Raises:
            EventRefused: As `apply`.
        """
        # A simultaneous batch is checked as a whole before any of it is made.
        keep_undo = len(changes) > 1 and not simultaneous
        batch = _Batch(self._text, changes, units, keep_undo=keep_undo)
        try:
            return batch.make(simultaneous=simultaneous)
        except EventRefused:
            batch.undo()
            raise

    def convert_changes(
        self, changes: Sequence[Change], unit: Unit, *, simultaneous: bool = False
    ) -> tuple[Change, ...]:
        """Say a batch of changes of the present text in another unit, without making it.

        Raises:
            EventRefused: As `apply`.
        """
        batch = _Batch(self._text, changes, (unit,), keep_undo=True)
        try:
            return batch.make(simultaneous=simultaneous)[unit]
        finally:
            batch.undo()


class _Batch:
    """One batch while it is made: what is done, what it is in other units, how to take it back."""

    __slots__ = ("_changes", "_converted", "_keep_undo", "_text", "_undo")

    def __init__(
        self, text: BlockText, changes: Sequence[Change], units: Collection[Unit], *, keep_undo: bool
    ) -> None:
        self._text = text
        self._changes = changes
        self._converted: dict[Unit, list[Change]] = {unit: [] for unit in units}
        self._keep_undo = keep_undo
        self._undo: list[_Undo] = []

    def make(self, *, simultaneous: bool) -> dict[Unit, tuple[Change, ...]]:
        """Make the changes; on a refusal those before it are made and can be undone."""
        for index, change in enumerate(self._changes):
            try:
                if simultaneous:
                    self._check(change)
                else:
                    self._make_one(change)
            except EventRefused as refusal:
                raise EventRefused(
                    refusal.code, refusal.message, expected=refusal.expected, change_index=index
                ) from None
        if simultaneous:
            for change in last_to_first(self._changes):
                start, end = self._places(change)
                self._replace(change, start, end)
        given = tuple(self._changes)
        return {
            unit: given if all(map(operator.is_, changes, given)) else tuple(changes)
            for unit, changes in self._converted.items()
        }

    def undo(self) -> None:
        """Take back what was made; the undo must have been kept if there was more than one change."""
        text = self._text
        while self._undo:
            done = self._undo.pop()
            if done.is_joined:
                # It starts within a line end.
                start = text.before(text.locate(done.line, 0))
            else:
                start = text.locate(done.line, done.character)
            text.replace(start, text.after(start, done.inserted_bytes), done.removed)

    def _make_one(self, change: Change) -> None:
        # What is all ASCII is the same in every unit.
        removed = self._text.replace_in_block(change, ascii_only=bool(self._converted))
        if removed is None:
            start, end = self._check(change)
            self._replace(change, start, end)
            return
        if self._keep_undo:
            self._undo.append(
                _Undo(change.start_line, change.start_character, False, len(change.text.encode()), removed)
            )
        for changes in self._converted.values():
            changes.append(change)

    def _check(self, change: Change) -> tuple[Place, Place]:
        """Check a change against the present text and convert it; return its two places."""
        _utf_8(change.text)
        if (change.end_line, change.end_character) < (change.start_line, change.start_character):
            raise EventRefused(
                ErrorCode.BAD_CHANGE,
                f"it ends at {change.end_line}:{change.end_character}, "
                f"before its start at {change.start_line}:{change.start_character}",
            )
        start, end = self._places(change)
        if change.old_length is not None:
            found = self._text.measure(start, end, self._text.unit)
            if found != change.old_length:
                raise EventRefused(
                    ErrorCode.OLD_LENGTH_MISMATCH,
                    f"the replaced text has length {found} in {self._text.unit}, "
                    f"the change says {change.old_length}",
                    expected=found,
                )
        for unit, changes in self._converted.items():
            changes.append(self._convert(change, start, end, unit))
        return start, end

    def _places(self, change: Change) -> tuple[Place, Place]:
        start = self._text.locate(change.start_line, change.start_character)
        if (change.end_line, change.end_character) == (change.start_line, change.start_character):
            return start, start
        return start, self._text.locate(change.end_line, change.end_character)

    def _convert(self, change: Change, start: Place, end: Place, unit: Unit) -> Change:
        text = self._text
        if unit is text.unit:
            return change
        converted = Change(
            change.start_line,
            text.character_at(change.start_line, start, unit),
            change.end_line,
            text.character_at(change.end_line, end, unit),
            change.text,
            None if change.old_length is None else text.measure(start, end, unit),
        )
        return change if converted == change else converted

    def _replace(self, change: Change, start: Place, end: Place) -> None:
        data = change.text.encode()
        if not self._keep_undo:
            self._text.replace(start, end, data)
            return
        removed = self._text.read(start, end)
        is_joined = self._text.replace(start, end, data)
        self._undo.append(_Undo(change.start_line, change.start_character, is_joined, len(data), removed))


def _utf_8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise EventRefused(
            ErrorCode.BAD_TEXT, f"the text holds a lone surrogate at index {error.start}"
        ) from None
