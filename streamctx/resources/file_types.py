"""What a file holds, going by its name: the same on every machine."""

from __future__ import annotations

import mimetypes
from pathlib import PurePosixPath
from types import MappingProxyType

__all__ = ["mime_of"]

# What Python does not know, or knows in another way from one version to the next.
_OURS = MappingProxyType(
    {
        ".bz2": "application/x-bzip2",
        ".css": "text/css",
        ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        ".gz": "application/gzip",
        ".ico": "image/vnd.microsoft.icon",
        ".ini": "text/plain",
        ".ipynb": "application/x-ipynb+json",
        ".js": "text/javascript",
        ".jsonl": "application/jsonl",
        ".log": "text/plain",
        ".markdown": "text/markdown",
        ".md": "text/markdown",
        ".mjs": "text/javascript",
        ".parquet": "application/vnd.apache.parquet",
        ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        ".rst": "text/x-rst",
        ".rtf": "application/rtf",
        ".tgz": "application/gzip",
        ".toml": "application/toml",
        ".ts": "text/x-typescript",
        ".tsx": "text/x-typescript",
        ".wav": "audio/wav",
        ".webp": "image/webp",
        ".woff2": "font/woff2",
        ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        ".xz": "application/x-xz",
        ".yaml": "application/yaml",
        ".yml": "application/yaml",
        ".zst": "application/zstd",
    }
)

# An instance starts from what is built in, and not from `/etc/mime.types`.
_BUILT_IN = MappingProxyType(mimetypes.MimeTypes().types_map[True])


def mime_of(name: str) -> str:
    """Tell the media type by the last suffix, in any letter case; `application/octet-stream` if unknown.

    It is that of the bytes as they are: `a.tar.gz` is `application/gzip`.
    """
    # Not `guess_type`, which reads a name as a URL: `data:text/html,x` is a page to it.
    suffix = PurePosixPath(name).suffix.lower()
    return _OURS.get(suffix) or _BUILT_IN.get(suffix, "application/octet-stream")
