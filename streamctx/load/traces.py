"""Editing traces: recorded keystrokes as code-point patches of one text.

The format is that of the public editing-traces collection: one JSON object, plain or
gzipped, `{startContent, endContent, txns: [{time, patches: [[position, deleted, inserted], …]}, …]}`.
Positions and lengths count code points; patches apply one after another.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import msgspec

from streamctx.errors import StreamctxError

__all__ = ["Patch", "Trace", "TraceError", "Transaction", "parse_trace", "read_bytes", "read_trace"]

Patch: TypeAlias = tuple[int, int, str]
"""Position, deleted code points, inserted text."""

_GZIP_MAGIC = b"\x1f\x8b"
_CONTENT_BYTES_MAX = 1024 * 1024 * 1024
_SURROGATE = re.compile("[\ud800-\udfff]")


class TraceError(StreamctxError):
    """A file is no editing trace, or does not fit itself; the message says where, without its text."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one event of the editor did; `at_s` counts from the first transaction."""

    at_s: float
    patches: Sequence[Patch]


@dataclass(frozen=True, slots=True)
class Trace:
    """One recorded session: from `start` the transactions lead to `end`."""

    start: str
    end: str
    transactions: Sequence[Transaction]

    @property
    def patch_count(self) -> int:
        """Patches of all transactions."""
        return sum(len(transaction.patches) for transaction in self.transactions)


class _Transaction(msgspec.Struct, frozen=True):
    patches: list[tuple[int, int, str]]
    time: str | float | None = None


class _File(msgspec.Struct, frozen=True, rename="camel"):
    start_content: str
    end_content: str
    txns: list[_Transaction]


def read_bytes(path: Path) -> bytes:
    """Read a file, unpacked if it is gzipped.

    Raises:
        TraceError: If it cannot be read or unpacked, or holds over a gigabyte.
    """
    try:
        content = path.read_bytes()
        if content.startswith(_GZIP_MAGIC):
            with gzip.open(path) as file:
                content = file.read(_CONTENT_BYTES_MAX + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path} is gzipped and damaged: {error}") from error
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > _CONTENT_BYTES_MAX:
        raise TraceError(f"{path} holds more than {_CONTENT_BYTES_MAX} bytes")
    return content


def read_trace(path: Path) -> Trace:
    """Read an editing trace.

    Raises:
        TraceError: As `read_bytes` and `parse_trace`.
    """
    return parse_trace(read_bytes(path), str(path))


def parse_trace(content: bytes, name: str) -> Trace:
    """Read an editing trace from its JSON; lone surrogates, which never travel, become U+FFFD.

    Args:
        content: The whole file, unpacked.
        name: What to call it in messages.

    Raises:
        TraceError: If it has another form; whether positions fit the text shows when it is played.
    """
    try:
        # Not msgspec's decoder, which refuses an escaped lone surrogate that recorders have written.
        file = msgspec.convert(json.loads(content), _File)
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{name} is not an editing trace, {{startContent, endContent, txns: [{{patches}}]}}: {error}"
        ) from error
    transactions: list[Transaction] = []
    first_at_s = at_s = 0.0
    for index, transaction in enumerate(file.txns):
        for position, deleted, _ in transaction.patches:
            if position < 0 or deleted < 0:
                raise TraceError(
                    f"{name}, transaction {index}: position {position} and {deleted} deleted; "
                    "neither is below 0"
                )
        if not transaction.patches:
            continue
        stamp = _seconds(transaction.time)
        if stamp is not None:
            if not transactions:
                first_at_s = stamp
            at_s = max(at_s, stamp - first_at_s)
        transactions.append(
            Transaction(at_s, [(start, deleted, _sane(text)) for start, deleted, text in transaction.patches])
        )
    return Trace(_sane(file.start_content), _sane(file.end_content), transactions)


def _seconds(stamp: str | float | None) -> float | None:
    """A time stamp in seconds: numbers are milliseconds, as JavaScript has them; `None` if it is neither."""
    if isinstance(stamp, str):
        try:
            return datetime.fromisoformat(stamp).timestamp()
        except ValueError:
            return None
    return None if stamp is None else stamp / 1000


def _sane(text: str) -> str:
    # One for one, so that positions keep their meaning; a pair, which JSON's decoder joins, is not hit.
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
