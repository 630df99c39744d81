"""Which documents are never taken in (SEC-3): secrets by file name, and what `.streamctxignore` lists."""

from __future__ import annotations

import os
import posixpath
import re
import stat
import unicodedata
from collections.abc import Iterable
from fnmatch import fnmatchcase, translate
from urllib.parse import unquote

__all__ = ["IGNORE_FILE", "PATTERN_COUNT_MAX", "SECRET_PATTERNS", "Redaction"]

SECRET_PATTERNS = (
    ".env*",
    "*.pem",
    "*.key",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "*credentials*",
)
"""File names, in any letter case."""

IGNORE_FILE = ".streamctxignore"
_IGNORE_BYTES_MAX = 64 * 1024

PATTERN_COUNT_MAX = 2000
"""Of one session; a file that does not fit excludes its whole folder. Without a bound such a file, which may
come with a repository, keeps the server busy for seconds at each `open`."""

# A scheme of one letter is a drive. Not `urlsplit`, which refuses some strings: a client may call a document
# whatever it likes.
_SCHEME = re.compile("([a-z][a-z0-9+.-]+):", re.IGNORECASE)
_AUTHORITY = re.compile("//[^/?#]*")

# What stands before a name within one path segment: a host (`/ssh:host:.env`), an archive (`a.zip::.env`), a
# drive (`C:.env`); and what ends it: a stream (`a.pem::$DATA`), or the end of a string in C.
_WITHIN_SEGMENT = re.compile("[:\0]")

# Some systems open a file by its name with dots or spaces behind it.
_EDGES = re.compile(r"^\s+|[\s.]+\Z")


class Redaction:
    """The patterns that hold for one session."""

    __slots__ = ("_ignored",)

    def __init__(self, folders: Iterable[str] = ()) -> None:
        """Read `.streamctxignore` of each workspace folder that is a local directory.

        Its lines are patterns, in any letter case: one without `/` is compared with the names of the file and
        of every directory above it, one with `/` with their paths below the folder; one that ends in `/` with
        directories alone. `#` begins a comment. Where in doubt more is excluded than git would ignore: all of
        the folder, if the file is over 64 KiB or has more patterns than `PATTERN_COUNT_MAX` leaves it.
        """
        self._ignored: list[_Ignored] = []
        count = 0
        for folder in dict.fromkeys(path for path in map(_local_path, folders) if path is not None):
            patterns = _ignore_patterns(folder)
            count += len(patterns)
            if patterns:
                self._ignored.append(_Ignored(folder, patterns if count <= PATTERN_COUNT_MAX else ["*"]))

    def is_excluded(self, uri: str) -> bool:
        """Whether a document is on the list; anything that looks like a path or a URI will do."""
        return any(_is_secret(path) or self._is_ignored(path) for path in _paths_in(uri))

    def _is_ignored(self, path: str) -> bool:
        return any(ignored.has(path) for ignored in self._ignored)


class _Ignored:
    """What one `.streamctxignore` excludes below its folder."""

    __slots__ = ("_directories", "_directory_paths", "_folder", "_names", "_paths")

    def __init__(self, folder: str, patterns: list[str]) -> None:
        self._folder = _normal(folder).rstrip("/") + "/"
        names: list[str] = []
        paths: list[str] = []
        directories: list[str] = []
        directory_paths: list[str] = []
        for line in patterns:
            pattern = line.removeprefix("**/")
            plain = pattern.strip("/")
            is_directory = pattern.endswith("/")
            if "/" in pattern.rstrip("/"):
                # A path is excluded by what excludes a directory above it.
                (directory_paths if is_directory else paths).append(f"{plain}/*")
            else:
                (directories if is_directory else names).append(plain)
        self._names = _any_of(names)
        self._paths = _any_of(paths)
        self._directories = _any_of(directories)
        self._directory_paths = _any_of(directory_paths)

    def has(self, path: str) -> bool:
        if not path.startswith(self._folder):
            return False
        below = path[len(self._folder) :]
        directory, slash, name = below.rpartition("/")
        directories = set(directory.split("/")) if slash else set()
        return (
            any(map(self._names.match, directories | {name}))
            or any(map(self._directories.match, directories))
            or self._paths.match(f"{below}/") is not None
            or self._directory_paths.match(directory + slash) is not None
        )


def _is_secret(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    names = {name, *(_EDGES.sub("", part) for part in _WITHIN_SEGMENT.split(name))}
    return any(fnmatchcase(name, pattern) for name in names for pattern in SECRET_PATTERNS)


def _paths_in(uri: str) -> set[str]:
    """What may be the path, in normal form.

    That is the text up to `?` or `#`, and all of it where these can be part of a file's name; with and
    without what may be an authority, since many put a plain path behind `file://`; and as it is, decoded, and
    decoded twice.
    """
    scheme = _SCHEME.match(uri)
    rest = uri if scheme is None else uri[scheme.end() :]
    is_file = scheme is None or scheme[1].lower() == "file"
    found = set()
    for text in (rest, _AUTHORITY.sub("", rest, count=1) if scheme and rest.startswith("//") else rest):
        path = re.split("[?#]", text, maxsplit=1)[0]
        found |= {path, text if is_file or not path else path}
    once = found | set(map(unquote, found))
    return {_normal(path) for path in once | set(map(unquote, once))}


def _normal(path: str) -> str:
    """Without `..`, doubled slashes, letter case, and what some systems ignore in a name or around it."""
    folded = _folded(path.replace("\\", "/"))
    parts = posixpath.normpath("/" + folded.lstrip("/")).lstrip("/").split("/")
    return "/" + "/".join(_EDGES.sub("", part) for part in parts)


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    # As file systems that ignore letter case compare names; one of them ignores what has no width, too.
    seen = "".join(character for character in text if unicodedata.category(character) != "Cf")
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", seen).casefold())


def _any_of(patterns: list[str]) -> re.Pattern[str]:
    # Without patterns, what matches nothing.
    return re.compile("|".join(map(_expression, patterns)) or "(?!)")


def _expression(pattern: str) -> str:
    # `translate` looks for the end of each `[`, up to the end of the pattern: behind the last `]` in vain.
    head, bracket, tail = pattern.rpartition("]")
    return translate(head + bracket + tail.replace("[", "[[]"))


def _local_path(folder: str) -> str | None:
    if folder.startswith("/"):
        return folder
    for prefix in ("file://", "file://localhost"):
        if folder.startswith(prefix + "/"):
            return unquote(folder.removeprefix(prefix))
    return None


def _ignore_patterns(folder: str) -> list[str]:
    try:
        # A pipe in its place would be waited for.
        path = os.path.join(folder, IGNORE_FILE)
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return []
            content = file.read(_IGNORE_BYTES_MAX + 1)
    except (OSError, ValueError):
        # A path with a NUL is none.
        return []
    if len(content) > _IGNORE_BYTES_MAX:
        return ["*"]
    lines = (line.strip() for line in content.decode("utf-8-sig", "replace").split("\n"))
    return list(dict.fromkeys(_folded(line) for line in lines if line and not line.startswith("#")))
