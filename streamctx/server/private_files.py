"""Files that only their owner may read, and the directory where they live."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from streamctx.errors import ConfigurationError

__all__ = [
    "create_private",
    "make_private_directory",
    "read_private",
    "replace_private",
]


def make_private_directory(path: Path) -> None:
    """Create the directory 0700 with its parents; one that others may write to is refused.

    A directory that others may only list is accepted, since the files in it have their own modes.

    Raises:
        ConfigurationError: If it cannot be made, is somebody else's, or is writable for others.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise ConfigurationError(
            f"directory {path}: {error.strerror}; a directory of ours is needed"
        ) from error
    if found.st_uid != os.geteuid():
        raise ConfigurationError(f"directory {path} belongs to user {found.st_uid}, not to {os.geteuid()}")
    # The sticky bit (as on /tmp) keeps others from replacing our files.
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigurationError(
            f"directory {path} has mode {mode:04o}; others may not write to it (chmod 0700)"
        )


def create_private(path: Path, content: bytes) -> bool:
    """Create the file 0600 and complete, or leave the one that is there.

    Returns:
        Whether it was created.
    """
    temporary = _write_temporary(path, content)
    try:
        # A hard link, unlike a rename, fails when the name is taken. So of two servers that start together
        # one creates the file and the other reads it, and neither ever sees half of it.
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def replace_private(path: Path, content: bytes) -> None:
    """Write the file 0600; a reader sees the old content or the new one."""
    temporary = _write_temporary(path, content)
    try:
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def read_private(path: Path, bytes_max: int) -> bytes:
    """Read a file that nobody but its owner can read.

    Raises:
        FileNotFoundError: If there is none.
        ConfigurationError: If it is not a regular file of ours, has a wider mode than 0600, is longer than
            `bytes_max`, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigurationError(
            f"file {path}: {error.strerror}; a regular file of mode 0600 is needed"
        ) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigurationError(f"file {path} is not a regular file")
        if found.st_uid != os.geteuid():
            raise ConfigurationError(f"file {path} belongs to user {found.st_uid}, not to {os.geteuid()}")
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise ConfigurationError(
                f"file {path} has mode {mode:04o}; only its owner may read it (chmod 0600)"
            )
        if found.st_size > bytes_max:
            raise ConfigurationError(
                f"file {path} has {found.st_size} bytes; at most {bytes_max} are allowed"
            )
        return os.read(descriptor, bytes_max)
    finally:
        os.close(descriptor)


def _write_temporary(path: Path, content: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
    return temporary
