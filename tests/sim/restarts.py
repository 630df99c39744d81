"""What a session is that was restored from what was stored: as if its server had not died, but for its end.

The ledger goes back to what was stored (SPEC 9.6). What was applied after that, and died with the server, is
rightly applied again; that nothing of it had been promised is checked here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from streamctx.core.session.client_session import ClientSession
from streamctx.core.session.server_session import ServerSession
from streamctx.core.session.stored import JournalBatch, StoredSession
from streamctx.engine.base import Damaged, StoreError
from streamctx.hub.hub import Hub
from streamctx.wire.messages import Hello, Welcome
from tests.sim.journal import read_stored

if TYPE_CHECKING:
    from tests.sim.ledger import Epoch, Lineage
    from tests.sim.network import Link
    from tests.sim.watch import Watch

__all__ = ["Restarts"]

_Document: TypeAlias = tuple[int, str, int, bool, bool, int, int]
"""Alias, URI, version, whether it is stale, whether a text is coming, edits, bytes."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """A session when a batch of its was handed to the store. `settled` is what the ledger says."""

    stop: int
    settled: int
    journal_length: int
    documents: tuple[_Document, ...]
    refused: tuple[int, ...]
    designs: tuple[int, ...]
    closed_designs: tuple[int, ...]
    lost: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Life:
    """One epoch as its server stores it.

    `moments` has one for each batch that was ever handed over and may still be stored.
    """

    moments: list[_Moment] = field(default_factory=list)
    is_broken: bool = False
    """What was stored is lost, or cannot be read."""
    is_forgiven: bool = False
    """A power cut may have taken the end of it."""


class Restarts:
    """The checkers of what outlives a server."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._lives: dict[str, _Life] = {}
        self._resumable: dict[str, str] = {}
        """Sessions that a server had when it died, each with its epoch."""
        self._untold: set[str] = set()
        """Restored sessions whose client has not shown that it was told."""

    # What is handed to the store.

    def handed_over(self, session_id: str, epoch_id: str, batch: JournalBatch) -> None:
        """A batch goes to the store."""
        watch = self._watch
        watch.claims.journalled(batch)
        hub = watch.world.host.hub
        held = None if hub is None else hub.registry.get(session_id)
        epoch = watch.epochs[epoch_id]
        if held is None:
            watch.fail("Durable", f"a batch of {session_id}, which is not live, is stored")
            return
        life = self._lives.setdefault(epoch_id, _Life())
        life.moments.append(_moment(held.session, epoch, batch.stop))

    def server_dies(self, hub: Hub) -> None:
        """What is live now can be resumed at the next server."""
        self._resumable.clear()
        self._untold.clear()
        watch = self._watch
        watch.doors.server_dies()
        for held in hub.registry:
            session = held.session
            epoch = watch.epochs.get(session.epoch)
            if epoch is None or not session.is_confirmed or not session.produces:
                continue
            life = self._lives.get(session.epoch)
            is_whole = life is None or not (life.is_broken or life.is_forgiven)
            if watch.world.host.durability != "none" and is_whole and len(epoch.lineages) == 1:
                self._resumable[session.session_id] = session.epoch

    def power_cut(self) -> None:
        """What was written last is gone, and had not been fsynced."""
        self._resumable.clear()
        for epoch_id in self._watch.epochs:
            self._lives.setdefault(epoch_id, _Life()).is_forgiven = True
        self._watch.doors.forget_attempts()
        for epoch in self._watch.epochs.values():
            epoch.lease = 0

    def disk_lost(self) -> None:
        """Nothing that was stored is there any more."""
        self._resumable.clear()
        for epoch_id in self._watch.epochs:
            self._lives.setdefault(epoch_id, _Life()).is_broken = True

    def damaged(self, session_id: str) -> None:
        """What is stored of a session cannot be read: the next who loads it finds out."""
        self._resumable.pop(session_id, None)
        epoch_id = self._watch.world.host.disk.records[session_id].epoch
        self._lives.setdefault(epoch_id, _Life()).is_broken = True

    def found_damaged(self, damaged: Damaged) -> None:
        """The store says that it cannot give a session back."""
        if damaged.record is not None:
            self._watch.doors.restored(damaged.record)

    def must_end(self, error: StoreError) -> None:
        """The hub tells its shell to end."""
        if not error.is_fatal:
            self._watch.fail("Quiet", f"the server is to end for {error}")

    def may_lack_promised(self, link: Link) -> bool:
        """Whether a power cut may have taken what the client of a connection was promised."""
        life = None if link.epoch is None else self._lives.get(link.epoch.epoch)
        return life is not None and life.is_forgiven

    # What comes back.

    def restored(self, session: ServerSession, stored: StoredSession) -> None:
        """A server has made a session of what was stored."""
        watch = self._watch
        watch.principal_of.setdefault(session.session_id, stored.record.principal)
        epoch = watch.epochs.get(session.epoch)
        if epoch is None:
            return  # Its server died, or its client left, before anybody was told of it.
        if epoch.session_id != session.session_id:
            watch.fail("EpochHonest", f"{session.session_id} is restored in the epoch {session.epoch}")
        life = self._lives.setdefault(session.epoch, _Life())
        if life.is_broken:
            watch.fail("EpochHonest", f"{session.session_id} is restored, though its store was damaged")
        disk = watch.world.host.disk
        del life.moments[disk.batch_counts[session.session_id] :]
        moment = life.moments[-1] if life.moments else _NOTHING
        expected = session.delivery.expected
        if expected != moment.settled:
            checker = "Durable" if expected < moment.settled else "NoHole"
            watch.fail(checker, f"{session.session_id} goes on at {expected}, stored is {moment.settled}")
        self._check_promises(epoch, expected, is_forgiven=life.is_forgiven)
        self._check_as_it_was(session, moment)
        if epoch.lineages:
            self._check_as_read(session, stored)
        epoch.restore(session, watch.world.host.incarnation, moment.settled, moment.journal_length)
        watch.epoch_of[session.delivery] = epoch
        watch.epoch_of[session.delivery._window] = epoch
        watch.doors.restored(stored.record)
        watch.claims.restored(session.epoch)
        self._untold.add(session.epoch)

    def _check_promises(self, epoch: Epoch, expected: int, *, is_forgiven: bool) -> None:
        if is_forgiven and self._watch.world.host.durability != "full":
            return  # The client finds out (`welcomed`).
        promised = max((lineage.promised for lineage in epoch.lineages), default=1)
        for number in epoch.durable_numbers:
            if expected <= number < promised:
                self._watch.fail(
                    "Durable", f"{number} was durable below {promised}, the restored session has {expected}"
                )

    def _check_as_it_was(self, session: ServerSession, moment: _Moment) -> None:
        """It is as it was when the last batch that is stored was handed over."""
        found = _moment(session, None, moment.stop)
        rotten = self._watch.diverged_uris
        documents = [
            {document[0]: document for document in each.documents if document[1] not in rotten}
            for each in (found, moment)
        ]
        pairs = (
            ("documents", *documents),
            ("refused", set(found.refused), set(moment.refused)),
            ("designs", set(found.designs), set(moment.designs)),
            ("closed designs", set(found.closed_designs), set(moment.closed_designs)),
            # It may tell again what its client knew already.
            ("lost", set(found.lost) & set(moment.lost), set(moment.lost)),
        )
        for what, is_, was in pairs:
            if is_ != was:
                self._watch.fail(
                    "CrashOnly", f"{what} of {session.session_id}: {is_!r:.300}, not {was!r:.300}"
                )

    def _check_as_read(self, session: ServerSession, stored: StoredSession) -> None:
        """It is what somebody else makes of what was stored."""
        context, reading = session.context, read_stored(stored)
        fail = self._watch.fail
        if set(context.documents) != set(reading.texts):
            fail("CrashOnly", f"{set(context.documents)} are restored, stored are {set(reading.texts)}")
        if set(context.refusals) != reading.refused or set(context.designs) != reading.designs:
            fail("CrashOnly", f"refused {set(context.refusals)}, designs {set(context.designs)}: {reading}")
        for alias, document in context.documents.items():
            read = reading.texts[alias]
            if document.uri in self._watch.diverged_uris:
                continue
            is_unknown = document.is_stale or document.buffer is None
            text = None if is_unknown or document.buffer is None else document.buffer.text()
            if text != read.text or (text is not None and document.version != read.version):
                fail(
                    "CrashOnly",
                    f"{document.uri} is restored at {document.version} as {text!r:.300}, not {read!r:.300}",
                )
            if document.is_receiving is not (read.coming is not None):
                fail(
                    "CrashOnly",
                    f"{document.uri} is receiving: {document.is_receiving}, stored is {read!r:.200}",
                )

    # What is said of it.

    def welcoming(self, session: ServerSession, hello: Hello, welcome: Welcome, *, is_honest: bool) -> None:
        """The server says WELCOME."""
        is_restored = session.epoch in self._untold
        if welcome.restored is not is_restored:
            self._watch.fail(
                "RestoredTold",
                f"restored {is_restored}, WELCOME of {session.session_id} says {welcome.restored}",
            )
        resume = hello.resume
        if resume is None or not is_honest:
            return
        epoch = self._resumable.pop(resume.session, None)
        if epoch == resume.epoch and welcome.epoch != epoch:
            self._watch.fail(
                "Resumes", f"{resume.session} was live when its server died, and is {welcome.verdict}"
            )

    def heard(self, session: ServerSession) -> None:
        """The server has handled input of a session."""
        if self._untold and session.is_heard:
            self._untold.discard(session.epoch)

    def welcomed(self, session: ClientSession, lineage: Lineage, welcome: Welcome) -> None:
        """A client goes on with a session that says that it was restored."""
        lost = [
            number
            for number in range(welcome.expects, lineage.promised)
            if number in lineage.sent and not lineage.sender.may_be_lost(number)
        ]
        if lost:
            self._watch.fail(
                "EpochHonest", f"{lost} were durable, and the client goes on at {welcome.expects}"
            )
        if welcome.restored:
            self._watch.claims.subscribes_anew(session)


def _moment(session: ServerSession, epoch: Epoch | None, stop: int) -> _Moment:
    context = session.context
    return _Moment(
        stop=stop,
        settled=1 if epoch is None else epoch.settled,
        journal_length=0 if epoch is None else len(epoch.journal),
        documents=tuple(
            (alias, d.uri, d.version, d.is_stale, d.is_receiving, d.edit_count, d.byte_length)
            for alias, d in context.documents.items()
        ),
        refused=tuple(context.refusals),
        designs=tuple(context.designs),
        closed_designs=tuple(context._stale_designs),
        lost=session.delivery.given_up_ranges,
    )


_NOTHING = _Moment(1, 1, 0, (), (), (), (), ())
