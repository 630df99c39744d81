"""Opening what lies beneath a directory, while others move names and links about in it.

All that is opened beneath a root is opened here, and nothing by a path from `/`. What is given out of it, and
to whom, is for others to decide.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["DEPTH_MAX", "Beneath", "Opened", "Way"]

DEPTH_MAX = 100
"""How many directories deep a path may go; a walk holds a descriptor for each."""

# As the kernel allows (path_resolution(7)).
_LINK_COUNT_MAX = 40

# `openat2` gives EAGAIN where it meets `..` while anything is renamed anywhere: in one of 20 tries under a
# storm of renames in memory. After these the walk is taken, which does not fail in that way.
_OPENAT2_TRIES = 2

# The same on every architecture but Alpha, where another call has that number: it fails the probe.
_OPENAT2 = 437
# <linux/openat2.h>
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08

# Where there is no O_PATH (macOS), a directory must be readable to be walked through.
_PATH_ONLY: int = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC
# O_NONBLOCK: if a pipe or a device slips in, nobody waits for it.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

_OF_PROCESS = b"/proc/self/fd/%d"


class Way(enum.Enum):
    """Who resolves a path; what comes out is the same."""

    OPENAT2 = "openat2"
    """The kernel, in one call (Linux 5.6)."""
    WALK = "walk"
    """We do, component by component, each opened beneath the one before it and never through a link."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What was opened. The descriptor is the caller's to close."""

    descriptor: int
    path: bytes
    """Where it lies beneath the root when all links are resolved: without `.`, `..` and doubled slashes."""


class Beneath:
    """A directory that was opened once; what its path leads to later makes no difference.

    A path is relative to it, in the bytes of the file system. It may hold `..`, and so may links, as long as
    they do not lead out; an absolute link always does, and so does what only looks like a link, such as
    `/proc/self/root`. A directory that is moved out while a path is being resolved may still be gone through.

    Calls may come from many threads at once, but `close` must be the last.

    Args:
        path: The directory, to which links may lead.
        follows_links: Whether links beneath it are followed; if not, a path with one leads nowhere.
        way: `None` for `openat2` where it works: not before Linux 5.6, not in some sandboxes, and not where
            `/proc` is missing, which tells what name a file was found by.

    Raises:
        OSError: If it is no directory, or may not be entered.
    """

    __slots__ = ("_follows_links", "_root", "way")

    def __init__(self, path: bytes, *, follows_links: bool, way: Way | None = None) -> None:
        self._follows_links = follows_links
        self._root = os.open(path, _PATH_ONLY | os.O_DIRECTORY)
        self.way = way or (Way.OPENAT2 if _has_openat2(self._root) else Way.WALK)

    def open_file(self, path: bytes) -> Opened:
        """Open a regular file to read it.

        Anything else is not opened at all, so that nobody notices: a writer that waits at a pipe goes on
        waiting, and no device starts to move.

        Raises:
            OSError: If there is none, or if it lies elsewhere, or may not be read.
        """
        return self._open(path, _Wanted(stat.S_ISREG, _READ, follows_links=self._follows_links))

    def open_directory(self, path: bytes) -> Opened:
        """Open a directory to list it; `.` is the root. No links are followed.

        Raises:
            OSError: If there is none, or if it may not be read.
        """
        return self._open(path, _Wanted(stat.S_ISDIR, _READ | os.O_DIRECTORY, follows_links=False))

    def close(self) -> None:
        """Let go of the directory. What was opened beneath it stays open. May be called again."""
        root, self._root = self._root, -1
        if root >= 0:
            os.close(root)

    def _open(self, path: bytes, wanted: _Wanted) -> Opened:
        if b"\0" in path:
            # `openat2` would take what stands before it.
            raise _error(errno.EINVAL)
        if path.count(b"/") > DEPTH_MAX:
            raise _error(errno.ENAMETOOLONG)
        opened = _openat2_beneath(self._root, path, wanted) if self.way is Way.OPENAT2 else None
        opened = opened or _walk_beneath(self._root, path, wanted)
        try:
            # What was looked at before it was opened may have been exchanged since.
            wanted.check(os.fstat(opened.descriptor).st_mode)
        except OSError:
            os.close(opened.descriptor)
            raise
        return opened


class _Wanted(NamedTuple):
    is_kind: Callable[[int], bool]
    flags: int
    follows_links: bool

    def check(self, mode: int) -> None:
        if not self.is_kind(mode):
            raise _error(errno.EISDIR if stat.S_ISDIR(mode) else errno.ENXIO)


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


# By the kernel.


def _openat2_beneath(root: int, path: bytes, wanted: _Wanted) -> Opened | None:
    """Open it, or give `None` where the kernel cannot tell at present what a path leads to, or its name."""
    resolve = _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS
    if not wanted.follows_links:
        resolve |= _RESOLVE_NO_SYMLINKS
    node = _openat2_in_time(root, path, resolve=resolve)
    if node is None:
        return None
    try:
        place = _place_beneath(node, root=root)
        if place is None:
            return None
        wanted.check(os.fstat(node).st_mode)
        return Opened(os.open(_OF_PROCESS % node, wanted.flags), place)
    finally:
        os.close(node)


def _openat2_in_time(root: int, path: bytes, *, resolve: int) -> int | None:
    for _ in range(_OPENAT2_TRIES):
        try:
            return _openat2(root, path, resolve=resolve)
        except (BlockingIOError, InterruptedError):
            continue
    return None


def _place_beneath(node: int, *, root: int) -> bytes | None:
    """Where it lies beneath the root, or `None` if one of them has been moved or removed meanwhile."""
    above = os.readlink(_OF_PROCESS % root).rstrip(b"/") + b"/"
    path = os.readlink(_OF_PROCESS % node)
    # Of a file that has this for its name the walk knows better, too.
    if path.endswith(b" (deleted)"):
        return None
    if path.rstrip(b"/") + b"/" == above:
        return b"."
    return path.removeprefix(above) if path.startswith(above) else None


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _openat2(directory: int, path: bytes, *, resolve: int) -> int:
    # The C library has no function for it.
    how = _OpenHow(flags=_PATH_ONLY, mode=0, resolve=resolve)
    descriptor: int = _syscall(
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(directory),
        ctypes.c_char_p(path),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if descriptor < 0:
        raise _error(ctypes.get_errno())
    return descriptor


def _has_openat2(root: int) -> bool:
    if not hasattr(os, "O_PATH"):
        # Not Linux: its number is another call's.
        return False
    try:
        os.close(_openat2(root, b".", resolve=_RESOLVE_BENEATH))
        return _place_beneath(root, root=root) is not None
    except OSError:
        # ENOSYS of an old kernel, EPERM of a sandbox, whatever a missing `/proc` gives.
        return False


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


# By ourselves.


def _walk_beneath(root: int, path: bytes, wanted: _Wanted) -> Opened:
    trail = _Trail(root)
    try:
        return _walk(trail, path, wanted)
    finally:
        trail.close()


def _walk(trail: _Trail, path: bytes, wanted: _Wanted) -> Opened:
    pending = _components(path)
    link_count = 0
    while pending:
        name = pending.pop()
        if name == b"..":
            trail.go_back()
            # What ends so is a directory.
            pending = pending or [b"."]
            continue
        if name == b"." and pending:
            continue
        mode = os.lstat(name, dir_fd=trail.end).st_mode
        # If it is exchanged for a link only now, O_NOFOLLOW refuses to open it.
        if stat.S_ISLNK(mode):
            link_count += 1
            if not wanted.follows_links or link_count > _LINK_COUNT_MAX:
                raise _error(errno.ELOOP)
            pending += _components(os.readlink(name, dir_fd=trail.end))
        elif pending:
            trail.go_to(name)
        else:
            wanted.check(mode)
            descriptor = os.open(name, wanted.flags | os.O_NOFOLLOW, dir_fd=trail.end)
            return Opened(descriptor, trail.path_of(name))
    raise _error(errno.ENOENT)


def _components(path: bytes) -> list[bytes]:
    """The components of a path or a link, the first at the end."""
    if path.startswith(b"/"):
        raise _error(errno.EXDEV)
    components = [name for name in path.split(b"/") if name]
    if path.endswith(b"/"):
        components.append(b".")
    return components[::-1]


class _Trail:
    """The directories from the root, which is not ours to close, to where a walk has come.

    The one above is the one that the walk came from. To ask the file system for `..` would lead out, if what
    is on the trail has been moved.
    """

    __slots__ = ("_root", "_steps")

    def __init__(self, root: int) -> None:
        self._root = root
        self._steps: list[tuple[bytes, int]] = []

    @property
    def end(self) -> int:
        return self._steps[-1][1] if self._steps else self._root

    def go_to(self, name: bytes) -> None:
        if len(self._steps) >= DEPTH_MAX:
            raise _error(errno.ENAMETOOLONG)
        flags = _PATH_ONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        self._steps.append((name, os.open(name, flags, dir_fd=self.end)))

    def go_back(self) -> None:
        if not self._steps:
            raise _error(errno.EXDEV)
        os.close(self._steps.pop()[1])

    def path_of(self, name: bytes) -> bytes:
        names = [step for step, _ in self._steps]
        return b"/".join(names if name == b"." and names else [*names, name])

    def close(self) -> None:
        while self._steps:
            os.close(self._steps.pop()[1])
