"""What a store of blobs holds, what that counts against its bounds, and what has to go for something new.

Decisions only: nothing here reads a clock or touches a byte, and whoever uses it holds the lock of the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from streamctx.resources.blob_storage import Label, PartKey, Stamp

__all__ = ["Aside", "HeldBlob", "HeldPart", "Ledger", "Victim"]


@dataclass(slots=True, eq=False, kw_only=True)
class HeldBlob:
    """A blob that can be read."""

    digest: str
    size_bytes: int
    modified: float
    label: Label | None = None
    """`None` until its file was opened."""
    stamp: Stamp | None = None
    """What the file was when its bytes were last known to be right; `None` if nobody has looked yet."""
    open_count: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class HeldPart:
    """An upload, under way or at rest."""

    key: PartKey
    kept_bytes: int
    """What there was when it last came to rest."""
    modified: float
    is_written: bool = False

    @property
    def charged_bytes(self) -> int:
        """While it has an owner all that it may become, so that no write ever needs to look for room."""
        return self.key.size_bytes if self.is_written else self.kept_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """A damaged blob that was set aside."""

    digest: str
    size_bytes: int


Victim = HeldPart | Aside | HeldBlob


class Ledger:
    """The books of a store.

    `bytes` is the sum over all entries; it is at most `bytes_max`, and the entries are at most `count_max`,
    as long as nothing is added or owned for which `victims` was not asked. Blobs are in the order of their
    last use. Pins belong to a digest, not to an entry: they outlive a blob that is damaged and uploaded
    again.
    """

    def __init__(self, *, bytes_max: int, count_max: int, part_kept_s: float) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._part_kept_s = part_kept_s
        self._blobs: dict[str, HeldBlob] = {}
        self._parts: dict[PartKey, HeldPart] = {}
        self._aside: dict[str, Aside] = {}
        self._pins: dict[str, int] = {}
        self.bytes = 0

    @property
    def count(self) -> int:
        """How many entries there are."""
        return len(self._blobs) + len(self._parts) + len(self._aside)

    @property
    def digests(self) -> tuple[str, ...]:
        """All blobs, the least recently used first."""
        return tuple(self._blobs)

    def blob(self, digest: str) -> HeldBlob | None:
        """Look a blob up, which does not use it."""
        return self._blobs.get(digest)

    def use(self, digest: str) -> HeldBlob | None:
        """Look a blob up, and make it the most recently used one."""
        found = self._blobs.pop(digest, None)
        if found is not None:
            self._blobs[digest] = found
        return found

    def part(self, key: PartKey) -> HeldPart | None:
        """Look a part up."""
        return self._parts.get(key)

    def add(self, entry: Victim) -> None:
        """Enter what there was not."""
        match entry:
            case HeldBlob():
                assert entry.digest not in self._blobs
                self._blobs[entry.digest] = entry
            case HeldPart():
                assert entry.key not in self._parts
                self._parts[entry.key] = entry
            case Aside():
                assert entry.digest not in self._aside
                self._aside[entry.digest] = entry
        self.bytes += _charged(entry)

    def drop(self, entry: Victim) -> None:
        """Strike out what there was."""
        match entry:
            case HeldBlob():
                del self._blobs[entry.digest]
            case HeldPart():
                del self._parts[entry.key]
            case Aside():
                del self._aside[entry.digest]
        self.bytes -= _charged(entry)

    def aside(self, digest: str) -> Aside | None:
        """Look up what was set aside."""
        return self._aside.get(digest)

    def own(self, part: HeldPart) -> None:
        """Let a part have an owner; room for all of it was made."""
        self.bytes -= part.charged_bytes
        part.is_written = True
        self.bytes += part.charged_bytes

    def rest(self, part: HeldPart, *, kept_bytes: int, now: float) -> None:
        """Let a part have no owner; what it has not received is free for others."""
        self.bytes -= part.charged_bytes
        part.is_written, part.kept_bytes, part.modified = False, kept_bytes, now
        self.bytes += part.charged_bytes

    def pin(self, digest: str) -> None:
        """Keep a blob from being evicted, once more."""
        self._pins[digest] = self._pins.get(digest, 0) + 1

    def unpin(self, digest: str) -> bool:
        """Take one pin back; says whether there was one."""
        count = self._pins.pop(digest, 0)
        if count > 1:
            self._pins[digest] = count - 1
        return count > 0

    def victims(
        self, now: float, *, more_bytes: int, more_count: int, spared: HeldPart | None = None
    ) -> list[Victim] | None:
        """Say what has to go so that something new fits.

        Args:
            now: In seconds since 1970.
            more_bytes: How much is to be charged in addition.
            more_count: How many entries are to come.
            spared: The part that is to grow.

        Returns:
            What to remove, in this order: parts that have rested for too long, the oldest first; what was set
            aside; blobs that are neither open nor pinned, the least recently used first. `None` if it is not
            enough, and then nothing is worth removing.
        """
        return self._choose(self._dispensable(now, spared), more_bytes, more_count)

    def excess(self, now: float) -> list[Victim]:
        """Say what has to go because the bounds are narrower than they were: younger parts too, last."""

        def candidates() -> Iterator[Victim]:
            yield from self._dispensable(now, None)
            yield from sorted(
                (part for part in self._parts.values() if not self._has_expired(part, now)), key=_age_order
            )

        chosen = self._choose(candidates(), 0, 0)
        assert chosen is not None, "everything was a candidate, as nothing is open yet"
        return chosen

    def _choose(self, candidates: Iterator[Victim], more_bytes: int, more_count: int) -> list[Victim] | None:
        excess_bytes = self.bytes + more_bytes - self._bytes_max
        excess_count = self.count + more_count - self._count_max
        chosen: list[Victim] = []
        while excess_bytes > 0 or excess_count > 0:
            candidate = next(candidates, None)
            if candidate is None:
                return None
            chosen.append(candidate)
            excess_bytes -= _charged(candidate)
            excess_count -= 1
        return chosen

    def _dispensable(self, now: float, spared: HeldPart | None) -> Iterator[Victim]:
        yield from sorted(
            (part for part in self._parts.values() if part is not spared and self._has_expired(part, now)),
            key=_age_order,
        )
        yield from self._aside.values()
        for blob in self._blobs.values():
            if not blob.open_count and blob.digest not in self._pins:
                yield blob

    def _has_expired(self, part: HeldPart, now: float) -> bool:
        return not part.is_written and now - part.modified > self._part_kept_s


def _charged(entry: Victim) -> int:
    return entry.charged_bytes if isinstance(entry, HeldPart) else entry.size_bytes


def _age_order(part: HeldPart) -> float:
    return part.modified
