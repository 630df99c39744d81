"""A resource into a file: what is there after an interruption is not asked for again."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from streamctx.cli.output import printable
from streamctx.cli.private_output import in_the_way, put_in_place
from streamctx.cli.rest import Progress, RequestFailed, asked
from streamctx.cli.target import Target
from streamctx.errors import ConfigurationError

__all__ = ["Fetched", "fetch", "part_of", "path_of"]

# Without a byte more. A server that is being started again is back within seconds.
_TRIES_MAX = 6
_RETRY_S = 0.5

_CHANGES_MAX = 3
"""How often a resource may change while it is fetched."""


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
    """Where a resource is on a server."""
    return "/v1/resources/" + quote(uri, safe="")


def part_of(file: Path, uri: str, etag: str) -> Path:
    """Where the beginning of a resource is kept: of one that has changed, and so its etag, elsewhere."""
    key = hashlib.sha256(f"{uri}\n{etag}".encode()).hexdigest()[:16]
    return file.with_name(f".{file.name}.{key}.part")


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
        ConfigurationError: If a file is in the way, or there is no such directory.
        RequestFailed: If the server does not give it.
    """
    if file.exists() and not force:
        raise in_the_way(file)
    if not file.parent.is_dir():
        raise ConfigurationError(f"{file} cannot be made: there is no directory {file.parent}")
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
                raise RequestFailed(
                    f"{printable(uri)} changes faster than it can be fetched: try again", status=200
                )
            if _append(target, uri, known, part, on_progress):
                break
        except RequestFailed as error:
            tries = 1 if part is not None and _size_of(part) > before else tries + 1
            if error.status is not None or tries >= _TRIES_MAX:
                raise
            time.sleep(_RETRY_S)
    put_in_place(part, file, force=force)
    return Fetched(known.size_bytes, resumed_at)


def _look_at(target: Target, uri: str) -> _Known:
    try:
        with asked(target, path_of(uri), {}, method="HEAD") as answer:
            etag, length = answer.header("etag"), answer.header("content-length")
    except RequestFailed as error:
        if error.status != 404:
            raise
        message = f"{target.http_url} has no resource {printable(uri)}: `streamctx ls` shows those it has"
        raise RequestFailed(message, status=404) from error
    if not etag or not length.isdigit():
        raise RequestFailed(
            f"{target.http_url} does not tell the size and the etag of {printable(uri)}", status=200
        )
    return _Known(etag, int(length))


def _append(target: Target, uri: str, known: _Known, part: Path, on_progress: Progress) -> bool:
    """Fetch what the part lacks; `False` if the resource has changed since it was looked at."""
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as output:
        offset = output.seek(0, os.SEEK_END)
        if offset > known.size_bytes:
            offset = output.seek(0)
            output.truncate()
        on_progress(offset, known.size_bytes)
        if offset == known.size_bytes:
            return True
        headers = {"Range": f"bytes={offset}-", "If-Range": known.etag}
        with asked(target, path_of(uri), headers) as answer:
            if answer.status != 206 or answer.header("etag") != known.etag:
                return False
            for piece in answer.pieces():
                output.write(piece)
                offset += len(piece)
                on_progress(offset, known.size_bytes)
    return offset == known.size_bytes


def _size_of(part: Path) -> int:
    try:
        return part.stat().st_size
    except FileNotFoundError:
        return 0
