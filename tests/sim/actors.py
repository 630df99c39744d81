"""Who takes part: honest clients with the production core, editors that type in them, and strangers that do not play by the rules."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from streamctx.client.reconnect import ReconnectPolicy
from streamctx.core.documents.presence import Key, key_of
from streamctx.core.session.client_session import (
    ClientDocument,
    ClientSession,
    ClientSettings,
    DocumentRefusal,
    Draining,
    SessionEnd,
    Welcomed,
)
from streamctx.core.session.state import ClientState
from streamctx.errors import CloseCode, LocalProtocolError, RemoteProtocolError
from streamctx.vocabulary import INTEGER_MAX, Encoding
from streamctx.wire.changes import Change
from streamctx.wire.codec import encode_body
from streamctx.wire.digests import DIGESTS, crc32_digest
from streamctx.wire.frames import pack_frame
from streamctx.wire.messages import (
    Ack,
    ClientInfo,
    Close,
    Cursor,
    DesignClose,
    DesignOpen,
    DesignSelection,
    DesignTool,
    Diagnostic,
    Diagnostics,
    Edit,
    Focus,
    Heartbeat,
    Hello,
    Mention,
    Message,
    Nack,
    Open,
    Resume,
    Selection,
    Skip,
    State,
    Subscribe,
    SupersedableEvent,
    Viewport,
)
from tests.sim.dice import Dice
from tests.sim.model import positions_of, without_surrogates
from tests.sim.network import Fates, Link
from tests.sim.plan import ActorPlan
from tests.sim.watch import SECRET

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["Actor", "Client", "Editor", "Rogue"]

_PIECES = ("a", "b", "word ", "\n", "\r\n", "\r", "é", "😀", "\u2028", "\x0c", "👩‍👩‍👧", "x = 1\n", "", "\ud800", "e\u0301")
_TEXT_MAX = 160
_DOCUMENTS_MAX = 3


class Actor:
    """Somebody with at most one connection."""

    def __init__(self, world: World, plan: ActorPlan) -> None:
        self.world = world
        self.plan = plan
        self.name = plan.name
        self.link: Link | None = None
        self.links = 0
        self.is_alive = True
        run = world.plan
        self.fates_up = Fates(f"{plan.name}.up", run.seed, run.odds, run.only)
        self.fates_down = Fates(f"{plan.name}.down", run.seed, run.odds, run.only)
        self.has_header = False

    def open_link(self) -> Link | None:
        """Connect, if there is a server."""
        if self.world.host.hub is None:
            return None
        self.links += 1
        self.world.link_count += 1
        link = Link(self.world, self, self.world.link_count)
        self.world.links.append(link)
        self.link = link
        return link

    def receive(self, link: Link, message: bytes) -> None:
        """Take one message."""

    def read_done(self, link: Link) -> None:
        """All messages of one read have come."""

    def disconnected(self, link: Link, code: int | None) -> None:
        """The connection is over."""
        if link is self.link:
            self.link = None

    def heal(self) -> None:
        """Whatever holds it up ends."""
        if self.link is not None:
            self.link.up.unblock()
            self.link.resume_reading()


class Client(Actor):
    """A client session with its driver, as `streamctx.client` drives it, but for the tasks."""

    def __init__(self, world: World, plan: ActorPlan, session: ClientSession | None = None) -> None:
        super().__init__(world, plan)
        run = world.plan
        jitter = Dice(run.seed ^ self.fates_up.salt)
        settings = ClientSettings(
            client=ClientInfo(name=f"sim {plan.name}"),
            encoding=plan.encoding,
            digest=plan.digest,
            unit=plan.unit,
            hash=plan.hash,
            role=plan.role,  # type: ignore[arg-type]
            token=plan.principal,
            limits=run.limits,
        )
        self.session = session or ClientSession(settings, jitter=jitter.odds)
        self._policy = ReconnectPolicy(jitter.odds, run.limits)
        self._clock = jitter.odds() * 1000
        self._timer_due = float("inf")
        self._wakes_at = 0.0
        self._retry_ms: int | None = None
        self.has_header = jitter.happens(0.3)
        world.watch.actors[self.session] = self
        world.at(world.now, self.connect)
        if plan.role != "produce" and session is None:
            self.subscribe()

    @property
    def now(self) -> float:
        """The time on this host's clock."""
        return self.world.now + self._clock

    @property
    def is_asleep(self) -> bool:
        """Whether the host is suspended."""
        return self.world.now < self._wakes_at

    def subscribe(self) -> None:
        """Observe everything, as planned."""
        plan = self.plan
        self.session.subscribe(
            "*", self.now, documents=plan.documents, presence=plan.presence, min_interval_ms=plan.min_interval_ms
        )

    def ask_again(self) -> None:
        """Unsubscribe and subscribe anew."""
        if self.plan.role == "produce" or self.session.state is ClientState.CLOSED:
            return
        for subscription in list(self.session.subscriptions):
            self.session.unsubscribe(subscription, self.now)
        self.subscribe()
        self.pump()

    # Connections.

    def connect(self, _: object = None) -> None:
        """Open a connection, if the session wants one."""
        if not self.is_alive or self.link is not None or self.session.state is not ClientState.DETACHED:
            return
        if self.is_asleep:
            self.world.at(self._wakes_at, self.connect)
            return
        if self.open_link() is None:
            self.world.at(self.world.now + self._policy.failed(), self.connect)
            return
        self.session.connected(self.now)
        self.pump()

    def receive(self, link: Link, message: bytes) -> None:
        """Take one message."""
        if link is not self.link:
            return
        try:
            self.session.receive(message, self.now)
        except RemoteProtocolError as error:
            self._fail(error)

    def read_done(self, link: Link) -> None:
        """Send what is due after a read."""
        if link is self.link:
            self.pump()

    def disconnected(self, link: Link, code: int | None) -> None:
        """The connection is over."""
        if link is not self.link or not self.is_alive:
            return
        self.link = None
        self.session.disconnected(self.now, code)
        self._hear()
        delay_s = self._policy.lost(code, self.now, retry_ms=self._retry_ms)
        self._retry_ms = None
        if delay_s is not None:
            self.world.at(self.world.now + delay_s, self.connect)
        self._set_timer()

    def _fail(self, error: RemoteProtocolError) -> None:
        """The server broke a rule, or is silent: drop the connection."""
        link = self.link
        assert link is not None
        self.world.say("fails", self.name, str(error))
        link.client_leaves(None)
        code = CloseCode.CONFLICT if error.close_code == CloseCode.CONFLICT else None
        self.disconnected(link, code)

    def pump(self) -> None:
        """Send what is to be sent, take events, set the timer."""
        if self.is_asleep or not self.is_alive:
            return
        try:
            frames = self.session.data_to_send(self.now)
        except RemoteProtocolError as error:
            self._fail(error)
            return
        self._hear()
        link = self.link
        if link is not None:
            for frame in frames:
                link.up.send(frame)
        self._set_timer()

    def _hear(self) -> None:
        while (event := self.session.next_event()) is not None:
            if isinstance(event, Welcomed):
                self._policy.welcomed()
            elif isinstance(event, Draining):
                self._retry_ms = event.retry_ms
            self.told(event)

    def told(self, event: object) -> None:
        """The session tells its application something."""

    def _set_timer(self) -> None:
        due = self.session.next_timeout()
        if due is None:
            return
        at = max(self.world.now, due - self._clock)
        if at < self._timer_due:
            self._timer_due = at
            self.world.at(at, self._timeout, at)

    def _timeout(self, at: float) -> None:
        if at != self._timer_due:
            return  # An earlier one took its place.
        self._timer_due = float("inf")
        if not self.is_alive:
            return
        if self.is_asleep:
            return
        due = self.session.next_timeout()
        if due is None:
            return
        now = self.now
        if now < due - 1e-9:
            self._set_timer()
            return
        try:
            self.session.handle_timeout(max(now, due))
        except RemoteProtocolError as error:
            if self.link is not None:
                self._fail(error)
            return
        self.pump()

    # What befalls it.

    def sleep(self, seconds: float) -> None:
        """Suspend the host: no timer fires, and what comes waits."""
        self._wakes_at = self.world.now + seconds
        if self.link is not None:
            self.link.stall()
        self.world.at(self._wakes_at, self.wake)

    def wake(self, _: object = None) -> None:
        """Go on."""
        if self.world.now >= self._wakes_at and self.is_alive:
            if self.link is not None:
                self.link.resume_reading()
            self._timer_due = self.world.now
            self._timeout(self.world.now)
            self.connect()

    def heal(self) -> None:
        """Whatever holds it up ends."""
        if self.is_asleep:
            self._wakes_at = self.world.now
        super().heal()
        self.wake()

    def die(self, dice: Dice) -> None:
        """The process is killed."""
        self.is_alive = False
        link, self.link = self.link, None
        self.session.close()
        if link is not None:
            link.client_leaves(dice)

    @property
    def is_settled(self) -> bool:
        """Whether nothing of it waits or is under way."""
        session = self.session
        if not self.is_alive or session.state is ClientState.CLOSED:
            return True
        return session.state is ClientState.ESTABLISHED and session.is_settled


class Editor(Client):
    """A client that pushes: it types into a model of the text that is as plain as can be."""

    def __init__(self, world: World, plan: ActorPlan, session: ClientSession | None = None) -> None:
        super().__init__(world, plan, session)
        self.documents: list[ClientDocument] = []
        self.texts: dict[int, str] = {}
        self.designs: list[DesignOpen] = []
        self.present: dict[Key, SupersedableEvent] = {}
        """The last value of every key, as it is to be seen in the end."""
        self._opened = 0

    def told(self, event: object) -> None:
        """Forget what the server refuses to keep."""
        if isinstance(event, DocumentRefusal):
            self._forget_states(event.alias)
        elif isinstance(event, SessionEnd):
            self.documents.clear()
            self.present.clear()

    def act(self, do: str, dice: Dice) -> None:
        """Do one thing that editors do."""
        if self.session.state is ClientState.CLOSED or not self.is_alive or self.is_asleep:
            return
        if do == "edits":
            for _ in range(dice.between(2, 12)):
                self._edit(dice)
        elif do == "design":
            self._design(dice)
        elif do == "secret":
            self._open_secret(dice)
        elif do == "open" or not self.documents:
            self._open(dice)
        else:
            getattr(self, f"_{do}")(dice)
        self.pump()

    def _document(self, dice: Dice) -> ClientDocument | None:
        return dice.pick(self.documents) if self.documents else None

    def _note(self, document: ClientDocument, text: str) -> None:
        text = without_surrogates(text)
        self.texts[document.alias] = text
        self.world.watch.typed(document.metadata.uri, document.version, text)

    def _open(self, dice: Dice) -> None:
        if len(self.documents) >= _DOCUMENTS_MAX:
            return
        text = "".join(dice.pick(_PIECES) for _ in range(dice.pick((0, 3, 12))))
        name = self._opened
        self._opened += 1
        uri = f"file:///{self.name}{'' if not name else f'/{name}'}/{name % 2}.py"
        document = self.session.open(uri, text, self.now, language="python")
        self.documents.append(document)
        self._note(document, text)

    def _open_secret(self, dice: Dice) -> None:
        self._opened += 1
        uri = f"file:///{self.name}/{self._opened}/.env"
        document = self.session.open(uri, SECRET, self.now)
        if dice.happens(0.5):
            self.session.edit(document.alias, [Change(0, 0, 0, 0, SECRET)], self.now)
        if dice.happens(0.5):
            self.session.close_document(document.alias, self.now)

    def _edit(self, dice: Dice) -> None:
        document = self._document(dice)
        if document is None:
            return
        text = self.texts[document.alias]
        unit = self.plan.unit
        count = dice.pick((1, 1, 1, 2, 3))
        if count > 1 and dice.happens(0.5):
            text = self._edit_at_once(document, text, count, dice)
        else:
            changes = []
            for _ in range(count):
                points = positions_of(text, unit)
                start, stop = sorted((dice.below(len(points)), dice.below(len(points))))
                if len(text) < _TEXT_MAX and dice.happens(0.6):
                    stop = start
                piece = dice.pick(_PIECES)
                (at, start_point), (end, stop_point) = points[start], points[stop]
                changes.append(Change(*start_point, *stop_point, piece))
                text = without_surrogates(text[:at] + piece + text[end:])
            self.session.edit(document.alias, changes, self.now)
        self._note(document, text)
        if dice.happens(0.5):
            self._point_in(document, dice)

    def _edit_at_once(self, document: ClientDocument, text: str, count: int, dice: Dice) -> str:
        points = positions_of(text, self.plan.unit)
        cuts = sorted(dice.below(len(points)) for _ in range(2 * count))
        changes, result, end = [], "", 0
        for start, stop in zip(cuts[::2], cuts[1::2], strict=True):
            if changes and points[start][0] <= end:
                continue
            piece = dice.pick(_PIECES)
            changes.append(Change(*points[start][1], *points[stop][1], piece))
            result += text[end : points[start][0]] + piece
            end = points[stop][0]
        result += text[end:]
        self.session.edit(document.alias, changes, self.now, mode="sim")
        return result

    def _put(self, event: SupersedableEvent) -> None:
        self.present[key_of(event)] = event
        self.session.put(event, self.now)

    def _point(self, dice: Dice) -> None:
        document = self._document(dice)
        if document is not None:
            self._point_in(document, dice)

    def _point_in(self, document: ClientDocument, dice: Dice) -> None:
        alias, version = document.alias, document.version
        points = positions_of(self.texts[alias], self.plan.unit)
        view = dice.pick(("", "", "2"))
        kind = dice.below(5)
        here, there = dice.pick(points)[1], dice.pick(points)[1]
        if kind < 3:
            self._put(Cursor(document=alias, version=version, position=here, view=view))
        elif kind == 3:
            start, stop = sorted((here, there))
            self._put(Selection(document=alias, version=version, ranges=((*start, *stop),), view=view))
        else:
            self._put(Focus(document=alias, view=view))

    def _state(self, dice: Dice) -> None:
        document = self._document(dice)
        if document is None:
            return
        alias, version = document.alias, document.version
        kind = dice.below(3)
        if kind == 0:
            self._put(State(document=alias, dirty=dice.happens(0.5)))
        elif kind == 1:
            lines = positions_of(self.texts[alias], self.plan.unit)[-1][1][0] + 1
            self._put(Viewport(document=alias, version=version, first_line=0, last_line=dice.below(lines)))
        else:
            item = Diagnostic(range=(0, 0, 0, 0), severity=1, message=str(dice.below(100)))
            self._put(Diagnostics(document=alias, version=version, items=(item,)))

    def _save(self, dice: Dice) -> None:
        document = self._document(dice)
        if document is not None:
            self.session.save(document.alias, self.now)

    def save_all(self) -> None:
        """Save every document."""
        if self.is_alive and self.session.state is not ClientState.CLOSED:
            for document in self.documents:
                self.session.save(document.alias, self.now)
            self.pump()

    def _mention(self, dice: Dice) -> None:
        document = self._document(dice)
        if document is None:
            return
        try:
            self.session.mention(
                Mention(document=document.alias, version=document.version, range=(0, 0, 0, 0), text="look"), self.now
            )
        except LocalProtocolError:
            pass  # Too much waits already.

    def _close(self, dice: Dice) -> None:
        if len(self.documents) < 2:
            return
        document = self.documents.pop(dice.below(len(self.documents)))
        self.session.close_document(document.alias, self.now)
        self._forget_states(document.alias)

    def _forget_states(self, alias: int) -> None:
        for key in [key for key, event in self.present.items() if alias in (key[1], event.document)]:
            del self.present[key]

    def _reload(self, dice: Dice) -> None:
        document = self._document(dice)
        if document is not None:
            text = "".join(dice.pick(_PIECES) for _ in range(dice.pick((0, 5, 20))))
            self.session.replace_text(document.alias, text, self.now, version=document.version + dice.between(1, 9))
            self._note(document, text)

    def _paste(self, dice: Dice) -> None:
        """Make a text that goes in parts under small limits, and take most of it away later."""
        document = self._document(dice)
        if document is None:
            return
        text = self.texts[document.alias]
        if len(text) > 2 * _TEXT_MAX:
            text = text[:10].rstrip("\r")
        else:
            text += "".join(dice.pick(("line\n", "é😀\r\n", "0123456789 ")) for _ in range(dice.pick((40, 400))))
        self.session.replace_text(document.alias, text, self.now)
        self._note(document, text)

    def _design(self, dice: Dice) -> None:
        if not self.designs or dice.happens(0.3):
            if len(self.designs) < 2:
                tool = DesignTool(name="sim")
                uri = f"figma:///{self.name}/{len(self.designs)}"
                self.designs.append(
                    self.session.open_design(
                        DesignOpen(document=1, uri=uri, tool=tool, file_name="f", pages=()), self.now
                    )
                )
            return
        design = dice.pick(self.designs)
        if dice.happens(0.2):
            self.designs.remove(design)
            self.session.close_design(DesignClose(document=design.document), self.now)
            self._forget_states(design.document)
        else:
            self._put(DesignSelection(document=design.document, page="1", nodes=(), total=dice.below(9)))

    # What befalls it.

    def twin(self, name: str) -> Editor:
        """Another process starts from a copy of this one's state, and types on."""
        session = copy.deepcopy(self.session)
        watch = self.world.watch
        watch.forked(self.session, session)
        plan = ActorPlan(**{**{f: getattr(self.plan, f) for f in ActorPlan.__struct_fields__}, "name": name})
        other = Editor(self.world, plan, session)
        if session.state is not ClientState.DETACHED:
            session.disconnected(self.now, None)
        other._clock = self._clock
        other.documents = [session.documents[d.alias] for d in self.documents if d.alias in session.documents]
        other.texts = dict(self.texts)
        other.designs = list(self.designs)
        other.present = dict(self.present)
        other._opened = self._opened + 1000
        return other

    def reborn(self, name: str) -> Editor:
        """The editor is started again after it died, without its state; it opens what it had."""
        plan = ActorPlan(**{**{f: getattr(self.plan, f) for f in ActorPlan.__struct_fields__}, "name": name})
        other = Editor(self.world, plan)
        for document in self.documents[:2]:
            copy_ = other.session.open(f"{document.metadata.uri}'{name}/0.py", self.texts[document.alias], other.now)
            other.documents.append(copy_)
            other._note(copy_, self.texts[document.alias])
        other._opened = 1
        return other


class Rogue(Actor):
    """A peer that speaks the protocol badly on purpose. It hurts nobody but itself."""

    def __init__(self, world: World, plan: ActorPlan) -> None:
        super().__init__(world, plan)
        self._next = 1
        self._attempt = 0

    def act(self, dice: Dice) -> None:
        """Do one thing that must not be done, or one that may."""
        if self.link is None or dice.happens(0.1):
            if self.link is not None:
                self.link.client_leaves(dice)
            if self.open_link() is None:
                return
            self._hello(dice)
            return
        for _ in range(dice.pick((1, 1, 5, 40))):
            self._misbehave(dice)
            if self.link is None:
                return

    def _send(self, message: Message, sequence: int = 0, *, handshake: bool = False, dice: Dice | None = None) -> None:
        encoding = self.plan.encoding
        digest = crc32_digest if handshake else DIGESTS[self.plan.digest]
        frame = pack_frame(encode_body(message, encoding), encoding=encoding, digest=digest, sequence=sequence)
        if dice is not None:
            damaged = bytearray(frame)
            damaged[dice.below(16)] ^= 1
            frame = bytes(damaged)
        if self.link is not None:
            self.link.up.send(frame)

    def _hello(self, dice: Dice) -> None:
        self._attempt += 1
        self._next = 1
        resume = None
        if dice.happens(0.5):
            # Somebody else's session, with the secret that a thief of its state file has, or a guess.
            victim = next(iter(self.world.watch.actors))
            if victim.session_id is not None and victim._epoch is not None:  # noqa: SLF001
                secret = victim._secret if self.plan.principal != "ann" and dice.happens(0.5) else "guess"  # noqa: SLF001
                resume = Resume(
                    session=victim.session_id, secret=secret or "x", epoch=victim._epoch, expects=1, next=1  # noqa: SLF001
                )
        token = self.plan.principal if dice.happens(0.9) else "nobody"
        hello = Hello(
            attempt=self._attempt + 1000,
            client=ClientInfo(name="rogue"),
            digests=(self.plan.digest,),
            units=(self.plan.unit,),
            hash=self.plan.hash,
            auth=token,
            resume=resume,
        )
        self._send(hello, handshake=True)

    def _misbehave(self, dice: Dice) -> None:
        kind = dice.below(14)
        if kind < 5:
            self._send(self._event(dice), self._next)
            self._next += 1
        elif kind == 5:
            self._send(self._event(dice), self._next + dice.pick((1, 3, 2000, INTEGER_MAX - self._next)))
        elif kind == 6:
            self._send(self._event(dice), max(1, self._next - dice.between(1, 3)))
        elif kind == 7:
            self._send(self._event(dice), self._next, dice=dice)
        elif kind == 8:
            n = dice.pick((1, 5, 10**6, INTEGER_MAX))
            self._send(Ack(received=n, applied=n, durable=dice.pick((1, n)), limit=n))
        elif kind == 9:
            start = dice.pick((1, 5, 10**6))
            self._send(Nack(ranges=((start, start + dice.pick((1, 100, 10**7))),)))
        elif kind == 10:
            start = dice.pick((1, self._next, 10**6))
            self._send(Skip(ranges=((start, start + dice.between(1, 5)),), reason="evicted"))
        elif kind == 11:
            n = dice.pick((1, self._next, self._next + 5, INTEGER_MAX))
            self._send(Heartbeat(next=n, received=1, applied=1, durable=1, limit=n))
        elif kind == 12 and self.link is not None:
            junk = bytes(dice.below(256) for _ in range(dice.pick((0, 1, 30, 300))))
            self.link.up.send(junk if self.plan.encoding is Encoding.MSGPACK else junk.hex().encode())
        else:
            self._hello(dice)

    def _event(self, dice: Dice) -> Message:
        alias = dice.between(1, 3)
        kind = dice.below(8)
        if kind < 2:
            return Open(document=alias, uri=f"file:///rogue/{alias}.py", version=0, length=1, hash="xxh3-64:0", text="x")
        if kind == 2:
            return Edit(document=alias, base=0, version=1, changes=(Change(0, 9, 0, 9, "y"),))
        if kind == 3:
            return Close(document=alias)
        if kind == 4:
            return Cursor(document=alias, version=dice.below(3), position=(dice.below(3), 0))
        if kind == 5:
            return Subscribe(subscription=alias, session=dice.pick(("*", "1-1", "no such session")))
        if kind == 6:
            return Mention(document=alias, version=0, range=(0, 0, 0, 0))
        return Focus(document=alias)

