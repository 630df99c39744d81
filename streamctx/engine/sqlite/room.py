"""Whether there is room: what happens when the disk is full, and how much each owner may store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from streamctx.engine.base import StoreError

__all__ = ["Ballast", "Quotas", "Room"]

_BALLAST_NAME = "ballast"
# Writes are tried again this long after one found no room.
_RETRY_AFTER_S = 1.0


class Ballast:
    """A file that is there to be deleted when the disk is full, so that something can be cleaned up then."""

    def __init__(self, directory: Path, byte_count: int) -> None:
        self._path = directory / _BALLAST_NAME
        self._byte_count = byte_count

    def release(self) -> None:
        """Give its room back."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def restore(self) -> bool:
        """Take its room, unless there is too little; whether it is there now."""
        if self._path.exists():
            return True
        try:
            space = os.statvfs(self._path.parent)
            # Not the last bytes: those are for what is to be stored.
            if space.f_bavail * space.f_frsize < 2 * self._byte_count:
                return False
            descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, self._byte_count)
                else:
                    file.write(bytes(self._byte_count))
        except OSError:
            self.release()
            return False
        return True


class Room:
    """Whether the disk is full, and since when.

    While it is, writes fail at once, but one a second is tried.
    """

    def __init__(self, directory: Path, monotonic: Callable[[], float], *, ballast_bytes: int) -> None:
        self._ballast = Ballast(directory, ballast_bytes)
        self._monotonic = monotonic
        self._try_at: float | None = None
        self._has_ballast = self._ballast.restore()

    @property
    def is_full(self) -> bool:
        """Whether the last write that was tried found no room."""
        return self._try_at is not None

    def refusal(self) -> StoreError | None:
        """Why a write is not even tried now; `None` if it is."""
        if self._try_at is None or self._monotonic() >= self._try_at:
            return None
        return self.no_room()

    def no_room(self) -> StoreError:
        """The error of a write that found the disk full."""
        return StoreError(
            "the disk with the data directory is full: nothing can be stored until there is room; "
            "stored sessions can still be read",
            is_fatal=False,
            retry_after_s=_RETRY_AFTER_S,
        )

    def run_out(self) -> None:
        """A write has found no room."""
        self._try_at = self._monotonic() + _RETRY_AFTER_S

    def release_ballast(self) -> None:
        """Give room to what makes room; to nothing else, or there would be none when it is needed."""
        self._ballast.release()
        self._has_ballast = False

    def recover(self) -> None:
        """A write has found room."""
        self._try_at = None

    def restore_ballast(self) -> None:
        """Make the ballast anew if it was used and there is room again."""
        if not self._has_ballast and not self.is_full:
            self._has_ballast = self._ballast.restore()


class Quotas:
    """How many bytes may be stored."""

    def __init__(self, *, principal_bytes_max: int, store_bytes_max: int) -> None:
        self._principal_bytes_max = principal_bytes_max
        self._store_bytes_max = store_bytes_max

    def refusal(self, *, principal_bytes: int, store_bytes: int, more_bytes: int) -> StoreError | None:
        """Why so many bytes more are not taken; `None` if they are.

        Args:
            principal_bytes: What the owner has stored.
            store_bytes: What all have.
            more_bytes: What would be added.
        """
        if principal_bytes + more_bytes > self._principal_bytes_max:
            whose, used, limit = "the sessions of this principal", principal_bytes, self._principal_bytes_max
        elif store_bytes + more_bytes > self._store_bytes_max:
            whose, used, limit = "all sessions", store_bytes, self._store_bytes_max
        else:
            return None
        return StoreError(
            f"{whose} hold {used} bytes, and {more_bytes} more would exceed the quota of {limit}: "
            f"prune old sessions, or raise the quota",
            is_fatal=False,
            retry_after_s=60.0,
        )
