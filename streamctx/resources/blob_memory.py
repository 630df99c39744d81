"""Blobs in memory: gone with the process, and never damaged."""

from __future__ import annotations

from streamctx.resources.blob_storage import BlobDamaged, BlobFile, Inventory, Label, PartFile, PartKey, Stamp

__all__ = ["MemoryStorage"]


class MemoryStorage:
    """Bytes in buffers. A published one is never written again, so whoever reads it needs no lock."""

    def __init__(self) -> None:
        self._blobs: dict[str, _Buffer] = {}
        self._parts: dict[PartKey, _Buffer] = {}

    def scan(self) -> Inventory:
        """Nothing is left of an earlier run."""
        return Inventory()

    def create_part(self, key: PartKey, label: Label) -> PartFile:
        """Begin a part."""
        self._parts[key] = made = _Buffer(label)
        return made

    def open_part(self, key: PartKey) -> PartFile:
        """Go on with a part."""
        found = self._parts.get(key)
        if found is None:
            raise BlobDamaged("it is not there")
        return found

    def publish(self, key: PartKey) -> None:
        """Make a part the blob."""
        self._blobs[key.digest] = self._parts.pop(key)

    def open_blob(self, digest: str, *, used: float | None) -> BlobFile:
        """Open a blob."""
        found = self._blobs.get(digest)
        if found is None:
            raise BlobDamaged("it is not there")
        return found

    def set_aside(self, digest: str) -> bool:
        """Nothing is kept of it."""
        self._blobs.pop(digest, None)
        return False

    def remove_part(self, key: PartKey) -> None:
        """Remove a part."""
        self._parts.pop(key, None)

    def remove_blob(self, digest: str) -> None:
        """Remove a blob; a source that has it open keeps its bytes alive."""
        self._blobs.pop(digest, None)

    def remove_aside(self, digest: str) -> None:
        """Nothing is ever set aside."""

    def close(self) -> None:
        """Forget everything."""
        self._blobs.clear()
        self._parts.clear()


class _Buffer:
    """A part, and after it was published a blob: the bytes are not copied from one to the other."""

    def __init__(self, label: Label) -> None:
        self.label = label
        self._data = bytearray()

    @property
    def offset(self) -> int:
        return len(self._data)

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    @property
    def stamp(self) -> Stamp:
        return ()

    def append(self, data: memoryview) -> None:
        self._data += data

    def read(self, offset: int, count: int) -> bytes:
        return bytes(memoryview(self._data)[offset : offset + count])

    def seal(self, now: float) -> Stamp:
        return self.stamp

    def rest(self, now: float) -> None:
        pass

    def close(self) -> None:
        pass
