"""A resource into a file: what is there after an interruption is not asked for again."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote

from streamctx.cli.output import printable
from streamctx.cli.private_output import demand_free, put_in_place
from streamctx.cli.rest import Answer, Progress, RequestFailed, asked
from streamctx.cli.target import Target
from streamctx.errors import ConfigurationError, StreamctxError

__all__ = ["Fetched", "fetch", "part_of", "path_of"]

# Without a byte more. A server that is being started again is back within seconds.
_TRIES_MAX = 6
_RETRY_S = 0.5

_PAUSE_S_MAX = 5
"""However long a server that is busy asks to wait."""

_CHANGES_MAX = 3
"""How often a resource may change while it is fetched."""

_UNAVAILABLE = 503

# Each time somebody else took or gave the name between two calls.
_OPENS_MAX = 5

# Of opening a link, a FIFO that nobody reads, a directory, and a file of somebody else, in this order.
_NOT_OURS = frozenset({errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR, errno.EACCES, errno.EPERM})


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
    known: _Known | None = None
    resumed_at: int | None = None
    reached = tries = changes = 0
    while True:
        try:
            now = _look_at(target, uri)
            if known is not None and known != now:
                part_of(file, uri, known.etag).unlink(missing_ok=True)
                resumed_at, reached, changes = 0, 0, changes + 1
            known = now
            if changes > _CHANGES_MAX:
                raise RequestFailed(f"{printable(uri)} changes faster than it can be fetched", status=200)
            part = part_of(file, uri, known.etag)
            with _opened(part) as output:
                offset = _usable_bytes(output, known)
                resumed_at = offset if resumed_at is None else resumed_at
                reached = max(reached, offset)
                _append(target, uri, known, output, on_progress)
                output.flush()
                # As long as it is ours alone: who waits for the part would find a file that has another name.
                put_in_place(part, file, force=force)
            return Fetched(known.size_bytes, resumed_at)
        except RequestFailed as error:
            size = 0 if known is None else _size_of(part_of(file, uri, known.etag))
            # Only more than ever is progress: a server that lets it shrink would be asked without end.
            tries = 1 if size > reached else tries + 1
            reached = max(reached, size)
            if tries >= _TRIES_MAX or error.status not in (None, _UNAVAILABLE):
                raise
            time.sleep(_pause_s(error))
        except OSError as error:
            raise _not_written(file, error) from error


def _pause_s(error: RequestFailed) -> float:
    told = error.headers.get("retry-after", "")
    return min(max(int(told), _RETRY_S), _PAUSE_S_MAX) if re.fullmatch("[0-9]{1,9}", told) else _RETRY_S


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


def _usable_bytes(output: IO[bytes], known: _Known) -> int:
    """How much is there to go on behind; what is no beginning of the resource is thrown away."""
    offset = output.seek(0, os.SEEK_END)
    # A weak etag does not promise the same bytes.
    if offset > known.size_bytes or known.etag.startswith("W/"):
        offset = output.seek(0)
        output.truncate()
    return offset


def _append(target: Target, uri: str, known: _Known, output: IO[bytes], on_progress: Progress) -> None:
    """Fetch what the part lacks.

    Raises:
        RequestFailed: If the server gives something else, or not all of it.
    """
    offset = output.tell()
    on_progress(offset, known.size_bytes)
    if offset == known.size_bytes:
        return
    headers = {"Range": f"bytes={offset}-", "If-Range": known.etag}
    with asked(target, path_of(uri), headers) as answer:
        skipped = _bytes_before(answer, known, offset)
        if skipped is None:
            raise _other_bytes(target, uri)
        for piece in answer.pieces():
            new = piece[skipped:]
            skipped -= len(piece) - len(new)
            if offset + len(new) > known.size_bytes:
                raise _other_bytes(target, uri)
            output.write(new)
            offset += len(new)
            on_progress(offset, known.size_bytes)
    if offset != known.size_bytes:
        raise _other_bytes(target, uri)


def _bytes_before(answer: Answer, known: _Known, offset: int) -> int | None:
    """How many bytes of an answer come before those asked for; `None` if it is about others."""
    if answer.header("etag") != known.etag:
        return None
    if answer.status == 200:
        # The whole, as of a server, or a proxy before it, that knows no ranges.
        return offset if answer.length in (None, known.size_bytes) else None
    promised = f"bytes {offset}-{known.size_bytes - 1}/{known.size_bytes}"
    return 0 if answer.header("content-range") == promised else None


def _other_bytes(target: Target, uri: str) -> RequestFailed:
    return RequestFailed(
        f"{target.http_url} does not give the bytes of {printable(uri)} asked for: it answered others"
    )


def _opened(part: Path) -> IO[bytes]:
    """Open a part that is ours, alone; one that somebody else may have written is begun anew.

    Raises:
        StreamctxError: If another process has it, or it cannot be had.
    """
    for _ in range(_OPENS_MAX):
        descriptor = _open_believed(part)
        if descriptor is None:
            try:
                descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFUL, 0o600)
            except FileExistsError:
                continue
        try:
            _lock(descriptor)
            if _has_name(descriptor, part):
                return os.fdopen(descriptor, "wb")
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise StreamctxError(f"{printable(part)} is changed by somebody else: try again")


def _open_believed(part: Path) -> int | None:
    """Open a part that is there and ours; what else is there is removed.

    Raises:
        StreamctxError: If it cannot be removed, as a directory cannot.
    """
    try:
        descriptor = os.open(part, os.O_WRONLY | _CAREFUL)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise
    else:
        if _is_ours(os.fstat(descriptor)):
            return descriptor
        os.close(descriptor)
    try:
        part.unlink(missing_ok=True)
    except OSError as error:
        raise StreamctxError(
            f"{printable(part)} is in the way, and cannot be removed: {error.strerror}"
        ) from error
    return None


def _has_name(descriptor: int, part: Path) -> bool:
    """Whether a file still has the name it was opened by: who had it before us may have finished it."""
    try:
        return os.path.samestat(os.fstat(descriptor), part.lstat())
    except FileNotFoundError:
        return False


# Neither through a link, nor waiting for whoever reads a FIFO.
_CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def _is_ours(status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return False
    if sys.platform == "win32":
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077 and status.st_nlink == 1


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StreamctxError("another `streamctx get` fetches this into the same file: wait for it") from None
    except OSError:
        # Some network file systems know no locks; there it goes without.
        return


def _not_written(file: Path, error: OSError) -> StreamctxError:
    reason = error.strerror or type(error).__name__
    return StreamctxError(
        f"{printable(file)} cannot be written: {reason}. What has come is kept: the same command goes on"
    )


def _size_of(part: Path) -> int:
    try:
        return part.lstat().st_size
    except FileNotFoundError:
        return 0
