"""Where a store lies: a directory of ours that nobody else can enter, on a disk of this machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from streamctx.errors import ConfigurationError

__all__ = ["FILE_NAME", "demand_elsewhere", "has_lost_all", "prepare", "sync_directory"]

FILE_NAME = "store.db"

# Locks on these are lies or slow, and the log of SQLite wants one host. Kinds that are as often local (9p,
# virtiofs) are not listed.
_NETWORK_KINDS = frozenset(
    {
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "davfs",
        "fuse.ceph",
        "fuse.davfs2",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
    }
)
_MOUNTS = Path("/proc/mounts")


def prepare(directory: Path, *, mounts: Path = _MOUNTS) -> Path:
    """Make the directory and the file of a store unless they are there, and check that they are safe to use.

    The file is not opened if it is there: to close it again would drop the lock of a store that this process
    has open.

    Args:
        directory: Made with mode 0700, its parents as usual.
        mounts: The list of mounted file systems; nothing is checked where there is none.

    Returns:
        The path of the file, which has mode 0600.

    Raises:
        ConfigurationError: If others can enter the directory or read the file, if one of them is no plain
            directory or file, belongs to somebody else or cannot be made, or lies on a network file system.
    """
    path = directory / FILE_NAME
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_ours(directory, is_directory=True)
        _check_local(directory, mounts)
        if path.exists() or path.is_symlink():
            _check_ours(path, is_directory=False)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            sync_directory(directory)
    except OSError as error:
        raise ConfigurationError(
            f"the data directory {directory} cannot be used ({error.strerror}): name another one"
        ) from error
    return path


def has_lost_all(directory: Path) -> bool:
    """Whether there is a file of a store with nothing in it, nor in the log of the server that began it."""
    path = directory / FILE_NAME
    try:
        log = path.with_name(f"{FILE_NAME}-wal")
        return path.stat().st_size == 0 and not (log.exists() and log.stat().st_size)
    except OSError:
        return False


def demand_elsewhere(path: Path) -> None:
    """Refuse to write a file where a store lies.

    A server goes on to write into a file that has lost its name, and acknowledges what nobody will find.

    Raises:
        ConfigurationError: If the directory of the file holds a store.
    """
    directory = path.parent
    if os.path.lexists(directory / FILE_NAME):
        raise ConfigurationError(
            f"{path} is in a data directory, where only the store itself writes "
            f"({directory / FILE_NAME} is there): name a file elsewhere"
        )


def sync_directory(directory: Path) -> None:
    """Make the names in a directory safe."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_ours(path: Path, *, is_directory: bool) -> None:
    found = path.lstat()
    kind, mode = ("directory", 0o700) if is_directory else ("file", 0o600)
    if not (stat.S_ISDIR if is_directory else stat.S_ISREG)(found.st_mode):
        raise ConfigurationError(f"{path} is not a plain {kind} (a link is not followed): name another one")
    if found.st_uid != os.geteuid():
        raise ConfigurationError(
            f"{path} belongs to user {found.st_uid} and this is user {os.geteuid()}: name another directory"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigurationError(
            f"others than its owner have access to {path} (mode {stat.S_IMODE(found.st_mode):04o}), "
            f"which is to hold source code: run chmod {mode:o} on it"
        )


def _check_local(directory: Path, mounts: Path) -> None:
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return
    real = directory.resolve()
    best, kind = 0, ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " "))
        # The deepest one counts, and of several in one place the last, which covers the others.
        if real.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    if kind in _NETWORK_KINDS:
        raise ConfigurationError(
            f"the data directory {directory} lies on a network file system ({kind}), "
            f"where a store is not safe: name a directory on a disk of this machine"
        )
