"""The server's side: a program of hostile connections to a hub on which somebody else works.

Whatever they do, nothing undeclared is raised or logged, every close follows its ERROR, all bounds hold, and
the sessions of another principal neither notice nor stop working.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from streamctx.core.documents.text_digest import text_hash
from streamctx.core.documents.units import length_in
from streamctx.core.session.client_session import ClientSettings
from streamctx.core.session.server_session import ServerSession
from streamctx.hub.ports import Principal
from streamctx.vocabulary import DigestAlgorithm, Encoding, HashAlgorithm, Unit
from streamctx.wire.changes import Change
from streamctx.wire.codec import encode_body
from streamctx.wire.digests import DIGEST_BYTES
from streamctx.wire.frames import pack_frame
from streamctx.wire.messages import (
    CLIENT_MESSAGES,
    SERVER_MESSAGES,
    UNNUMBERED_TYPES,
    Ack,
    ClientInfo,
    DesignClose,
    DesignOpen,
    DesignSelection,
    Edit,
    Heartbeat,
    Hello,
    Message,
    Open,
    Part,
    Resume,
    Snapshot,
    Subscribe,
    Version,
    Welcome,
)
from tests.fuzz.bounds import check_hub
from tests.fuzz.drawing import Hints, draw
from tests.fuzz.program import Program, Violation
from tests.fuzz.world import ROOMY, TIGHT, Client, LateEngine, Line, World, watched_log

__all__ = ["fuzz"]

MALLORY = Principal("mallory", frozenset({"produce", "observe"}))
TRENT = Principal("mallory", frozenset({"observe"}))
EVE = Principal("eve", frozenset({"produce", "observe"}))
ALICE = Principal("alice", frozenset({"produce", "observe"}))

_TOKENS = {"mallory": MALLORY, "trent": TRENT, "eve": EVE, "alice": ALICE}
_LINES = 3
_KEPT_FRAMES = 24
_STEPS_MAX = 160
_MANY = 1300
_NUMBERED = tuple(kind for kind in CLIENT_MESSAGES if kind not in UNNUMBERED_TYPES)
_SECRET_NAMES = ("file:///.env", "file:///id_rsa", "https://h/x?file=/.env")
_EVERY_MESSAGE = tuple(dict.fromkeys((*CLIENT_MESSAGES, *SERVER_MESSAGES)))


def fuzz(data: bytes) -> None:
    """Run one program."""
    with watched_log():
        _Play(Program(data)).run()


class _Hostile:
    """One hostile client: what it has learnt, over one connection after the other."""

    def __init__(self) -> None:
        self.line: Line | None = None
        self.resumable: list[Resume] = []
        self.attempt = 1
        self.next = 1
        self.sent: deque[tuple[bytes, int]] = deque(maxlen=_KEPT_FRAMES)
        self.is_hasty = False
        self.confirmed = 1
        self.asked: Resume | None = None
        """What the last HELLO wanted to resume."""


def _rising(program: Program) -> tuple[tuple[int, int], ...]:
    """Ranges that are not empty."""
    return tuple(
        (start := program.number(), start + 1 + program.below(12)) for _ in range(1 + program.below(3))
    )


class _Play:
    """A hub with Alice's sessions on it, and a program that three others follow."""

    def __init__(self, program: Program) -> None:
        self.program = program
        mode = program.byte()
        self.is_tight = bool(mode & 1)
        self.acts = _CALM if mode & 16 else _ACTS
        self.engine = LateEngine() if mode & 8 else None
        self.world = World(TIGHT if self.is_tight else ROOMY, _TOKENS, engine=self.engine)
        self.hostile = [_Hostile() for _ in range(_LINES)]
        self.session_ids: list[str] = ["*", "id-0"]
        self.produced = self._honest("produce", Encoding.JSON if mode & 2 else Encoding.MSGPACK)
        self.observing: Client | None = None
        if mode & 4:
            self.observing = self._honest("observe", Encoding.MSGPACK)
            self.observing.session.subscribe("*", 0.0)
        self.alice = [client.session.session_id for client in self.world.clients]
        self.document = self.produced.session.open("file:///alice.py", "one\ntwo\n", 0.0)
        self.world.settle()
        self.session_ids += [session_id for session_id in self.alice if session_id is not None]
        self.progress: dict[str, int] = {}
        self.had_many = False
        self.secrets: set[tuple[str, str]] = set()
        """Which secrets were told, and of which session."""
        self.hints: Hints = {
            "document": lambda program: (
                None
                if program.rarely(32)
                else 1 + program.below(4)
                if program.byte() < 224
                else program.number()
            ),
            "session": lambda program: program.choose(self.session_ids),
            "uri": lambda program: (
                program.choose(_SECRET_NAMES)
                if program.rarely()
                else f"file:///{program.below(5)}{program.text(2)}"
            ),
            "subscription": lambda program: 1 + program.below(5),
            "digests": lambda program: (
                program.text(2) if program.rarely(32) else program.choose(tuple(DigestAlgorithm)),
                "crc32",
            ),
            "units": lambda program: (program.choose((*Unit, "utf-7")),),
            "hash": lambda program: program.choose((*HashAlgorithm, "md5")),
            "auth": lambda program: program.choose(("mallory", "trent", "eve", "nobody", None)),
            "min_interval_ms": lambda program: program.choose((0, 0, 5, 60_000)),
            "resume": lambda program: None,
            "lost": _rising,
            "ranges": _rising,
        }

    def _honest(self, role: str, encoding: Encoding) -> Client:
        settings = ClientSettings(
            client=ClientInfo(name="alice"),
            token="alice",
            role=role,  # type: ignore[arg-type]
            encoding=encoding,
            limits=self.world.limits,
        )
        client = Client(self.world, settings)
        client.connect()
        self.world.settle()
        return client

    def run(self) -> None:
        for _ in range(_STEPS_MAX):
            if self.program.is_over:
                break
            self._step()
            for hostile in self.hostile:
                if hostile.line is not None:
                    self._listen(hostile, hostile.line)
            self._check()
        self._end()

    def _step(self) -> None:
        program = self.program
        act = self.acts[program.byte() % len(self.acts)]
        # Mostly one of them, so that its session gets somewhere.
        hostile = self.hostile[max(0, program.below(8) - 8 + _LINES)]
        if act in (_Play._connect, _Play._return) or act in _FOR_ALL:
            act(self, hostile)
            return
        if hostile.line is None or not hostile.line.is_open:
            self._connect(hostile)
            if act is not _Play._hello:
                self._hello(hostile)
                # Its numbers are those of the session that it has now.
                if hostile.line is not None:
                    self._listen(hostile, hostile.line)
                if hostile.line is None:
                    return
        act(self, hostile)
        if hostile.line is not None and not (hostile.is_hasty and program.flag()):
            hostile.line.read_done()

    def _listen(self, hostile: _Hostile, line: Line) -> None:
        """Learn from what came."""
        for _, sequence, message in line.heard:
            hostile.confirmed = max(hostile.confirmed, sequence + 1)
            if isinstance(message, Ack | Heartbeat) and message.received > hostile.next:
                hostile.next = message.received
        line.heard.clear()
        welcome = line.welcome
        if welcome is not None and not (hostile.resumable and hostile.resumable[-1].secret == welcome.secret):
            self._check_welcome(hostile, welcome)
            if not hostile.resumable or hostile.resumable[-1].session != welcome.session:
                hostile.next = hostile.confirmed = 1
                self.session_ids.append(welcome.session)
            hostile.resumable.append(
                Resume(
                    session=welcome.session,
                    secret=welcome.secret,
                    epoch=welcome.epoch,
                    expects=welcome.next,
                    next=welcome.expects,
                )
            )
        line.reap()
        if not line.is_open:
            hostile.line = None

    # Acts: connections.

    def _connect(self, hostile: _Hostile) -> None:
        if hostile.line is not None:
            hostile.line.drop(None)
        kind = self.program.byte()
        encoding = Encoding.JSON if kind & 1 else Encoding.MSGPACK
        principal = MALLORY if kind & 6 == 6 else None
        hostile.line = self.world.connect(encoding, principal)
        hostile.sent.clear()

    def _hello(self, hostile: _Hostile) -> None:
        """Greet as one should, but for what the program changes."""
        program = self.program
        kind = program.byte()
        hello = Hello(
            attempt=hostile.attempt, client=ClientInfo(name="m"), digests=("xxh3-64",), auth="mallory"
        )
        if kind & 3 == 3:
            hello = draw(program, Hello, self.hints)
            if hello.attempt > 2**40 or program.flag():
                hello = msgspec.structs.replace(hello, attempt=hostile.attempt, client=ClientInfo(name="m"))
        if kind & 4:
            hello = msgspec.structs.replace(
                hello, auth=program.choose(("mallory", "trent", "eve", "x", None))
            )
        if kind & 8:
            hello = msgspec.structs.replace(hello, role=program.choose(("both", "observe", "produce")))
        if kind & 16:
            hostile.attempt += 1
            hello = msgspec.structs.replace(
                hello, attempt=max(1, program.near(hostile.attempt)), resume=self._resume(hostile)
            )
        if hostile.line is not None and hostile.line.welcome is None:
            hostile.asked = hello.resume
        self._unnumbered(hostile, hello)

    def _return(self, hostile: _Hostile) -> None:
        """Connect anew and go on with the session, mostly as one should."""
        program = self.program
        encoding = None if hostile.line is None else hostile.line.encoding
        if hostile.line is not None:
            hostile.line.drop(None)
        hostile.line = self.world.connect(encoding or program.choose(tuple(Encoding)))
        hostile.attempt += 1
        hostile.asked = self._resume(hostile)
        hello = Hello(
            attempt=hostile.attempt,
            client=ClientInfo(name="m"),
            digests=("xxh3-64",),
            auth="mallory",
            resume=hostile.asked,
        )
        self._unnumbered(hostile, hello)
        hostile.line.read_done()

    def _resume(self, hostile: _Hostile) -> Resume | None:
        program = self.program
        other = self.hostile[program.below(_LINES)] if program.rarely(4) else hostile
        if not other.resumable:
            return draw(program, Resume, self.hints) if program.rarely(8) else None
        resume = other.resumable[-1 - program.below(len(other.resumable)) if program.rarely(4) else -1]
        changes: dict[str, object] = {}
        kind = program.byte()
        if kind & 7 == 7:
            changes["secret"] = program.choose(("wrong", "id-3", resume.secret + "x", resume.session))
        if kind & 56 == 56:
            changes["session"] = program.choose(self.session_ids)
        changes["expects"] = max(1, program.near(hostile.confirmed))
        changes["next"] = max(1, program.near(hostile.next))
        if kind & 64:
            start = program.number()
            changes["lost"] = ((start, start + program.below(5)),)
        if kind & 128:
            changes["documents"] = (1 + program.below(4),)
        return msgspec.structs.replace(resume, **changes)

    def _leave(self, hostile: _Hostile) -> None:
        if hostile.line is not None:
            hostile.line.drop(self.program.choose((None, 1000, 1001, 4009, 4010, 4102, 65535)))
            hostile.line = None

    # Acts: frames.

    def _event(self, hostile: _Hostile) -> None:
        """The next number, and an event that has a chance to be taken."""
        self._numbered(hostile, self._message(hostile), hostile.next)
        hostile.next += 1

    def _batch(self, hostile: _Hostile) -> None:
        """Many events in one read, once in a while more than may have to be answered."""
        program = self.program
        of = _NUMBERED[program.below(len(_NUMBERED))]
        if program.rarely(64) and not self.had_many:
            self.had_many = True  # It takes as long as all else.
            message = draw(program, of, self.hints)
            for _ in range(_MANY):
                self._numbered(hostile, message, hostile.next)
                hostile.next += 1
            return
        for _ in range(program.below(40)):
            message = self._sensible(draw(program, of, self.hints), hostile)
            self._numbered(hostile, message, hostile.next)
            hostile.next += 1

    def _elsewhere(self, hostile: _Hostile) -> None:
        """A number that is not the next one."""
        program = self.program
        sequence = program.near(hostile.next + program.below(12))
        self._numbered(hostile, self._message(hostile), sequence)
        if hostile.next < sequence < hostile.next + 64 and program.flag():
            hostile.next = sequence + 1

    def _any_message(self, hostile: _Hostile) -> None:
        """Any message of any direction, numbered or not, perhaps of a stream."""
        program = self.program
        message = draw(program, program.choose(_EVERY_MESSAGE), self.hints)
        sequence = program.near(hostile.next) if program.flag() else 0
        self._pack(hostile, message, sequence=sequence, stream=program.number() if program.rarely(4) else 0)

    def _message(self, hostile: _Hostile) -> Message:
        program = self.program
        message = draw(program, _NUMBERED[program.below(len(_NUMBERED))], self.hints)
        return self._sensible(self._aimed(message, hostile), hostile)

    def _aimed(self, message: Message, hostile: _Hostile) -> Message:
        """Let an event be about a document that is there, or open one, mostly."""
        program = self.program
        held = self._held(hostile)
        if (
            held is None
            or isinstance(message, Open | DesignOpen)
            or "document" not in message.__struct_fields__
        ):
            return message
        is_design = isinstance(message, DesignClose | DesignSelection)
        there = tuple(held.context.designs if is_design else held.context.documents)
        kind = program.byte() & 3
        if not kind:
            return message
        if there:
            return msgspec.structs.replace(message, document=program.choose(there))
        return draw(program, DesignOpen if is_design else Open, self.hints)

    def _sensible(self, message: Message, hostile: _Hostile) -> Message:
        """Make most of what is drawn fit the state of the session, so that deep states are reached."""
        program = self.program
        if isinstance(message, Subscribe) and len(message.session) > 200:
            return message
        if program.rarely(8):
            return message
        replace = msgspec.structs.replace
        view = self._seen(hostile, getattr(message, "document", None))
        version = 0 if view is None else int(str(view["version"]))
        text = "" if view is None else str(view["text"])
        unit, algorithm = self._terms(hostile)
        if isinstance(message, Open | Snapshot):
            text = program.text(20) if message.text is None else message.text
            parts = 1 + program.below(3) if message.parts is not None and program.flag() else None
            whole = text * (parts or 1)
            return replace(
                message,
                version=max(0, min(version + program.below(3), 2**53 - 1)),
                text=None if parts else text,
                parts=parts,
                length=length_in(whole, unit),
                hash=text_hash(whole, algorithm),
            )
        if isinstance(message, Part):
            return replace(message, version=version, index=program.below(3))
        if isinstance(message, Version):
            return replace(
                message, version=version, length=length_in(text, unit), hash=text_hash(text, algorithm)
            )
        if isinstance(message, Edit):
            lines = text.count("\n") + 1
            changes = tuple(
                Change(
                    line := program.below(lines + 1),
                    program.below(3),
                    line,
                    2 + program.below(3),
                    change.text,
                )
                if program.byte() < 200
                else change
                for change in message.changes
            )
            return replace(message, base=version, version=version + 1, changes=changes, length=None)
        if "version" in message.__struct_fields__ and program.byte() < 200:
            return replace(message, version=version)
        return message

    def _seen(self, hostile: _Hostile, alias: object) -> dict[str, object] | None:
        if not hostile.resumable or not isinstance(alias, int):
            return None
        for principal in (MALLORY, EVE):
            view = self.world.hub.document(principal, hostile.resumable[-1].session, str(alias))
            if view is not None:
                return view
        return None

    @staticmethod
    def _terms(hostile: _Hostile) -> tuple[Unit, HashAlgorithm]:
        welcome = None if hostile.line is None else hostile.line.welcome
        if welcome is None:
            return Unit.UTF_16, HashAlgorithm.XXH3_64
        return Unit(welcome.unit), HashAlgorithm(welcome.hash)

    def _control(self, hostile: _Hostile) -> None:
        """Acknowledge what came, and say how far we are, as one should."""
        mark = hostile.confirmed
        message = Heartbeat(next=hostile.next, received=mark, applied=mark, durable=mark, limit=mark + 1024)
        self._unnumbered(hostile, message)

    def _odd_control(self, hostile: _Hostile) -> None:
        program = self.program
        hints: Hints = {
            "received": lambda program: max(1, program.near(hostile.confirmed)),
            "applied": lambda program: max(1, program.near(hostile.confirmed)),
            "durable": lambda program: max(1, program.near(hostile.confirmed)),
            "next": lambda program: max(1, program.near(hostile.next)),
            "limit": lambda program: max(1, program.near(hostile.confirmed + 1024)),
            "ranges": lambda program: tuple(
                (
                    start := program.near(program.choose((hostile.next, hostile.confirmed))),
                    start + program.below(12),
                )
                for _ in range(1 + program.below(4))
            ),
        }
        kind = program.choose(tuple(kind for kind in CLIENT_MESSAGES if kind in UNNUMBERED_TYPES))
        self._unnumbered(hostile, draw(program, kind, hints))

    def _blob(self, hostile: _Hostile) -> None:
        """Any bytes: as a message, or as the body of a good frame."""
        program = self.program
        blob = program.blob(100)
        line = hostile.line
        assert line is not None
        if program.flag():
            self._send(hostile, blob, 0, is_text=None if program.byte() < 240 else program.flag())
            return
        if line.encoding is Encoding.JSON:
            blob = b"{" + blob.decode("utf-8", "replace").encode()
        sequence = program.near(hostile.next)
        frame = pack_frame(blob, encoding=line.encoding, digest=line.digest, sequence=max(0, sequence))
        self._send(hostile, frame, sequence)
        hostile.next += sequence == hostile.next

    def _nested(self, hostile: _Hostile) -> None:
        """Depth, breadth and length."""
        program = self.program
        line = hostile.line
        assert line is not None
        count = (1 + program.byte()) * program.choose((1, 8, 40))
        unit = (
            (b"\x91", b"\x81\xa0", b"\xdd\x00\x00\x00\x01")
            if line.encoding is Encoding.MSGPACK
            else (b"[", b'{"":')
        )
        body = program.choose(unit) * count
        body = b'{"type":"close","x":' + body if line.encoding is Encoding.JSON else b"\x82\xa1x" + body
        frame = pack_frame(body, encoding=line.encoding, digest=line.digest, sequence=hostile.next)
        self._send(hostile, frame[: self.world.limits.websocket_message_bytes_max], hostile.next)
        hostile.next += 1

    def _head(self, hostile: _Hostile) -> None:
        """A head with any values, whose digest is good."""
        program = self.program
        line = hostile.line
        assert line is not None
        body = encode_body(draw(program, program.choose(_NUMBERED), self.hints), line.encoding)
        if line.encoding is Encoding.JSON:
            numbers = [str(program.near(hostile.next)), str(program.number())]
            if program.flag():
                numbers[program.below(2)] = program.choose(
                    ("00", "01", "-1", "1e3", "9" * 20, "9" * 10, "", "٣")
                )
            covered = " ".join((*numbers, "")).encode() + body
            stated = line.digest(covered).hex().encode() + b" "
            if program.rarely(4):
                stated = stated.upper()
            self._send(hostile, stated + covered, 0)
            return
        head = bytearray(
            b"\x01\x01\x00\x00" + bytes(4) + max(0, min(hostile.next, 2**64 - 1)).to_bytes(8, "big")
        )
        for _ in range(1 + program.below(3)):
            head[program.below(len(head))] = program.byte()
        covered = bytes(head) + body
        self._send(hostile, line.digest(covered) + covered, 0)

    def _corrupt(self, hostile: _Hostile) -> None:
        """A frame whose digest is not that of its content."""
        program = self.program
        before = self._marks(hostile)
        line = hostile.line
        assert line is not None
        count = 1 + (program.byte() % 40 if program.rarely(4) else 0)
        given = 0
        for _ in range(count):
            frame = bytearray(
                self._framed(line, draw(program, program.choose(_NUMBERED), self.hints), hostile.next)
            )
            index = program.below(DIGEST_BYTES) if program.flag() else program.below(len(frame))
            if line.encoding is Encoding.JSON:
                frame[index] = frame[index] ^ 1 if frame[index] < 0x80 else frame[index]
            else:
                frame[index] ^= 1 << program.below(8)
            if line.encoding is Encoding.MSGPACK or frame[index] < 0x80:
                line.give(bytes(frame))
                given += 1
        if line.is_open and line.welcome is not None:
            if self._marks(hostile) != before:
                raise Violation("a corrupt frame was taken")
            if given >= self.world.limits.corrupt_window_frames:
                raise Violation(f"{given} corrupt frames in a row did not end the connection")

    def _marks(self, hostile: _Hostile) -> tuple[int, int, int] | None:
        held = self._held(hostile)
        if held is None:
            return None
        delivery, context = held.delivery, held.context
        return delivery.expected, delivery.known_stop, context.counters.applied

    def _held(self, hostile: _Hostile) -> ServerSession | None:
        line = hostile.line
        if line is None or line.welcome is None:
            return None
        held = self.world.hub.registry.get(line.welcome.session)
        return None if held is None else held.session

    def _again(self, hostile: _Hostile) -> None:
        """A frame that was sent before, on this connection or another one."""
        program = self.program
        sent = self.hostile[program.below(_LINES)].sent if program.rarely(4) else hostile.sent
        if sent:
            data, sequence = sent[program.below(len(sent))]
            self._send(hostile, data, sequence)

    def _contradict(self, hostile: _Hostile) -> None:
        """Other content under a number that was used."""
        numbered = [sequence for _, sequence in hostile.sent if 0 < sequence < 2**53]
        held = self._held(hostile)
        line = hostile.line
        if not numbered or held is None or line is None or not line.is_open or line.welcome is None:
            return
        sequence = numbered[self.program.below(len(numbered))]
        data = self._framed(line, self._message(hostile), sequence)
        window = held.delivery._window
        slot = sequence % self.world.limits.digest_history
        is_known = slot < len(window._number_of_slot) and window._number_of_slot[slot] == sequence
        known = window._digest_of_slot[slot] if is_known else None
        is_given = self._send(hostile, data, sequence)
        stated = (
            data[:DIGEST_BYTES] if line.encoding is Encoding.MSGPACK else bytes.fromhex(data[:16].decode())
        )
        if is_given and known not in (None, int.from_bytes(stated, "big")) and line.closed_with is None:
            raise Violation(f"sequence {sequence} came with other content, and the session goes on")

    def _large(self, hostile: _Hostile) -> None:
        """A frame at its limit, or over it."""
        program = self.program
        limits = self.world.limits
        line = hostile.line
        assert line is not None
        size = program.choose(
            (limits.part_text_bytes_max, limits.frame_bytes_max, limits.websocket_message_bytes_max)
        )
        if size > 2**17:
            size = limits.part_text_bytes_max
        text = "x" * (size - 300 + program.below(310))
        message = Open(
            document=1 + program.below(4),
            uri=f"file:///{program.below(4)}",
            version=0,
            length=len(text),
            hash=text_hash(text, self._terms(hostile)[1]),
            text=text,
        )
        self._numbered(hostile, message, hostile.next)
        hostile.next += 1

    def _subscribe(self, hostile: _Hostile) -> None:
        program = self.program
        message = Subscribe(
            subscription=1 + program.below(4),
            session=program.choose(self.session_ids[::-1]),
            documents=(program.text(4) or "*",) if program.rarely(4) else None,
            presence=not program.rarely(4),
            min_interval_ms=program.choose((0, 0, 1, 1000)),
        )
        self._numbered(hostile, message, hostile.next)
        hostile.next += 1

    # Acts: everybody.

    def _wait(self, hostile: _Hostile) -> None:
        self.world.advance(self.program.choose((0.001, 0.03, 0.3, 1.0, 5.1, 10.5, 16.0, 46.0)))

    def _sweep(self, hostile: _Hostile) -> None:
        self.world.hub.sweep(self.world.now)

    def _drain(self, hostile: _Hostile) -> None:
        if hostile.line is not None:
            hostile.line.handler.drain(self.world.now)

    def _fill(self, hostile: _Hostile) -> None:
        """The peer stops reading, or goes on."""
        line = hostile.line
        if line is not None:
            line.is_writable = not line.is_writable
            if line.is_writable:
                line.handler.writable(self.world.now)

    def _store(self, hostile: _Hostile) -> None:
        """Some of what was applied is safe now."""
        if self.engine is not None:
            self.engine.finish(1 + self.program.below(8))

    def _hurry(self, hostile: _Hostile) -> None:
        hostile.is_hasty = not hostile.is_hasty

    def _work(self, hostile: _Hostile) -> None:
        """Alice types."""
        if not self.is_tight:
            self.produced.session.edit(
                self.document.alias,
                [Change(0, 0, 0, 0, self.program.choose(("a", "é", "\n", "😀")))],
                self.world.now,
            )
            self.world.settle()
            if self.engine is not None:
                self.engine.finish_all()
                self.world.advance(0.0)
            self._check_alice()

    # Sending.

    def _numbered(self, hostile: _Hostile, message: Message, sequence: int) -> None:
        self._pack(hostile, message, sequence=max(0, min(sequence, 2**64 - 1)))

    def _unnumbered(self, hostile: _Hostile, message: Message) -> None:
        self._pack(hostile, message)

    def _pack(self, hostile: _Hostile, message: Message, *, sequence: int = 0, stream: int = 0) -> None:
        line = hostile.line
        assert line is not None
        self._send(hostile, self._framed(line, message, sequence, stream), sequence)

    @staticmethod
    def _framed(line: Line, message: Message, sequence: int, stream: int = 0) -> bytes:
        body = encode_body(message, line.encoding)
        return pack_frame(
            body,
            encoding=line.encoding,
            digest=line.digest,
            sequence=max(0, min(sequence, 2**64 - 1)),
            stream=max(0, min(stream, 2**32 - 1)),
        )

    def _send(self, hostile: _Hostile, data: bytes, sequence: int, *, is_text: bool | None = None) -> bool:
        line = hostile.line
        assert line is not None
        if len(data) > self.world.limits.websocket_message_bytes_max:
            return False  # The shell lets nothing larger through.
        line.give(data, is_text=is_text)
        hostile.sent.append((data, sequence))
        return True

    # What must hold.

    def _check(self) -> None:
        check_hub(self.world.hub)
        for held in self.world.hub.registry:
            session = held.session
            mark = session.delivery.expected
            if mark < self.progress.get(session.session_id, 1):
                raise Violation("the watermark of a session went back")
            self.progress[session.session_id] = mark

    def _check_welcome(self, hostile: _Hostile, welcome: Welcome) -> None:
        """Who resumes a session has shown a secret of it; nobody gets an honest one."""
        if welcome.verdict in ("new", "rejected"):
            if welcome.session in self.session_ids:
                raise Violation("a new session has the name of another one")
        elif hostile.asked is None or (welcome.session, hostile.asked.secret) not in self.secrets:
            raise Violation("a session was resumed without its secret")
        if welcome.session in self.alice:
            raise Violation("somebody else has an honest session")
        self.secrets.add((welcome.session, welcome.secret))

    def _check_alice(self) -> None:
        for client in self.world.clients:
            session = client.session
            if client.line is None or session.session_id not in self.alice:
                raise Violation("an honest session was harmed")
            if session.resumes or session.resets or session.resubscribed:
                raise Violation("an honest session had to begin anew")
            counters = session.counters
            if counters.corrupt or counters.lost or counters.nacks_sent or counters.retransmitted:
                raise Violation(f"an honest session had to repair: {counters}")
        alice = self.produced.session
        if not alice.is_settled:
            raise Violation("an honest session is not settled")
        text = self.document.buffer.text()
        view = self.world.hub.document(ALICE, str(alice.session_id), str(self.document.alias))
        if view is None or view["text"] != text or view["stale"]:
            raise Violation("the copy of an honest document is not its text")
        if self.observing is not None:
            observed = self.observing.session.observed
            if {key[1] for key in observed} != {alice.session_id}:
                raise Violation(f"an honest observer sees {observed.keys()}")
            if any(one.text(self.document.alias) != text for one in observed.values()):
                raise Violation("an honest observer sees another text")

    def _end(self) -> None:
        """All others leave; Alice works on, and nothing of them is left."""
        for hostile in self.hostile:
            if hostile.line is not None:
                hostile.line.drop(None)
        self._check()
        self.is_tight = False
        hub, limits = self.world.hub, self.world.limits
        self.world.advance(limits.detached_session_s + 1)
        hub.sweep(self.world.now)
        for each in (ALICE, MALLORY, EVE):
            left = [session["session"] for session in hub.sessions(each)]
            if left != (self.alice if each is ALICE else []):
                raise Violation(f"the sessions {left} of {each.name} are left")
        self._check()
        self._work(self.hostile[0])


_Act = Callable[[_Play, _Hostile], None]
_FOR_ALL: tuple[_Act, ...] = (
    _Play._wait,
    _Play._sweep,
    _Play._drain,
    _Play._fill,
    _Play._hurry,
    _Play._store,
    _Play._work,
    _Play._leave,
)
_ACTS: tuple[_Act, ...] = (
    *(_Play._event, _Play._event, _Play._event, _Play._event, _Play._event, _Play._event),
    *(_Play._batch, _Play._elsewhere, _Play._elsewhere, _Play._any_message, _Play._control, _Play._control),
    *(_Play._odd_control, _Play._odd_control, _Play._blob, _Play._nested, _Play._head, _Play._corrupt),
    *(_Play._again, _Play._contradict, _Play._large, _Play._subscribe, _Play._subscribe, _Play._connect),
    *(_Play._hello, _Play._hello, _Play._wait, _Play._wait, _Play._sweep, _Play._drain, _Play._fill),
    *(_Play._hurry, _Play._work, _Play._leave, _Play._store, _Play._return),
)
"""What a byte of the program stands for; twice what is to come twice as often."""
_CALM: tuple[_Act, ...] = (
    *(_Play._event,) * 12,
    *(_Play._batch, _Play._batch, _Play._subscribe, _Play._subscribe, _Play._control, _Play._control),
    *(_Play._control, _Play._elsewhere, _Play._again, _Play._return, _Play._return, _Play._wait, _Play._wait),
    *(_Play._fill, _Play._hurry, _Play._store, _Play._work, _Play._sweep, _Play._large),
)
"""The same where nobody breaks a rule on purpose: sessions live long enough to have a state."""
