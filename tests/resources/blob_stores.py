"""What the tests of blobs share: a clock, contents, and stores that are closed in the end."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from streamctx.errors import ErrorCode
from streamctx.resources.base import Provider, ResourceError, ResourceInfo
from streamctx.resources.blob_files import FileStorage
from streamctx.resources.blob_memory import MemoryStorage
from streamctx.resources.blobs import COUNT_MAX, PART_KEPT_S, Blobs, BlobWriter

__all__ = ["Clock", "Make", "begun", "content", "digest_of", "is_readable", "maker", "read_all", "uri_of"]


class Clock:
    """Seconds since 1970, which pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Make(Protocol):
    """Makes stores of one kind; on disk, always the one that is in the same directory."""

    def __call__(
        self,
        *,
        bytes_max: int = 1000,
        blob_bytes_max: int | None = None,
        count_max: int = COUNT_MAX,
        clock: Callable[[], float] = time.time,
    ) -> Blobs: ...


def maker(kind: str, directory: Path, stack: ExitStack) -> Make:
    def make(
        *,
        bytes_max: int = 1000,
        blob_bytes_max: int | None = None,
        count_max: int = COUNT_MAX,
        clock: Callable[[], float] = time.time,
    ) -> Blobs:
        made = Blobs(
            MemoryStorage() if kind == "memory" else FileStorage(directory),
            bytes_max=bytes_max,
            blob_bytes_max=blob_bytes_max,
            count_max=count_max,
            part_kept_s=PART_KEPT_S,
            clock=clock,
        )
        stack.callback(made.close)
        return made

    return make


def content(size_bytes: int, seed: int = 0) -> bytes:
    """Bytes that are others for every seed."""
    block = hashlib.sha256(str(seed).encode()).digest()
    return (block * (size_bytes // len(block) + 1))[:size_bytes]


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def uri_of(data: bytes) -> str:
    return f"sha256:{digest_of(data)}"


def begun(blobs: Blobs, data: bytes, size_bytes: int | None = None) -> BlobWriter:
    """A writer for a content that is not there."""
    made = blobs.begin(digest_of(data), len(data) if size_bytes is None else size_bytes)
    assert not isinstance(made, ResourceInfo)
    return made


def read_all(blobs: Blobs, data_or_uri: bytes | str) -> bytes:
    """What a blob gives, read in pieces."""
    uri = data_or_uri if isinstance(data_or_uri, str) else uri_of(data_or_uri)
    source = blobs.open(uri)
    try:
        got = b""
        while more := source.read(len(got), 7):
            got += more
        return got
    finally:
        source.close()


def is_readable(blobs: Provider, data: bytes) -> bool:
    """Whether a store gives a blob out; if not, there is none as far as anybody is told."""
    try:
        blobs.open(uri_of(data)).close()
    except ResourceError as error:
        assert error.code is ErrorCode.NOT_FOUND
        return False
    return True
