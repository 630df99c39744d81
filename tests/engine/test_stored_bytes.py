"""What an older version has stored can still be read: the bytes in `stored_bytes.json` never change.

A new form of a stored value gets a new entry there, which `python -m tests.engine.test_stored_bytes` prints.
The old ones stay for as long as stores with them may be about.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from streamctx.core.documents.document_state import DocumentState
from streamctx.core.session.stored import JournalBatch, Refused, SessionRecord, SessionState, Spoilt
from streamctx.engine.sqlite.codec import decode_batch, encode_batch
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    Close,
    DesignClose,
    Edit,
    Mention,
    Open,
    Part,
    Save,
    Snapshot,
    Version,
)
from tests.engine.samples import document, record, state

__all__: list[str] = []

FILE = Path(__file__).with_name("stored_bytes.json")

BATCH = JournalBatch(
    first=3,
    stop=20,
    entries=(
        (3, Open(document=1, uri="file:///a", version=0, length=1, hash="h", text="a", eol="lf", bom=True)),
        (4, Edit(document=1, base=0, version=1, changes=(Change(0, 0, 0, 1, "é", 1),), mode="sim", length=1)),
        (5, None),
        (6, Version(document=1, version=1, length=1, hash="h", cause="save")),
        (7, Save(document=1, version=1)),
        (8, Spoilt((1, 2), ((8, 10),))),
        (8, Spoilt(None)),
        (10, Snapshot(document=1, version=2, length=2, hash="h", parts=1)),
        (11, Part(document=1, version=2, index=0, text="ab")),
        (12, Mention(document=1, version=2, range=(0, 0, 0, 1), note="n")),
        (13, Refused(7, "excluded")),
        (14, DesignClose(document=9, reason="plugin_closed")),
        (15, Close(document=1)),
    ),
)
VALUES: dict[str, tuple[bytes, object]] = {
    "batch": (encode_batch(BATCH), BATCH),
    "record": (msgspec.msgpack.encode(record()), record()),
    "state": (msgspec.msgpack.encode(state()), state()),
    "document": (msgspec.msgpack.encode(document()), document()),
}
TYPES = {"record": SessionRecord, "state": SessionState, "document": DocumentState}


@pytest.mark.parametrize("entry", json.loads(FILE.read_text()), ids=lambda entry: entry["kind"])
def test_what_an_older_version_has_stored_is_read(entry: dict[str, str]) -> None:
    kind, content = entry["kind"], bytes.fromhex(entry["bytes"])
    found = decode_batch(content) if kind == "batch" else msgspec.msgpack.decode(content, type=TYPES[kind])
    assert found == VALUES[kind][1]


def test_the_form_of_today_is_among_those_that_are_kept() -> None:
    kept = {(entry["kind"], entry["bytes"]) for entry in json.loads(FILE.read_text())}
    assert {(kind, content.hex()) for kind, (content, _) in VALUES.items()} <= kept


if __name__ == "__main__":
    entries = [{"kind": kind, "bytes": content.hex()} for kind, (content, _) in VALUES.items()]
    sys.stdout.write(json.dumps(entries, indent=1) + "\n")
