"""Values to store, for the tests of every engine."""

from __future__ import annotations

from streamctx.core.documents.document_state import DocumentState, TransferState
from streamctx.core.session.stored import (
    JournalBatch,
    JournalItem,
    Refused,
    SessionRecord,
    SessionState,
    Spoilt,
)
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    ClientInfo,
    DesignOpen,
    DesignPage,
    DesignTool,
    Edit,
    NegotiatedLimits,
    Open,
    Workspace,
)

__all__ = ["batch", "document", "record", "state"]

LIMITS = NegotiatedLimits(
    frame_bytes=262_144,
    window_events=1024,
    window_bytes=1 << 20,
    part_text_bytes=65_536,
    document_bytes=50_000_000,
    documents=200,
    changes=10_000,
    heartbeat_ms=15_000,
    dead_ms=45_000,
    retain_ms=900_000,
)
_DESIGN = DesignOpen(
    document=9,
    uri="figma:///x",
    tool=DesignTool(name="figma"),
    file_name="x",
    pages=(DesignPage(id="0:1", name="one", order=0),),
)


def record(
    session_id: str = "s1",
    epoch: str = "e1",
    *,
    principal: str = "anna",
    attempt: int = 1,
    lease: int = 1,
) -> SessionRecord:
    return SessionRecord(
        session_id=session_id,
        epoch=epoch,
        principal=principal,
        role="both",
        client=ClientInfo(name="vim", version="9"),
        workspace=Workspace(folders=("file:///w",), trusted=True),
        encoding="utf-8",
        digest="xxh3-64",
        unit="utf-16",
        hash="sha-256",
        limits=LIMITS,
        attempt=attempt,
        lease=lease,
        confirmed=b"\x01" * 32,
        pending=b"\x02" * 32,
        retired=(b"\x03" * 32,),
    )


def _item(number: int, text: str) -> JournalItem:
    match number % 5:
        case 0:
            return Open(document=1, uri="file:///w/a", version=number, length=1, hash="x", text="a")
        case 1:
            return Spoilt((1,), ((number, number + 1),))
        case 2:
            return Refused(1, "bad_position")
        case 3:
            return None
        case _:
            return Edit(document=1, base=number, version=number + 1, changes=(Change(0, 0, 0, 0, text),))


def batch(number: int, text: str = "typed") -> JournalBatch:
    """A batch that is told from all others by its number."""
    return JournalBatch(
        number, number + 2, ((number, _item(number, text)), (number + 1, _item(number + 1, text)))
    )


def document(alias: int = 1, text: str | None = "text") -> DocumentState:
    metadata = Open(document=alias, uri=f"file:///w/{alias}", version=1, length=4, hash="x")
    return DocumentState(
        metadata=metadata,
        text=text,
        version=7,
        text_since=3,
        stale_reason="hash_mismatch",
        transfer=TransferState(metadata, 3, "te"),
    )


def state(stop: int = 1, *documents: DocumentState) -> SessionState:
    return SessionState(
        stop=stop,
        lost=((1, 2),),
        documents=documents,
        designs=(_DESIGN,),
        stale_designs=(9,),
        refused=((4, "excluded"),),
    )
