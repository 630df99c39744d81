"""A seeded typist: types the way from one version of a file to the next, character by character.

    python -m streamctx.load.typist FILE FILE … --output demo.jsonl.gz
    python -m streamctx.load.typist --git streamctx/server/websocket.py COMMIT COMMIT … --output demo.jsonl.gz

The first version is opened, and what the others changed is typed in: deletions as backspaces, small
pauses, a cursor after every step, a save at the end of each version. The output is a recording as
`streamctx.load.recording` describes it, gzipped where the name ends in `.gz`; the same versions and the
same seed give the same bytes. It is labelled as made up from a history in its header.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from streamctx.core.documents.lines import split_lines
from streamctx.core.documents.text_digest import text_hash
from streamctx.core.documents.units import length_in
from streamctx.load.line_text import LineText
from streamctx.load.recording import RecordedEvent, RecordingHeader
from streamctx.load.traces import Patch
from streamctx.vocabulary import HashAlgorithm, Unit
from streamctx.wire.messages import Cursor, Edit, Open, Save

__all__ = ["Replacement", "encode_recording", "keystrokes", "main", "replacements", "type_out"]

_UNIT = Unit.UTF_16
_TOKEN = re.compile(r"\w+|\s+|.", re.DOTALL)
# Seconds between two strokes of a fast typist, and how long a look for the next place takes.
_STROKE_S = 0.09
_BACKSPACE_S = 0.04
_LOOK_S = (0.3, 1.2)
_SAVE_S = 2.0


@dataclass(frozen=True, slots=True)
class Replacement:
    """Between two code points of the text before: so many deleted, this text in their place."""

    position: int
    deleted: int
    inserted: str


def replacements(before: str, after: str) -> list[Replacement]:
    """What leads from one text to another, in order; positions are those of the text before."""
    old, new = split_lines(before), split_lines(after)
    found: list[Replacement] = []
    position = 0
    for tag, old_start, old_stop, new_start, new_stop in _opcodes(old, new):
        old_text, new_text = "".join(old[old_start:old_stop]), "".join(new[new_start:new_stop])
        if tag == "replace":
            # Within changed lines, only the words that changed.
            found += _replaced_words(old_text, new_text, position)
        elif tag != "equal":
            found.append(Replacement(position, len(old_text), new_text))
        position += len(old_text)
    return found


def _replaced_words(before: str, after: str, start: int) -> Iterator[Replacement]:
    old, new = _TOKEN.findall(before), _TOKEN.findall(after)
    position = start
    for tag, old_start, old_stop, new_start, new_stop in _opcodes(old, new):
        deleted = len("".join(old[old_start:old_stop]))
        if tag != "equal":
            yield Replacement(position, deleted, "".join(new[new_start:new_stop]))
        position += deleted


def _opcodes(old: Sequence[str], new: Sequence[str]) -> Sequence[tuple[str, int, int, int, int]]:
    return difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


def keystrokes(before: str, after: str) -> Iterator[list[Patch]]:
    """The strokes that lead from one text to another, grouped by the place where they are made."""
    shift = 0
    for replacement in replacements(before, after):
        start = replacement.position + shift
        end = start + replacement.deleted
        strokes: list[Patch] = [(place - 1, 1, "") for place in range(end, start, -1)]
        place = start
        for typed in _typed(replacement.inserted):
            strokes.append((place, 0, typed))
            place += len(typed)
        shift += len(replacement.inserted) - replacement.deleted
        yield strokes


def _typed(text: str) -> Iterator[str]:
    """One character a stroke; an editor indents a new line by itself."""
    yield from re.findall(r"\r?\n[ \t]*|.", text, re.DOTALL)


def type_out(
    versions: Sequence[str], *, uri: str, language: str | None, seed: int
) -> Iterator[RecordedEvent]:
    """Type the versions of a file, one after the other.

    Args:
        versions: At least one; the first is there from the start.
        uri: Of the document.
        language: Its LSP language id, if it has one.
        seed: Of the pauses; the strokes are those of the versions alone.
    """
    chance = random.Random(seed)
    text = LineText(versions[0], _UNIT)
    opened = Open(
        document=1,
        uri=uri,
        language=language,
        version=1,
        length=length_in(versions[0], _UNIT),
        hash=text_hash(versions[0], HashAlgorithm.XXH3_64),
        text=versions[0],
    )
    yield RecordedEvent(0.0, opened)
    at_s, version = 0.0, 1
    for before, after in pairwise(versions):
        for strokes in keystrokes(before, after):
            at_s += chance.uniform(*_LOOK_S)
            first, deleted, _ = strokes[0]
            yield _cursor(at_s, text, first + deleted, version)
            for position, deleted, inserted in strokes:
                at_s += chance.uniform(0.5, 1.5) * (_BACKSPACE_S if deleted else _STROKE_S)
                change = text.patch(position, deleted, inserted)
                version += 1
                edit = Edit(document=1, base=version - 1, version=version, changes=(change,))
                yield RecordedEvent(round(at_s, 3), edit)
                yield _cursor(at_s, text, position + len(inserted), version)
        at_s += chance.uniform(0.5, 1.0) * _SAVE_S
        yield RecordedEvent(round(at_s, 3), Save(document=1, version=version))
        assert text.text() == after


def _cursor(at_s: float, text: LineText, position: int, version: int) -> RecordedEvent:
    return RecordedEvent(
        round(at_s, 3), Cursor(document=1, version=version, position=text.position(position))
    )


def encode_recording(events: Iterator[RecordedEvent], *, created: str, source: str, is_packed: bool) -> bytes:
    """A whole recording as a file's content; it holds no time but `created`, so it can be made again."""
    encode = msgspec.json.encode
    lines = [encode(RecordingHeader(created=created, source=source, unit=_UNIT))]
    lines += [encode(event) for event in events]
    content = b"\n".join(lines) + b"\n"
    return gzip.compress(content, 9, mtime=0) if is_packed else content


def main(arguments: Sequence[str] | None = None) -> int:
    """Type out the history that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m streamctx.load.typist", description="Type out the history of a file."
    )
    parser.add_argument("versions", nargs="+", help="files, oldest first; with --git, commits")
    parser.add_argument("--git", metavar="PATH", help="the versions are those of this file in git")
    parser.add_argument("--uri", help="of the document; a file URI made of the name if left out")
    parser.add_argument("--language", help="LSP language id")
    parser.add_argument("--created", default="2026-01-01T00:00:00Z", help="time for the header")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    name = options.git or Path(options.versions[-1]).name
    try:
        versions = [
            _git_version(options.git, commit) if options.git else Path(commit).read_text("utf-8")
            for commit in options.versions
        ]
    except (OSError, subprocess.CalledProcessError) as error:
        parser.error(f"a version cannot be read: {getattr(error, 'stderr', None) or error}")
    source = f"typed out by streamctx.load.typist (seed {options.seed}) from the history of {name}"
    if options.git:
        source += f" at {', '.join(options.versions)}"
    events = list(
        type_out(
            versions,
            uri=options.uri or f"file:///{name}",
            language=options.language,
            seed=options.seed,
        )
    )
    content = encode_recording(
        iter(events), created=options.created, source=source, is_packed=options.output.suffix == ".gz"
    )
    options.output.write_bytes(content)
    edit_count = sum(isinstance(recorded.event, Edit) for recorded in events)
    sys.stderr.write(f"{options.output}: {edit_count} edits, {len(content)} bytes\n")
    return 0


def _git_version(path: str, commit: str) -> str:
    shown = subprocess.run(["git", "show", f"{commit}:{path}"], capture_output=True, check=True, text=False)
    return shown.stdout.decode("utf-8")


if __name__ == "__main__":
    sys.exit(main())
