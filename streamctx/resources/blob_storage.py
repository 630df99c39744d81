"""What a store of blobs asks of the place where their bytes lie, which is memory or a directory.

Nothing here decides what is kept; that is `blob_ledger`. Nothing here knows whether bytes are the right ones;
that is `blob_stock`, which hashes what it reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from streamctx.errors import ErrorCode
from streamctx.resources.base import ResourceError

__all__ = [
    "OCTETS",
    "BlobDamaged",
    "BlobFile",
    "FoundBlob",
    "FoundPart",
    "Inventory",
    "Label",
    "PartFile",
    "PartKey",
    "Stamp",
    "Storage",
    "digest_of",
    "is_digest",
    "make_label",
    "uri_of",
]

OCTETS = "application/octet-stream"

_SCHEME = "sha256:"
_DIGEST = re.compile(r"[0-9a-f]{64}")

_MIME_CHARACTERS_MAX = 255
"""RFC 6838 section 4.2 allows 127 on either side of the slash."""
_NAME_CHARACTERS_MAX = 255
"""What most file systems allow; a label in JSON then fits what a file has for it (see `blob_files`)."""

Stamp = tuple[int, ...]
"""What cannot stay the same when bytes are written over, as far as the place can tell."""


class BlobDamaged(Exception):
    """What lies there is not the blob that was stored. Never leaves the store."""


class PartKey(NamedTuple):
    """What an upload is known by: who lies about the size of a content is in nobody's way who does not."""

    digest: str
    size_bytes: int


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept with the bytes."""

    mime: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBlob:
    """A blob of an earlier run, or what is left of one. Times are in seconds since 1970."""

    digest: str
    size_bytes: int
    modified: float
    used: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPart:
    """A part of an earlier run."""

    key: PartKey
    kept_bytes: int
    modified: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All that lies in a place."""

    blobs: Sequence[FoundBlob] = ()
    parts: Sequence[FoundPart] = ()
    aside: Sequence[FoundBlob] = ()
    """Blobs that were found damaged and set aside."""


class BlobFile(Protocol):
    """A blob that was opened: its bytes stay until `close`, whatever is removed meanwhile."""

    @property
    def label(self) -> Label:
        """What was kept with it."""

    @property
    def stamp(self) -> Stamp:
        """What it was when it was opened."""

    @property
    def size_bytes(self) -> int:
        """How many bytes it has."""

    def read(self, offset: int, count: int) -> bytes:
        """Give bytes; fewer only at the end.

        Raises:
            ResourceChanged: If the bytes were written over or cut off.
            ResourceError: If they cannot be read.
        """

    def close(self) -> None:
        """Let go of it; once."""


class PartFile(Protocol):
    """An upload under way, with one owner and one thread at a time."""

    @property
    def label(self) -> Label:
        """What was given when it was begun."""

    @property
    def offset(self) -> int:
        """How many bytes it has."""

    def append(self, data: memoryview) -> None:
        """Add all of the data, or nothing.

        Raises:
            ResourceError: If there is no room, or it cannot be written.
        """

    def read(self, offset: int, count: int) -> bytes:
        """Give what it has; fewer only at the end."""

    def seal(self, now: float) -> Stamp:
        """Make its bytes safe: they are not lost with the power.

        Raises:
            ResourceError: If that fails; nobody knows then what the disk has of it.
        """

    def rest(self, now: float) -> None:
        """Close it so that it can be opened again; `now` says since when it rests."""

    def close(self) -> None:
        """Let go of it; once, and not after `rest`."""


class Storage(Protocol):
    """Where the bytes lie. Calls for one digest come one at a time, except those to open and read.

    Every call raises ResourceError where the place fails.
    """

    def scan(self) -> Inventory:
        """Find what an earlier run has left; the first call, and the only one of its kind."""

    def create_part(self, key: PartKey, label: Label) -> PartFile:
        """Begin a part, in the place of one that is there; if it fails, something may be left to remove."""

    def open_part(self, key: PartKey) -> PartFile:
        """Go on with a part.

        Raises:
            BlobDamaged: If there is none, or it is of no use.
        """

    def publish(self, key: PartKey) -> None:
        """Make a sealed part the blob, in one step; if that fails there is neither."""

    def open_blob(self, digest: str, *, used: float | None) -> BlobFile:
        """Open a blob, and remember when it was used if it is.

        Raises:
            BlobDamaged: If it is not there, or its head or its size is wrong; its bytes are not read.
        """

    def set_aside(self, digest: str) -> bool:
        """Keep a damaged blob for whoever wants to know what became of it; says whether there is anything."""

    def remove_part(self, key: PartKey) -> None:
        """Remove a part, if it is there."""

    def remove_blob(self, digest: str) -> None:
        """Remove a blob, if it is there."""

    def remove_aside(self, digest: str) -> None:
        """Remove what was set aside, if it is there."""

    def close(self) -> None:
        """Let go of the place. What is open stays so."""


def is_digest(text: str) -> bool:
    """Whether this is a SHA-256 in lowercase hexadecimal: 64 characters that are safe in a name of a file."""
    return _DIGEST.fullmatch(text) is not None


def uri_of(digest: str) -> str:
    """The URI of a blob."""
    return _SCHEME + digest


def digest_of(uri: str) -> str | None:
    """The digest in the URI of a blob, or `None` if it is none."""
    digest = uri.removeprefix(_SCHEME)
    return digest if uri.startswith(_SCHEME) and is_digest(digest) else None


def make_label(*, digest: str, mime: str, name: str | None) -> Label:
    """Check what a client says of its content; what has no name is named by its digest.

    Raises:
        ResourceError: If something is too long, or cannot be written in UTF-8.
    """
    name = digest if name is None else name
    for what, text, limit in (("type", mime, _MIME_CHARACTERS_MAX), ("name", name, _NAME_CHARACTERS_MAX)):
        if len(text) > limit:
            raise ResourceError(
                ErrorCode.TOO_LARGE, f"the {what} of a blob has {len(text)} characters, limit {limit}"
            )
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ResourceError(ErrorCode.BAD_TEXT, f"the {what} of a blob holds a lone surrogate")
    return Label(mime=mime, name=name)
