"""Which documents are never taken in (SEC-3): secrets by file name, and what `.streamctxignore` lists."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote, urlsplit

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


class Redaction:
    """The patterns that hold for one session."""

    __slots__ = ("_patterns",)

    def __init__(self, folders: Iterable[str] = ()) -> None:
        """Read `.streamctxignore` of each workspace folder that is a local directory.

        Its lines are patterns: one without `/` is compared with the file name, one with `/` with
        the path below the folder; one that ends in `/` with every directory name. `#` begins a comment.
        """
        self._patterns: list[tuple[str, str]] = []
        for folder in folders:
            path = _local_path(folder)
            if path is not None:
                self._patterns += [(path.rstrip("/") + "/", line) for line in _ignore_lines(path)]

    def is_excluded(self, uri: str) -> bool:
        """Whether a document is on the list; anything that looks like a path or a URI will do."""
        path = unquote(urlsplit(uri).path or uri).replace("\\", "/")
        name = path.rstrip("/").rsplit("/", 1)[-1].lower()
        if any(fnmatchcase(name, pattern) for pattern in SECRET_PATTERNS):
            return True
        return any(_matches(path, name, folder, pattern) for folder, pattern in self._patterns)


def _matches(path: str, name: str, folder: str, pattern: str) -> bool:
    if not path.startswith(folder):
        return False
    below = path[len(folder) :]
    if pattern.endswith("/"):
        directories = below.split("/")[:-1]
        return any(fnmatchcase(directory, pattern.rstrip("/")) for directory in directories)
    if "/" in pattern:
        return fnmatchcase(below, pattern.lstrip("/"))
    return fnmatchcase(name, pattern.lower())


def _local_path(folder: str) -> str | None:
    parts = urlsplit(folder)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return unquote(parts.path)
    return folder if folder.startswith("/") else None


def _ignore_lines(folder: str) -> list[str]:
    try:
        with (Path(folder) / IGNORE_FILE).open("rb") as file:
            content = file.read(_IGNORE_BYTES_MAX)
    except OSError:
        return []
    lines = (line.strip() for line in content.decode("utf-8", "replace").split("\n"))
    return [line for line in lines if line and not line.startswith("#")]
