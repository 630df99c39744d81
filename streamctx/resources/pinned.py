"""A file that was opened, as long as it is what it was.

Which file that may be is for others to say.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import xxhash

from streamctx.errors import ErrorCode
from streamctx.resources.base import ResourceChanged, ResourceError, ResourceInfo

__all__ = ["Pin", "PinnedFile"]

# Kernels stamp files with a clock that stands still for up to 10 ms (HZ=100).
_FRESH_NS = 50_000_000
# FAT counts in steps of two seconds, some others in whole ones.
_FRESH_COARSE_NS = 2_050_000_000
# One write stamps the file at its start and then copies up to 2 GiB: measured 9 GB/s, taken for 1 GB/s.
_WRITE_BYTES_MAX = 1 << 31
_WRITE_BYTES_PER_NS = 1


class Pin(NamedTuple):
    """What a file was when it was opened; whatever changes its bytes changes one of these.

    `changed_ns` is what nobody can set. It changes with the name and the permissions as well: what removes or
    replaces an open file ends its transfer, since from outside that cannot be told from a write.
    """

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Pin:
        """Take it from what the file system says of a file."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    @property
    def etag(self) -> str:
        """The same for the same bytes, given that they were not fresh when it was taken."""
        # A digest so that inode numbers are not told to everybody; they are no secret.
        return xxhash.xxh3_128_hexdigest(":".join(map(str, self)).encode())

    def fresh_ns(self, now_ns: int) -> int:
        """How long the next change may still leave no trace; 0 or less for no longer."""
        times = (self.modified_ns, self.changed_ns)
        is_coarse = all(instant % 1_000_000_000 == 0 for instant in times)
        margin_ns = _FRESH_COARSE_NS if is_coarse else _FRESH_NS
        margin_ns += min(self.size_bytes, _WRITE_BYTES_MAX) // _WRITE_BYTES_PER_NS
        # A time that is further ahead is no time of this clock's.
        return max((t + margin_ns - now_ns for t in times if abs(now_ns - t) < margin_ns), default=0)


class PinnedFile:
    """An open file that is given out as long as it is what it was.

    A write stamps the file before it changes it. So what was read is of the pinned file if that is what it
    still is behind the read.
    """

    __slots__ = ("_descriptor", "_info", "_pin")

    def __init__(self, descriptor: int, pin: Pin, info: ResourceInfo) -> None:
        self._descriptor = descriptor
        self._pin = pin
        self._info = info

    @property
    def info(self) -> ResourceInfo:
        """What it was when it was opened."""
        return self._info

    def read(self, offset: int, count: int) -> bytes:
        """Give the bytes from an offset on, at most to the size that it had.

        Raises:
            ResourceChanged: If its content, name, permissions or links have changed.
            ResourceError: If it cannot be read; temporary.
            ValueError: If one of the numbers is negative, or if it was closed.
        """
        if offset < 0 or count < 0:
            raise ValueError(f"offset {offset} and count {count} must not be negative")
        if self._descriptor < 0:
            raise ValueError("the source is closed")
        wanted_bytes = max(0, min(count, self._pin.size_bytes - offset))
        try:
            data = _read_all(self._descriptor, offset=offset, count=wanted_bytes)
            pin = Pin.of(os.fstat(self._descriptor))
        except OSError as error:
            raise ResourceError(
                ErrorCode.UNAVAILABLE, "The resource cannot be read.", is_temporary=True
            ) from error
        if pin != self._pin or len(data) != wanted_bytes:
            raise ResourceChanged("The resource has changed since it was opened.")
        return data

    def close(self) -> None:
        """Let go of it. May be called again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _read_all(descriptor: int, *, offset: int, count: int) -> bytes:
    # The kernel gives less than 2 GiB at once, and some file systems what they have at hand.
    parts: list[bytes] = []
    while count:
        part = os.pread(descriptor, count, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        count -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
