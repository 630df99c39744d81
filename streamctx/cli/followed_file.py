"""A file on disk, seen as an editor's document: each state that is found becomes events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from streamctx.cli.text_diff import changes_between
from streamctx.core.documents.text_digest import text_hash
from streamctx.core.documents.units import length_in
from streamctx.errors import ConfigurationError, StreamctxError
from streamctx.hub.redaction import Redaction
from streamctx.limits import DEFAULT_LIMITS
from streamctx.load.recording import RecordableEvent
from streamctx.vocabulary import HashAlgorithm, Unit
from streamctx.wire.messages import Close, Edit, Open, Save, Version

__all__ = ["FollowedFile", "UnreadableFile", "followed_files"]

_UNIT = Unit.UTF_16
_BOM = "\ufeff"

# File endings whose language editors agree on; others are left out.
_LANGUAGES = {
    ".c": "c",
    ".cpp": "cpp",
    ".cs": "csharp",
    ".css": "css",
    ".go": "go",
    ".h": "c",
    ".html": "html",
    ".java": "java",
    ".js": "javascript",
    ".json": "json",
    ".kt": "kotlin",
    ".lua": "lua",
    ".md": "markdown",
    ".php": "php",
    ".py": "python",
    ".rb": "ruby",
    ".rs": "rust",
    ".sh": "shellscript",
    ".sql": "sql",
    ".toml": "toml",
    ".ts": "typescript",
    ".tsx": "typescriptreact",
    ".txt": "plaintext",
    ".xml": "xml",
    ".yaml": "yaml",
    ".yml": "yaml",
}


class UnreadableFile(StreamctxError):
    """A file cannot be followed as it is now: not UTF-8, too large, or not to be read."""


class FollowedFile:
    """One file.

    `text` is what was found last, `None` while there is no file. The version counts its states.
    """

    def __init__(self, path: Path, alias: int) -> None:
        """Begin without a state; the path is absolute."""
        self.path = path
        self.alias = alias
        self.uri = path.as_uri()
        self.text: str | None = None
        self.version = 0
        self._has_bom = False
        self._signature: tuple[int, ...] | None = None

    def look(self) -> list[RecordableEvent]:
        """Read the file if it has changed; what an editor would have sent.

        Raises:
            UnreadableFile: If it is there and cannot be followed. It is read again when it has changed.
        """
        try:
            found = self.path.stat()
            signature = (found.st_mtime_ns, found.st_size, found.st_ino)
            if signature == self._signature:
                return []
            self._signature = signature
            if found.st_size > DEFAULT_LIMITS.document_bytes_max:
                limit = DEFAULT_LIMITS.document_bytes_max
                raise UnreadableFile(f"{self.path} has {found.st_size:,} bytes, limit {limit:,}")
            return self.take(self.path.read_bytes().decode())
        except FileNotFoundError:
            self._signature = None
            return self.take(None)
        except UnicodeDecodeError as error:
            raise UnreadableFile(f"{self.path} is not UTF-8 (byte {error.start})") from error
        except OSError as error:
            raise UnreadableFile(f"{self.path}: {error.strerror}") from error

    def take(self, text: str | None) -> list[RecordableEvent]:
        """Take a state; `None`: there is no file."""
        if text is None:
            if self.text is None:
                return []
            self.text = None
            return [Close(document=self.alias)]
        has_bom = text.startswith(_BOM)
        text = text.removeprefix(_BOM)
        if self.text is None:
            self.text, self._has_bom, self.version = text, has_bom, 0
            return [self.opened()]
        changes = changes_between(self.text, text, _UNIT)
        if not changes:
            return [Save(document=self.alias, version=self.version)]
        base, self.version, self.text = self.version, self.version + 1, text
        edit = Edit(document=self.alias, base=base, version=self.version, changes=changes, mode="sim")
        proof = Version(
            document=self.alias,
            version=self.version,
            length=length_in(text, _UNIT),
            hash=text_hash(text, HashAlgorithm.XXH3_64),
            cause="save",
        )
        return [edit, proof, Save(document=self.alias, version=self.version)]

    def opened(self) -> Open:
        """The event that opens it with its present text."""
        assert self.text is not None
        return Open(
            document=self.alias,
            uri=self.uri,
            version=self.version,
            length=length_in(self.text, _UNIT),
            hash=text_hash(self.text, HashAlgorithm.XXH3_64),
            text=self.text,
            language=_LANGUAGES.get(self.path.suffix.lower()),
            eol=_eol_of(self.text),
            bom=self._has_bom,
        )


def followed_files(names: Sequence[str]) -> list[FollowedFile]:
    """The files of that names, which are paths or `file:` URIs.

    Raises:
        ConfigurationError: If a name is no file, is there twice, or is one that is never taken in (SEC-3).
    """
    paths = [_path_of(name) for name in names]
    limit = DEFAULT_LIMITS.documents_per_session_max
    if len(paths) > limit:
        raise ConfigurationError(f"{len(paths)} files, limit {limit}")
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise ConfigurationError(f"{path} is named twice")
        if not path.is_file():
            raise ConfigurationError(
                f"{path} is {'not a file' if path.exists() else 'not there'}; name a file"
            )
        if Redaction([str(path.parent)]).is_excluded(path.as_uri()):
            raise ConfigurationError(
                f"{path} is one of the files that are never taken in: secrets by name, or in .streamctxignore"
            )
    return [FollowedFile(path, alias) for alias, path in enumerate(paths, start=1)]


def _path_of(name: str) -> Path:
    if "://" not in name:
        return Path(name).absolute()
    parts = urlsplit(name)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ConfigurationError(
            f"{name}: only files of this machine can be followed; name a path or a file: URI"
        )
    return Path(unquote(parts.path))


def _eol_of(text: str) -> Literal["lf", "crlf", "cr", "mixed"] | None:
    """The one kind of line end that a text has; `None` without any."""
    crlf = text.count("\r\n")
    counts = {"crlf": crlf, "lf": text.count("\n") - crlf, "cr": text.count("\r") - crlf}
    kinds: list[Literal["lf", "crlf", "cr"]] = []
    if counts["lf"]:
        kinds.append("lf")
    if counts["crlf"]:
        kinds.append("crlf")
    if counts["cr"]:
        kinds.append("cr")
    if not kinds:
        return None
    return kinds[0] if len(kinds) == 1 else "mixed"
