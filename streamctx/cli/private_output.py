"""Files that commands write for their user alone, whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamctx.errors import ConfigurationError

__all__ = ["in_the_way", "new_file", "put_in_place"]


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[Path]:
    """Give a name for a file, beside `path`, that takes the name `path` at the end of the block.

    The block makes it, with mode 0600. If it fails nothing is left.

    Args:
        path: The name in the end.
        force: Whether a file that is there already is replaced.

    Raises:
        ConfigurationError: If a file is there, before or after the block; if a store is in that directory,
            whatever `force` says; or if there is no such directory.
    """
    from streamctx.engine.sqlite.place import demand_elsewhere

    demand_elsewhere(path)
    if not path.parent.is_dir():
        raise ConfigurationError(f"{path} cannot be made: there is no directory {path.parent}")
    if path.exists() and not force:
        raise in_the_way(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        yield temporary
        put_in_place(temporary, path, force=force)
    finally:
        temporary.unlink(missing_ok=True)


def put_in_place(temporary: Path, path: Path, *, force: bool) -> None:
    """Give a file that was written its name in the end; the one it has is gone then.

    Raises:
        ConfigurationError: If a file has that name, and is not to be replaced.
    """
    _sync(temporary)
    try:
        if force:
            temporary.replace(path)
        else:
            # Unlike a rename it fails when the name was taken meanwhile.
            os.link(temporary, path)
    except FileExistsError as error:
        raise in_the_way(path) from error
    temporary.unlink(missing_ok=True)
    _sync(path.parent)


def in_the_way(path: Path) -> ConfigurationError:
    """The error for a file that would be replaced without having been asked for."""
    return ConfigurationError(f"{path} exists already: name a new file, or give --force to replace it")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
