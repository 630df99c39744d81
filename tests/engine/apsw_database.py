"""A `Database` of the other SQLite library for Python, which lets a test stand in for the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import apsw

from streamctx.engine.sqlite.library import Database, DatabaseError, Row, Value

__all__ = ["ApswDatabase"]

_MAJOR, _MINOR, _PATCH = map(int, apsw.sqlite_lib_version().split(".")[:3])


class ApswDatabase:
    version = (_MAJOR, _MINOR, _PATCH)

    def __init__(self, path: Path, *, vfs: str) -> None:
        try:
            self._connection = apsw.Connection(str(path), vfs=vfs)
        except apsw.Error as error:
            raise _translation(error) from error

    @property
    def is_in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        try:
            return list(self._connection.execute(sql, tuple(parameters)))
        except apsw.Error as error:
            raise _translation(error) from error

    def interrupt_when(self, is_wanted: Callable[[], bool] | None) -> None:
        self._connection.set_progress_handler(is_wanted, 10_000)

    def backup(self, path: Path, *, page_count: int, on_step: Callable[[int, int], None]) -> None:
        target = apsw.Connection(str(path))
        try:
            with target.backup("main", self._connection, "main") as copy:
                while not copy.done:
                    copy.step(page_count)
                    on_step(copy.remaining, copy.page_count)
        except apsw.Error as error:
            raise _translation(error) from error
        finally:
            target.close()

    def close(self) -> None:
        try:
            self._connection.close()
        except apsw.Error as error:
            raise _translation(error) from error

    def abandon(self) -> None:
        # Closing would copy the log; the disk of a test goes away instead.
        _ABANDONED.append(self._connection)


_ABANDONED: list[apsw.Connection] = []


def _translation(error: apsw.Error) -> DatabaseError:
    # The stubs do not know that every exception has it.
    return DatabaseError(getattr(error, "extendedresult", apsw.SQLITE_ERROR), str(error))


def _check(database: ApswDatabase) -> Database:
    """The type checker proves here that it is one."""
    return database
