"""A model of a disk, and of the engine that a server keeps its sessions with on it.

What is written becomes true in groups, as one sync of the disk for all that wait. The disk outlives servers;
what was not synced when one dies is gone, but for a part of it that nobody was told of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from streamctx.core.session.stored import JournalBatch, SessionRecord, SessionState, StoredSession
from streamctx.engine.base import Damaged, Done, Durability, Loaded, Past, StoreError, Summary
from streamctx.engine.memory import MemoryEngine
from streamctx.engine.sqlite.codec import decode_batch, encode_batch
from tests.sim.dice import Dice

if TYPE_CHECKING:
    from tests.sim.world import Host

__all__ = ["Disk", "ModelStore", "Operation"]

_HISTORY_S = 2.0
_SYNC_FAILS = 0.003
_DYING_S = 0.05
"""So long a server may go on after its store has failed."""
_CACHED_GROUPS_MAX = 12
"""So many groups a power cut takes at most, where nothing is fsynced."""

Kind: TypeAlias = Literal["fence", "append", "snapshot", "purge", "load", "tail", "forget"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of the engine. `value` is a record, a batch, a state, or since when the past is asked for."""

    kind: Kind
    session_id: str
    epoch: str
    value: Any
    done: Callable[[Any], None]

    @property
    def writes(self) -> bool:
        """Whether it needs room."""
        return self.kind in ("fence", "append", "snapshot", "purge")


class Disk:
    """What is stored: it outlives servers.

    `records` are those of the stored sessions. `damaged` are sessions of which not all can be read any more,
    by id and epoch, each with whether its record can be.
    """

    def __init__(self, host: Host) -> None:
        self.full_until = self.slow_until = -1.0
        self.is_failing = False
        """Whether the next sync fails."""
        self.damaged: dict[tuple[str, str], bool] = {}
        self._host = host
        self._at = 0.0
        self._groups: list[tuple[float, list[Operation]]] = []
        """All that was ever written, where a power cut can take some of it back."""
        self._format()

    def _format(self) -> None:
        self._engine = MemoryEngine(
            durability=self._host.durability,
            history_s=_HISTORY_S,
            snapshot_batches=self._host.world.plan.snapshot_batches,
            clock=lambda: self._at,
        )
        self.records: dict[str, SessionRecord] = {}
        self.batch_counts: dict[str, int] = {}
        """How many batches of the stored epoch of each session were ever written."""

    def damage(self, session_id: str, *, has_record: bool) -> bool:
        """Let a stored session be unreadable; whether there is one."""
        record = self.records.get(session_id)
        if record is None:
            return False
        self.damaged[session_id, record.epoch] = has_record
        self._host.world.watch.restarts.damaged(session_id)
        return True

    def begins(self, operation: Operation) -> bool:
        """Whether a call makes a session begin anew."""
        known = self.records.get(operation.session_id)
        return operation.kind == "fence" and (known is None or known.epoch != operation.epoch)

    def heal(self) -> None:
        """There is room, and syncs do not fail."""
        self.full_until = self.slow_until = -1.0
        self.is_failing = False

    def is_snapshot_due(self, session_id: str) -> bool:
        """Whether so many batches were written since the last snapshot."""
        return self._engine.is_snapshot_due(session_id)

    def summary(self, session_id: str) -> Summary | None:
        """One stored session."""
        return self._engine.summary(session_id)

    def summaries(self) -> Sequence[Summary]:
        """All stored sessions."""
        return self._engine.summaries()

    def commit(self, group: Sequence[Operation]) -> list[object]:
        """Let calls take effect, as one sync does; returns what each came to."""
        self._at = self._host.world.now
        if self._host.durability == "relaxed":
            self._groups.append((self._at, [operation for operation in group if operation.kind != "load"]))
        return [self._do(operation) for operation in group]

    def cut_power(self, dice: Dice) -> None:
        """Forget the last groups: they had been written, and not synced."""
        count = min(len(self._groups), dice.below(_CACHED_GROUPS_MAX))
        if not count:
            return
        del self._groups[-count:]
        self._format()
        for at, group in self._groups:
            self._at = at
            for operation in group:
                self._do(operation)
        self._host.world.say("forgets", "disk", f"{count} groups")

    def _do(self, operation: Operation) -> object:
        results: list[object] = []
        engine, session_id = self._engine, operation.session_id
        if operation.kind == "fence":
            if self.begins(operation):
                self.batch_counts[session_id] = 0
            self.records[session_id] = operation.value
            engine.fence(operation.value, results.append)
        elif operation.kind == "append":
            engine.append(session_id, operation.epoch, operation.value, results.append)
            if results == [None]:
                self.batch_counts[session_id] += 1
        elif operation.kind in ("snapshot", "purge"):
            purge = operation.kind == "purge"
            engine.snapshot(session_id, operation.epoch, operation.value, results.append, purge=purge)
        elif operation.kind == "tail":
            engine.tail(session_id, operation.value, results.append)
        elif operation.kind == "forget":
            engine.forget(session_id, results.append)
            self.records.pop(session_id, None)
        else:
            engine.load(session_id, lambda loaded: results.append(self._read_back(session_id, loaded)))
        return results[0]

    def _read_back(self, session_id: str, loaded: Loaded) -> Loaded:
        if not isinstance(loaded, StoredSession):
            return loaded
        has_record = self.damaged.get((session_id, loaded.record.epoch))
        if has_record is not None:
            damaged = Damaged("a checksum does not fit", loaded.record if has_record else None)
            self._host.world.watch.restarts.found_damaged(damaged)
            return damaged
        return StoredSession(
            _copied(loaded.record, SessionRecord),
            None if loaded.state is None else _copied(loaded.state, SessionState),
            tuple(decode_batch(encode_batch(batch)) for batch in loaded.batches),
        )


def _copied(value: Any, kind: type[Any]) -> Any:
    """As it is read from bytes."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)


class ModelStore:
    """The engine of one server, on a disk: one queue, synced group by group, first in, first out."""

    def __init__(self, host: Host, disk: Disk) -> None:
        self._host = host
        self._disk = disk
        self._dice = Dice(host.world.plan.seed ^ 0xD15C ^ host.incarnation)
        self._queue: list[Operation] = []
        self._syncing: list[Operation] = []
        self._snapshots: set[str] = set()
        """Sessions whose snapshot waits."""
        self._failed: set[str] = set()
        """Sessions behind whose last call nothing may be stored."""
        self._is_busy = False
        self._is_broken = False
        self._is_dead = False

    @property
    def durability(self) -> Durability:
        """As planned."""
        return self._host.durability

    def fence(self, record: SessionRecord, done: Done) -> None:
        """Queue a record."""
        self._take(Operation("fence", record.session_id, record.epoch, record, done))

    def append(self, session_id: str, epoch: str, batch: JournalBatch, done: Done) -> None:
        """Queue a batch."""
        self._host.world.watch.restarts.handed_over(session_id, epoch, batch)
        self._take(Operation("append", session_id, epoch, batch, done))

    def is_snapshot_due(self, session_id: str) -> bool:
        """Whether enough was written, and no snapshot is on its way."""
        return session_id not in self._snapshots and self._disk.is_snapshot_due(session_id)

    def snapshot(
        self, session_id: str, epoch: str, state: SessionState, done: Done, *, purge: bool = False
    ) -> None:
        """Queue a state."""
        self._snapshots.add(session_id)
        self._take(Operation("purge" if purge else "snapshot", session_id, epoch, state, done))

    def load(self, session_id: str, done: Callable[[Loaded], None]) -> None:
        """Queue a question."""
        self._take(Operation("load", session_id, "", None, done))

    def tail(self, session_id: str, since: float, done: Callable[[Past], None]) -> None:
        """Queue a question."""
        self._take(Operation("tail", session_id, "", since, done))

    def forget(self, session_id: str, done: Done) -> None:
        """Queue the end of a session."""
        self._take(Operation("forget", session_id, "", None, done))

    def summary(self, session_id: str) -> Summary | None:
        """What is written by now of one session."""
        return self._disk.summary(session_id)

    def summaries(self) -> Sequence[Summary]:
        """What is written by now."""
        return self._disk.summaries()

    def die(self, dice: Dice) -> None:
        """The server has died: nothing completes any more, and of what was being synced a part is there."""
        self._is_dead = True
        if not self._is_broken:
            self._write(self._syncing[: dice.below(len(self._syncing) + 1)])

    def is_behind(self, session_id: str) -> bool:
        """Whether what was handed over of a session is not all stored, or never will be."""
        waiting = (*self._syncing, *self._queue)
        return (
            self._is_broken
            or session_id in self._failed
            or any(operation.session_id == session_id for operation in waiting)
        )

    # One group after the other.

    def _take(self, operation: Operation) -> None:
        if self._is_dead:
            return
        self._queue.append(operation)
        if not self._is_busy:
            self._sync()

    def _sync(self) -> None:
        """Let all that waits be one group; what is asked for meanwhile is the next one."""
        world, disk = self._host.world, self._disk
        self._is_busy = True
        while self._queue and not self._is_dead:
            self._syncing, self._queue = self._queue, []
            sync_s = world.plan.sync_s * self._dice.odds() if world.plan.sync_s else 0.0
            if world.now < disk.slow_until:
                sync_s += 2.0 * self._dice.odds()
            if sync_s:
                world.at(world.now + sync_s, self._synced)
                return
            self._complete()
        self._is_busy = False
        if not self._is_broken and not self._is_dead:
            world.watch.doors.all_stored(self._failed)

    def _synced(self, _: object) -> None:
        if not self._is_dead:
            self._complete()
            self._sync()

    def _complete(self) -> None:
        group = self._syncing
        disk, world = self._disk, self._host.world
        if not self._is_broken and not world.is_healed:
            may_fail = bool(world.plan.sync_s) and self._dice.happens(_SYNC_FAILS)
            if disk.is_failing or may_fail:
                disk.is_failing = False
                self._break(group)
        if self._is_broken:
            results: list[object] = [StoreError("a sync has failed", is_fatal=True) for _ in group]
        else:
            results = self._write(group)
        self._syncing = []
        for operation, result in zip(group, results, strict=True):
            if self._is_dead:
                return
            operation.done(result)

    def _break(self, group: Sequence[Operation]) -> None:
        """After a failed sync nothing is safe any more, though some of it may be there: the server ends."""
        self._is_broken = True
        world = self._host.world
        world.say("fails", "disk", "a sync")
        self._write(group[: self._dice.below(len(group) + 1)])
        delay_s = _DYING_S * self._dice.odds()
        world.at(world.now + delay_s, self._host.gives_up, self)

    def _write(self, group: Sequence[Operation]) -> list[object]:
        """Do what can be done; returns what each call came to."""
        is_full = self._host.world.now < self._disk.full_until
        refusals: dict[int, StoreError] = {}
        good: list[Operation] = []
        for index, operation in enumerate(group):
            session_id = operation.session_id
            if operation.kind in ("snapshot", "purge"):
                self._snapshots.discard(session_id)
            if operation.kind in ("load", "forget") or (self._disk.begins(operation) and not is_full):
                self._failed.discard(session_id)
            if operation.writes and (is_full or session_id in self._failed):
                self._failed.add(session_id)
                self._host.world.watch.doors.not_stored(session_id)
                refusals[index] = StoreError("the disk is full", is_fatal=False, retry_after_s=0.5)
            else:
                good.append(operation)
        found = iter(self._disk.commit(good))
        results: list[object] = [
            refusals[index] if index in refusals else next(found) for index in range(len(group))
        ]
        for operation, result in zip(group, results, strict=True):
            if operation.kind == "append" and result is None:
                self._host.world.watch.synced(operation.epoch, operation.value)
            elif isinstance(result, StoreError):
                self._failed.add(operation.session_id)
        return results
