"""What a server is told before it starts."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from streamctx.engine.base import Durability
from streamctx.errors import ConfigurationError
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.server.security import is_loopback, normalise_host, normalise_origin

__all__ = ["ServerConfig"]

_TOKEN_LENGTH_MIN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of one server, checked as soon as they are made.

    Raises:
        ConfigurationError: If a setting is wrong; the message names it, its value and what is allowed.
    """

    host: str = "127.0.0.1"
    """Address to listen on; a name other than `localhost` counts as not loopback."""
    port: int | None = 0
    """0 takes a free port; `None` listens on the Unix socket alone."""
    uds: Path | None = None
    """Unix socket to listen on besides, created 0600."""
    token: str | None = field(default=None, repr=False)
    """The access token itself; `None` takes it from `token_file`, or makes one up if `ephemeral`."""
    token_file: Path | None = None
    """`None` is `token` in the state directory."""
    allowed_hosts: tuple[str, ...] = ()
    """Names in a `Host` header that are ours besides the loopback ones, without port."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of pages that may connect besides our own, such as `https://app.example`, or `null`."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks whose forwarded headers are believed; `unix` is any peer of the Unix socket."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    """`None` means that the certificate's file holds the key too."""
    ready_file: Path | None = None
    """Written with the discovery record once the server listens, and removed when it stops."""
    ephemeral: bool = False
    """Keep nothing on disk: without `token` and `token_file` a token is made up and lives in memory."""
    data: Path | None = None
    """Directory of the store; `None` is `data` in the state directory."""
    durability: Durability = "full"
    """What the store promises (`Durability`). `none` keeps sessions in memory, as `ephemeral` does."""
    roots: tuple[Path, ...] = ()
    """Directories whose files are given to those with the token; none by default."""
    private_files: tuple[Path, ...] = ()
    """Files that no root gives, besides the token, the TLS key and what the server stores."""
    allow_insecure_bind: bool = False
    """Serve in clear on an address that other machines reach."""
    discovery: bool = True
    """Whether programs of the same user can find this server."""
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        """Check every setting."""
        _check_address(self)
        _check_token(self)
        for name in self.allowed_hosts:
            if normalise_host(name) is None or normalise_host(name) != name.lower().strip("[]"):
                raise ConfigurationError(
                    f"allowed_hosts: {name!r} is not a host name or address without port"
                )
        for origin in self.allowed_origins:
            if origin != "null" and normalise_origin(origin) is None:
                raise ConfigurationError(
                    f"allowed_origins: {origin!r} is not an origin; write scheme://host[:port] or null"
                )
        for proxy in self.trusted_proxies:
            _check_proxy(proxy)
        if self.data is not None and not self.is_stored:
            raise ConfigurationError(
                f"data: {self.data} is set, and nothing is to be stored; "
                "leave it out, or ephemeral and durability none"
            )
        for root in self.roots:
            if not root.is_dir():
                raise ConfigurationError(f"roots: {root} is not a directory; name one whose files are given")
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigurationError("tls_key is set and tls_cert is not; a key needs its certificate")
        for name, path in (("tls_cert", self.tls_cert), ("tls_key", self.tls_key)):
            if path is not None and not path.is_file():
                raise ConfigurationError(f"{name}: {path} is not a file; a PEM file is needed")

    @property
    def is_stored(self) -> bool:
        """Whether sessions outlive the server."""
        return not self.ephemeral and self.durability != "none"

    @property
    def is_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.tls_cert is not None


def _check_address(config: ServerConfig) -> None:
    if config.port is None:
        if config.uds is None:
            raise ConfigurationError("port is none and uds is not set; the server would listen nowhere")
        return
    if not 0 <= config.port <= 65535:
        raise ConfigurationError(
            f"port: {config.port} is out of range; 0 to 65535 are allowed, 0 takes a free one"
        )
    if not config.host:
        raise ConfigurationError("host is empty; name an address, such as 127.0.0.1")
    if not is_loopback(config.host) and not config.is_tls and not config.allow_insecure_bind:
        raise ConfigurationError(
            f"host: {config.host} can be reached from other machines and there is no TLS; "
            "set tls_cert and tls_key, or allow_insecure_bind, or listen on 127.0.0.1"
        )


def _check_token(config: ServerConfig) -> None:
    if config.token is None:
        if config.ephemeral and config.token_file is None:
            object.__setattr__(config, "token", secrets.token_urlsafe(32))
        return
    if config.token_file is not None:
        raise ConfigurationError("token and token_file are both set; one is allowed")
    if len(config.token) < _TOKEN_LENGTH_MIN:
        raise ConfigurationError(
            f"token has {len(config.token)} characters; at least {_TOKEN_LENGTH_MIN} are needed"
        )
    if not config.token.isascii() or not config.token.isprintable() or " " in config.token:
        raise ConfigurationError("token holds a character that is not visible ASCII")


def _check_proxy(proxy: str) -> None:
    if proxy == "unix":
        return
    try:
        ipaddress.ip_network(proxy)
    except ValueError as error:
        raise ConfigurationError(
            f"trusted_proxies: {proxy!r} is not an address, a network or `unix` ({error})"
        ) from error
