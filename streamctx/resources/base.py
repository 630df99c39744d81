"""What every provider of resources gives: a pinned source, read at any offset, and known by an etag."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from streamctx.errors import ErrorCode, StreamctxError

__all__ = ["Provider", "ResourceChanged", "ResourceError", "ResourceInfo", "Source"]


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
    """In seconds since 1970."""


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


class Provider(Protocol):
    """Finds resources by their URIs. Its calls may wait, as those of a source."""

    def open(self, uri: str) -> Source:
        """Open a resource.

        Raises:
            ResourceError: If it cannot be given.
        """

    def list(self) -> Iterator[ResourceInfo]:
        """All that it has, as it is found."""

    def close(self) -> None:
        """Let go of what it holds, as the last call; sources that are open stay open."""
