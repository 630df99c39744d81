"""Sessions as bytes, to be taken to another store.

An export holds the newest state of a session and the batches behind it. What resumes the session stays out:
who has the bytes can read the session, and nobody can go on with it.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from streamctx.core.session.stored import SessionRecord, SessionState
from streamctx.engine.sqlite.checks import content_check
from streamctx.errors import StreamctxError

__all__ = ["Exported", "ImportRefused", "from_bytes", "to_bytes"]

_TAG = "streamctx-session"
_VERSION = 1

TimedPayload: TypeAlias = tuple[int, bytes]


class ImportRefused(StreamctxError):
    """What was to be imported is no export, or is in the way of what is stored; nothing was changed."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """A session without what resumes it. Times are milliseconds since 1970."""

    record: SessionRecord
    opened: int
    state: SessionState | None
    state_at: int
    batches: tuple[TimedPayload, ...]
    """Each with when it was written, encoded as in the journal."""

    def of(self, principal: str) -> Exported:
        """The same session, of another owner."""
        return msgspec.structs.replace(self, record=msgspec.structs.replace(self.record, principal=principal))


class _Sealed(msgspec.Struct, frozen=True, array_like=True):
    tag: str
    version: int
    digest: int
    content: bytes


def to_bytes(exported: Exported) -> bytes:
    """Encode an export, with a check and without secrets."""
    record = msgspec.structs.replace(exported.record, confirmed=None, pending=None, retired=())
    content = msgspec.msgpack.encode(msgspec.structs.replace(exported, record=record))
    return msgspec.msgpack.encode(_Sealed(_TAG, _VERSION, content_check(content), content))


def from_bytes(data: bytes) -> Exported:
    """Decode an export.

    Raises:
        ImportRefused: If the bytes are none, were damaged, or are of a newer version.
    """
    try:
        sealed = msgspec.msgpack.decode(data, type=_Sealed)
    except msgspec.DecodeError as error:
        raise ImportRefused("this is no exported session") from error
    if sealed.tag != _TAG:
        raise ImportRefused("this is no exported session")
    if sealed.version != _VERSION:
        raise ImportRefused(
            f"the session was exported in format {sealed.version}, and this streamctx knows {_VERSION}: "
            f"import it with the streamctx that exported it"
        )
    if sealed.digest != content_check(sealed.content):
        raise ImportRefused("the exported session is damaged: export it again")
    try:
        exported = msgspec.msgpack.decode(sealed.content, type=Exported)
    except msgspec.DecodeError as error:
        raise ImportRefused("the exported session cannot be decoded") from error
    # An export that somebody made by hand may hold some.
    record = msgspec.structs.replace(exported.record, confirmed=None, pending=None, retired=())
    return msgspec.structs.replace(exported, record=record)
