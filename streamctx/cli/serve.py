"""`streamctx serve`: the server, with nothing to configure."""

from __future__ import annotations

import functools
import logging
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamctx import __version__
from streamctx.cli.output import styled
from streamctx.cli.path_option import PathOption
from streamctx.errors import ConfigurationError
from streamctx.limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    from streamctx.engine.base import Durability
    from streamctx.server.config import ServerConfig
    from streamctx.server.serve import Server

__all__ = ["DEFAULT_PORT", "command"]

DEFAULT_PORT = 8787

_PATH = PathOption()


@click.command(name="serve", short_help="Run the server.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option("--uds", type=_PATH, help="Unix socket to listen on besides; only you can connect to it.")
@click.option("--data", type=_PATH, metavar="DIR", help="Where sessions are stored.")
@click.option(
    "--durability",
    type=click.Choice(["full", "relaxed", "none"]),
    default="full",
    show_default=True,
    help="What an event that is acknowledged as durable survives. full: a power loss. relaxed: the death of "
    "the server, but a power loss may take the last moments. none: nothing, sessions are in memory only.",
)
@click.option("--ephemeral", is_flag=True, help="The same as --durability none.")
@click.option(
    "--retention-days",
    type=click.FloatRange(0.01, 3650),
    default=DEFAULT_LIMITS.retention_s / 86_400,
    show_default=True,
    help="How long a session without a connection is kept in the store.",
)
@click.option(
    "--root",
    type=_PATH,
    multiple=True,
    metavar="DIR",
    help="Give the files below DIR to programs with the token, but for secrets and what DIR/.streamctxignore "
    "excludes when the server starts. Can be repeated.",
)
@click.option(
    "--token-file",
    type=_PATH,
    envvar="STREAMCTX_TOKEN_FILE",
    show_envvar=True,
    help="File with the access token; made if it is not there.",
)
@click.option("--allowed-host", multiple=True, metavar="NAME", help="Name in Host that is ours too.")
@click.option("--allowed-origin", multiple=True, metavar="ORIGIN", help="Origin of pages that may connect.")
@click.option(
    "--trusted-proxy", multiple=True, metavar="ADDRESS", help="Proxy whose forwarded headers are believed."
)
@click.option("--tls-cert", type=_PATH, help="PEM file with the certificate chain.")
@click.option("--tls-key", type=_PATH, help="PEM file with the key, if it is not in the certificate's.")
@click.option("--ready-file", type=_PATH, help="File to write, as JSON, once connections are accepted.")
@click.option("--insecure", is_flag=True, help="Allow other machines to connect in clear. Better: TLS.")
@click.option(
    "--debug-log",
    type=_PATH,
    metavar="FILE",
    help="Write every input to a new FILE, for `streamctx debug rerun`. It will hold document text.",
)
@click.option(
    "--debug-log-mb",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Stop the debug log at this size.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="What to report on standard error. Document text is never reported.",
)
def command(
    *,
    host: str,
    port: int,
    uds: Path | None,
    data: Path | None,
    durability: Durability,
    ephemeral: bool,
    retention_days: float,
    root: tuple[Path, ...],
    token_file: Path | None,
    allowed_host: tuple[str, ...],
    allowed_origin: tuple[str, ...],
    trusted_proxy: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    ready_file: Path | None,
    insecure: bool,
    debug_log: Path | None,
    debug_log_mb: int,
    log_level: str,
) -> None:
    """Run the server.

    It needs no configuration: it listens on this machine alone, makes an access token in a file that only you
    can read, and lets the other commands find it. Sessions, with the texts of their documents, are stored in
    a directory that only you can enter, so that they outlive a crash, a power loss and a new version.

    SIGINT (Ctrl-C) or SIGTERM lets clients finish; a second one ends the server at once.
    """
    from streamctx.server.config import ServerConfig

    if ephemeral:
        durability = "none"
    config = _configured(
        ServerConfig,
        host=host,
        port=port,
        uds=uds,
        data=data,
        durability=durability,
        roots=root,
        private_files=() if debug_log is None else (debug_log,),
        limits=replace(DEFAULT_LIMITS, retention_s=retention_days * 86_400),
        token_file=token_file,
        allowed_hosts=allowed_host,
        allowed_origins=allowed_origin,
        trusted_proxies=trusted_proxy,
        tls_cert=tls_cert,
        tls_key=tls_key,
        ready_file=ready_file,
        allow_insecure_bind=insecure,
    )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    # Libraries keep their warnings only: what they log below that can hold what must not be logged.
    logging.getLogger("streamctx").setLevel(log_level.upper())
    _serve(config, debug_log, debug_log_bytes_max=debug_log_mb * 1_000_000)


_FLAGS = {
    "tls_cert": "--tls-cert",
    "tls_key": "--tls-key",
    "data": "--data",
    "durability": "--durability",
    "ephemeral": "--ephemeral",
    "roots": "--root",
    "token_file": "--token-file",
    "ready_file": "--ready-file",
    "allowed_hosts": "--allowed-host",
    "allowed_origins": "--allowed-origin",
    "trusted_proxies": "--trusted-proxy",
    "allow_insecure_bind": "--insecure",
}


def _configured(make: Callable[..., ServerConfig], **settings: object) -> ServerConfig:
    """A configuration, whose errors name the flags of this command.

    Raises:
        ConfigurationError: As `ServerConfig`.
    """
    try:
        return make(**settings)
    except ConfigurationError as error:
        message = re.sub(r"\b\w+\b", lambda word: _FLAGS.get(word[0], word[0]), str(error))
        raise ConfigurationError(message) from None


def _serve(config: ServerConfig, debug_log: Path | None, *, debug_log_bytes_max: int) -> None:
    from streamctx.engine.sqlite.place import demand_elsewhere
    from streamctx.server.embedding import OWNER, hub_for
    from streamctx.server.serve import run
    from streamctx.server.store import open_engine, served_store
    from streamctx.server.tokens import resolve_token

    if config.ready_file is not None:
        demand_elsewhere(config.ready_file)
    announce = functools.partial(_announce, config=config)
    if debug_log is None:
        try:
            engine = open_engine(config)
        except ConfigurationError as error:
            hint = "--data DIR stores elsewhere, --ephemeral stores nothing"
            raise ConfigurationError(f"{error} ({hint})") from error
        run(hub_for(config, engine), config, store=served_store(engine, config), on_ready=announce)
        return
    demand_elsewhere(debug_log)
    if config.is_stored:
        raise ConfigurationError("--debug-log records a server in memory alone: give --ephemeral too")
    from streamctx.hub.recorder import RecordingHub

    with RecordingHub.create(
        debug_log,
        tokens={resolve_token(config): OWNER},
        version=__version__,
        limits=config.limits,
        bytes_max=debug_log_bytes_max,
    ) as hub:
        try:
            click.echo(f"Recording every input to {debug_log}; it holds document text and secrets.", err=True)
            run(hub, config, on_ready=announce)
        except ConfigurationError:
            # It never started; the next try shall find the name free.
            debug_log.unlink()
            raise


def _state(config: ServerConfig) -> str:
    if not config.is_stored:
        return "in memory only: sessions and documents end with this process"
    from streamctx.server.store import data_directory

    days = config.limits.retention_s / 86_400
    safe = "" if config.durability == "full" else "; a power loss may take the last moments"
    return f"{shlex.quote(str(data_directory(config)))}, kept for {days:g} days after the last change{safe}"


def _announce(server: Server, *, config: ServerConfig) -> None:
    """Say where the server is, and what to try next."""
    from streamctx.server.tokens import token_file_of

    token_file = token_file_of(config)
    lines = [
        f"{styled(f'streamctx {__version__}', bold=True)} is listening. Ctrl-C stops it.",
        "",
        f"  url         {server.url}",
    ]
    if server.uds is not None:
        lines.append(f"  socket      {server.uds}")
    lines += [
        f"  token file  {'none' if token_file is None else shlex.quote(str(token_file))}",
        f"  state       {_state(config)}",
        "",
        "Try next, in another terminal:",
        "",
        "  streamctx record notes.md -o notes.jsonl   push a file as you edit it, and record it",
        "  streamctx tail                             follow what editors push",
        "  streamctx replay notes.jsonl               play the recording into this server",
        "  streamctx demo                             see a lossy connection lose nothing",
        "",
        "or in `python -m asyncio`:",
        "",
        "  import streamctx",
        "  async with streamctx.connect() as client:",
        '      await client.open("file:///notes.md", "hello\\n")',
        "",
    ]
    click.echo("\n".join(lines))
    sys.stdout.flush()
