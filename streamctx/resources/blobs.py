"""Blobs: bytes under the name of their own SHA-256, `sha256:<64 lowercase hexadecimal digits>`.

Each is there once, however often it is uploaded. A store is bounded, and what was not used for longest
goes when something new comes: whoever needs a blob to stay pins it. Whoever knows a hash can learn
whether there is such a blob, and read it; who may ask is for the caller to decide.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from streamctx.errors import ErrorCode, LocalProtocolError
from streamctx.resources.base import Listing, ResourceError, ResourceInfo, Source
from streamctx.resources.blob_files import FileStorage
from streamctx.resources.blob_ledger import HeldBlob, Ledger
from streamctx.resources.blob_memory import MemoryStorage
from streamctx.resources.blob_stock import BlobBusy, BlobCounters, Stock
from streamctx.resources.blob_storage import (
    OCTETS,
    BlobFile,
    Label,
    PartKey,
    Storage,
    digest_of,
    is_digest,
    make_label,
)
from streamctx.resources.blob_writer import BlobWriter, OffsetMismatch, info_of

__all__ = [
    "COUNT_MAX",
    "PART_KEPT_S",
    "BlobBusy",
    "BlobCounters",
    "BlobWriter",
    "Blobs",
    "DiskBlobs",
    "MemoryBlobs",
    "OffsetMismatch",
]

COUNT_MAX = 10_000
"""Blobs and parts; the books of so many take about 5 MB."""
PART_KEPT_S = 86_400.0
"""An upload that nobody went on with for a day has to make room for what somebody wants."""


class Blobs:
    """A store of blobs; a `Provider` whose etag is the digest.

    Every method may be called from any thread, several at a time, and may wait for a disk; a source and a
    writer belong to one thread at a time. An upload that has an owner counts with its full size, so that it
    can be refused before a byte of it is sent, and one that was begun never fails for want of room in the
    store. The bounds are on content: on disk each blob takes up to 8 KiB more.

    Room is made by removing, in this order, parts at rest for longer than `part_kept_s`, what was set
    aside as damaged, and the least recently used blobs. Blobs that are open or pinned, parts with an owner
    and younger parts are never removed for something new.

    Args:
        storage: Where the bytes lie.
        bytes_max: The most that blobs and parts may take together.
        blob_bytes_max: The largest blob; `None` if only `bytes_max` bounds it.
        count_max: How many blobs and parts there may be.
        part_kept_s: How long a part at rest is safe from being removed.
        clock: Gives seconds since 1970.

    Raises:
        ConfigurationError: If the place cannot be used.
        ResourceError: If it fails.
        ValueError: If a bound is negative, or one blob may be larger than all.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        bytes_max: int,
        blob_bytes_max: int | None,
        count_max: int,
        part_kept_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._blob_bytes_max = bytes_max if blob_bytes_max is None else blob_bytes_max
        if not 0 <= self._blob_bytes_max <= bytes_max or count_max < 0:
            storage.close()
            raise ValueError(
                f"bounds contradict each other: blob_bytes_max {self._blob_bytes_max}, "
                f"bytes_max {bytes_max}, count_max {count_max}"
            )
        ledger = Ledger(bytes_max=bytes_max, count_max=count_max, part_kept_s=part_kept_s)
        self._stock = Stock(storage, ledger, clock=clock)

    @property
    def counters(self) -> BlobCounters:
        """What has happened, and what there is; a copy."""
        return self._stock.counters

    def open(self, uri: str) -> Source:
        """Open a blob, which uses it. It is not evicted while it is open.

        On disk the bytes are hashed first when it is opened for the first time in this run, or when its file
        has changed since: a damaged one is set aside, counted, and not found.

        Raises:
            ResourceError: `not_found` if there is no such blob; another one if it cannot be read now.
        """
        with self._stock.using():
            digest = digest_of(uri)
            blob = None if digest is None else self._stock.hold(digest)
            file = None if blob is None else self._stock.open_held(blob)
            if blob is None or file is None:
                raise _not_found()
            return _BlobSource(self._stock, blob, file)

    def list(self) -> Listing:
        """All blobs that were there when it began and still are, the least recently used first.

        Their bytes are not looked at, so one of them may prove damaged when it is opened; and none is used.

        Raises:
            ResourceError: If one cannot be read.
        """
        return _AllBlobs(self._infos())

    def _infos(self) -> Iterator[ResourceInfo]:
        for digest in self._stock.digests:
            info = self._info(digest)
            if info is not None:
                yield info

    def _info(self, digest: str) -> ResourceInfo | None:
        with self._stock.using():
            blob = self._stock.hold(digest, is_used=False)
            label = None if blob is None else self._stock.label_held(blob)
            if blob is None or label is None:
                return None
            self._stock.release(blob)
            return info_of(blob, label)

    def begin(
        self, digest: str, size_bytes: int, *, mime: str = OCTETS, name: str | None = None
    ) -> BlobWriter | ResourceInfo:
        """Begin an upload, or go on with one.

        What an earlier writer of the same digest and size has left is there already, with its type and name;
        its hash is made again by reading it. If it was not what the digest says, that shows at the commit,
        and the next upload starts at 0.

        Args:
            digest: The SHA-256 of the content, in lowercase hexadecimal.
            size_bytes: Its size.
            mime: Its type.
            name: What it is called; `None` if nothing but its digest.

        Returns:
            A writer, whose `offset` says what is there; or what is known of the blob if it is there whole,
            with the type and name that it got first.

        Raises:
            BlobBusy: If another writer has the same digest and size: there is one owner, the first.
            ResourceError: `malformed` for what is no digest or size; `too_large`; `length_mismatch` if the
                blob is there and has another size; `limit`, temporary, if there is no room; `unavailable`,
                temporary, if the disk is full.
        """
        if not is_digest(digest) or size_bytes < 0:
            raise ResourceError(
                ErrorCode.MALFORMED, "a blob has 64 lowercase hexadecimal digits and a size from 0"
            )
        label = make_label(digest=digest, mime=mime, name=name)
        return self._begin(PartKey(digest, size_bytes), label, is_afresh=False)

    def put(self, data: bytes, *, mime: str = OCTETS, name: str | None = None) -> ResourceInfo:
        """Store bytes that are all here. The same content put again keeps its first type and name.

        A part of the same content at rest is replaced.

        Raises:
            BlobBusy: If a writer is at the same content.
            ResourceError: As `begin` and `BlobWriter.commit`; nothing of it is left then.
        """
        digest = hashlib.sha256(data).hexdigest()
        label = make_label(digest=digest, mime=mime, name=name)
        begun = self._begin(PartKey(digest, len(data)), label, is_afresh=True)
        if isinstance(begun, ResourceInfo):
            return begun
        # If it fails, nothing was written, or the commit has removed it, or the store is closed.
        with begun:
            begun.write(0, data)
            return begun.commit()

    def _begin(self, key: PartKey, label: Label, *, is_afresh: bool) -> BlobWriter | ResourceInfo:
        if key.size_bytes > self._blob_bytes_max:
            self._stock.count_refused()
            raise ResourceError(
                ErrorCode.TOO_LARGE, f"a blob of {key.size_bytes} bytes, limit {self._blob_bytes_max}"
            )
        with self._stock.using():
            while True:
                held = self._stock.hold_or_own(key)
                if not isinstance(held, HeldBlob):
                    part, hasher = self._stock.open_owned(held, label, is_afresh=is_afresh)
                    return BlobWriter(self._stock, held, part, hasher)
                # A damaged blob must not keep a good one out; it is gone when we look again.
                file = self._stock.open_held(held)
                if file is not None:
                    with _BlobSource(self._stock, held, file) as source:
                        return self._already_there(source.info, key)

    def _already_there(self, info: ResourceInfo, key: PartKey) -> ResourceInfo:
        if info.size_bytes != key.size_bytes:
            raise ResourceError(
                ErrorCode.LENGTH_MISMATCH, f"this blob has {info.size_bytes} bytes, not {key.size_bytes}"
            )
        self._stock.count_deduplicated()
        return info

    def pin(self, uri: str) -> None:
        """Keep a blob from being evicted until `unpin` was called as often. Ends with the process.

        Raises:
            ResourceError: If there is no such blob.
        """
        digest = digest_of(uri)
        if digest is None or not self._stock.pin(digest):
            raise _not_found()

    def unpin(self, uri: str) -> None:
        """Take one pin back.

        Raises:
            LocalProtocolError: If it is not pinned.
        """
        digest = digest_of(uri)
        if digest is None or not self._stock.unpin(digest):
            raise LocalProtocolError(f"{uri} is not pinned")

    def close(self) -> None:
        """Wait for the calls under way and let go of the place; may be called again.

        Sources that are open can be read on and closed. Writers can only be closed: what they have rests.
        """
        self._stock.close()


class MemoryBlobs(Blobs):
    """Blobs in memory, gone with the process; bounds as those of `Blobs`."""

    def __init__(
        self,
        *,
        bytes_max: int,
        blob_bytes_max: int | None = None,
        count_max: int = COUNT_MAX,
        part_kept_s: float = PART_KEPT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(
            MemoryStorage(),
            bytes_max=bytes_max,
            blob_bytes_max=blob_bytes_max,
            count_max=count_max,
            part_kept_s=part_kept_s,
            clock=clock,
        )


class DiskBlobs(Blobs):
    """Blobs in a directory that is made 0700 and belongs to one store at a time; bounds as those of `Blobs`.

    What is there when it is opened is taken over by names and sizes, in the order of its last use, and
    trimmed to the bounds. A committed blob survives a crash and a power cut; a part survives a crash.

    Raises:
        ConfigurationError: If the directory cannot be used: it or a file with one of our names is a link,
            somebody else's, or open to others, or another store has it. What has other names is left alone.
    """

    def __init__(
        self,
        directory: Path,
        *,
        bytes_max: int,
        blob_bytes_max: int | None = None,
        count_max: int = COUNT_MAX,
        part_kept_s: float = PART_KEPT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(
            FileStorage(directory),
            bytes_max=bytes_max,
            blob_bytes_max=blob_bytes_max,
            count_max=count_max,
            part_kept_s=part_kept_s,
            clock=clock,
        )


class _AllBlobs:
    """A listing that leaves nothing out: what there may be is bounded already."""

    def __init__(self, infos: Iterator[ResourceInfo]) -> None:
        self._infos = infos

    @property
    def is_truncated(self) -> bool:
        return False

    def __iter__(self) -> _AllBlobs:
        return self

    def __next__(self) -> ResourceInfo:
        return next(self._infos)


class _BlobSource:
    """A blob that was opened and holds its entry."""

    def __init__(self, stock: Stock, blob: HeldBlob, file: BlobFile) -> None:
        self._stock = stock
        self._blob = blob
        self._file = file
        self._is_closed = False
        self._info = info_of(blob, file.label)

    @property
    def info(self) -> ResourceInfo:
        return self._info

    def read(self, offset: int, count: int) -> bytes:
        if self._is_closed:
            raise LocalProtocolError("this source was closed")
        if offset < 0 or count < 0:
            raise ValueError(f"no bytes from {offset}, {count} of them")
        return self._file.read(offset, count)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._file.close()
            self._stock.release(self._blob)

    def __enter__(self) -> _BlobSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _not_found() -> ResourceError:
    return ResourceError(ErrorCode.NOT_FOUND, "there is no such blob")
