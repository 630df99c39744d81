"""What an operator does with stored sessions: delete the old, take one elsewhere, copy them all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable
from pathlib import Path

from streamctx.engine.base import SetAside, StoreError
from streamctx.engine.sqlite import quarantine
from streamctx.engine.sqlite.archive import Exported, ImportRefused, from_bytes, to_bytes
from streamctx.engine.sqlite.backup import backup
from streamctx.engine.sqlite.checks import Damage
from streamctx.engine.sqlite.library import Database
from streamctx.engine.sqlite.reader import Reader
from streamctx.engine.sqlite.sessions import Entry, Sessions
from streamctx.engine.sqlite.upkeep import Upkeep
from streamctx.engine.sqlite.writer import Writer

__all__ = ["Management"]

# Sessions that go in one transaction.
_PRUNE_COUNT = 20


class Management:
    """Operations on a store. Besides what they say, they raise `DatabaseError` as the database fails."""

    def __init__(
        self, database: Database, sessions: Sessions, writer: Writer, reader: Reader, upkeep: Upkeep
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._writer = writer
        self._reader = reader
        self._upkeep = upkeep

    def prune(
        self, before: float, *, principal: str | None, is_live: Container[str], count_max: int | None
    ) -> int:
        """Delete what nothing was written of since; see `SqliteStore.prune`."""
        old = [
            entry
            for entry in self._sessions.all()
            if entry.changed < before * 1000
            and (principal is None or entry.principal == principal)
            and entry.id not in is_live
        ][:count_max]
        for start in range(0, len(old), _PRUNE_COUNT):
            some = old[start : start + _PRUNE_COUNT]
            self._upkeep.transact(functools.partial(self._forget, some))
        self.forget_set_aside([found.key for found in self.set_aside(principal) if found.at < before])
        return len(old)

    def set_aside(self, principal: str | None) -> list[SetAside]:
        """Tell what was set aside; see `SqliteStore.set_aside`."""
        return quarantine.read_all(self._database, principal=principal)

    def forget_set_aside(self, keys: Iterable[int]) -> None:
        """Delete what was set aside; see `SqliteStore.forget_set_aside`."""
        for key in keys:
            # One a transaction: each reads the whole journal.
            self._upkeep.transact(functools.partial(quarantine.delete, self._database, key))

    def export(self, entry: Entry) -> bytes:
        """Encode a session; see `SqliteStore.export`."""
        try:
            return to_bytes(self._reader.export(entry))
        except Damage as damage:
            raise StoreError(f"session {entry.id} cannot be exported: {damage}", is_fatal=False) from damage

    def import_session(self, data: bytes, *, principal: str | None) -> str:
        """Add a session; see `SqliteStore.import_session`."""
        exported = from_bytes(data)
        if principal is not None:
            exported = exported.of(principal)
        session_id = exported.record.session_id
        entry = self._sessions.get(session_id)
        if entry is not None and principal not in (None, entry.principal):
            # Who asks is told the same as where a quota is used up, whose delay this is.
            raise StoreError(
                f"session {session_id} is stored for another principal", is_fatal=False, retry_after_s=60.0
            )
        if entry is not None:
            self._demand_same(entry, exported)
            return session_id
        refusal = self._writer.quota_refusal(exported.record.principal, len(data))
        if refusal is not None:
            raise refusal
        self._upkeep.transact(lambda: self._writer.add_session(exported))
        return session_id

    def backup(self, path: Path, on_step: Callable[[], None]) -> None:
        """Copy the store; see `SqliteStore.backup`."""
        self._upkeep.flush()
        backup(self._database, path, on_step)

    def _forget(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._writer.forget(entry)

    def _demand_same(self, entry: Entry, exported: Exported) -> None:
        try:
            stored = self._reader.export(entry)
        except Damage as damage:
            raise ImportRefused(f"session {entry.id} is stored already, and damaged: {damage}") from damage
        if to_bytes(stored.of("")) != to_bytes(exported.of("")):
            raise ImportRefused(
                f"another session is stored as {entry.id} already: delete it first if it is of no use"
            )
