"""One upload of a blob: in chunks, resumable, and checked before anybody can read it."""

from __future__ import annotations

from types import TracebackType

from streamctx.errors import ErrorCode, LocalProtocolError
from streamctx.resources.base import ResourceError, ResourceInfo
from streamctx.resources.blob_ledger import HeldBlob, HeldPart
from streamctx.resources.blob_stock import Hasher, Stock
from streamctx.resources.blob_storage import Label, PartFile, uri_of

__all__ = ["BlobWriter", "OffsetMismatch", "info_of"]


class OffsetMismatch(ResourceError):
    """A chunk does not begin where the upload ends; nothing was taken of it.

    Args:
        found: Where it begins.
        expected: Where the next one has to begin.
    """

    def __init__(self, *, found: int, expected: int) -> None:
        super().__init__(ErrorCode.BAD_PART, f"chunk at offset {found}, expected {expected}")
        self.expected = expected


class BlobWriter:
    """The one owner of an upload, used by one thread at a time.

    It ends with `commit`, `abandon` or `close`; leaving its `with` closes it. Until then no other writer gets
    this content, so whoever has it lets go of it when the uploader is gone. Made by `begin` of a store.
    """

    def __init__(self, stock: Stock, held: HeldPart, part: PartFile, hasher: Hasher) -> None:
        self._stock = stock
        self._held = held
        self._part = part
        self._hasher = hasher
        self._has_ended = False

    @property
    def digest(self) -> str:
        """What the SHA-256 of the content is to be."""
        return self._held.key.digest

    @property
    def size_bytes(self) -> int:
        """What the size of the content is to be."""
        return self._held.key.size_bytes

    @property
    def offset(self) -> int:
        """How many bytes are there: where the next chunk has to begin."""
        return self._part.offset

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Add a chunk, of which all is taken or nothing.

        Args:
            offset: Where it begins, which has to be `self.offset`.
            data: Contiguous bytes; not kept.

        Raises:
            OffsetMismatch: If it begins elsewhere.
            ResourceError: If it goes past the size, or cannot be written; the writer can be used on.
            LocalProtocolError: If the writer has ended.
        """
        self._demand_active()
        view = memoryview(data).cast("B")
        if offset != self.offset:
            raise OffsetMismatch(found=offset, expected=self.offset)
        if offset + len(view) > self.size_bytes:
            raise ResourceError(
                ErrorCode.LENGTH_MISMATCH, f"chunk ends at {offset + len(view)} of {self.size_bytes} bytes"
            )
        self._part.append(view)
        self._hasher.update(view)

    def commit(self) -> ResourceInfo:
        """Check size and hash and make the blob readable, all at once. On disk it is safe then.

        Raises:
            ResourceError: `length_mismatch` if bytes are missing: the writer can be used on.
                `hash_mismatch` if they are others; `unavailable` or `internal` if they cannot be made safe:
                then they are removed, the writer has ended, and the next `begin` starts at 0.
            LocalProtocolError: If the writer has ended.
        """
        self._demand_active()
        if self.offset != self.size_bytes:
            raise ResourceError(
                ErrorCode.LENGTH_MISMATCH, f"the blob has {self.offset} bytes, expected {self.size_bytes}"
            )
        found = self._hasher.hexdigest()
        if found != self.digest:
            self._has_ended = True
            self._stock.discard(self._held, self._part, is_mismatch=True)
            raise ResourceError(
                ErrorCode.HASH_MISMATCH, f"the blob has SHA-256 {found}, expected {self.digest}"
            )
        with self._stock.using():
            self._has_ended = True
            blob = self._stock.publish(self._held, self._part)
        return info_of(blob, self._part.label)

    def abandon(self) -> None:
        """Remove what was uploaded. Does nothing to a writer that has ended."""
        if not self._has_ended:
            self._has_ended = True
            self._stock.discard(self._held, self._part)

    def close(self) -> None:
        """Let another writer go on from here, now or after a restart. Does nothing to one that has ended."""
        if not self._has_ended:
            self._has_ended = True
            self._stock.leave(self._held, self._part)

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _demand_active(self) -> None:
        if self._has_ended:
            raise LocalProtocolError("this writer was committed, abandoned or closed")


def info_of(blob: HeldBlob, label: Label) -> ResourceInfo:
    """What is told of a blob."""
    return ResourceInfo(
        uri=uri_of(blob.digest),
        name=label.name,
        mime=label.mime,
        size_bytes=blob.size_bytes,
        etag=blob.digest,
        modified=blob.modified,
    )
