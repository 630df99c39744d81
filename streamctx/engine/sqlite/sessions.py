"""The sessions of a store in memory: what each owns, where its chain ends, and how to take a change back.

Opening a store reads one short row a session and no more; everything else is read when it is asked for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import msgspec

from streamctx.core.session.stored import SessionRecord
from streamctx.engine.base import Summary
from streamctx.engine.sqlite.checks import Damage, row_check
from streamctx.engine.sqlite.library import Database, Value

__all__ = ["Entry", "Sessions", "read_entries", "read_record"]


class Entry(msgspec.Struct, array_like=True):
    """A session. The fields are the columns of its row, in their order, but for its record.

    Always `keep_row <= head_row` and `keep_count <= head_count`: what lies up to `keep_row` can be reached
    from no snapshot that is kept, and is deleted some time.
    """

    key: int
    id: str
    epoch: str
    principal: str
    client: str
    opened: int
    changed: int
    run: int
    """In which run of the store it was last fenced."""
    head_row: int
    head_count: int
    head_bytes: int
    """Of all payloads of its journal so far."""
    snapshot_count: int
    """How many batches the newest snapshot covers."""
    snapshot_head_bytes: int
    snapshot_bytes: int
    """Of the newest snapshot, with its documents."""
    snapshots_bytes: int
    """Of all snapshots that are kept."""
    keep_row: int
    keep_count: int
    keep_bytes: int
    record_bytes: int
    damage: str | None = None

    @property
    def stored_bytes(self) -> int:
        """What it holds of its owner's quota."""
        return self.record_bytes + self.head_bytes - self.keep_bytes + self.snapshots_bytes

    def summary(self) -> Summary:
        """For lists."""
        return Summary(
            session_id=self.id,
            epoch=self.epoch,
            principal=self.principal,
            client=self.client,
            opened=self.opened / 1000,
            changed=self.changed / 1000,
            stored_bytes=self.stored_bytes,
        )


_COLUMNS = ", ".join(Entry.__struct_fields__)
_HEAD_COLUMNS = (
    "changed",
    "head_row",
    "head_count",
    "head_bytes",
    "snapshot_count",
    "snapshot_head_bytes",
    "snapshot_bytes",
    "snapshots_bytes",
    "keep_row",
    "keep_count",
    "keep_bytes",
    "damage",
)
# One statement for many sessions, for the sake of the interpreter lock.
_FLUSH_COUNT = 128


class Sessions:
    """All sessions, and the changes since the last `commit`, which `roll_back` undoes.

    Whoever changes an entry calls `touch` first. `next_row` is the row that the journal gets next. Behind row
    `scanned` the journal has no holes: at the next start one is taken for damage.
    """

    def __init__(self, database: Database, entries: Iterable[Entry], *, scanned: int, next_row: int) -> None:
        self._database = database
        self._entries = {entry.id: entry for entry in entries}
        self._saved: dict[str, Entry | None] = {}
        self._dirty: set[str] = set()
        self._flushed: set[str] = set()
        self._used: dict[str, int] = {}
        self.used_bytes = 0
        self.scanned = scanned
        self.next_row = next_row
        self._saved_scanned = scanned
        self._saved_next_row = next_row
        self._count()

    def get(self, session_id: str) -> Entry | None:
        """The session of that id."""
        return self._entries.get(session_id)

    def all(self) -> list[Entry]:
        """All sessions. May be called on any thread: it copies in one step of the interpreter."""
        return list(self._entries.values())

    def used_by(self, principal: str) -> int:
        """The bytes that are stored for one owner."""
        return self._used.get(principal, 0)

    def mark_dirty(self, session_ids: Iterable[str]) -> None:
        """Have these rows written by the next `flush`."""
        self._dirty.update(session_ids)

    def touch(self, entry: Entry) -> None:
        """Remember how an entry is before it is changed."""
        if entry.id not in self._saved:
            self._saved[entry.id] = copy.copy(entry)

    def grow(self, entry: Entry, byte_count: int) -> None:
        """Count bytes more, or fewer, for the owner of a session."""
        self._used[entry.principal] = self._used.get(entry.principal, 0) + byte_count
        self.used_bytes += byte_count

    def commit(self) -> None:
        """Keep all changes since the last time."""
        self._dirty -= self._flushed
        self._flushed = set()
        self._dirty.update(self._saved)
        self._saved = {}
        self._saved_scanned = self.scanned
        self._saved_next_row = self.next_row

    def roll_back(self) -> None:
        """Take back all changes since the last `commit`."""
        for session_id, entry in self._saved.items():
            if entry is None:
                self._entries.pop(session_id, None)
            else:
                self._entries[session_id] = entry
        self._saved = {}
        self._flushed = set()
        self.scanned = self._saved_scanned
        self.next_row = self._saved_next_row
        self._count()

    def insert(self, entry: Entry, record: bytes) -> None:
        """Add a session, which gets its key, with its encoded record."""
        ((key,),) = self._database.execute(
            "SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'sessions'"
        )
        entry.key = key
        entry.record_bytes = len(record)
        digest = row_check(key, entry.opened, content=record)
        values = (*msgspec.structs.astuple(entry), record, digest)
        self._database.execute(
            f"INSERT INTO sessions ({_COLUMNS}, record, digest) VALUES ({', '.join('?' * len(values))})",
            values,
        )
        self._saved.setdefault(entry.id, None)
        self._entries[entry.id] = entry
        self.grow(entry, entry.stored_bytes)

    def replace_record(self, entry: Entry, record: bytes, *, changed: int, run: int) -> None:
        """Write a session's record anew."""
        self.touch(entry)
        self.grow(entry, len(record) - entry.record_bytes)
        entry.changed, entry.run, entry.record_bytes = changed, run, len(record)
        self._database.execute(
            "UPDATE sessions SET changed = ?, run = ?, record_bytes = ?, record = ?, digest = ? "
            "WHERE key = ?",
            (
                changed,
                run,
                len(record),
                record,
                row_check(entry.key, entry.opened, content=record),
                entry.key,
            ),
        )

    def remove(self, entry: Entry) -> None:
        """Delete a session's row."""
        self.touch(entry)
        self.grow(entry, -entry.stored_bytes)
        del self._entries[entry.id]
        self._database.execute("DELETE FROM sessions WHERE key = ?", (entry.key,))

    def flush(self) -> None:
        """Write the ends of all chains that have grown; from then on the journal is scanned behind them."""
        behind = self._dirty | self._saved.keys()
        entries = iter([entry for entry in map(self._entries.get, behind) if entry is not None])
        while some := list(islice(entries, _FLUSH_COUNT)):
            self.write_heads(some)
        self.scanned = self.next_row - 1
        self._database.execute("UPDATE meta SET value = ? WHERE name = 'scanned'", (self.scanned,))
        self._flushed |= behind

    def write_heads(self, entries: Sequence[Entry]) -> None:
        """Write what changes of these sessions' rows, but for their records, in one statement."""
        values: list[Value] = []
        for entry in entries:
            values.append(entry.key)
            values += [getattr(entry, column) for column in _HEAD_COLUMNS]
        row = f"({', '.join('?' * (len(_HEAD_COLUMNS) + 1))})"
        changes = ", ".join(f"{column} = new.column{index + 2}" for index, column in enumerate(_HEAD_COLUMNS))
        self._database.execute(
            f"UPDATE sessions SET {changes} FROM (VALUES {', '.join([row] * len(entries))}) AS new "
            f"WHERE key = new.column1",
            values,
        )

    def _count(self) -> None:
        self._used, self.used_bytes = {}, 0
        for entry in self._entries.values():
            self.grow(entry, entry.stored_bytes)


def read_entries(database: Database, on_damage: Callable[[], None]) -> list[Entry]:
    """Read all sessions, without their records.

    Args:
        on_damage: Called for each row that cannot be one.
    """
    entries = []
    for row in database.execute(f"SELECT {_COLUMNS} FROM sessions"):
        try:
            entries.append(msgspec.convert(row, Entry))
        except msgspec.ValidationError:
            on_damage()
    return entries


def read_record(database: Database, entry: Entry) -> SessionRecord:
    """Read and check the record of a session.

    Raises:
        Damage: If it is not what was written.
    """
    rows = database.execute("SELECT record, digest FROM sessions WHERE key = ?", (entry.key,))
    if len(rows) != 1 or not isinstance(rows[0][0], bytes):
        raise Damage("the record is missing")
    ((content, digest),) = rows
    if digest != row_check(entry.key, entry.opened, content=content):
        raise Damage("the record does not fit its check")
    try:
        record = msgspec.msgpack.decode(content, type=SessionRecord)
    except msgspec.DecodeError as error:
        raise Damage("the record cannot be decoded") from error
    if (record.session_id, record.epoch) != (entry.id, entry.epoch):
        raise Damage("the record is that of another session")
    return record
