"""Which documents are never taken in (SEC-3): secrets by file name, and what `.streamctxignore` lists."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote

__all__ = ["IGNORE_FILE", "SECRET_PATTERNS", "Redaction"]

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

# Scheme and authority. A scheme of one letter is a drive. Not `urlsplit`, which refuses some strings: a
# client may call a document whatever it likes.
_URI_HEAD = re.compile(r"([a-z][a-z0-9+.-]+):(?://[^/?#]*)?", re.IGNORECASE)


class Redaction:
    """The patterns that hold for one session."""

    __slots__ = ("_patterns",)

    def __init__(self, folders: Iterable[str] = ()) -> None:
        """Read `.streamctxignore` of each workspace folder that is a local directory.

        Its lines are patterns, in any letter case: one without `/` is compared with the names of the file and
        of every directory above it, one with `/` with their paths below the folder; one that ends in `/` with
        directories alone. `#` begins a comment. Where in doubt more is excluded than git would ignore.
        """
        self._patterns: list[tuple[str, str]] = []
        for folder in folders:
            path = _local_path(folder)
            if path is not None:
                below = _normal(path).rstrip("/") + "/"
                self._patterns += [(below, line.lower()) for line in _ignore_lines(path)]

    def is_excluded(self, uri: str) -> bool:
        """Whether a document is on the list; anything that looks like a path or a URI will do."""
        return any(self._has(path) for path in _paths_in(uri))

    def _has(self, path: str) -> bool:
        # Some systems open a file by its name with dots or spaces behind it.
        name = path.rstrip("/").rsplit("/", 1)[-1].lower().rstrip(". ")
        if any(fnmatchcase(name, pattern) for pattern in SECRET_PATTERNS):
            return True
        return any(_matches(path, folder, pattern) for folder, pattern in self._patterns)


def _paths_in(uri: str) -> set[str]:
    """What may be the path: up to `?` or `#`, and all of it where these can be part of a file's name."""
    head = _URI_HEAD.match(uri)
    rest = uri if head is None else uri[head.end() :]
    path = re.split("[?#]", rest, maxsplit=1)[0]
    is_file = head is None or head[1].lower() == "file"
    return {unquote(found).replace("\\", "/") for found in (path, rest if is_file or not path else path)}


def _matches(path: str, folder: str, pattern: str) -> bool:
    path = _normal(path)
    if not path.startswith(folder):
        return False
    parts = path[len(folder) :].split("/")
    pattern = pattern.removeprefix("**/")
    if pattern.endswith("/"):
        parts.pop()  # The file itself is no directory.
    plain = pattern.strip("/")
    if "/" in pattern.rstrip("/"):
        parts = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    return any(fnmatchcase(part, plain) for part in parts)


def _normal(path: str) -> str:
    """Without `..`, doubled slashes, letter case, and what some systems ignore at the end of a name."""
    return "/" + posixpath.normpath(path).lstrip("/").lower().rstrip(". ")


def _local_path(folder: str) -> str | None:
    if folder.startswith("/"):
        return folder
    for prefix in ("file://", "file://localhost"):
        if folder.startswith(prefix + "/"):
            return unquote(folder.removeprefix(prefix))
    return None


def _ignore_lines(folder: str) -> list[str]:
    path = Path(folder) / IGNORE_FILE
    try:
        # A pipe would be waited for. A path with a NUL, which is none, is no file either.
        if not path.is_file():
            return []
        with path.open("rb") as file:
            content = file.read(_IGNORE_BYTES_MAX)
    except OSError:
        return []
    lines = (line.strip() for line in content.decode("utf-8-sig", "replace").split("\n"))
    return [line for line in lines if line and not line.startswith("#")]
