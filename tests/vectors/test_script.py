"""The runner of the session scripts sees what it has to see."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamctx.vocabulary import DigestAlgorithm, Encoding
from streamctx.wire.digests import DIGESTS
from streamctx.wire.frames import pack_frame
from tests.vectors.frame_checks import Receiver, Violation
from tests.vectors.matching import mismatch
from tests.vectors.script import Script, ScriptFailed

__all__: list[str] = []

LIMITS = (
    "frame_bytes", "window_events", "window_bytes", "part_text_bytes", "document_bytes",
    "documents", "changes", "heartbeat_ms", "dead_ms", "retain_ms",
)  # fmt: skip
WELCOME = {
    "type": "welcome", "attempt": 1, "session": "s", "secret": "k", "epoch": "e", "lease": 1,
    "verdict": "new", "expects": 1, "next": 1, "digest": "xxh3-64", "unit": "utf-16", "hash": "xxh3-64",
    "durability": "none", "limits": dict.fromkeys(LIMITS, 1000), "server": {"name": "x", "version": "1"},
}  # fmt: skip
REFUSAL = {"type": "error", "code": "malformed", "message": ""}
SYNC = {"type": "sync", "session": "p", "epoch": "e", "offset": 7, "reason": "slow", "client": {"name": "x"}}
SYNCED = {"type": "synced", "session": "p", "offset": 7}


def ack(received: int, applied: int, durable: int, limit: int = 2000) -> dict[str, Any]:
    return {"type": "ack", "received": received, "applied": applied, "durable": durable, "limit": limit}


def update(first: int, stop: int) -> dict[str, Any]:
    return {"type": "update", "session": "p", "from": first, "to": stop, "events": []}


def frame(body: dict[str, Any], sequence: int = 0, stream: int = 0, digest: str = "xxh3-64") -> bytes:
    algorithm = DIGESTS[DigestAlgorithm("crc32" if body["type"] == "welcome" else digest)]
    data = msgspec.json.encode(body)
    return pack_frame(data, encoding=Encoding.JSON, digest=algorithm, sequence=sequence, stream=stream)


def receive(*frames: bytes) -> Receiver:
    receiver = Receiver(Encoding.JSON, {})
    for data in frames:
        receiver.take(data, 0.0)
    return receiver


FAULTS: dict[str, list[bytes]] = {
    "a corrupt frame": [frame(WELCOME)[:-1] + b"|"],
    "expected crc32": [frame(REFUSAL)],
    "expected xxh3-64": [frame(WELCOME), frame(ack(1, 1, 1), digest="crc32")],
    "before WELCOME": [frame(REFUSAL, 1, digest="crc32")],
    "no valid body": [frame(WELCOME), frame({"type": "ack"})],
    "UnknownType": [frame(WELCOME), frame({"type": "x_future"})],
    "its number is 1": [frame(WELCOME), frame(ack(1, 1, 1), 1)],
    "its number is 0": [frame(WELCOME), frame(SYNC, 0, 1)],
    "its stream is 0": [frame(WELCOME), frame(SYNC, 1, 0)],
    "its stream is 1": [frame(WELCOME), frame(REFUSAL, 1, 1)],
    "follows an ERROR": [frame(WELCOME), frame(REFUSAL), frame(REFUSAL, 1)],
    "number 2 came, expected 1": [frame(WELCOME), frame(REFUSAL, 2)],
    "number 1 came again": [frame(WELCOME), frame(REFUSAL, 1), frame({**REFUSAL, "message": "?"}, 1)],
    "not durable ≤ applied": [frame(WELCOME), frame(ack(2, 1, 2))],
    "limit 2000 is below": [frame(WELCOME), frame(ack(1001, 1, 1))],
    "limit falls from 3000 to 2000": [frame(WELCOME), frame(ack(1, 1, 1, 3000)), frame(ack(1, 1, 1))],
    "applied falls from 2 to 1": [frame(WELCOME), frame(ack(2, 2, 1)), frame(ack(2, 1, 1))],
    "belongs to no feed": [frame(WELCOME), frame(update(0, 1), 1, 1)],
    "to rises before synced": [frame(WELCOME), frame(SYNC, 1, 1), frame(update(7, 8), 2, 1)],
    "synced at 7, sync at 8": [frame(WELCOME), frame({**SYNC, "offset": 8}, 1, 1), frame(SYNCED, 2, 1)],
    "synced without sync": [frame(WELCOME), frame(SYNC, 1, 1), frame(SYNCED, 2, 1), frame(SYNCED, 3, 1)],
    "from is 8, the feed is at 7": [
        frame(WELCOME), frame(SYNC, 1, 1), frame(SYNCED, 2, 1), frame(update(8, 9), 3, 1),
    ],
    "to is below from": [
        frame(WELCOME), frame(SYNC, 1, 1), frame(SYNCED, 2, 1), frame(update(7, 6), 3, 1),
    ],
}  # fmt: skip


@pytest.mark.parametrize("reason", FAULTS)
def test_a_fault_of_the_server_is_seen_at_its_frame(reason: str) -> None:
    *good, bad = FAULTS[reason]
    receiver = receive(*good)
    with pytest.raises(Violation, match=re.escape(reason)):
        receiver.take(bad, 0.0)


def test_a_good_server_is_taken() -> None:
    refusal = frame(REFUSAL, 4)
    feed = [frame(SYNC, 1, 1), frame(SYNCED, 2, 1), frame(update(7, 9), 3, 1)]
    receiver = receive(frame(WELCOME), *feed, frame(ack(2, 2, 1)), refusal, refusal, frame(REFUSAL))
    assert [arrival.sequence for arrival in receiver.unread] == [0, 1, 2, 3, 4, 4, 0]
    assert len(receiver.acks) == 1
    assert receiver.is_over


@pytest.mark.parametrize(
    ("pattern", "value", "reason"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, None),
        ({"a": None}, {}, None),
        ({"a": None}, {"a": 0}, "m.a is 0, expected none"),
        ({"a": 1}, {}, "m.a is missing, expected 1"),
        ({"a": True}, {"a": 1}, "m.a is 1, expected true"),
        ({"a": {"$not": 1}}, {"a": 1}, "m.a is 1, expected another value"),
        ({"a": {"$not": 1}}, {"a": 2}, None),
        ({"a": {"$not": 1}}, {}, "m.a is missing"),
        ({"a": {"$capture": "x"}}, {}, "m.a is missing"),
        ([[1, 2]], [[1, 2, None]], None),
        ([1, 2], [1, 2, 3], "m is [1, 2, 3], expected 2 elements"),
        ([{"a": 1}], [{"a": 2}], "m[0].a is 2, expected 1"),
    ],
)
def test_pattern(pattern: object, value: object, reason: str | None) -> None:
    assert mismatch(pattern, value, {}, "m") == reason


HELLO = {"type": "hello", "attempt": 1, "client": {"name": "script"}, "digests": ["crc32"]}
STEPS: list[dict[str, Any]] = [{"at": 0, "connect": "a"}, {"from": "a", "send": HELLO}]


def run(folder: Path, *steps: dict[str, Any]) -> None:
    path = folder / "script.json"
    path.write_text(json.dumps({"steps": steps}), "utf-8")
    Script(path, Encoding.JSON).run()


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"expect_nothing": "a"}, "1 frames are unread"),
        ({"expect_close": "a", "code": 4000}, "1 frames are unread"),
        ({"expect": "a", "message": {"type": "welcome", "lease": 2}}, "message.lease is 1, expected 2"),
        ({"expect": "a", "message": {}, "sequence": 1}, "head.sequence is 0, expected 1"),
        ({"expect": "a", "message": {}, "skipping": ["welcome"]}, "no such frame has come"),
        ({"expect_ack": "a", "message": {}}, "none has come"),
        ({"expect_events": "a", "stream": 1, "events": [{}]}, "a welcome of stream 0 has come"),
        ({"expect_document": "a", "document": 1}, "there is no such document"),
        ({"connect": "b", "token": "wrong"}, "the upgrade is answered with 401"),
        ({"connect": "b", "refused": 401}, "the upgrade is answered with success"),
    ],
)
def test_a_step_that_does_not_hold_is_told_with_what_came(
    tmp_path: Path, step: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ScriptFailed) as failure:
        run(tmp_path, *STEPS, step)
    message = str(failure.value)
    assert "script.json with json: step 2 at 0 s" in message
    assert reason in message
    assert json.dumps(step) in message
    assert ('"type": "welcome"' in message) is ("connect" not in step)


def test_a_script_that_leaves_frames_unread_fails(tmp_path: Path) -> None:
    run(tmp_path, *STEPS, {"expect": "a", "message": {"type": "welcome"}})
    with pytest.raises(ScriptFailed, match=r"step end at 0 s .*\n.*\n  reason  frames of a are unread"):
        run(tmp_path, *STEPS)
