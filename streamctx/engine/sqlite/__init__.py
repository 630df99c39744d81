"""Sessions in an SQLite file: they survive the death of the server, and a power cut."""

from __future__ import annotations

from streamctx.engine.sqlite.archive import ImportRefused
from streamctx.engine.sqlite.counters import StoreCounters
from streamctx.engine.sqlite.engine import SqliteEngine
from streamctx.engine.sqlite.store import SqliteStore

__all__ = ["ImportRefused", "SqliteEngine", "SqliteStore", "StoreCounters"]
