"""What every provider of resources gives: a pinned source, read at any offset, and known by an etag."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from streamctx.errors import ErrorCode, StreamctxError

__all__ = [
    "Listing",
    "Provider",
    "ResourceChanged",
    "ResourceError",
    "ResourceFresh",
    "ResourceInfo",
    "Source",
]


class ResourceError(StreamctxError):
    """A resource cannot be given.

    Args:
        code: Why, for programs. What is unknown and what is forbidden look the same: `not_found`.
        message: Why, for people; without paths of the server's.
        is_temporary: Whether it may be given later.
    """

    def __init__(self, code: ErrorCode, message: str, *, is_temporary: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.is_temporary = is_temporary


class ResourceChanged(StreamctxError):
    """The source is no longer what it was when it was opened: what was read of it is of no use."""


class ResourceFresh(StreamctxError):
    """A resource was changed so recently that its etag could not tell the next change from the last.

    The caller waits, where that blocks nobody, and opens it again. A resource that is written all the time
    stays fresh, so it gives up after some tries and tells its client that the resource may be had later.

    Args:
        retry_after_s: How long to wait until it is no longer fresh, if it is not changed again; more than 0.
    """

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"The resource has just been changed; it may be opened in {retry_after_s:.3f} s.")
        self.retry_after_s = retry_after_s


class ResourceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a resource without reading it."""

    uri: str
    name: str
    mime: str
    """`application/octet-stream` where nobody knows better."""
    size_bytes: int | None
    """`None` where only the end will tell."""
    etag: str
    """Strong: the same etag is the same bytes (RFC 9110 section 8.8.1). Without quotes."""
    modified: float | None
    """In seconds since 1970, and not in the future; `None` where nobody knows."""


class Source(Protocol):
    """A resource that was opened: the same bytes, whatever happens to its name, until `close`.

    Used by one thread at a time, and not by the event loop's: every call may wait for a disk or a network.
    """

    @property
    def info(self) -> ResourceInfo:
        """What it was when it was opened."""

    def read(self, offset: int, count: int) -> bytes:
        """Give the bytes from an offset on.

        Args:
            offset: At or past the end there is nothing, which is no error.
            count: How many, at most; fewer only at the end.

        Raises:
            ResourceChanged: If it is no longer what it was.
            ResourceError: If it cannot be read.
        """

    def close(self) -> None:
        """Let go of it. May be called again."""


class Listing(Iterator[ResourceInfo], Protocol):
    """The resources that are found, one by one; used by one thread at a time, and each step may wait."""

    @property
    def is_truncated(self) -> bool:
        """Whether something was left out for a limit so far: known for good at the end."""


class Provider(Protocol):
    """Finds resources by their URIs. Its calls may wait for a disk or a network, as those of a source."""

    def open(self, uri: str) -> Source:
        """Open a resource. It is tried once: no call waits until a resource is no longer fresh.

        Raises:
            ResourceError: If it cannot be given.
            ResourceFresh: If it was changed just now: wait for `retry_after_s`, but not in a thread that
                others need, and call again, a bounded number of times.
        """

    def list(self) -> Listing:
        """All that it has, as it is found."""

    def close(self) -> None:
        """Let go of what it holds, as the last call; sources that are open stay open."""
