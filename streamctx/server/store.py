"""The store of a server: where it lies, and the engine around it."""

from __future__ import annotations

from pathlib import Path

from streamctx.discovery import state_directory
from streamctx.engine.sqlite.engine import SqliteEngine
from streamctx.engine.sqlite.store import SqliteStore
from streamctx.server.config import ServerConfig
from streamctx.server.private_files import make_private_directory

__all__ = ["data_directory", "open_engine"]


def data_directory(config: ServerConfig) -> Path:
    """Where the store lies."""
    return state_directory() / "data" if config.data is None else config.data


def open_engine(config: ServerConfig) -> SqliteEngine | None:
    """Open the store, which nobody else can open then; `None` if sessions are kept in memory.

    Raises:
        ConfigurationError: If it cannot be opened, such as one that another server has.
    """
    if not config.is_stored:
        return None
    assert config.durability != "none"
    if config.data is None:
        make_private_directory(state_directory())
    return SqliteEngine(SqliteStore.open(data_directory(config), durability=config.durability))
