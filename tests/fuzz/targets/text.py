"""The text buffer, and the document around it, against the plainest text that could work."""

from __future__ import annotations

from streamctx.core.documents.document import Document
from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.core.documents.text_digest import text_hash
from streamctx.core.documents.units import length_in
from streamctx.errors import EventRefused
from streamctx.limits import Limits
from streamctx.vocabulary import HashAlgorithm, Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import Edit, Open, Part, Snapshot, Version
from tests.core.documents.text_model import LAYOUTS, Refused, apply_to_model, positions, size, state
from tests.fuzz.program import Program, Violation

__all__ = ["fuzz"]

_UNITS = tuple(Unit)
_HASHES = tuple(HashAlgorithm)
_BATCHES_MAX = 16
_TEXT_CHARACTERS_MAX = 300
# So that a text is at its limit after a few edits.
_LIMITS = Limits(
    part_text_bytes_max=256, document_bytes_max=4096, websocket_message_bytes_max=1024, frame_bytes_max=1024
)


def fuzz(data: bytes) -> None:
    """Run one program."""
    program = Program(data)
    if program.flag():
        _buffer(program)
    else:
        _document(program)


def _buffer(program: Program) -> None:
    unit, other = program.choose(_UNITS), program.choose(_UNITS)
    text = program.text(20)
    buffer = TextBuffer(text, unit=unit, layout=program.choose(LAYOUTS))
    # The same in another unit is led by the converted changes.
    twin = TextBuffer(text, unit=other)
    for _ in range(_BATCHES_MAX):
        if program.is_over or len(text) > _TEXT_CHARACTERS_MAX:
            break
        changes = _changes(program, text, unit)
        is_simultaneous = program.flag()
        before = state(buffer)
        expected = _refusal = None
        try:
            expected = apply_to_model(text, changes, unit, simultaneous=is_simultaneous)
        except Refused as refused:
            _refusal = refused
        try:
            converted = buffer.apply_and_convert(changes, (other,), simultaneous=is_simultaneous)[other]
        except EventRefused as refusal:
            if _refusal is None:
                raise Violation(f"{changes} was refused: {refusal}") from refusal
            if refusal.code != _refusal.args[0] or state(buffer) != before:
                raise Violation(
                    f"{changes} was refused as {refusal}, the model says {_refusal.args}"
                ) from None
            continue
        if expected is None:
            raise Violation(f"{changes} was made, the model refuses it as {_refusal}")
        twin.apply(converted, simultaneous=is_simultaneous)
        text = expected
        _compare(buffer, text, unit)
        _compare(twin, text, other)
        line, character = program.below(8), program.below(8)
        _position(buffer, text, line, character, other)


def _changes(program: Program, text: str, unit: Unit) -> list[Change]:
    """Ranges that exist, mostly."""
    table = list(positions(text, unit))
    changes = []
    for _ in range(1 + program.below(4)):
        start = program.below(len(table))
        stop = min(len(table) - 1, start + program.below(6))
        (line, character), (end_line, end_character) = table[start], table[stop]
        kind = program.byte()
        if kind & 7 == 7:
            character += 1 + (kind >> 6)
        if kind & 56 == 56:
            end_line, end_character = program.number(), program.number()
        inserted = program.text(5) + ("\ud83d" if program.rarely(32) else "")
        old_length = program.below(12) if program.rarely(8) else None
        changes.append(Change(line, character, end_line, end_character, inserted, old_length))
    return changes


def _compare(buffer: TextBuffer, text: str, unit: Unit) -> None:
    if buffer.text() != text or buffer.length != size(text, unit) or buffer.byte_length != len(text.encode()):
        raise Violation("the buffer has another text than the model")
    fresh = TextBuffer(text, unit=unit)
    if state(buffer) != state(fresh):
        raise Violation("the buffer's lines are not those of its text")
    for algorithm in _HASHES:
        if buffer.hash(algorithm) != text_hash(text, algorithm):
            raise Violation("the buffer's hash is not that of its text")


def _position(buffer: TextBuffer, text: str, line: int, character: int, other: Unit) -> None:
    index = positions(text, buffer.unit).get((line, character))
    try:
        found = buffer.convert_character(line, character, other)
    except EventRefused:
        if index is not None:
            raise Violation(f"the position {line}:{character} was refused") from None
        return
    if index is None or positions(text, other).get((line, found)) != index:
        raise Violation(f"the position {line}:{character} is {found} in {other}")


def _document(program: Program) -> None:
    """Events of a document in any order: it refuses what does not fit and stays as it was."""
    unit, algorithm = program.choose(_UNITS), program.choose(_HASHES)
    text: str | None = None
    version = program.below(4)
    opened = Open(document=1, uri="file:///a", version=version, length=0, hash="", text="")
    document = Document(opened, unit=unit, hash_algorithm=algorithm, limits=_LIMITS)
    under_way: list[str] = []
    announced = 0
    for _ in range(_BATCHES_MAX * 2):
        if program.is_over:
            break
        before = document.version, None if document.buffer is None else document.buffer.text()
        try:
            match program.below(4):
                case 0:
                    new = program.text(30)
                    parts = 1 + program.below(3) if program.flag() else None
                    whole = new * (parts or 1)
                    told = max(0, program.near(document.version))
                    snapshot = Snapshot(
                        document=1,
                        version=told,
                        length=max(0, program.near(length_in(whole, unit))),
                        hash=text_hash(whole + ("" if program.byte() < 200 else "x"), algorithm),
                        text=None if parts else new,
                        parts=parts,
                    )
                    under_way, announced = [], told
                    is_whole = document.begin_text(snapshot)
                    under_way = [new] * (parts or 0)
                    if is_whole:
                        text = new
                case 1:
                    piece = under_way[0] if under_way else program.text(3)
                    index = program.near(0 if document.announced is None else document.announced.parts or 0)
                    sent = (
                        0 if document.announced is None else (document.announced.parts or 0) - len(under_way)
                    )
                    part = Part(
                        document=1,
                        version=max(0, program.near(announced)),
                        index=max(0, index if program.rarely() else sent),
                        text=piece,
                    )
                    whole = piece * (0 if document.announced is None else document.announced.parts or 0)
                    if document.add_part(part):
                        text = whole
                    under_way = under_way[1:]
                case 2:
                    changes = _changes(program, text or "", unit)
                    base = max(0, program.near(document.version))
                    edit = Edit(
                        document=1, base=base, version=base + program.below(3), changes=tuple(changes)
                    )
                    document.edit(edit, ())
                    text = apply_to_model(text or "", changes, unit, simultaneous=False)
                case _:
                    said = Version(
                        document=1,
                        version=max(0, program.near(document.version)),
                        length=length_in(text or "", unit),
                        hash=text_hash(text or "", algorithm),
                    )
                    document.verify(said)
        except EventRefused:
            now = document.version, None if document.buffer is None else document.buffer.text()
            if now != before:
                raise Violation("a refused event changed the document") from None
        if document.byte_length > 2 * _LIMITS.document_bytes_max:
            raise Violation(f"{document.byte_length} bytes are held, limit {_LIMITS.document_bytes_max}")
        found = None if document.buffer is None else document.buffer.text()
        if found != text:
            raise Violation("the document has another text than the model")
        if found is not None and len(found.encode()) > _LIMITS.document_bytes_max:
            raise Violation("the text is over its limit")
