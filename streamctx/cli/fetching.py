"""A resource into a file: what is there after an interruption is not asked for again."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote

from streamctx.cli.output import printable
from streamctx.cli.private_output import demand_free, put_in_place
from streamctx.cli.rest import Progress, RequestFailed, asked
from streamctx.cli.target import Target
from streamctx.errors import ConfigurationError, StreamctxError

__all__ = ["Fetched", "fetch", "part_of", "path_of"]

# Without a byte more. A server that is being started again is back within seconds.
_TRIES_MAX = 6
_RETRY_S = 0.5

_CHANGES_MAX = 3
"""How often a resource may change while it is fetched."""

_UNAVAILABLE = 503


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was fetched: its size, and how much of it was there before."""

    size_bytes: int
    resumed_at: int


@dataclass(frozen=True, slots=True)
class _Known:
    etag: str
    size_bytes: int


def path_of(uri: str) -> str:
    """Where a resource is on a server.

    Raises:
        ConfigurationError: If the URI holds what cannot be written in one.
    """
    try:
        return "/v1/resources/" + quote(uri, safe="")
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"{printable(uri)} is no URI: `streamctx ls` shows those there are"
        ) from None


def part_of(file: Path, uri: str, etag: str) -> Path:
    """Where the beginning of a resource is kept: of one that has changed, and so its etag, elsewhere."""
    key = hashlib.sha256(f"{file.name}\n{uri}\n{etag}".encode(errors="replace")).hexdigest()[:24]
    return file.parent / f".streamctx-{key}.part"


def fetch(target: Target, uri: str, file: Path, *, force: bool, on_progress: Progress) -> Fetched:
    """Write a resource into a file, whole or not at all.

    Its beginning is kept beside the file if that fails, and the next call goes on behind it. A connection
    that breaks is made again, and a resource that changes is fetched anew, both a few times.

    Args:
        target: The server.
        uri: Of the resource.
        file: Made with mode 0600.
        force: Whether a file that is there already is replaced.
        on_progress: Told how many bytes are there, and of how many.

    Raises:
        ConfigurationError: If something is in the way, or there is no such directory.
        RequestFailed: If the server does not give it.
        StreamctxError: If it cannot be written, or somebody else fetches it into that file.
    """
    demand_free(file, force=force)
    part: Path | None = None
    resumed_at = tries = changes = 0
    while True:
        before = 0 if part is None else _size_of(part)
        try:
            known = _look_at(target, uri)
            now = part_of(file, uri, known.etag)
            if part is None:
                resumed_at = before = _size_of(now)
            elif now != part:
                part.unlink(missing_ok=True)
                changes, resumed_at = changes + 1, 0
            part = now
            if changes > _CHANGES_MAX:
                raise RequestFailed(f"{printable(uri)} changes faster than it can be fetched", status=200)
            if _append(target, uri, known, part, on_progress):
                break
            raise RequestFailed(f"{target.http_url} does not give the bytes of {printable(uri)} asked for")
        except RequestFailed as error:
            tries = 1 if part is not None and _size_of(part) > before else tries + 1
            if tries >= _TRIES_MAX or error.status not in (None, _UNAVAILABLE):
                raise
            time.sleep(_RETRY_S)
        except OSError as error:
            raise _not_written(file, error) from error
    put_in_place(part, file, force=force)
    return Fetched(known.size_bytes, resumed_at)


def _look_at(target: Target, uri: str) -> _Known:
    try:
        with asked(target, path_of(uri), {}, method="HEAD") as answer:
            etag, length = answer.header("etag"), answer.header("content-length")
    except RequestFailed as error:
        if error.status == 404:
            message = f"{target.http_url} has no resource {printable(uri)}: `streamctx ls` shows those it has"
            raise RequestFailed(message, status=404) from error
        if error.status is None:
            raise
        # An answer to HEAD has no words; the same to GET has.
        with asked(target, path_of(uri), {"Range": "bytes=0-0"}):
            raise
    if not etag or not (length.isascii() and length.isdigit()):
        raise RequestFailed(f"{target.http_url} does not tell size and etag of {printable(uri)}", status=200)
    return _Known(etag, int(length))


def _append(target: Target, uri: str, known: _Known, part: Path, on_progress: Progress) -> bool:
    """Fetch what the part lacks; `False` if the server gives something else."""
    with _opened(part) as output:
        offset = output.seek(0, os.SEEK_END)
        if offset > known.size_bytes:
            offset = output.seek(0)
            output.truncate()
        on_progress(offset, known.size_bytes)
        if offset == known.size_bytes:
            return True
        headers = {"Range": f"bytes={offset}-", "If-Range": known.etag}
        promised = f"bytes {offset}-{known.size_bytes - 1}/{known.size_bytes}"
        with asked(target, path_of(uri), headers) as answer:
            if answer.status != 206 or answer.header("etag") != known.etag:
                return False
            if answer.header("content-range") != promised:
                return False
            for piece in answer.pieces():
                if offset + len(piece) > known.size_bytes:
                    return False
                output.write(piece)
                offset += len(piece)
                on_progress(offset, known.size_bytes)
    return offset == known.size_bytes


def _opened(part: Path) -> IO[bytes]:
    """Open a part that is ours, alone; one that somebody else may have written is begun anew.

    Raises:
        StreamctxError: If another process has it, or it cannot be had.
    """
    for _ in range(2):
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | _CAREFUL, 0o600)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                raise
            part.unlink()
            continue
        if _is_ours(os.fstat(descriptor)):
            _lock(descriptor, part)
            return os.fdopen(descriptor, "wb")
        os.close(descriptor)
        part.unlink()
    raise StreamctxError(f"{part} is not ours: remove it, and try again")


# Neither through a link, nor waiting for whoever reads a FIFO.
_CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def _is_ours(status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return False
    if sys.platform == "win32":
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077 and status.st_nlink == 1


def _lock(descriptor: int, part: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StreamctxError("another `streamctx get` fetches this into the same file: wait for it") from None


def _not_written(file: Path, error: OSError) -> StreamctxError:
    reason = error.strerror or type(error).__name__
    return StreamctxError(
        f"{printable(file)} cannot be written: {reason}. What has come is kept: the same command goes on"
    )


def _size_of(part: Path) -> int:
    """What is there, if it will be used."""
    try:
        status = part.lstat()
    except FileNotFoundError:
        return 0
    return status.st_size if _is_ours(status) else 0
