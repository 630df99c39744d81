"""Blobs in files of a private directory, which one process at a time has.

`<digest>.blob` is whole, `<digest>-<size>.part` is under way or at rest, `<digest>.damaged` was set
aside. Each is a head of 4 KiB, which holds the label, and the bytes: so one rename publishes both, and
the size of the content is known without opening the file. A part is the temporary file of its blob.
After a crash at any point there is the one or the other. After a power cut the bytes of a part may not
be those that were sent, which then shows in its hash.

On Linux and macOS only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import xxhash

from streamctx.errors import ConfigurationError, ErrorCode
from streamctx.limits import KIB
from streamctx.resources.base import ResourceChanged, ResourceError
from streamctx.resources.blob_storage import (
    BlobDamaged,
    BlobFile,
    FoundBlob,
    FoundPart,
    Inventory,
    Label,
    PartFile,
    PartKey,
    Stamp,
)

__all__ = ["HEAD_BYTES", "FileStorage"]

HEAD_BYTES = 4 * KIB
"""A page, so that the bytes stay aligned. A label takes 3.1 KiB at most: 510 times six bytes of JSON."""

_MAGIC = b"sctxblb1"
_BODY_BYTES = HEAD_BYTES - len(_MAGIC) - 8

_NAME = re.compile(
    r"(?P<digest>[0-9a-f]{64})(?:\.(?P<kind>blob|damaged)|-(?P<size>0|[1-9][0-9]{0,15})\.part)"
)
"""One name for one thing: a size with leading zeros is none of ours."""

# Where there is no such flag there is no such store, but one in memory, which imports this too.
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
# We say ourselves when a blob was used; a backup that reads all of them says nothing.
_READ = os.O_RDONLY | getattr(os, "O_NOATIME", 0) | _FLAGS

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Other things that pass: no descriptors, no memory.
_BUSY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """What the head of a file holds, so that it says what it is by whatever name it goes."""

    digest: str
    size_bytes: int
    label: Label


class FileStorage:
    """A directory of blobs, and its lock.

    Everything is done relative to the directory that was checked, wherever its name leads later.

    Raises:
        ConfigurationError: If the directory is not ours alone, another store has it, or it cannot be made.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        except OSError as error:
            raise ConfigurationError(
                f"the directory of blobs {directory} cannot be used ({error.strerror}): name another one"
            ) from error
        try:
            _check_ours(os.fstat(self._directory), directory, 0o700)
            _lock(self._directory, directory)
        except BaseException:
            os.close(self._directory)
            raise

    def scan(self) -> Inventory:
        """Find what an earlier run has left, by names and sizes; what has another name is left alone.

        Raises:
            ConfigurationError: If what has one of our names is no plain file, not ours, or open to others; or
                if the directory cannot be read.
        """
        found: dict[str, list[tuple[str, str, os.stat_result]]] = {"blob": [], "damaged": [], "part": []}
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    name = _NAME.fullmatch(entry.name)
                    if name is None:
                        continue
                    status = entry.stat(follow_symlinks=False)
                    _check_ours(status, self._path / entry.name, 0o600)
                    found[name["kind"] or "part"].append((name["digest"], name["size"], status))
        except OSError as error:
            raise ConfigurationError(
                f"the directory of blobs {self._path} cannot be read ({error.strerror}): name another one"
            ) from error
        return Inventory(
            blobs=[_found_blob(digest, status) for digest, _, status in found["blob"]],
            aside=[_found_blob(digest, status) for digest, _, status in found["damaged"]],
            parts=list(self._useful_parts(found["part"])),
        )

    def _useful_parts(self, found: list[tuple[str, str, os.stat_result]]) -> Iterator[FoundPart]:
        for digest, size, status in found:
            key = PartKey(digest, int(size))
            kept_bytes = status.st_size - HEAD_BYTES
            if 0 < kept_bytes <= key.size_bytes:
                yield FoundPart(key=key, kept_bytes=kept_bytes, modified=status.st_mtime)
            else:
                self.remove_part(key)

    def create_part(self, key: PartKey, label: Label) -> PartFile:
        """Begin a part."""
        name = _part_name(key)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS
        with _told():
            self._remove(name)
            descriptor = os.open(name, flags, 0o600, dir_fd=self._directory)
            try:
                _write_all(descriptor, memoryview(_encode_head(key, label)), 0)
            except BaseException:
                os.close(descriptor)
                raise
        return _Part(descriptor, label, 0)

    def open_part(self, key: PartKey) -> PartFile:
        """Go on with a part."""
        descriptor = self._open(_part_name(key), os.O_RDWR | _FLAGS)
        try:
            with _told():
                head = _read_head(descriptor)
                kept_bytes = os.fstat(descriptor).st_size - HEAD_BYTES
            if PartKey(head.digest, head.size_bytes) != key or kept_bytes > key.size_bytes:
                raise BlobDamaged("it is another part")
        except BaseException:
            os.close(descriptor)
            raise
        return _Part(descriptor, head.label, kept_bytes)

    def publish(self, key: PartKey) -> None:
        """Make a sealed part the blob, in one step, and make that safe."""
        names = _part_name(key), _blob_name(key.digest)
        with _told():
            try:
                os.rename(*names, src_dir_fd=self._directory, dst_dir_fd=self._directory)
                os.fsync(self._directory)
            except OSError:
                for name in names:
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=self._directory)
                raise

    def open_blob(self, digest: str, *, used: float | None) -> BlobFile:
        """Open a blob whose head is in order; when it was used is its time of access."""
        descriptor = self._open(_blob_name(digest), _READ)
        try:
            with _told():
                head = _read_head(descriptor)
                status = os.fstat(descriptor)
            if (head.digest, head.size_bytes) != (digest, status.st_size - HEAD_BYTES):
                raise BlobDamaged("it is another blob, or cut off")
            if used is not None:
                # The order of use is worth no more than a try.
                with contextlib.suppress(OSError):
                    os.utime(descriptor, ns=(_nanoseconds(used), status.st_mtime_ns))
        except BaseException:
            os.close(descriptor)
            raise
        return _Blob(descriptor, head)

    def set_aside(self, digest: str) -> bool:
        """Give a damaged blob another name, in the place of one that has it."""
        with _told():
            try:
                os.rename(
                    _blob_name(digest),
                    _aside_name(digest),
                    src_dir_fd=self._directory,
                    dst_dir_fd=self._directory,
                )
            except FileNotFoundError:
                return False
        return True

    def remove_part(self, key: PartKey) -> None:
        """Remove a part."""
        with _told():
            self._remove(_part_name(key))

    def remove_blob(self, digest: str) -> None:
        """Remove a blob; whoever has it open can read on. After a crash it may be there again."""
        with _told():
            self._remove(_blob_name(digest))

    def remove_aside(self, digest: str) -> None:
        """Remove what was set aside."""
        with _told():
            self._remove(_aside_name(digest))

    def close(self) -> None:
        """Let go of the directory, and of its lock."""
        os.close(self._directory)

    def _open(self, name: str, flags: int) -> int:
        try:
            with _told():
                descriptor = os.open(name, flags, dir_fd=self._directory)
        except ResourceError as error:
            cause = error.__cause__
            # No file, or a link, or another's file, put there after the scan.
            if isinstance(cause, OSError) and cause.errno in {errno.ENOENT, errno.ELOOP, errno.EPERM}:
                raise BlobDamaged("it is not there") from error
            raise
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            os.close(descriptor)
            raise BlobDamaged("it is no plain file of ours")
        return descriptor

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._directory)


class _Part:
    """The file of a part. What is past `offset` in it, after a failed write, is written over."""

    def __init__(self, descriptor: int, label: Label, offset: int) -> None:
        self.label = label
        self.offset = offset
        self._descriptor = descriptor

    def append(self, data: memoryview) -> None:
        end = HEAD_BYTES + self.offset
        with _told():
            try:
                _write_all(self._descriptor, data, end)
            except OSError:
                # On a full disk even the half of a chunk is wanted back.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, end)
                raise
        self.offset += len(data)

    def read(self, offset: int, count: int) -> bytes:
        with _told():
            return _read_all(self._descriptor, HEAD_BYTES + offset, count)

    def seal(self, now: float) -> Stamp:
        with _told():
            os.utime(self._descriptor, ns=(_nanoseconds(now), _nanoseconds(now)))
            os.fsync(self._descriptor)
            return _stamp(os.fstat(self._descriptor))

    def rest(self, now: float) -> None:
        # Not synced: after a power cut less is there, or wrong bytes, which the hash tells.
        with contextlib.suppress(OSError):
            os.utime(self._descriptor, ns=(_nanoseconds(now), _nanoseconds(now)))
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)


class _Blob:
    """The file of a blob."""

    def __init__(self, descriptor: int, head: _Head) -> None:
        self.label = head.label
        self.size_bytes = head.size_bytes
        self.stamp = _stamp(os.fstat(descriptor))
        self._descriptor = descriptor

    def read(self, offset: int, count: int) -> bytes:
        count = max(0, min(count, self.size_bytes - offset))
        with _told():
            data = _read_all(self._descriptor, HEAD_BYTES + offset, count)
            # Looked at after the bytes were read: a change before is seen, one after does not matter.
            is_same = _stamp(os.fstat(self._descriptor)) == self.stamp
        if not is_same:
            raise ResourceChanged("the file of the blob was written to")
        return data

    def close(self) -> None:
        os.close(self._descriptor)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Say what the system says in our words, without a path."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise ResourceError(
                ErrorCode.UNAVAILABLE, "the disk of the blobs is full", is_temporary=True
            ) from error
        is_temporary = error.errno in _BUSY
        code = ErrorCode.UNAVAILABLE if is_temporary else ErrorCode.INTERNAL
        raise ResourceError(
            code, f"the disk of the blobs failed: {error.strerror}", is_temporary=is_temporary
        ) from error


def _check_ours(found: os.stat_result, path: Path, mode: int) -> None:
    is_kind = stat.S_ISDIR if mode == 0o700 else stat.S_ISREG
    if not is_kind(found.st_mode):
        raise ConfigurationError(
            f"{path} is not a plain {'directory' if mode == 0o700 else 'file'} (a link is not followed): "
            f"remove it, or name another directory of blobs"
        )
    if found.st_uid != os.geteuid():
        raise ConfigurationError(
            f"{path} belongs to user {found.st_uid} and this is user {os.geteuid()}: name another directory"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigurationError(
            f"others than its owner have access to {path} (mode {stat.S_IMODE(found.st_mode):04o}), "
            f"which is to hold blobs: run chmod {mode:o} on it"
        )


def _lock(descriptor: int, path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise ConfigurationError(f"{path} cannot be locked: {error.strerror}") from error
        raise ConfigurationError(
            f"the directory of blobs {path} is in use by another server: give each one a directory of its own"
        ) from error


def _found_blob(digest: str, status: os.stat_result) -> FoundBlob:
    # One that is shorter than its head is damaged, which shows when it is opened.
    return FoundBlob(
        digest=digest,
        size_bytes=max(0, status.st_size - HEAD_BYTES),
        modified=status.st_mtime,
        used=status.st_atime,
    )


def _blob_name(digest: str) -> str:
    return f"{digest}.blob"


def _part_name(key: PartKey) -> str:
    return f"{key.digest}-{key.size_bytes}.part"


def _aside_name(digest: str) -> str:
    return f"{digest}.damaged"


def _encode_head(key: PartKey, label: Label) -> bytes:
    head = _Head(digest=key.digest, size_bytes=key.size_bytes, label=label)
    body = msgspec.json.encode(head).ljust(_BODY_BYTES)
    assert len(body) == _BODY_BYTES, "the label was checked"
    return _MAGIC + xxhash.xxh3_64_digest(body) + body


def _read_head(descriptor: int) -> _Head:
    data = _read_all(descriptor, 0, HEAD_BYTES)
    body = data[-_BODY_BYTES:]
    if len(data) != HEAD_BYTES or data != _MAGIC + xxhash.xxh3_64_digest(body) + body:
        raise BlobDamaged("its head is damaged")
    try:
        return msgspec.json.decode(body, type=_Head)
    except msgspec.DecodeError as error:
        raise BlobDamaged("its head is not understood") from error


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count


def _read_all(descriptor: int, offset: int, count: int) -> bytes:
    data = os.pread(descriptor, count, offset)
    # One call gives less than was asked for at the end, and of more than 2 GiB.
    while len(data) < count:
        more = os.pread(descriptor, count - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data
