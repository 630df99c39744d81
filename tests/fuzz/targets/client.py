"""The client's side: an application at work, and a server that says whatever it likes.

The session raises only what it declares, keeps its bounds, comes to rest, and once an honest server answers,
that one has the texts of all documents that were not refused.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

import msgspec

from streamctx.client.valid import valid
from streamctx.core.session.client_session import ClientSession, ClientSettings
from streamctx.core.session.state import ClientState
from streamctx.errors import EventRefused, LocalProtocolError, RemoteProtocolError
from streamctx.hub.ports import Principal
from streamctx.vocabulary import DigestAlgorithm, Encoding, HashAlgorithm, Unit
from streamctx.wire.capabilities import negotiated_limits
from streamctx.wire.changes import Change
from streamctx.wire.codec import Malformed, UnknownType, client_decoder, encode_body
from streamctx.wire.digests import DIGESTS, Digest, crc32_digest
from streamctx.wire.frames import pack_frame, parse_frame
from streamctx.wire.messages import (
    CLIENT_MESSAGES,
    SERVER_MESSAGES,
    SUPERSEDABLE_TYPES,
    UNNUMBERED_TYPES,
    ClientInfo,
    DesignClose,
    DesignOpen,
    ErrorMessage,
    Heartbeat,
    Hello,
    Mention,
    Message,
    Nack,
    NegotiatedLimits,
    ServerInfo,
    Skip,
    SnapshotRequest,
    Sync,
    Synced,
    Update,
    Welcome,
)
from tests.fuzz.bounds import check_delivery
from tests.fuzz.drawing import Hints, draw
from tests.fuzz.program import Program, Violation
from tests.fuzz.world import ROOMY, TIGHT, Client, World, watched_log

__all__ = ["fuzz"]

OWNER = Principal("owner", frozenset({"produce", "observe"}))

_STEPS_MAX = 200
_TURNS_MAX = 200
_KEPT_FRAMES = 24
_CONVERGE_S = 60
_NUMBERED = tuple(kind for kind in SERVER_MESSAGES if kind not in UNNUMBERED_TYPES)
_EVERY_MESSAGE = tuple(dict.fromkeys((*SERVER_MESSAGES, *CLIENT_MESSAGES)))
_ERROR_CODES = (
    *("unknown_document", "excluded", "too_large", "limit", "unverifiable", "hash_mismatch", "bad_position"),
    *("not_found", "superseded", "conflict", "unauthorized", "internal", "draining", "slow", "no_such_code"),
)
_OF_OURS: Hints = {"document": lambda program: 1 + program.below(4)}


def fuzz(data: bytes) -> None:
    """Run one program."""
    with watched_log():
        play = _Play(Program(data))
        play.run()
        play.converge()


class _Play:
    """A client's session, its application, and the other end of its connection."""

    def __init__(self, program: Program) -> None:
        self.program = program
        mode = program.byte()
        self.limits = TIGHT if mode & 1 else ROOMY
        self.settings = ClientSettings(
            client=ClientInfo(name="c"),
            encoding=Encoding.JSON if mode & 2 else Encoding.MSGPACK,
            unit=program.choose(tuple(Unit)),
            hash=program.choose(tuple(HashAlgorithm)),
            digest=program.choose(tuple(DigestAlgorithm)),
            role=program.choose(("both", "both", "both", "produce", "observe")),
            token="owner",
            limits=self.limits,
        )
        self.session = ClientSession(self.settings, jitter=lambda: 0.5)
        self.now = 0.0
        self.digest: Digest = crc32_digest
        self.is_connected = False
        self.attempt = 1
        self.next = 1
        self.offset = 0
        self.welcome: Welcome | None = None
        self.sent: deque[bytes] = deque(maxlen=_KEPT_FRAMES)
        self.hints: Hints = {
            "document": lambda program: (
                1 + program.below(4) if program.byte() < 240 else program.number() or None
            ),
            "session": lambda program: program.choose(("s1", "s2", "")),
            "subscription": lambda program: 1 + program.below(3),
            "code": lambda program: program.choose(_ERROR_CODES),
            "hash": lambda program: program.choose(("xxh3-64:0", "sha-256:0", "md5:0", "")),
            "from_": lambda program: max(0, program.near(self.offset)),
            "to": lambda program: max(0, program.near(self.offset)),
            "offset": lambda program: max(0, program.near(self.offset)),
            "received": lambda program: max(1, program.near(self.session.next_sequence)),
            "applied": lambda program: max(1, program.near(self.session.next_sequence)),
            "durable": lambda program: max(1, program.near(self.session.next_sequence)),
            "limit": lambda program: max(1, program.near(self.session.next_sequence + 64)),
            "next": lambda program: max(1, program.near(self.next)),
            "ranges": self._ranges,
        }

    def _ranges(self, program: Program) -> tuple[tuple[int, int], ...]:
        return tuple(
            (
                start := program.near(program.choose((self.next, self.session.next_sequence))),
                start + program.below(9),
            )
            for _ in range(1 + program.below(4))
        )

    def run(self) -> None:
        for _ in range(_STEPS_MAX):
            if self.program.is_over or self.session.state is ClientState.CLOSED:
                break
            if self.session.state is ClientState.DETACHED:
                self._connect()
                if not self.program.rarely():
                    self._greet()
            _ACTS[self.program.byte() % len(_ACTS)](self)
            self._turn()
            self._check()

    # Acts of the server.

    def _greet(self) -> None:
        self._give(self._pack(self._welcome_message()))

    def _welcome_message(self) -> Welcome:
        """One that fits what the client wants, but for what the program changes."""
        program, session = self.program, self.session
        kind = program.byte()
        before = self.welcome
        goes_on = before is not None and bool(kind & 1)
        welcome = Welcome(
            attempt=self.attempt,
            session=before.session if goes_on and before else program.choose(("s1", "s2")),
            secret=program.choose(("x", "y")),
            epoch=before.epoch if goes_on and before else f"e{program.byte()}",
            lease=1,
            verdict="resumed" if goes_on else "new",
            expects=max(1, program.near(session.acknowledged)) if goes_on else 1,
            next=max(1, program.near(self.next)) if goes_on else 1,
            digest=self.settings.digest,
            unit=self.settings.unit,
            hash=self.settings.hash,
            durability="full" if kind & 2 else "none",
            limits=negotiated_limits(self.limits),
            server=ServerInfo(name="s", version="1"),
        )
        if kind & 12 == 12:
            drawn = draw(program, Welcome, self.hints)
            names = Welcome.__struct_fields__
            chosen = {names[program.below(len(names))] for _ in range(1 + program.below(3))}
            welcome = msgspec.structs.replace(welcome, **{name: getattr(drawn, name) for name in chosen})
        if kind & 48 == 48:
            limits = NegotiatedLimits(
                **{
                    name: max(1, program.near(value)) if program.rarely(4) else value
                    for name, value in msgspec.structs.asdict(welcome.limits).items()
                }
            )
            welcome = msgspec.structs.replace(welcome, limits=limits)
        return welcome

    def _say(self) -> None:
        """The next number, and a message that has a chance to mean something."""
        program = self.program
        message = draw(program, _NUMBERED[program.below(len(_NUMBERED))], self.hints)
        self._give(self._pack(message, self.next, self._stream_of(message)))
        self.next += 1

    def _elsewhere(self) -> None:
        program = self.program
        message = draw(program, _NUMBERED[program.below(len(_NUMBERED))], self.hints)
        sequence = max(0, program.near(self.next + program.below(9)))
        self._give(self._pack(message, sequence, self._stream_of(message)))
        if self.next < sequence < self.next + 64 and program.flag():
            self.next = sequence + 1

    def _feed(self) -> None:
        """A state as it should be: sync, some events, synced."""
        program = self.program
        subscription = 1 + program.below(2)
        session = program.choose(("s1", "s2"))
        self.offset = program.below(8)
        sync = draw(
            program, Sync, {**self.hints, "offset": lambda _: self.offset, "session": lambda _: session}
        )
        messages: list[Message] = [sync]
        for _ in range(program.below(4)):
            update = draw(program, Update, {**self.hints, "session": lambda _: session})
            start, self.offset = self.offset, self.offset + len(update.events)
            messages.append(msgspec.structs.replace(update, from_=start, to=self.offset))
        messages.append(Synced(session=session, offset=self.offset))
        for message in messages:
            self._give(self._pack(message, self.next, subscription))
            self.next += 1

    def _error(self) -> None:
        """An ERROR about a document, a subscription, or the session."""
        program = self.program
        error = draw(program, ErrorMessage, {**self.hints, "reference": lambda program: program.number()})
        is_numbered = not program.rarely(4)
        self._give(self._pack(error, self.next if is_numbered else 0))
        self.next += is_numbered

    def _request(self) -> None:
        program = self.program
        message = SnapshotRequest(
            document=1 + program.below(4),
            reason=program.choose(("refused", "mismatch", "lost")),
            version=program.number(),
        )
        self._give(self._pack(message, self.next))
        self.next += 1

    def _control(self) -> None:
        """Acknowledge all that came."""
        mark = self.session.next_sequence
        self._give(
            self._pack(
                Heartbeat(next=self.next, received=mark, applied=mark, durable=mark, limit=mark + 1024)
            )
        )

    def _odd_control(self) -> None:
        program = self.program
        kind = program.choose(tuple(kind for kind in SERVER_MESSAGES if kind in UNNUMBERED_TYPES))
        if kind in (Nack, Skip) and program.flag():
            kind = Nack
        self._give(self._pack(draw(program, kind, self.hints)))

    def _any_message(self) -> None:
        program = self.program
        message = draw(program, program.choose(_EVERY_MESSAGE), self.hints)
        self._give(self._pack(message, program.near(self.next) if program.flag() else 0, program.number()))

    def _blob(self) -> None:
        program = self.program
        blob = program.blob(100)
        if program.flag():
            self._give(blob)
            return
        if self.settings.encoding is Encoding.JSON:
            blob = b"{" + blob
        sequence = max(0, program.near(self.next))
        self._give(
            pack_frame(blob, encoding=self.settings.encoding, digest=self._in_force(), sequence=sequence)
        )
        self.next += sequence == self.next

    def _corrupt(self) -> None:
        program = self.program
        count = 1 + (program.byte() % 40 if program.rarely(4) else 0)
        before = self.session.counters.received
        for _ in range(count):
            frame = bytearray(self._pack(draw(program, program.choose(_NUMBERED), self.hints), self.next))
            frame[program.below(8)] ^= 1
            self._give(bytes(frame))
        if self.session.counters.received != before:
            raise Violation("a corrupt frame was taken")

    def _again(self) -> None:
        if self.sent:
            self._give(self.sent[self.program.below(len(self.sent))])

    def _contradict(self) -> None:
        sequence = max(1, self.next - 1 - self.program.below(6))
        self._give(self._pack(draw(self.program, self.program.choose(_NUMBERED), self.hints), sequence))

    def _hang_up(self) -> None:
        self._disconnect(self.program.choose((None, 1000, 1001, 1006, 4009, 4100, 4102, 4111, 4200)))
        if self.program.rarely() and self.session.state is ClientState.DETACHED:
            self._connect()
            self._disconnect(self.program.choose((None, 1008, 4003, 4010)))

    # Acts of the application.

    def _open(self) -> None:
        program = self.program
        text = program.text(30) * program.choose((1, 1, 1, 20))
        if program.rarely():
            text += "\ud800"
        eol = program.choose((None, None, "lf"))
        self._try(lambda: self.session.open(f"file:///{program.text(3)}", text, self.now, eol=eol))  # type: ignore[arg-type]

    def _edit(self) -> None:
        program = self.program
        document = self.session.documents.get(self._alias())
        if document is None:
            return
        lines = document.buffer.line_count
        changes = []
        for _ in range(1 + program.below(4) if program.byte() < 240 else 0):
            line = program.below(lines + 1)
            start = program.below(4)
            changes.append(Change(line, start, line, start + program.below(3), program.text(6)))
        mode = program.choose(("seq", "sim"))
        before = document.buffer.text(), document.version
        try:
            self.session.edit(document.alias, changes, self.now, mode=mode)  # type: ignore[arg-type]
        except (LocalProtocolError, EventRefused):
            if before != (document.buffer.text(), document.version):
                raise Violation("a refused edit was made") from None

    def _type(self) -> None:
        """Many edits, so that what waits reaches its bound."""
        alias = self._alias()
        text = self.program.text(8)
        for _ in range(self.program.below(60)):
            self._try(lambda: self.session.edit(alias, [Change(0, 0, 0, 0, text)], self.now))

    def _replace(self) -> None:
        alias, text = self._alias(), self.program.text(30)
        self._try(lambda: self.session.replace_text(alias, text, self.now))

    def _put(self) -> None:
        program = self.program
        event = draw(program, program.choose(SUPERSEDABLE_TYPES), _OF_OURS)
        self._try(lambda: self.session.put(valid(event), self.now))  # type: ignore[arg-type]

    def _save(self) -> None:
        alias = self._alias()
        self._try(lambda: self.session.save(alias, self.now))

    def _mention(self) -> None:
        mention = draw(self.program, Mention, _OF_OURS)
        self._try(lambda: self.session.mention(valid(mention), self.now))

    def _close(self) -> None:
        alias = self._alias()
        self._try(lambda: self.session.close_document(alias, self.now))

    def _design(self) -> None:
        program = self.program
        if program.flag():
            design = draw(program, DesignOpen, _OF_OURS)
            self._try(lambda: self.session.open_design(valid(design), self.now))
        else:
            close = DesignClose(document=self._alias())
            self._try(lambda: self.session.close_design(close, self.now))

    def _subscribe(self) -> None:
        program = self.program
        if program.rarely(4):
            self.session.unsubscribe(1 + program.below(3), self.now)
        elif len(self.session.subscriptions) < 3:
            self._try(lambda: self.session.subscribe(program.choose(("*", "s1", "s2")), self.now))

    def _wait(self) -> None:
        self.now += self.program.choose((0.001, 0.03, 0.3, 1.0, 5.1, 10.5, 16.0, 46.0))

    def _alias(self) -> int:
        return 1 + self.program.below(5)

    @staticmethod
    def _try(call: Callable[[], object]) -> None:
        with contextlib.suppress(LocalProtocolError, EventRefused):
            call()

    # The shell between the two.

    def _connect(self) -> None:
        self.session.connected(self.now)
        self.is_connected = True
        self._flush()

    def _disconnect(self, code: int | None) -> None:
        if self.is_connected:
            self.is_connected = False
            self.session.disconnected(self.now, code)
            self._drain_events()

    def _in_force(self) -> Digest:
        return self.digest if self.session.state is ClientState.ESTABLISHED else crc32_digest

    def _pack(self, message: Message, sequence: int = 0, stream: int = 0) -> bytes:
        return pack_frame(
            encode_body(message, self.settings.encoding),
            encoding=self.settings.encoding,
            digest=crc32_digest if isinstance(message, Welcome) else self._in_force(),
            sequence=max(0, min(sequence, 2**64 - 1)),
            stream=max(0, min(stream, 2**32 - 1)),
        )

    @staticmethod
    def _stream_of(message: Message) -> int:
        return 1 if isinstance(message, Sync | Synced | Update) else 0

    def _give(self, data: bytes) -> None:
        if not self.is_connected:
            return
        self.sent.append(data)
        was_greeting = self.session.state is ClientState.GREETING
        try:
            self.session.receive(data, self.now)
        except RemoteProtocolError as error:
            self._disconnect(error.close_code)
            return
        if was_greeting and self.session.state is ClientState.ESTABLISHED:
            frame = parse_frame(data, encoding=self.settings.encoding, digest=crc32_digest)
            assert frame is not None
            welcome = msgspec.msgpack if self.settings.encoding is Encoding.MSGPACK else msgspec.json
            taken = welcome.decode(frame.body, type=Welcome)
            if self.welcome is None or (taken.session, taken.epoch) != (
                self.welcome.session,
                self.welcome.epoch,
            ):
                self.next = 1
            self.welcome = taken
            self.digest = DIGESTS[DigestAlgorithm(taken.digest)]
        self._drain_events()

    def _turn(self) -> None:
        """Do what is due and send, until there is nothing to do now."""
        for _ in range(_TURNS_MAX):
            due = self.session.next_timeout()
            is_due = due is not None and due <= self.now
            try:
                if is_due:
                    self.session.handle_timeout(self.now)
            except RemoteProtocolError as error:
                self._disconnect(error.close_code)
            if not self._flush() and not is_due:
                return
        raise Violation(f"the session does not come to rest within {_TURNS_MAX} turns of one instant")

    def _flush(self) -> bool:
        try:
            frames = self.session.data_to_send(self.now)
        except RemoteProtocolError as error:
            self._disconnect(error.close_code)
            return False
        for frame in frames:
            self._read(frame)
        self._drain_events()
        return bool(frames)

    def _read(self, data: bytes) -> None:
        """Check what the client sends: it is honest."""
        frame = parse_frame(data, encoding=self.settings.encoding, digest=self.digest) or parse_frame(
            data, encoding=self.settings.encoding, digest=crc32_digest
        )
        if frame is None:
            raise Violation("a corrupt frame was sent")
        message = client_decoder(self.settings.encoding).decode(frame.body)
        if isinstance(message, Malformed | UnknownType):
            raise Violation(f"what was sent cannot be read: {message}")
        limit = self.limits.frame_bytes_max
        if isinstance(message, Hello):
            self.attempt = message.attempt
            # It repeats the server's names, which may be long for so small a limit.
            limit = ROOMY.before_welcome_bytes_max
        if len(data) > limit:
            raise Violation(f"a {type(message).__name__} of {len(data)} bytes was sent, limit {limit}")
        if (type(message) in UNNUMBERED_TYPES) is not (frame.sequence == 0):
            raise Violation(f"a {type(message).__name__} was sent with the number {frame.sequence}")

    def _drain_events(self) -> None:
        while self.session.next_event() is not None:
            pass

    # What must hold.

    def _check(self) -> None:
        session, outgoing = self.session, self.session._outgoing
        limits = outgoing.limits
        delivery = outgoing.delivery
        if delivery is not None:
            check_delivery(
                delivery, limits, ring_events_max=limits.ring_events_max, ring_bytes_max=limits.ring_bytes_max
            )
        outbox = outgoing.outbox
        waiting = list(outbox.every())
        if outbox.events != len(waiting) or outbox.bytes != sum(queued.weight for queued in waiting):
            raise Violation(
                f"the outbox counts {outbox.events} events of {outbox.bytes} bytes, not what waits"
            )
        if len(session.documents) + len(session.designs) > self.limits.documents_per_session_max:
            raise Violation("too many documents")
        if len(session._events):
            raise Violation("events were left")
        if not outbox.snapshots_due.keys() <= session.documents.keys():
            raise Violation("a snapshot is due of a document that is not open")

    def converge(self) -> None:
        """From now on the server is ours."""
        session = self.session
        self._disconnect(None)
        if session.state is ClientState.CLOSED:
            return
        world = World(self.limits, {"owner": OWNER})
        world.now = self.now
        client = Client(world, self.settings, session)
        for _ in range(_CONVERGE_S):
            if client.line is None:
                if client.has_ended:
                    raise Violation("the session ended with an honest server")
                client.connect()
            world.settle()
            world.advance(1.0)
            if client.is_settled and not session._unanswered and client.line is not None:
                break
        else:
            raise Violation(f"the session is not settled after {_CONVERGE_S} s with an honest server")
        for document in session.documents.values():
            if document.refused is not None:
                continue
            assert session.session_id is not None
            view = world.hub.document(OWNER, session.session_id, str(document.alias))
            if view is None or view["stale"] or view["text"] != document.buffer.text():
                raise Violation(f"the server's copy of document {document.alias} is not its text")


_ACTS: tuple[Callable[[_Play], None], ...] = (
    *(_Play._say, _Play._say, _Play._say, _Play._elsewhere, _Play._feed, _Play._feed, _Play._error),
    *(_Play._error, _Play._request, _Play._control, _Play._control, _Play._odd_control, _Play._odd_control),
    *(_Play._any_message, _Play._blob, _Play._corrupt, _Play._again, _Play._contradict, _Play._hang_up),
    *(
        _Play._open,
        _Play._open,
        _Play._edit,
        _Play._edit,
        _Play._edit,
        _Play._type,
        _Play._replace,
        _Play._put,
    ),
    *(_Play._put, _Play._save, _Play._mention, _Play._close, _Play._design, _Play._subscribe, _Play._wait),
    *(_Play._wait, _Play._greet),
)
"""What a byte of the program stands for; twice what is to come twice as often."""
