"""`streamctx` whose store dies, or fails, at a chosen statement, and is tidied all the time:

    python -m tests.e2e.failing_server MOMENT STATEMENT COUNT serve …

At the COUNT-th SQL statement in which the regular expression STATEMENT is found, the process kills itself
`before`, `during` or `after` it, or the statement fails with an SQLite `error:CODE`, and so do all later ones
that match. Snapshots, sweeps and checkpoints, which are rare otherwise, come every few rows.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence

from streamctx.cli.main import main
from streamctx.engine.sqlite import store
from streamctx.engine.sqlite.library import DatabaseError, Row, StandardDatabase, Value
from streamctx.engine.sqlite.store import SqliteStore
from streamctx.engine.sqlite.upkeep import Thresholds

__all__: list[str] = []

_DURING_S = 0.0002
_THRESHOLDS = Thresholds(checkpoint_bytes=1 << 20, flush_rows=500, sweep_rows_min=100)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_soon() -> None:
    time.sleep(_DURING_S)
    _die()


class _FailPoint:
    def __init__(self, moment: str, statement: str, count: int) -> None:
        self._moment = moment
        self._statement = re.compile(statement)
        self._count = count
        self._execute = StandardDatabase.execute

    def execute(self, database: StandardDatabase, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        """Take the place of `StandardDatabase.execute`."""
        is_now = False
        if self._statement.search(sql):
            self._count -= 1
            is_now = self._count == 0 or (self._count < 0 and self._moment.startswith("error:"))
        if is_now:
            if self._moment == "before":
                _die()
            elif self._moment == "during":
                threading.Thread(target=_die_soon).start()
            elif self._moment != "after":
                raise DatabaseError(int(self._moment.removeprefix("error:")), "failed on purpose")
        rows = self._execute(database, sql, parameters)
        if is_now and self._moment == "after":
            _die()
        return rows


def _hurry() -> None:
    """Let everything that is rare be frequent."""
    assert hasattr(store, "_SNAPSHOT_ROWS")
    store._SNAPSHOT_ROWS = 40
    opened = functools.partial(SqliteStore.open, history_s=0.0, thresholds=_THRESHOLDS)
    SqliteStore.open = staticmethod(opened)  # type: ignore[method-assign]


def _run() -> None:
    moment, statement, count, *arguments = sys.argv[1:]
    _hurry()
    fail_point = _FailPoint(moment, statement, int(count))
    StandardDatabase.execute = lambda *arguments: fail_point.execute(*arguments)  # type: ignore[method-assign]
    main(arguments)


if __name__ == "__main__":
    _run()
