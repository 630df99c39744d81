"""The store of a server: where it lies, and what its HTTP side asks of it."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from streamctx.discovery import state_directory
from streamctx.engine.base import SetAside, StoreError
from streamctx.engine.sqlite.engine import SqliteEngine
from streamctx.engine.sqlite.store import SqliteStore
from streamctx.errors import ConfigurationError
from streamctx.server.config import ServerConfig
from streamctx.server.logs import logger
from streamctx.server.private_files import make_private_directory

__all__ = ["ServedStore", "data_directory", "open_engine", "served_store"]

_BACKUP_PREFIX = "backup-"


class ServedStore:
    """A `RunningStore` around an engine, with its data directory."""

    def __init__(self, engine: SqliteEngine, directory: Path) -> None:
        """Take over a directory whose store is open: nobody else makes backups in it."""
        self._engine = engine
        self._directory = directory
        for left in directory.glob(f"{_BACKUP_PREFIX}*"):
            # Of a server that died while it made one.
            left.unlink(missing_ok=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin."""
        self._engine.start(loop)

    async def close(self) -> object:
        """Store what is queued, and end."""
        return await self._engine.close()

    def measurements(self) -> dict[str, float]:
        """What the store has done, what waits for it, and what is in it."""
        summaries = self._engine.summaries()
        return dataclasses.asdict(self._engine.counters) | {
            "waiting_bytes": self._engine.waiting_bytes,
            "sessions": len(summaries),
            "bytes": sum(summary.stored_bytes for summary in summaries),
        }

    def facts(self) -> dict[str, object]:
        """Tell where it is, and whether it can store."""
        fault = self._engine.fault
        return {
            "directory": str(self._directory.absolute()),
            "durability": self._engine.durability,
            "fault": None if fault is None else fault.message,
        }

    async def export(self, session_id: str) -> bytes | None:
        """Read a session whole."""
        return await self._engine.run(lambda store: store.export(session_id))

    async def import_session(self, data: bytes, *, principal: str) -> str:
        """Store a session."""
        return await self._engine.run(lambda store: store.import_session(data, principal=principal))

    async def set_aside(self, *, principal: str) -> list[SetAside]:
        """Tell what was set aside."""
        return await self._engine.run(lambda store: store.set_aside(principal))

    async def forget_set_aside(self, keys: Sequence[int]) -> None:
        """Delete some of it, and no session; others have their turn between two."""
        for key in keys:
            await self._engine.run(functools.partial(SqliteStore.forget_set_aside, keys=[key]))

    async def backup(self) -> IO[bytes]:
        """Copy the store; what is queued meanwhile is stored between two steps."""
        path = self._directory / f"{_BACKUP_PREFIX}{secrets.token_hex(8)}"
        try:
            await self._engine.backup(path)
            return await asyncio.to_thread(path.open, "rb")
        except (ConfigurationError, OSError) as error:
            raise StoreError(f"no backup can be made: {error}", is_fatal=False) from error
        finally:
            path.unlink(missing_ok=True)


class _EverySession:
    def __contains__(self, _: object) -> bool:
        return True


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
    store = SqliteStore.open(data_directory(config), durability=config.durability)
    try:
        # Sessions that are past retention go while the server runs; of these nobody else would think.
        store.prune(time.time() - config.limits.retention_s, is_live=_EverySession())
    except StoreError as error:
        logger.warning("what was set aside as damaged could not be deleted: %s", error)
    return SqliteEngine(store)


def served_store(engine: SqliteEngine | None, config: ServerConfig) -> ServedStore | None:
    """What a server gives to its HTTP side of the engine that it opened; `None` without one."""
    return None if engine is None else ServedStore(engine, data_directory(config))
