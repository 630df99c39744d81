"""Copies a store while it is written to. A copy of the file by itself would lack what is in the log."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from streamctx.engine.base import StoreError
from streamctx.engine.sqlite.library import Database, DatabaseError
from streamctx.engine.sqlite.place import sync_directory
from streamctx.errors import ConfigurationError

__all__ = ["backup"]

# A megabyte a step: some milliseconds for which nothing else is stored.
_STEP_PAGES = 256


def backup(database: Database, path: Path, on_step: Callable[[], None]) -> None:
    """Copy a database into a new file, with mode 0600.

    Raises:
        ConfigurationError: If the file is there or cannot be made.
        StoreError: If it cannot be written; it is removed then.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
    except FileExistsError as error:
        raise ConfigurationError(f"{path} exists already: name a new file for the backup") from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be made ({error.strerror}): name another file") from error
    try:
        database.backup(path, page_count=_STEP_PAGES, on_step=lambda *_: on_step())
        sync_directory(path.parent)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, (DatabaseError, OSError)):
            raise StoreError(
                f"the backup failed ({error}): look at the disk it was to go to", is_fatal=False
            ) from error
        raise
