"""Files that commands write for their user alone, whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamctx.cli.output import printable
from streamctx.errors import ConfigurationError

__all__ = ["demand_free", "new_file", "put_in_place"]

# What `link` fails with on file systems that know no second name of a file, such as FAT and some of FUSE.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


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
    # Without the name itself, which may be as long as a name can be.
    temporary = path.parent / f".streamctx-{secrets.token_hex(12)}.new"
    try:
        yield temporary
        put_in_place(temporary, path, force=force)
    finally:
        temporary.unlink(missing_ok=True)


def demand_free(path: Path, *, force: bool) -> None:
    """See to it that a file can have that name.

    Raises:
        ConfigurationError: As `new_file`, or if what has that name is no file, such as a link, whatever
            `force` says.
    """
    from streamctx.engine.sqlite.place import demand_elsewhere

    if not path.name or path.name == "..":
        raise ConfigurationError(f"{printable(path)} is a directory: name a file in it")
    demand_elsewhere(path)
    if not path.parent.is_dir():
        raise ConfigurationError(
            f"{printable(path)} cannot be made: there is no directory {printable(path.parent)}"
        )
    if _is_file(path) and not force:
        raise _in_the_way(path)


def _is_file(path: Path) -> bool:
    """Whether a file has that name; `False` if nothing has.

    Raises:
        ConfigurationError: If something else has it, or it cannot be a name.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigurationError(f"{printable(path)} cannot be made: {error.strerror}") from error
    if stat.S_ISDIR(mode):
        raise ConfigurationError(f"{printable(path)} is a directory: name a file in it")
    if not stat.S_ISREG(mode):
        raise ConfigurationError(f"{printable(path)} exists and is no plain file: name another")
    return True


def put_in_place(temporary: Path, path: Path, *, force: bool) -> None:
    """Give a file that was written its name in the end; the one it has is gone then.

    Raises:
        ConfigurationError: If a file has that name, and is not to be replaced, or what has it is no file.
    """
    _sync(temporary)
    try:
        if force:
            _is_file(path)
            temporary.replace(path)
        else:
            _name_anew(temporary, path)
    except FileExistsError as error:
        raise _in_the_way(path) from error
    temporary.unlink(missing_ok=True)
    _sync(path.parent)


def _name_anew(temporary: Path, path: Path) -> None:
    """Give a file a name that nothing has: unlike a rename it fails when the name was taken meanwhile."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # The name is taken first, so that what is replaced is ours.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            temporary.replace(path)
        except BaseException:
            path.unlink()
            raise


def _in_the_way(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{printable(path)} exists already: name a new file, or give --force to replace it"
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
