"""The little of an SQLite library that the store needs, so that another one can take its place in tests.

`execute` gives all rows at once. Every step of SQLite lets go of the interpreter lock, and getting it back
from a busy event loop can take 5 ms: callers ask for much in one statement rather than for little in many.
"""

from __future__ import annotations

import contextlib
import ctypes
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

__all__ = [
    "CANTOPEN",
    "CORRUPT",
    "FULL",
    "INTERRUPT",
    "LOCKED_CODES",
    "NOTADB",
    "Database",
    "DatabaseError",
    "Row",
    "StandardDatabase",
    "Value",
]

Value: TypeAlias = int | str | bytes | None
# What comes back is what STRICT tables let in, unless the file is damaged; who reads it has to check.
Row: TypeAlias = tuple[Any, ...]

BUSY = 5
LOCKED = 6
INTERRUPT = 9
CORRUPT = 11
FULL = 13
CANTOPEN = 14
NOTADB = 26
LOCKED_CODES = frozenset({BUSY, LOCKED})

# Statements with up to 256 rows are kept, one for each number of rows, and some twenty others.
_STATEMENT_COUNT = 300


class DatabaseError(Exception):
    """SQLite has refused or failed.

    Args:
        code: Its extended result code.
        message: Its own words; they hold neither values nor paths.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} (SQLite code {code})")
        self.code = code

    @property
    def primary(self) -> int:
        """The result code without its extension."""
        return self.code & 0xFF


class Database(Protocol):
    """One connection in autocommit mode, used by one thread at a time.

    Every method raises `DatabaseError`.
    """

    version: tuple[int, int, int]
    """Of the SQLite library."""

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction was begun and has not ended."""

    def execute(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        """Run one statement to its end and give its rows."""

    def interrupt_when(self, is_wanted: Callable[[], bool] | None) -> None:
        """Fail a long statement with `INTERRUPT` once `is_wanted` says so; `None` to stop asking."""

    def backup(self, path: Path, *, page_count: int, on_step: Callable[[int, int], None]) -> None:
        """Copy the database into the empty file at `path`, some pages at a time.

        Args:
            page_count: Pages a step.
            on_step: Called between two steps with how many pages remain and how many there are. It may
                execute statements on this database; what they change is copied too.
        """

    def close(self) -> None:
        """Close it; SQLite then copies the log into the file and deletes the log."""

    def abandon(self) -> None:
        """Never use it again, and never close it.

        To close would copy the log into the file, and after a failed sync nobody knows what the log holds:
        the kernel may have dropped what it could not write and have called it clean.
        """


class StandardDatabase:
    """A `Database` of the standard library's module.

    Args:
        path: The file.
        is_frozen: Whether it is only read, without locks and without its log: nobody may write to it.
    """

    version = sqlite3.sqlite_version_info

    def __init__(self, path: Path, *, is_frozen: bool = False) -> None:
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with _translated():
            self._connection = sqlite3.connect(
                uri if is_frozen else path,
                uri=is_frozen,
                timeout=0,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=_STATEMENT_COUNT,
            )

    @property
    def is_in_transaction(self) -> bool:
        """Whether one is open."""
        return self._connection.in_transaction

    def execute(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        """Run a statement."""
        # No context manager here, which would cost as much as the rest of the call.
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise _translation(error) from error

    def interrupt_when(self, is_wanted: Callable[[], bool] | None) -> None:
        """Set the progress handler."""
        self._connection.set_progress_handler(is_wanted, 10_000)

    def backup(self, path: Path, *, page_count: int, on_step: Callable[[int, int], None]) -> None:
        """Copy by the backup interface."""

        def progress(_: int, remaining: int, total: int) -> None:
            # It is also called after the last step, with whose end the copy is finished.
            if remaining:
                on_step(remaining, total)

        with _translated(), contextlib.closing(sqlite3.connect(path, isolation_level=None)) as target:
            self._connection.backup(target, pages=page_count, progress=progress)

    def close(self) -> None:
        """Close the connection."""
        with _translated():
            self._connection.close()

    def abandon(self) -> None:
        """Keep the connection from ever being closed, even when the interpreter ends."""
        # The interface that turns off the copying came with Python 3.12 only.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _translation(error) from error


def _translation(error: sqlite3.Error) -> DatabaseError:
    # Misuse that the module itself finds has no code; SQLITE_MISUSE is 21.
    return DatabaseError(getattr(error, "sqlite_errorcode", None) or 21, str(error))
