r"""The file of an outbox: a log of batches of records, each whole or not there.

    streamctx outbox 1\n                                   the header
    length (4) | check of place and length (4) | digest of the payload (8) | payload     a batch, and so on

A batch is a MessagePack array of records. Integers are big-endian. The check is CRC-32 of the batch's offset
and length, the digest XXH3-64 of the payload with the offset as seed: what was moved is found too. A process
that is killed while it writes leaves a prefix of its last batch, which is cut off. No other damage is: a
length that is wrong cannot be told from it without the check, and what followed would be lost without a word.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import anyio.to_thread
import msgspec
import xxhash

from streamctx.core.session.outbox_records import OutboxRecord
from streamctx.core.session.outbox_state import OutboxDamaged, OutboxState, outbox_state
from streamctx.errors import ConfigurationError

__all__ = ["OutboxFile", "read_batches"]

_HEADER: Final = b"streamctx outbox 1\n"
_HEAD: Final = struct.Struct(">IIQ")
"""Length, check, digest."""
_PLACE: Final = struct.Struct(">QI")
"""What the check covers: offset, length."""
_LOG_NAME = "outbox.log"
_LOCK_NAME = "outbox.lock"
_IS_WINDOWS = sys.platform == "win32"
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[OutboxRecord]).decode


class OutboxFile:
    """The log in a directory of its own, which one process has at a time.

    `size_bytes` is the log's length; what `append` has returned from survives the death of this process, and
    a power cut once `sync` has returned too.
    """

    def __init__(self, directory: Path, *, fsync: bool) -> None:
        """Make the directory if need be, and take it for this process.

        Args:
            directory: Nobody else may write to it.
            fsync: Whether `sync` and `rewrite` wait until the disk has it.

        Raises:
            ConfigurationError: If another process has it, it cannot be made, or is not ours alone.
        """
        self.size_bytes = 0
        self._path = directory / _LOG_NAME
        self._fsync = fsync
        self._is_dirty = False
        self._log: int | None = None
        _make_private_directory(directory)
        self._lock: int | None = _lock(directory / _LOCK_NAME)

    def read(self, bytes_max: int) -> OutboxState:
        """What another process has left.

        Raises:
            OutboxDamaged: If it is not what it left.
            ConfigurationError: If it cannot be read, or others can read it.
        """
        try:
            data = _read_private(self._path, bytes_max)
        except FileNotFoundError:
            return OutboxState()
        return outbox_state(read_batches(data))

    @property
    def is_open(self) -> bool:
        """Whether there is a log to append to: `rewrite` makes one."""
        return self._log is not None

    def append(self, records: list[OutboxRecord], bytes_max: int) -> bool:
        """Add a batch.

        Returns:
            Whether the log is within the bound with it; else nothing was done.

        Raises:
            OSError: If it could not be written; then `abandon`, or `rewrite`.
        """
        assert self._log is not None
        data = _batch(records, self.size_bytes)
        if self.size_bytes + len(data) > bytes_max:
            return False
        _write_all(self._log, data)
        self.size_bytes += len(data)
        self._is_dirty = True
        return True

    def rewrite(self, records: list[OutboxRecord], bytes_max: int) -> bool:
        """Put these records in place of all that were written; a reader finds the old ones or these.

        Returns:
            Whether they are within the bound; else nothing was done.

        Raises:
            OSError: As `append`.
        """
        batch = _batch(records, len(_HEADER))
        if len(_HEADER) + len(batch) > bytes_max:
            return False
        temporary = self._path.with_suffix(".new")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
        try:
            _write_all(descriptor, _HEADER + batch)
            if self._fsync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        # Windows renames no file, and over none, that is open.
        self._close_log()
        temporary.replace(self._path)
        if self._fsync and not _IS_WINDOWS:
            _sync_directory(self._path.parent)
        self._log = os.open(self._path, os.O_WRONLY | os.O_APPEND | _FLAGS)
        self.size_bytes = len(_HEADER) + len(batch)
        self._is_dirty = False
        return True

    async def sync(self) -> None:
        """Wait until the disk has what was written, if that is wanted.

        Raises:
            OSError: As `append`.
        """
        if not (self._fsync and self._is_dirty) or self._log is None:
            return
        self._is_dirty = False
        # A rewrite meanwhile closes the log, which needs no sync then.
        descriptor = os.dup(self._log)
        try:
            await anyio.to_thread.run_sync(_fdatasync, descriptor)
        finally:
            os.close(descriptor)

    def abandon(self) -> None:
        """Leave nothing that another process could go on from."""
        if self._log is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._log, 0)
        self._close_log()
        with contextlib.suppress(OSError):
            self._path.unlink()
        self.size_bytes = 0

    def close(self) -> None:
        """Let another process have it."""
        self._close_log()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _close_log(self) -> None:
        if self._log is not None:
            os.close(self._log)
            self._log = None


def read_batches(data: bytes) -> Iterator[list[OutboxRecord]]:
    """Read a log, up to the last batch that is whole.

    Raises:
        OutboxDamaged: If anything but the end of the last batch is missing or wrong.
    """
    if not data.startswith(_HEADER):
        if _HEADER.startswith(data):
            return
        raise OutboxDamaged("it does not begin like an outbox of this version")
    offset = len(_HEADER)
    while offset + _HEAD.size <= len(data):
        length, check, digest = _HEAD.unpack_from(data, offset)
        if zlib.crc32(_PLACE.pack(offset, length)) != check:
            raise OutboxDamaged(f"the head of a batch at byte {offset} is wrong")
        start = offset + _HEAD.size
        payload = memoryview(data)[start : start + length]
        if len(payload) < length:
            return
        if xxhash.xxh3_64_intdigest(payload, seed=offset) != digest:
            raise OutboxDamaged(f"a batch at byte {offset} is wrong")
        try:
            yield _decode(payload)
        except msgspec.DecodeError as error:
            raise OutboxDamaged(f"a batch at byte {offset} holds no records of this version") from error
        offset = start + length


def _batch(records: list[OutboxRecord], offset: int) -> bytes:
    payload = _encode(records)
    check = zlib.crc32(_PLACE.pack(offset, len(payload)))
    return _HEAD.pack(len(payload), check, xxhash.xxh3_64_intdigest(payload, seed=offset)) + payload


def _write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])


def _fdatasync(descriptor: int) -> None:
    getattr(os, "fdatasync", os.fsync)(descriptor)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_private_directory(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise ConfigurationError(
            f"outbox: directory {path}: {error.strerror}; a directory of ours is needed"
        ) from error
    # As a server names it (`streamctx.engine.sqlite.place`, which a client does not load).
    if os.path.lexists(path / "store.db"):
        raise ConfigurationError(
            f"outbox: directory {path} is the data directory of a server (with a store.db); name another one"
        )
    if _IS_WINDOWS:
        return
    # The sticky bit (as on /tmp) keeps others from replacing our files.
    is_shared = bool(found.st_mode & 0o022) and not found.st_mode & stat.S_ISVTX
    if found.st_uid != os.geteuid() or is_shared:
        raise ConfigurationError(
            f"outbox: directory {path} has mode {stat.S_IMODE(found.st_mode):04o} and belongs to user "
            f"{found.st_uid}; it has to be ours, and others may not write to it (chmod 0700)"
        )


def _lock(path: Path) -> int:
    """Have the lock until the descriptor is closed, by us or by the death of the process."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
    except OSError as error:
        raise ConfigurationError(f"outbox: {path}: {error.strerror}") from error
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise ConfigurationError(f"outbox: {path} cannot be locked: {error.strerror}") from error
        raise ConfigurationError(
            f"outbox: {path.parent} is in use by another client; give each one a directory of its own"
        ) from error
    return descriptor


def _read_private(path: Path, bytes_max: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigurationError(f"outbox: {path}: {error.strerror}; a file of ours is needed") from error
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not _IS_WINDOWS and (found.st_uid != os.geteuid() or found.st_mode & 0o077):
            raise ConfigurationError(f"outbox: others can read {path}, or it is theirs (chmod 0600)")
        if found.st_size > bytes_max:
            raise OutboxDamaged(f"it has {found.st_size} bytes, limit {bytes_max}")
        return file.read()
