"""Files beneath configured directories, as resources.

How a path is resolved is in `beneath`; which files are secret is for the caller to say.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from streamctx.errors import ConfigurationError, ErrorCode
from streamctx.resources.base import ResourceError, ResourceFresh, ResourceInfo, Source
from streamctx.resources.beneath import DEPTH_MAX, Beneath, Way
from streamctx.resources.file_types import mime_of
from streamctx.resources.pinned import Pin, PinnedFile

__all__ = ["LISTED_COUNT_MAX", "LISTED_DEPTH_MAX", "VISITED_COUNT_MAX", "Roots", "RootsListing"]

LISTED_DEPTH_MAX = 16
LISTED_COUNT_MAX = 10_000
VISITED_COUNT_MAX = 100_000
"""Of one listing: how far below a root, how many files, and how many names are looked at to find them."""

# Names whose status is asked for at once. It bounds what is done in vain for a caller who takes a few, and
# makes what opening a directory anew costs (20 us) little beside what these cost.
_BATCH_COUNT = 256

# These tell of this process or machine, and not of the file.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class Roots:
    """The regular files beneath some directories.

    A URI is `file://` in any letter case and the absolute path, with the root spelled as it was configured.
    The path is taken by the letter: no host, not even `localhost`; no query, no fragment; only characters
    that RFC 3986 allows in a path; decoded once, to UTF-8. No component may be empty, `.` or `..`, hold a
    slash, a backslash or a NUL, or begin as a drive does (`C:`, `C|`). Files whose names cannot be spelled so
    are not to be had. What `info.uri` says is the one spelling that `list` uses.

    A root is opened once: if another directory takes its name, files are still found in the old one. Links
    may lead from anywhere to anywhere beneath the root, if `follows_links`; a root beneath another is a root
    of its own. Nothing is given of `/proc` and `/sys`, whose files are no bytes that stay.

    What is unknown, not readable, not a regular file, excluded, or outside looks the same.

    Its calls may come from many threads at once, but `close` must be the last. What was opened stays open.

    Args:
        paths: The roots; relative ones to the working directory of now.
        is_excluded: Whether nothing may be shown of a file, by its URI. Asked of the path that was asked for
            and of the one that links lead to, each below the root as configured and below its real path. A
            second hard link has a name of its own, by which alone it is judged.
        follows_links: Whether links are followed.
        depth_max: How many directories below a root `list` goes; 0 for the files of the root itself.
        count_max: How many files `list` gives.
        visited_count_max: How many names of any kind `list` looks at.
        way: How paths are resolved; `None` for the best that works here.
        now_ns: The time that files are stamped with, in nanoseconds since 1970.
        is_hidden: Whether a file is not to be had by any name, by the status of what was opened. Unlike
            `is_excluded` it knows a file behind a second hard link, by its device and inode. Asked of
            regular files alone, by `open` and by `list`.

    Raises:
        ConfigurationError: If a root is no directory, may not be entered, or cannot be spelled in a URI.
    """

    __slots__ = ("_limits", "_now_ns", "_roots", "_rules")

    def __init__(
        self,
        paths: Iterable[str],
        *,
        is_excluded: Callable[[str], bool],
        follows_links: bool = True,
        depth_max: int = LISTED_DEPTH_MAX,
        count_max: int = LISTED_COUNT_MAX,
        visited_count_max: int = VISITED_COUNT_MAX,
        way: Way | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        is_hidden: Callable[[os.stat_result], bool] = lambda status: False,
    ) -> None:
        self._limits = _Limits(min(depth_max, DEPTH_MAX), count_max, visited_count_max)
        self._now_ns = now_ns
        self._roots: dict[_Path, _Root] = {}
        unstable_devices = {os.stat(path).st_dev for path in ("/proc", "/sys") if os.path.ismount(path)}
        self._rules = _Rules(frozenset(unstable_devices), is_hidden)
        try:
            for path in paths:
                components = _configured(path)
                if components not in self._roots:
                    self._roots[components] = _opened_root(
                        components, is_excluded, follows_links=follows_links, way=way
                    )
        except ConfigurationError:
            self.close()
            raise

    def open(self, uri: str) -> Source:
        """Open a file.

        A file that was changed within the last 50 ms could change again without a trace in its times, since
        the clock of the kernel has steps, and one write of many bytes is stamped at its start. As git does
        with entries that are racily clean, such a file is not trusted: it is to be opened anew when that time
        has passed, and 1 ms for each MiB of it, or 2 s where the file system counts in seconds. What still
        goes unseen are writes through a shared mapping, and a single write that goes on for longer than that.

        Raises:
            ResourceError: `not_found` if there is nothing to be had by that name; temporary and `unavailable`
                if too many files are open.
            ResourceFresh: If it was changed just now. Nothing is waited for here, and nothing stays open:
                wait for `retry_after_s` where that blocks nobody, and call again.
        """
        root, below = self._locate(uri)
        # Before it is opened: what is written later than this is at least as fresh.
        now_ns = self._now_ns()
        descriptor = _open_shown(root, below)
        try:
            status = os.fstat(descriptor)
            if self._rules.hide(status):
                raise _not_found()
            pin = Pin.of(status)
            fresh_ns = pin.fresh_ns(now_ns)
            if fresh_ns > 0:
                raise ResourceFresh(fresh_ns / 1e9)
            source = PinnedFile(descriptor, pin, _info(root, below, pin, now_ns=now_ns))
        except BaseException:
            os.close(descriptor)
            raise
        return source

    def list(self) -> RootsListing:
        """Find what can be opened, root by root, what is less deep first, and then by the bytes of the path.

        Links are neither given nor followed: what they lead to has a name of its own. A file that is found
        may not be readable, and that one has been changed is no reason to wait: only an `etag` that `open`
        tells stands for bytes that were read. No descriptor is kept from one file to the next.
        """
        return RootsListing(self._roots, self._limits, self._rules, now_ns=self._now_ns)

    def close(self) -> None:
        """Let go of the roots. May be called again."""
        for root in self._roots.values():
            root.beneath.close()

    def __enter__(self) -> Roots:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _locate(self, uri: str) -> tuple[_Root, _Path]:
        path = _path_in(uri)
        above = [root for root in self._roots.values() if root.is_above(path)]
        if not above:
            raise _not_found()
        nearest = max(above, key=lambda root: len(root.components))
        return nearest, path[len(nearest.components) :]


class RootsListing:
    """The files that are found, one by one; who stops early has paid little for what is behind.

    At a limit it goes on with what is within it: deeper directories are left out, and of one with more names
    than may still be looked at those that the file system tells first are taken. Behind the last file that
    may be given it ends.
    """

    __slots__ = ("_files", "_is_truncated", "_limits", "_now_ns", "_roots", "_rules", "_visits_left")

    def __init__(
        self, roots: dict[_Path, _Root], limits: _Limits, rules: _Rules, *, now_ns: Callable[[], int]
    ) -> None:
        self._roots = roots
        self._limits = limits
        self._rules = rules
        self._now_ns = now_ns
        self._visits_left = limits.visited_count
        self._is_truncated = False
        self._files = self._find()

    @property
    def is_truncated(self) -> bool:
        """Whether something was left out for a limit so far: known for good at the end."""
        return self._is_truncated

    def __iter__(self) -> RootsListing:
        return self

    def __next__(self) -> ResourceInfo:
        return next(self._files)

    def _find(self) -> Iterator[ResourceInfo]:
        count = 0
        for root in self._roots.values():
            for info in self._find_in(root):
                if count == self._limits.file_count:
                    self._is_truncated = True
                    return
                count += 1
                yield info

    def _find_in(self, root: _Root) -> Iterator[ResourceInfo]:
        level: list[_Path] = [()]
        for _ in range(self._limits.depth + 1):
            deeper: list[_Path] = []
            for directory in level:
                yield from self._look_into(root, directory, deeper)
            level = deeper
        if level:
            self._is_truncated = True

    def _look_into(self, root: _Root, directory: _Path, deeper: list[_Path]) -> Iterator[ResourceInfo]:
        """The files of a directory; those that are directories are put at the end of `deeper`."""
        names = self._names_in(root, directory)
        for start in range(0, len(names), _BATCH_COUNT):
            batch = names[start : start + _BATCH_COUNT]
            for name, status in self._statuses(root, directory, batch):
                path = (*directory, name)
                if stat.S_ISDIR(status.st_mode):
                    deeper += [path] if self._is_entered(root, path, status) else []
                elif stat.S_ISREG(status.st_mode) and not self._rules.hide(status) and not root.hides(path):
                    yield _info(root, path, Pin.of(status), now_ns=self._now_ns())

    def _is_entered(self, root: _Root, directory: _Path, status: os.stat_result) -> bool:
        is_root_of_its_own = root.components + directory in self._roots
        return status.st_dev not in self._rules.unstable_devices and not is_root_of_its_own

    def _names_in(self, root: _Root, directory: _Path) -> list[bytes]:
        """The names of a directory that a URI may have, sorted; only as many as may still be looked at."""
        with self._opened(root, directory) as descriptor:
            if descriptor is None:
                return []
            with os.scandir(descriptor) as entries:
                names = [os.fsencode(entry.name) for entry in islice(entries, self._visits_left + 1)]
        if len(names) > self._visits_left:
            self._is_truncated = True
            names.pop()
        self._visits_left -= len(names)
        return sorted(filter(_is_spelled, names))

    def _statuses(
        self, root: _Root, directory: _Path, names: list[bytes]
    ) -> list[tuple[bytes, os.stat_result]]:
        """What the names in a directory are, without those that are gone."""
        found = []
        with self._opened(root, directory) as descriptor:
            for name in names if descriptor is not None else ():
                try:
                    found.append((name, os.lstat(name, dir_fd=descriptor)))
                except OSError:
                    continue
        return found

    @contextmanager
    def _opened(self, root: _Root, directory: _Path) -> Iterator[int | None]:
        """A directory; `None` if it was removed, exchanged for a link, or is not ours to read."""
        try:
            opened = root.beneath.open_directory(b"/".join(directory) or b".")
        except OSError as error:
            # What that left out is there, and might be given another time.
            self._is_truncated = self._is_truncated or error.errno in _EXHAUSTED
            yield None
            return
        try:
            yield opened.descriptor
        finally:
            os.close(opened.descriptor)


class _Limits(NamedTuple):
    depth: int
    file_count: int
    visited_count: int


class _Rules(NamedTuple):
    """What is not given whatever it is called."""

    unstable_devices: frozenset[int]
    is_hidden: Callable[[os.stat_result], bool]

    def hide(self, status: os.stat_result) -> bool:
        return status.st_dev in self.unstable_devices or self.is_hidden(status)


# Names.

_Path = tuple[bytes, ...]

_URI = re.compile(r"file://((?:/(?:[\w.~!$&'()*+,;=:@-]|%[0-9a-f]{2})+)+)", re.ASCII | re.IGNORECASE)
# PATH_MAX, with every byte encoded: no system opens a longer one.
_URI_LENGTH_MAX = len("file://") + 3 * 4096
_DRIVE = re.compile(rb"[a-z][:|]", re.IGNORECASE)


def _path_in(uri: str) -> _Path:
    """The components of the path, or none if it is not spelled as it must be."""
    match = _URI.fullmatch(uri) if len(uri) <= _URI_LENGTH_MAX else None
    if match is None:
        return ()
    # First split, then decoded: a slash that was encoded stays within its component, where it is refused.
    path = tuple(unquote_to_bytes(component) for component in match[1].split("/")[1:])
    return path if all(map(_is_spelled, path)) else ()


def _is_spelled(component: bytes) -> bool:
    """Whether it is a name that a URI may have."""
    if component in (b"", b".", b"..") or any(byte in component for byte in b"/\\\0"):
        return False
    try:
        component.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return _DRIVE.match(component) is None


def _uri(path: _Path) -> str:
    return "file:///" + quote(b"/".join(path))


def _split(path: str | bytes) -> _Path:
    return tuple(name for name in os.fsencode(path).split(b"/") if name)


# Roots.


@dataclass(frozen=True, slots=True)
class _Root:
    components: _Path
    real: _Path
    """The same without links: whoever wrote the rules may have spelled it so."""
    beneath: Beneath
    is_excluded: Callable[[str], bool]

    def is_above(self, path: _Path) -> bool:
        length = len(self.components)
        return len(path) > length and path[:length] == self.components

    def hides(self, below: _Path) -> bool:
        return any(self.is_excluded(_uri(above + below)) for above in {self.components, self.real})


def _configured(path: str) -> _Path:
    try:
        components = _split(os.path.abspath(path))
    except UnicodeEncodeError:
        components = (b"",)
    if not path or not all(map(_is_spelled, components)):
        raise ConfigurationError(f"root {path!r}: expected a path that can be spelled in a URI")
    return components


def _opened_root(
    components: _Path, is_excluded: Callable[[str], bool], *, follows_links: bool, way: Way | None
) -> _Root:
    path = b"/" + b"/".join(components)
    try:
        beneath = Beneath(path, follows_links=follows_links, way=way)
    except OSError as error:
        raise ConfigurationError(
            f"root {os.fsdecode(path)!r}: expected a directory that can be entered: {error.strerror}"
        ) from error
    return _Root(components, _split(os.path.realpath(path)), beneath, is_excluded)


def _open_shown(root: _Root, below: _Path) -> int:
    """Open a file that may be shown, by the name it was asked for and by its own."""
    if root.hides(below):
        raise _not_found()
    try:
        opened = root.beneath.open_file(b"/".join(below))
    except OSError as error:
        # Not `from error`, in either case: it names a path, and tells why.
        if error.errno in _EXHAUSTED:
            raise _unavailable("Too many files are open.") from None
        raise _not_found() from None
    real = tuple(opened.path.split(b"/"))
    if real != below and root.hides(real):
        os.close(opened.descriptor)
        raise _not_found()
    return opened.descriptor


def _info(root: _Root, below: _Path, pin: Pin, *, now_ns: int) -> ResourceInfo:
    name = below[-1].decode("utf-8")
    return ResourceInfo(
        uri=_uri(root.components + below),
        name=name,
        mime=mime_of(name),
        size_bytes=pin.size_bytes,
        etag=pin.etag,
        # Anybody may set it, and what is ahead of the clock tells nothing. To say "now" instead would make
        # one and the same state a later one each time.
        # Two integers: the nanoseconds alone are more than a float can tell apart.
        modified=None if pin.modified_ns > now_ns else pin.modified_ns / 1_000_000_000,
    )


def _not_found() -> ResourceError:
    return ResourceError(ErrorCode.NOT_FOUND, "There is no such resource.")


def _unavailable(message: str) -> ResourceError:
    return ResourceError(ErrorCode.UNAVAILABLE, message, is_temporary=True)
