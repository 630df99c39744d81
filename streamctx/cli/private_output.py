"""Files that commands write for their user alone, whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamctx.errors import ConfigurationError

__all__ = ["demand_free", "new_file", "put_in_place"]


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
    demand_free(path, force=force)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        yield temporary
        put_in_place(temporary, path, force=force)
    finally:
        temporary.unlink(missing_ok=True)


def demand_free(path: Path, *, force: bool) -> None:
    """See to it that a file can have that name.

    Raises:
        ConfigurationError: As `new_file`, or if what has that name is no file, whatever `force` says.
    """
    from streamctx.engine.sqlite.place import demand_elsewhere

    if not path.name or path.name == "..":
        raise ConfigurationError(f"{path} is a directory: name a file in it")
    demand_elsewhere(path)
    if not path.parent.is_dir():
        raise ConfigurationError(f"{path} cannot be made: there is no directory {path.parent}")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise ConfigurationError(f"{path} is a directory: name a file in it")
    if not stat.S_ISREG(mode) and not (stat.S_ISLNK(mode) and path.is_file()):
        raise ConfigurationError(f"{path} exists and is no file: name another")
    if not force:
        raise _in_the_way(path)


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
        raise _in_the_way(path) from error
    temporary.unlink(missing_ok=True)
    _sync(path.parent)


def _in_the_way(path: Path) -> ConfigurationError:
    return ConfigurationError(f"{path} exists already: name a new file, or give --force to replace it")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
