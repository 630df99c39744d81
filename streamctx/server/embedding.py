"""A whole server inside another program or a test: `async with streamctx.serve(port=0) as server:`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from streamctx import __version__
from streamctx.engine.base import Engine
from streamctx.hub.hub import Hub
from streamctx.hub.ports import Principal
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.server.config import ServerConfig
from streamctx.server.serve import Server
from streamctx.server.serve import serve as serve_hub
from streamctx.server.store import open_engine, served_store
from streamctx.server.tokens import resolve_token

__all__ = ["OWNER", "hub_for", "serve"]

OWNER = Principal("owner", frozenset({"produce", "observe", "resource", "admin"}))
"""Whom the one token of a server speaks for."""


def hub_for(config: ServerConfig, engine: Engine | None = None) -> Hub:
    """The hub of a server with that configuration; its token file is created if need be.

    Args:
        engine: Where it stores sessions; `None` for memory alone.

    Raises:
        ConfigurationError: As `resolve_token`.
    """
    tokens = {resolve_token(config): OWNER}
    return Hub(tokens=tokens, version=__version__, limits=config.limits, engine=engine)


@asynccontextmanager
async def serve(
    *,
    host: str = "127.0.0.1",
    port: int | None = 0,
    uds: Path | None = None,
    token: str | None = None,
    token_file: Path | None = None,
    allowed_hosts: tuple[str, ...] = (),
    allowed_origins: tuple[str, ...] = (),
    data: Path | None = None,
    roots: tuple[Path, ...] = (),
    discovery: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> AsyncIterator[Server]:
    """Run a server as long as the block runs; it drains at the end.

    Signals are left alone. The server has `url`, `http_url`, `port` and `token`.

    Args:
        port: 0 takes a free one; `None` listens on `uds` alone.
        token: The access token; without it and `token_file` a random one is made, which only
            `server.token` tells.
        data: Directory in which sessions are stored, so that they outlive the server; without it they live in
            memory.
        roots: Directories whose files are given as resources.
        discovery: Whether other programs of this user find the server by its discovery file.

    Raises:
        ConfigurationError: If a setting is wrong, or the port is in use; nothing was opened.
    """
    config = ServerConfig(
        host=host,
        port=port,
        uds=uds,
        token=token,
        token_file=token_file,
        allowed_hosts=allowed_hosts,
        allowed_origins=allowed_origins,
        data=data,
        roots=roots,
        discovery=discovery,
        ephemeral=data is None,
        limits=limits,
    )
    engine = open_engine(config)
    async with serve_hub(hub_for(config, engine), config, store=served_store(engine, config)) as server:
        yield server
