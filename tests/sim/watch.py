"""What must never happen, checked as things happen: one named checker for each promise.

The ledger is written from outside: from the bytes that clients hand to the network, from the texts that
they type, and from what the server applies (`tests.sim.probes` calls in here). It outlives crashes, as
promises do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from streamctx.core.delivery.lost_ranges import LOST_RANGES_MAX
from streamctx.core.documents.presence import key_of
from streamctx.core.session.client_session import ClientSession
from streamctx.core.session.delivery import Delivery
from streamctx.core.session.server_session import ServerSession
from streamctx.core.session.stored import JournalBatch
from streamctx.errors import CloseCode, ErrorCode, RemoteProtocolError
from streamctx.hub.connection import Connection
from streamctx.hub.registry import Held
from streamctx.wire.codec import client_decoder, server_decoder
from streamctx.wire.messages import (
    DURABLE_TYPES,
    SUPERSEDABLE_TYPES,
    Ack,
    Edit,
    ErrorMessage,
    Event,
    Heartbeat,
    Hello,
    Mention,
    Nack,
    Open,
    Part,
    Save,
    Skip,
    Snapshot,
    SupersedableEvent,
    Version,
    Welcome,
)
from tests.sim.asking import Asking
from tests.sim.claims import Claims
from tests.sim.effects import Effects
from tests.sim.handshakes import Doors, Greetings
from tests.sim.ledger import SECRET, Epoch, Lineage, Violation, body_of
from tests.sim.restarts import Restarts
from tests.sim.sender import Sender
from tests.sim.views import Views

if TYPE_CHECKING:
    from tests.sim.actors import Actor
    from tests.sim.network import Link
    from tests.sim.world import World

__all__ = ["Watch"]

_DURABLE = frozenset(DURABLE_TYPES)
_SUPERSEDABLE: frozenset[type[object]] = frozenset(SUPERSEDABLE_TYPES)
_TEXT_CHANGES: frozenset[type[object]] = frozenset({Open, Part, Edit, Snapshot, Version})
_LINGER_S = 0.01
_REPAIR_S = 3.5
"""So long after the network is well the last gap is closed: a NACK comes again after 2.4 s at most."""


class Watch:
    """The ledger and the checkers of one run."""

    def __init__(self) -> None:
        self.world: World
        self.greetings = Greetings(self.fail)
        self.doors = Doors(self.fail)
        self.hellos: dict[Connection, tuple[str | None, Hello]] = {}
        """The HELLO of each connection that is being answered, and whose token came with it."""
        self.epochs: dict[str, Epoch] = {}
        self.epoch_of: dict[object, Epoch] = {}
        """By the server's `Delivery` and its window."""
        self.lineage_of: dict[object, tuple[Lineage, Epoch]] = {}
        """By a client's `Delivery`."""
        self.principal_of: dict[str, str] = {}
        self.texts: dict[tuple[str, int], list[str]] = {}
        """Every text that an editor had, by URI and version."""
        self.diverged: set[tuple[str, int]] = set()
        self.diverged_uris: set[str] = set()
        self.misplaced: set[ClientSession] = set()
        """Observers whose copies were made to lose their place."""
        self.actors: dict[ClientSession, Actor] = {}
        self.link: Link | None = None
        """The connection whose input is being handled."""
        self.marks: dict[Delivery, tuple[int, int, int]] = {}
        self.retransmitted: dict[tuple[int, bool, int], float] = {}
        self.gaps: dict[Delivery, tuple[int, int, float]] = {}
        self._skip: Skip | None = None
        self._held_before: Held | None = None
        self.repaired_by = float("inf")
        """When, after the network has become well, the last gap is closed."""
        self.views = Views(self)
        self.claims = Claims(self)
        self.effects = Effects(self)
        self.restarts = Restarts(self)
        self.acks = 0
        self.applied_durable = 0

    def fail(self, checker: str, detail: str) -> None:
        """Report a broken promise."""
        raise Violation(checker, f"at {self.world.now:.6f} s: {detail}")

    def heal(self) -> None:
        """The network is well from now on."""
        self.repaired_by = self.world.now + _REPAIR_S

    # What editors have.

    def typed(self, uri: str, version: int, text: str) -> None:
        """An editor's text has become this."""
        known = self.texts.setdefault((uri, version), [])
        if text not in known:
            known.append(text)

    def stranger_says(self, link: Link, message: bytes, now: float) -> None:
        """The server is handed a message of somebody who need not be honest."""
        held = link.handler._held
        if held is None:
            link.hand_over(message, now)
            return
        epoch, sequence = self.epochs[held.session.epoch], self._sequence_of(link, message)
        was_settled = epoch.is_settled(sequence)
        link.hand_over(message, now)
        if was_settled or epoch.is_settled(sequence):
            self.claims.said(link, held.session, message, was_settled=was_settled)

    def old_secret(self, session_id: str) -> str | None:
        """A secret of a session that is not valid any more, and stays so."""
        if self.world.plan.durability == "relaxed":
            return None  # A power cut may bring it back.
        host = self.world.host
        stored = host.disk.records.get(session_id) if host.store.is_behind(session_id) else None
        return self.doors.old_secret(session_id, stored)

    # The server's turns.

    def turn(self, link: Link) -> None:
        """The server handles input of a connection."""
        self.link = link
        self._held_before = link.handler._held
        self.claims.turn()

    def turn_done(self, link: Link) -> None:
        """It has handled it."""
        self.link = None
        held = link.handler._held
        heard = held or self._held_before
        if heard is not None:
            self.restarts.heard(heard.session)  # Also if the connection has failed since.
        if held is not None:
            self._check_bounds(held.session)
            self.doors.heard(held)
            delivery = held.session.delivery
            if link.epoch is not None and delivery.has_gap and link.is_server_open and not link.is_closing:
                link.epoch.asking.looked(link.number, delivery.expected, self.world.now)
        elif link.epoch is None and link.bytes_down > 700 + link.bytes_up:
            self.fail("NoAmplify", f"{link.bytes_down} bytes for {link.bytes_up} before the handshake")

    def _check_bounds(self, session: ServerSession) -> None:
        limits, delivery = session.limits, session.delivery
        window = delivery._window
        log = session.log
        is_bounded = (
            window.held_count <= limits.reorder_events_max
            and window.held_bytes <= limits.reorder_bytes_max
            and delivery.kept_events <= 2 * limits.window_events_max
            and delivery.kept_bytes <= limits.server_ring_bytes_max
            and log.offset - log.first_offset <= limits.feed_log_events_max
            and len(delivery._out) <= 4 * limits.window_events_max + 64
        )
        if not is_bounded:
            self.fail(
                "Bounded",
                f"held {window.held_count}/{window.held_bytes} B, kept {delivery.kept_events}/"
                f"{delivery.kept_bytes} B, log {log.offset - log.first_offset}, out {len(delivery._out)}",
            )

    # Handshakes.

    def greeting(self, connection: Connection, hello: Hello) -> None:
        """The server answers a HELLO."""
        principal = connection.info.principal
        self.hellos[connection] = (hello.auth if principal is None else principal.name), hello

    def welcoming(self, connection: Connection, session: ServerSession, welcome: Welcome) -> None:
        """The server says WELCOME."""
        name, hello = self.hellos[connection]
        self.doors.opened(session, name, hello, welcome)
        epoch = self.epochs.get(session.epoch)
        incarnation = self.world.host.incarnation
        link: Link = connection.peer  # type: ignore[assignment]
        self.restarts.welcoming(session, hello, welcome, is_honest=not link.actor.is_stranger)
        resumed_epoch = None if hello.resume is None else hello.resume.epoch
        is_new = welcome.verdict == "resynced" and welcome.epoch != resumed_epoch
        if is_new or welcome.verdict in ("new", "rejected"):
            if epoch is not None:
                self.fail("EpochHonest", f"the epoch {session.epoch} is not new")
            sender = Sender(self.fail, welcome.limits, keeps_until_durable=False)
            epoch = Epoch(session, incarnation, sender, Asking(self.fail, self.world.plan.limits))
            self.epochs[session.epoch] = epoch
            self.epoch_of[session.delivery] = epoch
            self.epoch_of[session.delivery._window] = epoch
            self.principal_of[session.session_id] = session.principal
        elif epoch is None or epoch.incarnation != incarnation:
            self.fail("EpochHonest", f"{welcome.verdict} by another life of the server")
        assert epoch is not None
        if welcome.lease <= epoch.lease:
            self.fail("Monotone", f"lease {welcome.lease} after {epoch.lease}")
        epoch.lease = welcome.lease
        if welcome.expects > epoch.settled:
            self.fail("VerdictTruth", f"WELCOME expects {welcome.expects}, settled is {epoch.settled}")
        if welcome.verdict == "resumed" and welcome.lost:
            self.fail("VerdictTruth", f"resumed, with {welcome.lost} lost")
        evicted = epoch.given_up
        for start, stop in welcome.lost:
            if not evicted.issuperset(range(start, stop)):
                self.fail("VerdictTruth", f"[{start}, {stop}) lost, the client gave up {sorted(evicted)}")
        self.claims.welcoming(welcome)
        link.epoch, link.life = epoch, epoch.life

    def welcomed(self, session: ClientSession, welcome: Welcome) -> None:
        """A client has taken a WELCOME."""
        delivery = session._delivery
        epoch = self.epochs[welcome.epoch]
        if delivery not in self.lineage_of:
            sender = Sender(self.fail, welcome.limits, keeps_until_durable=welcome.durability != "none")
            asking = Asking(self.fail, self.world.plan.limits)
            lineage = Lineage(session.settings.encoding, sender, asking)
            epoch.lineages.append(lineage)
            self.lineage_of[delivery] = lineage, epoch
        lineage = self.lineage_of[delivery][0]
        self.restarts.welcomed(session, lineage, welcome)
        link = self.actors[session].link
        if link is not None:
            link.lineage = lineage
            lineage.life = link.life

    def forked(self, original: ClientSession, copy: ClientSession) -> None:
        """A client's state was copied: what follows are two processes."""
        if original in self.misplaced:
            self.misplaced.add(copy)
        known = self.lineage_of.get(original._delivery)
        if known is not None:
            lineage, epoch = known[0].fork(), known[1]
            epoch.lineages.append(lineage)
            self.views.forked(original, copy)
            self.lineage_of[copy._delivery] = lineage, epoch

    def evicted(self, delivery: Delivery, numbers: Iterable[int], freed: Iterable[int]) -> None:
        """A client has given up numbers; `freed` are those that it no longer holds."""
        if delivery in self.lineage_of:
            lineage = self.lineage_of[delivery][0]
            lineage.evicted.update(numbers)
            lineage.sender.gave_up(freed)

    def evicted_as_told(self, delivery: Delivery, freed: Iterable[int]) -> None:
        """A client holds these numbers no longer, since it was told that they were given up."""
        freed = set(freed)
        self.evicted(delivery, freed, freed)
        if delivery in self.lineage_of:
            self.lineage_of[delivery][0].evicted_as_told |= freed

    # Frames.

    def sending(self, link: Link, message: bytes, *, is_up: bool) -> None:
        """A frame goes to the network."""
        if is_up and link.lineage is None:
            if not link.actor.is_stranger:
                self.greetings.before_welcome(link, message, self.world.now)
            return
        if is_up and not link.is_confirmed:
            self.greetings.after_welcome(link, body_of(message, link.actor.plan.encoding))
        sequence = self._sequence_of(link, message)
        if not sequence:
            self._check_unnumbered(link, message, is_up=is_up)
            return
        end = link.lineage if is_up else link.epoch
        if end is None:
            return
        known = end.sent.get(sequence)
        if known is None:
            if sequence != end.next:
                self.fail("SendOrder", f"number {sequence} before {end.next}, up {is_up}")
            end.sender.sends(sequence, len(message))
            end.sent[sequence] = message
            if isinstance(end, Epoch):
                end.next = sequence + 1
            else:
                told = end.message(sequence)
                end.sender.tells(sequence, told)
                if link.epoch is not None:
                    self.effects.sends(link.epoch, end, sequence, told)
            return
        if known != message:
            self.fail("SameBytes", f"number {sequence} was sent as {known!r}, now as {message!r}")
        end.sender.repeats(sequence)
        key = (link.number, is_up, sequence)
        last = self.retransmitted.get(key)
        if last is not None and self.world.now - last < _LINGER_S - 1e-9:
            self.fail("AnsweredOnce", f"number {sequence} again after {self.world.now - last:.6f} s")
        self.retransmitted[key] = self.world.now

    @staticmethod
    def _sequence_of(link: Link, message: bytes) -> int:
        """The number that a frame's head says; 0 if it has none."""
        if not link.is_text:
            return int.from_bytes(message[16:24])
        head = message[17:].split(b" ", 1)[0]
        return int(head) if head.isdigit() else 0

    def _check_unnumbered(self, link: Link, message: bytes, *, is_up: bool) -> None:
        end = link.lineage if is_up else link.epoch
        if end is None:
            return
        encoding = end.encoding
        if is_up:
            end.sender.says(body_of(message, encoding), encoding)
        if b"nack" in message:
            nack = client_decoder(encoding).decode(body_of(message, encoding))
            if isinstance(nack, Nack):
                end.asking.asks(link.number, nack, self.world.now)

    def pumped(self, link: Link, session: ClientSession) -> None:
        """A client has sent what it had to send."""
        delivery = session._delivery
        if link.lineage is not None and delivery is not None and delivery.has_gap:
            link.lineage.asking.looked(link.number, delivery.expected, self.world.now)

    def closing(self, link: Link, code: int) -> None:
        """The server closes a connection."""
        if code not in set(CloseCode):
            self.fail("ErrorBeforeClose", f"closed with {code}, which is not declared")
        encoding = link.actor.plan.encoding
        last = [server_decoder(encoding).decode(body_of(frame, encoding)) for frame in link.last_down]
        if not any(isinstance(message, ErrorMessage) for message in last):
            self.fail("ErrorBeforeClose", f"closed with {code} after {last!r}")

    # What the server applies.

    def applied(self, session: ServerSession, sequence: int, item: object, *, in_order: bool) -> None:
        """The server has taken a numbered message of a client into account."""
        epoch = self.epochs[session.epoch]
        if not sequence:
            return
        self._check_writer(session)
        is_supersedable = type(item) in _SUPERSEDABLE
        if epoch.is_settled(sequence):
            self.fail("InOrderOnce", f"number {sequence} is applied again: {item!r}")
        if epoch.settled < sequence and (in_order or not is_supersedable):
            self.fail("NoHole", f"number {sequence} is applied, {epoch.settled} is open: {item!r}")
        epoch.settle(sequence)
        if isinstance(item, Event):
            epoch.events += 1
            self._check_content(epoch, sequence, item)
            if isinstance(item, SupersedableEvent):
                self._check_newest(epoch, session, sequence, item)
            else:
                self._check_durable(epoch, session, sequence, item)

    def _check_writer(self, session: ServerSession) -> None:
        link, hub = self.link, self.world.host.hub
        if link is None or hub is None:
            self.fail("SingleWriter", "an event is applied in nobody's turn")
            return
        held = hub.registry.get(session.session_id)
        if held is None or (held.owner is not None and held.owner is not link.handler):
            self.fail("SingleWriter", f"connection {link.number} does not own {session.session_id}")

    def _check_newest(
        self, epoch: Epoch, session: ServerSession, sequence: int, event: SupersedableEvent
    ) -> None:
        if not epoch.lineages:
            return  # A stranger uses aliases again, under which all begins anew.
        key = key_of(event)
        newest = epoch.newest_of_key.get(key, 0)
        epoch.newest_of_key[key] = max(newest, sequence)
        if sequence < newest and session.context._presence.sequence_of(key) == sequence:
            self.fail("InOrderOnce", f"number {sequence} is in effect after {newest}: {event!r}")

    def _check_content(self, epoch: Epoch, sequence: int, event: object) -> None:
        if not epoch.lineages:
            return  # A stranger without a client session of ours.
        for lineage in epoch.lineages:
            if sequence in lineage.sent and lineage.message(sequence) == event:
                return
        self.fail("NoInvention", f"number {sequence} was never sent as {event!r}")

    def _check_durable(self, epoch: Epoch, session: ServerSession, sequence: int, event: Event) -> None:
        if sequence <= epoch.last_durable:
            self.fail("InOrderOnce", f"number {sequence} after {epoch.last_durable}")
        epoch.durable_numbers.append(sequence)
        self.applied_durable += 1
        alias: int = event.document  # type: ignore[attr-defined]
        if self.world.plan.durability != "none":
            epoch.unsynced[sequence] = None
        if not session.context.is_refused(alias):
            epoch.journal.append(event)
        if type(event) in _TEXT_CHANGES:
            self._check_server_text(epoch, session, event, alias)

    def _check_server_text(self, epoch: Epoch, session: ServerSession, event: Event, alias: int) -> None:
        document = session.context.documents.get(alias)
        if document is None or document.buffer is None:
            return
        if SECRET in document.buffer.text():
            self.fail("Secret", f"{document.uri} is kept")
        key = (epoch.epoch, alias)
        is_whole = type(event) in (Open, Snapshot, Part)
        if is_whole and not document.is_receiving:
            self.diverged.discard(key)
        if document.is_stale:
            self.diverged.discard(key)
            return
        if key in self.diverged and not isinstance(event, Version):
            return
        texts = self.texts.get((document.uri, document.version))
        if texts is None and not epoch.lineages:
            return
        text = document.buffer.text()
        if texts is None or text not in texts:
            checker = "DivergenceFound" if key in self.diverged else "TextAtVersion"
            self.fail(
                checker,
                f"{document.uri} at {document.version} after {event!r}: {text[:200]!r}, not {texts!r:.300}",
            )
        self.diverged.discard(key)

    def filled(self, window: object, ranges: Iterable[tuple[int, int]], *, is_loss: bool) -> None:
        """Numbers that will never come were marked as present."""
        epoch = self.epoch_of.get(window)
        if epoch is None:
            return
        for start, stop in ranges:
            if is_loss:
                self._check_loss(epoch, start, stop)
                self.claims.lost(range(start, stop))
            for sequence in range(start, stop):
                if is_loss:
                    epoch.lost.add(sequence)
                    if self.link is not None and self.link.epoch is epoch:
                        epoch.asking.gives_up(sequence, self.world.now)
                else:
                    self._check_skip(epoch, sequence)
                epoch.settle(sequence)

    def _check_loss(self, epoch: Epoch, start: int, stop: int) -> None:
        """On a connection that carries everything, every gap is filled."""
        link = self.link
        if link is None or not link.actor.is_alive or not link.is_whole or not epoch.lineages:
            return
        if self.world.now > self.repaired_by and not epoch.given_up.issuperset(range(start, stop)):
            self.fail("GapClosed", f"[{start}, {stop}) is given up on a network that is well")

    def given_up(self, link: Link, error: RemoteProtocolError) -> None:
        """A client drops its connection, because the server broke a rule or is silent."""
        if error.code == ErrorCode.BAD_SEQUENCE and self.restarts.may_lack_promised(link):
            return
        if link.is_whole and self.world.now > self.repaired_by:
            self.fail("GapClosed", f"{link.actor.name} gives a good connection up: {error}")

    def skipping(self, skip: Skip | None) -> None:
        """A SKIP is being taken."""
        self._skip = skip

    def _check_skip(self, epoch: Epoch, sequence: int) -> None:
        skip = self._skip
        if skip is None:
            self.fail("SkipHonest", f"{sequence} is passed over, and nobody said so")
            return
        if not epoch.lineages:
            return
        for lineage in epoch.lineages:
            if sequence not in lineage.sent:
                continue
            message = lineage.message(sequence)
            if type(message) in _SUPERSEDABLE:
                return
            if skip.reason == "evicted" and getattr(message, "document", None) in skip.documents:
                return
        self.fail("SkipHonest", f"{skip!r} hides {sequence}")

    # Acknowledgements.

    def acknowledged(self, delivery: Delivery, ack: Ack | Heartbeat) -> None:
        """An end has been told what the other has."""
        self.acks += 1
        known = self.lineage_of.get(delivery)
        if known is None:
            epoch = self.epoch_of.get(delivery)
            if epoch is not None and epoch.lineages and ack.received > epoch.taken:
                self.fail("AckTruth", f"the client says {ack.received}, it has {epoch.taken}")
            if epoch is not None:
                epoch.sender.acknowledged(ack)
            return
        lineage, epoch = known
        lineage.sender.acknowledged(ack)
        lineage.promised = max(lineage.promised, ack.durable)
        settled, unsynced = epoch.settled, next(iter(epoch.unsynced), None)
        if lineage.life != epoch.life:
            # It speaks of what has died since.
            settled, unsynced = epoch.past[lineage.life]
        elif epoch.lost:
            self._check_told(lineage, epoch, ack)
        if ack.received > settled or ack.applied > settled:
            self.fail("AckTruth", f"{ack!r}, but {settled} is open")
        for start, stop in ack.ranges:
            # What is acknowledged above a gap has come, and will be applied; it can be held.
            if start <= settled - 1:
                continue
            if stop > lineage.next:
                self.fail("AckTruth", f"{ack!r}, but only {lineage.next - 1} was sent")
        if unsynced is not None and ack.durable > unsynced:
            self.fail("Durable", f"durable {ack.durable} is acknowledged, {unsynced} is not in the store")

    def _check_told(self, lineage: Lineage, epoch: Epoch, ack: Ack | Heartbeat) -> None:
        told = lineage.told
        for start, stop in ack.lost:
            told.update(range(start, stop))
        if len(told) < len(epoch.lost) and len(ack.lost) < LOST_RANGES_MAX:
            untold = [number for number in epoch.lost - told if number < ack.received]
            if untold:
                self.fail("LossTold", f"{ack!r} says nothing of {sorted(untold)[:10]}")

    def check_sent_again(self, session: ClientSession) -> None:
        """All is settled: what was given up and matters to others has come under another number."""
        known = self.lineage_of.get(session._delivery)
        if known is None:
            return
        lineage, epoch = known
        mentions = {(e.document, e.text) for e in epoch.journal if isinstance(e, Mention)}
        saves = {(e.document, e.version) for e in epoch.journal if isinstance(e, Save)}
        for number in epoch.lost:
            if number not in lineage.sent:
                continue
            if lineage.sender.has_given_up(number) and number not in lineage.evicted_as_told:
                continue
            message = lineage.message(number)
            if not isinstance(message, Mention | Save):
                continue
            document = session.documents.get(message.document)
            if document is None or document.refused is not None:
                continue
            if isinstance(message, Mention):
                is_there = (message.document, message.text) in mentions
            else:
                is_there = message.version != document.saved_version or (
                    (message.document, message.version) in saves
                )
            if not is_there:
                self.fail("LossTold", f"{message!r} was given up, and is not sent again")

    def released(self, delivery: Delivery, ack: Ack | Heartbeat) -> None:
        """An end has taken an acknowledgement into account."""
        known = self.lineage_of.get(delivery)
        if known is not None:
            known[0].sender.holds(delivery, ack)

    def resuming(self, delivery: Delivery, received: int, ranges: Iterable[tuple[int, int]]) -> None:
        """An end goes on sending on a new connection."""
        known = self.lineage_of.get(delivery)
        if known is None and delivery not in self.epoch_of:
            return
        end = self.epoch_of[delivery] if known is None else known[0]
        again = {number: len(end.sent[number]) for number in range(received, end.next) if number in end.sent}
        end.sender.resumed(received, ranges, end.next, again)

    def restarting(self, delivery: Delivery, next_: int) -> None:
        """A server goes on sending from what a client expects, and knows nothing of what it had sent."""
        self.epoch_of[delivery].restart_sending(next_)

    def marked(self, delivery: Delivery, received: int, durable: int, limit: int) -> None:
        """An end states its watermarks."""
        last = self.marks.get(delivery)
        if last is not None and (received < last[0] or durable < last[1] or limit < last[2]):
            self.fail("Monotone", f"received, durable, limit {(received, durable, limit)} after {last}")
        self.marks[delivery] = received, durable, limit
        if limit < received + delivery._limits.window_events_max:
            self.fail("Credit", f"the limit {limit} is granted, {received} is received")

    def synced(self, epoch_id: str, batch: JournalBatch) -> None:
        """The store has made a batch safe."""
        epoch = self.epochs[epoch_id]
        for sequence in [sequence for sequence in epoch.unsynced if sequence < batch.stop]:
            del epoch.unsynced[sequence]

    def after_sweep(self) -> None:
        """Look for gaps that never end."""
        world = self.world
        assert world.host.hub is not None
        slack_s = world.plan.limits.gap_timeout_s + 3.0
        for held in world.host.hub.registry:
            delivery = held.session.delivery
            mark = (held.session.lease, delivery.expected)
            if held.owner is None or not delivery.has_gap:
                self.gaps.pop(delivery, None)
                continue
            last = self.gaps.get(delivery)
            if last is None or last[:2] != mark:
                self.gaps[delivery] = (*mark, world.now)
            elif world.now - last[2] > slack_s:
                self.fail("GapClosed", f"{delivery.expected} is missing for {world.now - last[2]:.1f} s")

    # What clients take.

    def taken(self, session: ClientSession, sequence: int) -> None:
        """A client has taken a message of the server."""
        if not sequence:
            return
        lineage, epoch = self.lineage_of[session._delivery]
        if sequence != lineage.taken:
            self.fail("FeedOrder", f"number {sequence} of the server, expected {lineage.taken}")
        lineage.taken = sequence + 1
        epoch.taken = max(epoch.taken, lineage.taken)
