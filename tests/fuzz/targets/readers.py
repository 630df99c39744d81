"""Files that others wrote: recordings, traces, debug logs, records of running servers, token files.

Whatever is in them, what comes is their content or the error that each reader declares.
"""

from __future__ import annotations

import contextlib
import gzip
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import msgspec

from streamctx.discovery import list_servers, read_record
from streamctx.errors import ConfigurationError
from streamctx.hub.recorder import DebugLogError, LogEntry, LogHeader, LogOutcome, read_debug_log
from streamctx.hub.redaction import Redaction
from streamctx.load.recording import RecordedEvent, RecordingError, read_header, read_recording
from streamctx.load.script import read_script
from streamctx.load.traces import TraceError, parse_trace, read_trace
from streamctx.server.tokens import read_token
from streamctx.vocabulary import Unit
from tests.fuzz.drawing import draw
from tests.fuzz.program import Program, Violation

__all__ = ["fuzz"]

_UNITS = tuple(Unit)
_EVENTS_MAX = 200
_URIS = (
    "file:///a/b.py",
    "/a/../a/.env",
    "untitled:1",
    "C:\\a\\b",
    "file:///a%00b",
    "",
    "https://[/",
    "a/" * 40,
)


def fuzz(data: bytes) -> None:
    """The first byte says which reader is given the others."""
    program = Program(data)
    kind = program.byte()
    reader = _READERS[kind % len(_READERS)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.json")
        path.touch(0o600)
        reader(program, path)


def _content(program: Program) -> bytes:
    """What is left, and once in a while more behind it than a decoder's stack takes."""
    deep = _deep(program)
    return program.rest() + deep


def _deep(program: Program) -> bytes:
    kind = program.byte()
    return b'\n{"":' + (b"[" if kind & 16 else b'{"":') * 3000 + b"\n" if kind & 15 == 15 else b""


def _recording(program: Program, path: Path) -> None:
    unit = program.choose(_UNITS)
    path.write_bytes(_content(program))
    _play(path, unit)


def _drawn_recording(program: Program, path: Path) -> None:
    """A recording of any events, which fit each other by chance alone."""
    lines = [
        b'{"streamctx_recording":1,"created":"","source":"","unit":"%s"}' % program.choose(_UNITS).encode()
    ]
    unit = program.choose(_UNITS)
    hints = {
        "document": lambda program: 1 + program.below(2),
        "at_s": lambda program: program.choose((0.0, 0.0, 0.5, 1e300, -1.0)),
        "parts": lambda program: None,
        "text": lambda program: program.text(6),
    }
    lines += [msgspec.json.encode(draw(program, RecordedEvent, hints)) for _ in range(program.below(12))]
    path.write_bytes(b"\n".join(lines) + _deep(program))
    _play(path, unit)


def _play(path: Path, unit: Unit) -> None:
    try:
        read_header(path)
        list(read_recording(path))
    except RecordingError:
        pass
    try:
        script = read_script(path)
        list(islice(script.events(unit), _EVENTS_MAX))
        script.expected_texts()
        if script.duration_s < 0 or script.edit_count < 0:
            raise Violation("a script goes back in time")
    except (RecordingError, TraceError):
        pass


def _trace(program: Program, path: Path) -> None:
    content = _content(program)
    try:
        trace = parse_trace(content, "trace")
        if any(
            first.at_s > second.at_s
            for first, second in zip(trace.transactions, trace.transactions[1:], strict=False)
        ):
            raise Violation("a trace goes back in time")
    except TraceError:
        pass
    path.write_bytes(content)
    _play(path, Unit.UTF_8)


def _packed(program: Program, path: Path) -> None:
    """A gzipped file, perhaps damaged."""
    cut, flipped = program.byte(), program.byte()
    packed = bytearray(gzip.compress(_content(program), 1, mtime=0))
    if cut & 1:
        del packed[len(packed) - min(len(packed), cut) :]
    if flipped & 1 and packed:
        packed[flipped % len(packed)] ^= flipped
    path.write_bytes(packed)
    with contextlib.suppress(TraceError):
        read_trace(path)
    _play(path, Unit.UTF_16)


def _debug_log(program: Program, path: Path) -> None:
    path.write_bytes(_content(program))
    _read_log(path)


def _drawn_debug_log(program: Program, path: Path) -> None:
    header = LogHeader(
        created="", version="1", seed="00", limits={"frame_bytes_max": program.number()}, principals=()
    )
    lines = [msgspec.json.encode(header)]
    for _ in range(program.below(12)):
        if program.flag():
            lines.append(
                msgspec.json.encode(
                    draw(program, LogEntry, {"now": lambda _: 0.0, "data": lambda p: p.blob()})
                )
            )
        else:
            key = program.choose(("1", "x", "-1", "٣", "9" * 5000, " 1"))
            outcome = LogOutcome({})
            line = msgspec.json.encode(outcome)
            lines.append(line.replace(b"{}", msgspec.json.encode({key: {"sent": 1, "hash": ""}})))
    path.write_bytes(b"\n".join(lines) + (_deep(program) or b"\n" * program.flag()))
    _read_log(path)


def _read_log(path: Path) -> None:
    try:
        for _ in read_debug_log(path).entries:
            pass
    except DebugLogError:
        pass


def _record(program: Program, path: Path) -> None:
    path.write_bytes(_content(program))
    path.chmod(0o600)
    record = read_record(path)
    if record is not None and record.pid <= 0:
        raise Violation(f"the pid {record.pid}")
    list_servers(path.parent)


def _token(program: Program, path: Path) -> None:
    path.write_bytes(_content(program))
    path.chmod(0o600)
    try:
        token = read_token(path)
    except ConfigurationError:
        return
    if not token.isascii() or len(token) < 16:
        raise Violation("a token that no header takes")


def _redaction(program: Program, path: Path) -> None:
    uri = program.choose(_URIS) if program.flag() else program.text(8)
    (path.parent / ".streamctxignore").write_bytes(_content(program))
    redaction = Redaction((str(path.parent), f"file://{path.parent}", "relative", ""))
    redaction.is_excluded(uri)
    redaction.is_excluded(str(path.parent / "sub" / "file"))
    if not redaction.is_excluded(f"{path.parent}/.env"):
        raise Violation("a file with secrets is shown")


_READERS: tuple[Callable[[Program, Path], None], ...] = (
    _recording,
    _drawn_recording,
    _trace,
    _packed,
    _debug_log,
    _drawn_debug_log,
    _record,
    _token,
    _redaction,
)
