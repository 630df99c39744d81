"""Carry out a session script against a hub; `protocol/vectors/sessions/README.md` describes the steps."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from streamctx.errors import RemoteProtocolError
from streamctx.vocabulary import DigestAlgorithm, Encoding
from streamctx.wire.digests import DIGESTS
from streamctx.wire.frames import pack_frame
from tests.vectors.frame_checks import Arrival, Direction, Receiver, Violation, demand
from tests.vectors.matching import mismatch, shown
from tests.vectors.reading import Case, expand
from tests.vectors.scripted_server import ScriptedServer, Socket

__all__ = ["Script", "ScriptFailed"]

SHOWN_FRAMES = 12
UNAUTHORIZED = 401
OTHER = {Encoding.JSON: Encoding.MSGPACK, Encoding.MSGPACK: Encoding.JSON}


class ScriptFailed(AssertionError):
    """A step does not hold; the message tells which, why, and what has come."""


@dataclass
class Connection:
    """A connection that a script has named."""

    socket: Socket
    receiver: Receiver
    acks_before: int = 0
    """How many ACKs had come when the script sent its last frame."""


@dataclass
class Script:
    """One run of a script with one encoding."""

    path: Path
    encoding: Encoding
    server: ScriptedServer = field(default_factory=ScriptedServer)
    connections: dict[str, Connection] = field(default_factory=dict)
    directions: dict[tuple[str, str], Direction] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    """What was captured."""
    kept: dict[str, bytes] = field(default_factory=dict)
    """Frames that are sent again by `same_bytes_as`."""

    def run(self) -> None:
        """Carry out all steps.

        Raises:
            ScriptFailed: At the first step that does not hold, or if frames are unread at the end.
        """
        script: Case = json.loads(self.path.read_text("utf-8"))
        self._run(script["steps"], "", 0)
        for name, connection in self.connections.items():
            if connection.receiver.unread:
                raise self._failed("end", {}, f"frames of {name} are unread", name)

    def _run(self, steps: list[Case], prefix: str, repetition: int) -> None:
        for index, step in enumerate(steps):
            where = f"{prefix}{index}"
            if "at" in step:
                self._observe(step["at"], step, where)
            if "repeat" in step:
                for count in range(step["repeat"]):
                    self._run(step["steps"], f"{where}/{count}/", count)
                continue
            try:
                self._carry_out(expand(step, self.names, repetition))
            except Violation as violation:
                raise self._failed(where, step, f"{violation}") from None
            self._observe(self.server.now, step, where)

    def _observe(self, time: float, step: Case, where: str) -> None:
        """Let time pass, and check all that the server sent meanwhile."""
        self.server.advance(time)
        for name, connection in self.connections.items():
            receiver, socket = connection.receiver, connection.socket
            try:
                for at, data in socket.arrivals():
                    receiver.take(data, at)
                demand(
                    not (receiver.is_over and socket.is_open), "no close follows the ERROR without a number"
                )
            except (Violation, RemoteProtocolError) as violation:
                raise self._failed(where, step, f"the last frame of {name}: {violation}", name) from None

    def _carry_out(self, step: Case) -> None:
        match step:
            case {"connect": name}:
                self._connect(name, step)
            case {"from": name, "same_bytes_as": kept}:
                self._send(self.connections[name], self.kept[kept])
            case {"from": name}:
                self._send_message(self.connections[name], step)
            case {"acknowledge": name}:
                self._acknowledge(self.connections[name])
            case {"cut": name}:
                self.connections[name].socket.end(None)
            case {"close": name, "code": code}:
                self.connections[name].socket.end(code)
            case {"restart": "without state"}:
                self.server.restart()
            case {"expect": name}:
                self._expect(self.connections[name].receiver, step)
            case {"pass_over": name, "types": types}:
                skip(self.connections[name].receiver, types)
            case {"expect_ack": name, "message": pattern}:
                self._expect_ack(self.connections[name], pattern)
            case {"expect_nothing": name}:
                demand(self.connections[name].socket.is_open, "the connection is closed")
                self._expect_all_read(name)
            case {"expect_close": name, "code": code}:
                self._expect_all_read(name)
                closed_with = self.connections[name].socket.close_code
                demand(closed_with == code, f"closed with {closed_with}, expected {code}")
            case {"expect_events": name, "stream": stream, "events": patterns}:
                for index, pattern in enumerate(patterns):
                    event = next_event(self.connections[name].receiver, stream)
                    self._match(pattern, event, f"event {index}")
            case {"expect_parts": name}:
                self._expect_parts(self.connections[name].receiver, step)
            case {"expect_document": name}:
                self._expect_document(self.connections[name].receiver, step)
            case _:
                raise Violation("no known step")

    # Steps that do something.

    def _connect(self, name: str, step: Case) -> None:
        encoding = OTHER[self.encoding] if step.get("encoding") == "other" else self.encoding
        socket = self.server.connect(encoding, step.get("token", "token"))
        status = UNAUTHORIZED if socket is None else None
        demand(status == step.get("refused"), f"the upgrade is answered with {status or 'success'}")
        if socket is not None:
            self.connections[name] = Connection(socket, Receiver(encoding, self.directions))

    def _send(self, connection: Connection, data: bytes) -> None:
        connection.acks_before = len(connection.receiver.acks)
        connection.socket.deliver(data)

    def _send_message(self, connection: Connection, step: Case) -> None:
        data = packed(step["send"], connection, step.get("sequence", 0))
        if "name" in step:
            self.kept[step["name"]] = data
        if step.get("corrupt"):
            data = data[:-1] + bytes([data[-1] ^ 1])
        self._send(connection, data)

    def _acknowledge(self, connection: Connection) -> None:
        direction = connection.receiver.direction
        if direction is None:
            raise Violation("there has been no WELCOME")
        arrived = direction.next_sequence
        ack = {"type": "ack", "received": arrived, "applied": arrived, "durable": arrived}
        ack["limit"] = arrived + direction.window_events
        self._send(connection, packed(ack, connection, 0))

    # Steps that expect something.

    def _match(self, pattern: Any, value: Any, what: str) -> None:
        reason = mismatch(pattern, value, self.names, what)
        demand(reason is None, f"{reason}")

    def _is_match(self, step: Case, frame: Arrival) -> str | None:
        head = {name: step[name] for name in ("sequence", "stream") if name in step}
        return mismatch(head, {"sequence": frame.sequence, "stream": frame.stream}, {}, "head") or mismatch(
            step["message"], frame.body, self.names, "message"
        )

    def _expect(self, receiver: Receiver, step: Case) -> None:
        skip(receiver, step.get("skipping", []))
        unread = receiver.unread
        demand(unread, "no such frame has come")
        reason = self._is_match(step, unread[0])
        demand(reason is None, f"the next frame does not match: {reason}")
        unread.popleft()
        while step.get("repeated") and unread and self._is_match(step, unread[0]) is None:
            unread.popleft()

    def _expect_ack(self, connection: Connection, pattern: Case) -> None:
        acks = connection.receiver.acks
        newest = next(
            (
                (index, ack)
                for index, ack in reversed([*enumerate(acks)])
                if pattern.get("type", ack.type) == ack.type
            ),
            None,
        )
        if newest is None:
            raise Violation("none has come")
        index, ack = newest
        demand(index >= connection.acks_before, "none has come since the last frame was sent")
        self._match(pattern, ack.body, "message")

    def _expect_all_read(self, name: str) -> None:
        unread = self.connections[name].receiver.unread
        demand(not unread, f"{len(unread)} frames are unread")

    def _expect_parts(self, receiver: Receiver, step: Case) -> None:
        text, index = "", 0
        while len(text) < len(step["text"]):
            part = next_event(receiver, step["stream"])
            self._match(
                {"type": "part", "document": step["document"], "index": index}, part, f"event {index}"
            )
            text += part["text"]
            index += 1
        demand(text == step["text"], "the parts joined are another text")

    def _expect_document(self, receiver: Receiver, step: Case) -> None:
        if receiver.session is None:
            raise Violation("there has been no WELCOME")
        document = self.server.document(receiver.session, step["document"])
        if step.get("absent"):
            demand(document is None, f"it is {shown(document)}")
        else:
            demand(document is not None, "there is no such document")
            fields = {name: step[name] for name in ("text", "version", "stale") if name in step}
            self._match(fields, document, "document")

    def _failed(self, where: str, step: Case, reason: str, name: str | None = None) -> ScriptFailed:
        lines = [
            f"{self.path.name} with {self.encoding}: step {where} at {self.server.now:g} s does not hold",
            f"  step    {shown(step)}",
            f"  reason  {reason}",
        ]
        named = name or next((value for value in step.values() if value in [*self.connections]), None)
        if named is not None:
            lines += described(named, self.connections[named])
        return ScriptFailed("\n".join(lines))


def packed(body: Case, connection: Connection, sequence: int) -> bytes:
    """A client's frame with the digest that is due."""
    encoding = connection.socket.encoding
    module = msgspec.json if encoding is Encoding.JSON else msgspec.msgpack
    algorithm = DigestAlgorithm.CRC32 if body.get("type") == "hello" else connection.receiver.digest
    digest = DIGESTS[algorithm]
    return pack_frame(module.encode(body), encoding=encoding, digest=digest, sequence=sequence)


def skip(receiver: Receiver, types: list[str]) -> None:
    """Read all frames of some types up to the first other one."""
    while receiver.unread and receiver.unread[0].type in types:
        receiver.unread.popleft()


def next_event(receiver: Receiver, stream: int) -> Any:
    """Read one event of a feed; the rest of its update stays unread."""
    unread = receiver.unread
    while True:
        demand(unread, "no update has come")
        frame = unread.popleft()
        is_update = frame.type == "update" and frame.stream == stream
        demand(is_update, f"a {frame.type} of stream {frame.stream} has come, expected an update of {stream}")
        if frame.body["events"]:
            event, *rest = frame.body["events"]
            if rest:
                unread.appendleft(replace(frame, body={**frame.body, "events": rest}))
            return event


def described(name: str, connection: Connection) -> list[str]:
    """The last frames that have come on a connection, and how it stands."""
    receiver, socket = connection.receiver, connection.socket
    unread = {frame.data for frame in receiver.unread}
    frames = [
        f"    {frame.time:9.6g} s  {'unread' if frame.data in unread else '      '}"
        f"  {frame.sequence:4}  {shown(frame.body)}"
        for frame in receiver.log[-SHOWN_FRAMES:]
    ]
    end = "open" if socket.is_open else f"closed, by the server with {socket.close_code}"
    return [f"  {name} is {end}; its last frames (time, number, body):", *frames]
