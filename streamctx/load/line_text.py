r"""A text that turns code-point patches into line-and-character changes while it makes them.

It is kept as a list of lines and remembers where the last patch was: people type
where they typed before, so finding a position costs the distance in lines from
there, and a patch within a line costs that line.
"""

from __future__ import annotations

from streamctx.core.documents.lines import content_length, split_lines
from streamctx.core.documents.units import length_in
from streamctx.load.traces import TraceError
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change

__all__ = ["LineText"]


class LineText:
    r"""The text of a trace.

    `_lines` hold their line ends; the last one has none and may be empty. `_start` is the
    position of line `_line`, where the next search begins.
    """

    __slots__ = ("_line", "_lines", "_start", "length", "unit")

    def __init__(self, text: str, unit: Unit) -> None:
        self.unit = unit
        self.length = len(text)
        """In code points."""
        self._lines = _lines_of(text)
        self._line = 0
        self._start = 0

    def text(self) -> str:
        """Return the whole text."""
        return "".join(self._lines)

    def position(self, index: int) -> tuple[int, int]:
        r"""Say where a code-point index is, as line and character in `unit`.

        Within a `\r\n`, where no position is, it is before both.

        Raises:
            TraceError: If the index is outside the text.
        """
        line, offset = self._locate(index)
        text = self._lines[line]
        return line, self._measure(text, min(offset, content_length(text)))

    def patch(self, position: int, deleted: int, inserted: str) -> Change:
        r"""Make a patch, and say the same as a change.

        A change that cuts a `\r\n` in two replaces it whole, since positions within it do not exist.

        Raises:
            TraceError: If the patch is outside the text; nothing was changed.
        """
        end = position + deleted
        if end > self.length:
            raise TraceError(f"position {position} and {deleted} deleted, in a text of {self.length}")
        start_line, start_offset = self._locate(position)
        lines = self._lines
        start_text = lines[start_line]
        end_line, end_offset = (start_line, start_offset) if not deleted else self._locate(end)
        end_text = lines[end_line]
        before, after = start_text[:start_offset], end_text[end_offset:]

        # What the change says; it grows over a line end that is cut.
        first, last, text = start_offset, end_offset, inserted
        if start_offset and start_offset == len(start_text) - 1 and start_text.endswith("\r\n"):
            first, text = start_offset - 1, "\r" + text
        stop_line, stop_character = end_line, -1
        if end_offset and end_offset == len(end_text) - 1 and end_text.endswith("\r\n"):
            text += "\n"
            stop_line, stop_character = end_line + 1, 0
        if stop_character < 0:
            stop_character = self._measure(end_text, last)
        change = Change(start_line, self._measure(start_text, first), stop_line, stop_character, text)

        self.length += len(inserted) - deleted
        replaced = before + inserted + after
        if (
            start_line == end_line
            and not ("\n" in inserted or "\r" in inserted or "\r" in start_text)
            and not replaced.startswith("\n")  # The line before may be waiting for it.
        ):
            lines[start_line] = replaced
            self._line, self._start = start_line, position - start_offset
        else:
            self._splice(start_line, end_line, replaced, position - start_offset)
        return change

    def _splice(self, first: int, last: int, text: str, start: int) -> None:
        r"""Replace lines by a text, split anew together with what a `\r` or `\n` at its seams could join."""
        lines = self._lines
        if first and lines[first - 1].endswith("\r"):
            first -= 1
            start -= len(lines[first])
            text = lines[first] + text
        while last + 1 < len(lines) and (
            not text.endswith("\n") and (not text.endswith("\r") or lines[last + 1].startswith("\n"))
        ):
            last += 1
            text += lines[last]
        pieces = _lines_of(text)
        if last + 1 < len(lines) and not pieces[-1]:
            pieces.pop()
        lines[first : last + 1] = pieces
        self._line, self._start = first, start

    def _locate(self, index: int) -> tuple[int, int]:
        """The line of a code-point index and the offset in it; at a line's start it is that line."""
        if not 0 <= index <= self.length:
            raise TraceError(f"position {index} in a text of {self.length}")
        lines, line, start = self._lines, self._line, self._start
        if index < start and index < start - index:
            line = start = 0  # It is nearer to the beginning.
        while index < start:
            line -= 1
            start -= len(lines[line])
        last = len(lines) - 1
        while line < last and index >= start + len(lines[line]):
            start += len(lines[line])
            line += 1
        self._line, self._start = line, start
        return line, index - start

    def _measure(self, line: str, offset: int) -> int:
        return offset if line.isascii() else length_in(line[:offset], self.unit)


def _lines_of(text: str) -> list[str]:
    lines = split_lines(text)
    if not lines or lines[-1].endswith(("\n", "\r")):
        lines.append("")
    return lines
