"""The edits that every contestant is given: a recorded session or a made-up one, as line and character."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.wire.changes import Change

__all__ = ["Trace", "generated_trace", "played", "read_trace"]

TRACES = Path(__file__).parents[3] / "shared" / "data" / "editing-traces"
Patch = tuple[int, int, str]


@dataclass(frozen=True)
class Trace:
    """One session of editing that starts with an empty text: each change is made on the one before."""

    name: str
    changes: Sequence[Change]
    end: str


def read_trace(name: str) -> Trace | None:
    """Read a trace of the public editing-traces collection, one change for each patch; `None` if absent."""
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        return None
    session = json.loads(gzip.decompress(path.read_bytes()))
    if session["startContent"]:
        raise SystemExit(f"{name} does not start with an empty text")
    patches = ((start, length, text) for txn in session["txns"] for start, length, text in txn["patches"])
    changes, end = _converted(patches)
    if end != session["endContent"]:
        raise SystemExit(f"{name} does not lead to its end content")
    return Trace(name, changes, end)


def generated_trace(edit_count: int = 20_000) -> Trace:
    """Make up a session: words typed here and there, a character at a time, some of it deleted again."""
    changes, end = _converted(_typing(edit_count, random.Random(20_261_130)))
    return Trace("generated", changes, end)


def played(changes: Iterable[Change]) -> str:
    """Return the text to which changes lead."""
    buffer = TextBuffer()
    for change in changes:
        buffer.apply((change,))
    return buffer.text()


def _typing(count: int, source: random.Random) -> Iterator[Patch]:
    length = cursor = 0
    while count > 0:
        if source.random() < 0.1:
            cursor = source.randrange(length + 1)
        if cursor and source.random() < 0.2:
            for _ in range(min(cursor, source.randrange(1, 6))):
                cursor -= 1
                length -= 1
                count -= 1
                yield cursor, 1, ""
            continue
        for character in source.choice(
            ("def ", "return ", "self.value ", "= ", "\n    ", "é", "count + 1\n")
        ):
            yield cursor, 0, character
            cursor += 1
            length += 1
            count -= 1


def _converted(patches: Iterable[Patch]) -> tuple[list[Change], str]:
    """Say code-point patches as changes at lines and UTF-16 characters, by the plainest means."""
    text = ""
    changes = []
    for start, length, inserted in patches:
        removed = text[start : start + length]
        line, character = _position(text, start)
        line_feeds = removed.count("\n")
        tail = _utf_16_length(removed[removed.rfind("\n") + 1 :])
        end_character = tail if line_feeds else character + tail
        changes.append(Change(line, character, line + line_feeds, end_character, inserted))
        text = text[:start] + inserted + text[start + length :]
    return changes, text


def _position(text: str, index: int) -> tuple[int, int]:
    line_start = text.rfind("\n", 0, index) + 1
    return text.count("\n", 0, index), _utf_16_length(text[line_start:index])


def _utf_16_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
