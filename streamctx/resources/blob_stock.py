"""A store of blobs from within: the ledger and the storage behind one lock, for the store and its writers.

The lock is held for decisions and for removals, never while bytes are read, hashed, written or synced:
what is worked on is marked as open or owned in the ledger, so that nothing else touches it.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from streamctx.errors import ErrorCode
from streamctx.limits import KIB
from streamctx.resources.base import ResourceChanged, ResourceError
from streamctx.resources.blob_ledger import Aside, HeldBlob, HeldPart, Ledger, Victim
from streamctx.resources.blob_storage import (
    BlobDamaged,
    BlobFile,
    Label,
    PartFile,
    PartKey,
    Storage,
)

__all__ = ["BlobBusy", "BlobCounters", "Hasher", "Stock"]

_HASHED_BYTES = 256 * KIB
"""Read at once to be hashed; more is not faster."""


class Hasher(Protocol):
    """A hash of bytes that come one after the other."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Take more bytes."""

    def hexdigest(self) -> str:
        """The hash of all of them."""


class BlobBusy(ResourceError):
    """Another writer is at this content; the first one keeps it until it is closed."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, "this blob is being uploaded already", is_temporary=True)


@dataclass(slots=True, kw_only=True)
class BlobCounters:
    """What has happened since the store was opened, and what there is."""

    stored: int = 0
    deduplicated: int = 0
    """Uploads that were not needed."""
    evicted: int = 0
    """Blobs that made room for others."""
    expired: int = 0
    """Parts that made room for others."""
    refused: int = 0
    """Uploads for which there was no room, or that were larger than a blob may be."""
    mismatched: int = 0
    """Uploads whose bytes were not those of their digest."""
    damaged: int = 0
    """Blobs that were not what they had been, and were set aside."""
    bytes: int = 0
    """Of blobs, of parts at rest, of what parts with an owner are to become, and of what was set aside."""
    count: int = 0
    """How many of these there are."""


class Stock:
    """What a store has. Every method may be called from any thread; each says what has to hold.

    Raises:
        ResourceError: If what an earlier run has left cannot be trimmed to the bounds.
    """

    def __init__(self, storage: Storage, ledger: Ledger, *, clock: Callable[[], float]) -> None:
        self._storage = storage
        self._ledger = ledger
        self._clock = clock
        self._counters = BlobCounters()
        self._lock = threading.Condition()
        self._call_count = 0
        self._is_closed = False
        try:
            self._take_over()
        except BaseException:
            storage.close()
            raise

    def _take_over(self) -> None:
        found = self._storage.scan()
        for blob in sorted(found.blobs, key=lambda blob: blob.used):
            self._ledger.add(HeldBlob(digest=blob.digest, size_bytes=blob.size_bytes, modified=blob.modified))
        for part in found.parts:
            self._ledger.add(HeldPart(key=part.key, kept_bytes=part.kept_bytes, modified=part.modified))
        for aside in found.aside:
            self._ledger.add(Aside(digest=aside.digest, size_bytes=aside.size_bytes))
        for victim in self._ledger.excess(self._clock()):
            self._evict(victim)

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Keep the storage from being closed during a call of the store or of a writer.

        Raises:
            ResourceError: If it is closed.
        """
        with self._lock:
            if self._is_closed:
                raise ResourceError(ErrorCode.UNAVAILABLE, "the store of blobs is closed", is_temporary=True)
            self._call_count += 1
        try:
            yield
        finally:
            with self._lock:
                self._call_count -= 1
                self._lock.notify_all()

    def close(self) -> None:
        """Wait for the calls under way and close the storage; may be called again."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._lock.wait_for(lambda: not self._call_count)
        self._storage.close()

    @property
    def counters(self) -> BlobCounters:
        """A copy of the counters."""
        with self._lock:
            return replace(self._counters, bytes=self._ledger.bytes, count=self._ledger.count)

    @property
    def digests(self) -> tuple[str, ...]:
        """All blobs, the least recently used first."""
        with self._lock:
            return self._ledger.digests

    # Reading.

    def hold(self, digest: str, *, is_used: bool = True) -> HeldBlob | None:
        """Keep a blob from being evicted until `release`, if there is one."""
        with self._lock:
            blob = self._ledger.use(digest) if is_used else self._ledger.blob(digest)
            if blob is not None:
                blob.open_count += 1
            return blob

    def release(self, blob: HeldBlob) -> None:
        """Let a blob go that was held."""
        with self._lock:
            blob.open_count -= 1

    def open_held(self, blob: HeldBlob) -> BlobFile | None:
        """Open a held blob whose bytes are known to be right.

        They are hashed when it is opened for the first time in this run, and after its file has changed.

        Returns:
            The file; or `None` if the blob is damaged: then it was set aside and is no longer held.

        Raises:
            ResourceError: If it cannot be read now; it is no longer held.
        """
        try:
            file = self._storage.open_blob(blob.digest, used=self._clock())
            try:
                if file.stamp != blob.stamp:
                    _verify(file, blob.digest)
            except BaseException:
                file.close()
                raise
        except (BlobDamaged, ResourceChanged):
            self._set_aside(blob)
            return None
        except BaseException:
            self.release(blob)
            raise
        with self._lock:
            blob.stamp, blob.label = file.stamp, file.label
        return file

    def label_held(self, blob: HeldBlob) -> Label | None:
        """What is kept with a held blob, without a look at its bytes; otherwise as `open_held`."""
        if blob.label is None:
            try:
                file = self._storage.open_blob(blob.digest, used=None)
            except BlobDamaged:
                self._set_aside(blob)
                return None
            except BaseException:
                self.release(blob)
                raise
            file.close()
            with self._lock:
                blob.label = file.label
        return blob.label

    def _set_aside(self, blob: HeldBlob) -> None:
        with self._lock:
            blob.open_count -= 1
            # Of several that saw the damage one is first, and by now there may be a good blob.
            if self._ledger.blob(blob.digest) is not blob:
                return
            is_kept = self._storage.set_aside(blob.digest)
            self._counters.damaged += 1
            self._ledger.drop(blob)
            before = self._ledger.aside(blob.digest)
            if before is not None:
                self._ledger.drop(before)
            if is_kept:
                self._ledger.add(Aside(digest=blob.digest, size_bytes=blob.size_bytes))

    def pin(self, digest: str) -> bool:
        """Keep a blob from being evicted; says whether there is one."""
        with self._lock:
            is_there = self._ledger.blob(digest) is not None
            if is_there:
                self._ledger.pin(digest)
            return is_there

    def unpin(self, digest: str) -> bool:
        """Take a pin back; says whether there was one."""
        with self._lock:
            return self._ledger.unpin(digest)

    # Writing.

    def hold_or_own(self, key: PartKey) -> HeldBlob | HeldPart:
        """Hold the blob, if there is one, or else own its part, for which room is made.

        Raises:
            BlobBusy: If somebody else owns the part.
            ResourceError: If there is no room.
        """
        with self._lock:
            return self.hold(key.digest) or self._own(key)

    def _own(self, key: PartKey) -> HeldPart:
        held = self._ledger.part(key)
        if held is not None and held.is_written:
            raise BlobBusy
        kept_bytes = 0 if held is None else held.kept_bytes
        now = self._clock()
        victims = self._ledger.victims(
            now, more_bytes=key.size_bytes - kept_bytes, more_count=int(held is None), spared=held
        )
        if victims is None:
            self._counters.refused += 1
            raise ResourceError(
                ErrorCode.LIMIT,
                f"no room for a blob of {key.size_bytes} bytes: what there is, is in use",
                is_temporary=True,
            )
        for victim in victims:
            self._evict(victim)
        if held is None:
            held = HeldPart(key=key, kept_bytes=0, modified=now)
            self._ledger.add(held)
        self._ledger.own(held)
        return held

    def _evict(self, victim: Victim) -> None:
        # Removed under the lock: otherwise what takes its place meanwhile would be removed in its stead.
        match victim:
            case HeldBlob():
                self._storage.remove_blob(victim.digest)
                self._counters.evicted += 1
            case HeldPart():
                self._storage.remove_part(victim.key)
                self._counters.expired += 1
            case Aside():
                self._storage.remove_aside(victim.digest)
        self._ledger.drop(victim)

    def open_owned(self, held: HeldPart, label: Label, *, is_afresh: bool) -> tuple[PartFile, Hasher]:
        """Open an owned part where it ends, with the hash of what it has.

        Args:
            held: The part.
            label: What to keep with the bytes, if nothing is kept yet.
            is_afresh: Whether to drop what there is.

        Raises:
            ResourceError: If that fails; the part has no owner then.
        """
        kept_bytes = held.kept_bytes
        try:
            if kept_bytes and not is_afresh:
                with contextlib.suppress(BlobDamaged):
                    return self._resume(held.key)
            kept_bytes = 0
            return self._storage.create_part(held.key, label), hashlib.sha256()
        except BaseException:
            self._disown(held, kept_bytes)
            raise

    def _resume(self, key: PartKey) -> tuple[PartFile, Hasher]:
        part = self._storage.open_part(key)
        try:
            return part, _hash_of(part.read, part.offset)
        except BaseException:
            part.close()
            raise

    def leave(self, held: HeldPart, part: PartFile) -> None:
        """Close an owned part and let it rest as it is; one without bytes is removed."""
        part.rest(self._clock())
        self._disown(held, part.offset)

    def discard(self, held: HeldPart, part: PartFile, *, is_mismatch: bool = False) -> None:
        """Close an owned part and remove it; if that fails it rests until it expires."""
        part.close()
        with self._lock:
            self._counters.mismatched += is_mismatch
            try:
                with self.using():
                    self._storage.remove_part(held.key)
            except ResourceError:
                self._ledger.rest(held, kept_bytes=part.offset, now=self._clock())
            else:
                self._ledger.drop(held)

    def _disown(self, held: HeldPart, kept_bytes: int) -> None:
        with self._lock:
            self._ledger.rest(held, kept_bytes=kept_bytes, now=self._clock())
            if kept_bytes:
                return
            # Where it cannot be removed it is an empty file, which the next start removes.
            with contextlib.suppress(ResourceError), self.using():
                self._storage.remove_part(held.key)
            self._ledger.drop(held)

    def publish(self, held: HeldPart, part: PartFile) -> HeldBlob:
        """Make an owned part, which is whole and right, a blob, and make it safe.

        Raises:
            ResourceError: If that fails. The part is gone then: after a failed sync the disk may have lost
                what the cache still shows, and a second sync would not say so.
        """
        now = self._clock()
        try:
            stamp = part.seal(now)
            self._storage.publish(held.key)
        except BaseException:
            self.discard(held, part)
            raise
        part.close()
        blob = HeldBlob(
            digest=held.key.digest,
            size_bytes=held.key.size_bytes,
            modified=now,
            label=part.label,
            stamp=stamp,
        )
        with self._lock:
            self._ledger.drop(held)
            self._ledger.add(blob)
            self._counters.stored += 1
        return blob

    def count_deduplicated(self) -> None:
        """Count an upload that is not needed."""
        with self._lock:
            self._counters.deduplicated += 1

    def count_refused(self) -> None:
        """Count an upload that is too large."""
        with self._lock:
            self._counters.refused += 1


def _hash_of(read: Callable[[int, int], bytes], size_bytes: int) -> Hasher:
    hasher = hashlib.sha256()
    for offset in range(0, size_bytes, _HASHED_BYTES):
        hasher.update(read(offset, min(_HASHED_BYTES, size_bytes - offset)))
    return hasher


def _verify(file: BlobFile, digest: str) -> None:
    if _hash_of(file.read, file.size_bytes).hexdigest() != digest:
        raise BlobDamaged("its bytes have another hash")
