"""Who may talk to this server at all: pure functions over a request's head.

One piece of code for HTTP and WebSocket. Whether a token is right is the hub's business; here it is only
taken out of the one place where it may be.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from streamctx.errors import ErrorCode

if TYPE_CHECKING:
    from streamctx.server.config import ServerConfig

__all__ = [
    "BearerError",
    "Client",
    "Policy",
    "Refusal",
    "bearer_token",
    "check_request",
    "identify_client",
    "is_loopback",
    "normalise_host",
    "normalise_origin",
    "policy_of",
]

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, as ASGI has them."""

UNIX = "unix"
"""The address of whoever comes in by the Unix socket."""

_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_TOKEN_KEYS = frozenset(
    {
        "access_token",
        "api_key",
        "apikey",
        "auth",
        "auth_token",
        "authorization",
        "bearer",
        "password",
        "secret",
        "token",
    }
)
_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::(?P<port>\d{1,5}))?", re.ASCII)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@\\]+", re.IGNORECASE)
_BEARER = re.compile(rb"bearer +([\x21-\x7e]+) *", re.IGNORECASE)

Origin = tuple[str, str, int | None]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP answer to a request that is not let in."""

    status: HTTPStatus
    code: ErrorCode
    message: str
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def body(self) -> bytes:
        """The error as JSON, the same for HTTP and for a refused upgrade."""
        return json.dumps({"error": {"code": self.code, "message": self.message}}).encode()

    def to_bytes(self) -> bytes:
        """The whole response, for a connection that ends with it."""
        body = self.body
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            "connection: close",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


@dataclass(frozen=True, slots=True)
class Policy:
    """The part of the configuration that decides about requests, in the form in which it is compared."""

    hosts: frozenset[str]
    origins: frozenset[Origin]
    is_null_origin_allowed: bool
    proxy_networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]
    is_unix_trusted: bool

    def is_trusted_proxy(self, address: str) -> bool:
        """Whether the forwarded headers of that peer are believed."""
        if address == UNIX:
            return self.is_unix_trusted
        if not self.proxy_networks:
            return False
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self.proxy_networks)


@dataclass(frozen=True, slots=True)
class Client:
    """Who is asking, and over which scheme (`http` or `https`), as a trusted proxy states it if one does."""

    address: str
    scheme: str


class BearerError(Exception):
    """The Authorization header is there and is not one bearer token."""


def policy_of(config: ServerConfig) -> Policy:
    """The policy of a valid configuration."""
    hosts = set(_LOOPBACK_NAMES)
    hosts.update(name.lower().strip("[]") for name in config.allowed_hosts)
    if is_loopback(config.host):
        hosts.add(config.host.lower())
    origins = {normalise_origin(origin) for origin in config.allowed_origins} - {None}
    return Policy(
        hosts=frozenset(hosts),
        origins=frozenset(origin for origin in origins if origin is not None),
        is_null_origin_allowed="null" in config.allowed_origins,
        proxy_networks=tuple(ipaddress.ip_network(p) for p in config.trusted_proxies if p != UNIX),
        is_unix_trusted=UNIX in config.trusted_proxies,
    )


def check_request(
    policy: Policy, headers: Headers, *, scheme: str, query: bytes, target: bytes = b""
) -> Refusal | None:
    """Whether a request may go on to be authenticated.

    Args:
        policy: What is allowed.
        headers: The request's.
        scheme: `http` or `https`, as `identify_client` found it.
        query: The query string.
        target: The request target, if it may be in absolute form; its host is then checked too.

    Returns:
        `None` if it may; otherwise 400 (no or several Host headers, a token in the URL), 421 (a name
        that is not ours) or 403 (another site's page).

    Source: RFC 9110 sections 7.2 and 7.4; RFC 6455 section 10.2; RFC 6454; RFC 6750 section 2.3.
    """
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1:
        return _bad_request(f"{len(hosts)} Host headers came; exactly one is needed")
    host = _parse_host(hosts[0])
    if host is None:
        return _bad_request("the Host header is not a host with an optional port")
    if host[0] not in policy.hosts or not _is_target_ours(policy, target):
        return Refusal(
            HTTPStatus.MISDIRECTED_REQUEST,
            ErrorCode.FORBIDDEN,
            "the Host header names a host that is not served here; an operator can allow it",
        )
    origins = [value for name, value in headers if name == b"origin"]
    if origins and not _is_origin_allowed(policy, origins, scheme=scheme, host=host):
        return Refusal(
            HTTPStatus.FORBIDDEN,
            ErrorCode.FORBIDDEN,
            "pages of this origin may not connect; an operator can allow it",
        )
    if query and _has_token(query):
        return _bad_request("the URL carries a token; it belongs into the Authorization header or into HELLO")
    return None


def bearer_token(headers: Headers) -> str | None:
    """The token of the Authorization header, `None` if there is no such header.

    Raises:
        BearerError: If there are several, or it is not of the form `Bearer <token>`.
    """
    values = [value for name, value in headers if name == b"authorization"]
    if not values:
        return None
    match = _BEARER.fullmatch(values[0].strip())
    if len(values) > 1 or match is None:
        raise BearerError
    return match[1].decode("ascii")


def identify_client(policy: Policy, headers: Headers, *, peer_address: str, scheme: str) -> Client:
    """Who the client is: the peer itself, or the one that a trusted proxy speaks for.

    Args:
        policy: Whom to believe.
        headers: The request's.
        peer_address: The IP address of the peer, or `unix`.
        scheme: `http` or `https`, as the socket has it.

    Returns:
        With a trusted peer, the rightmost address of `X-Forwarded-For` that is not itself a trusted proxy
        (what stands left of it could be anybody's invention), and the scheme of `X-Forwarded-Proto`.
    """
    if not policy.is_trusted_proxy(peer_address):
        return Client(peer_address, scheme)
    protocols = _list_of(headers, b"x-forwarded-proto")
    if protocols and protocols[-1].lower() in _DEFAULT_PORTS:
        scheme = protocols[-1].lower().replace("ws", "http")
    address = peer_address
    for forwarded in reversed(_list_of(headers, b"x-forwarded-for")):
        parsed = _parse_address(forwarded)
        if parsed is None:
            break
        address = parsed
        if not policy.is_trusted_proxy(parsed):
            break
    return Client(address, scheme)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address; of names only `localhost` is known to be."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def normalise_host(host: str) -> str | None:
    """A host without its port in the form in which hosts are compared, `None` if it is none."""
    parsed = _parse_host(host.encode("utf-8", "replace"))
    if parsed is None and ":" in host:
        parsed = _parse_host(f"[{host}]".encode("utf-8", "replace"))
    return None if parsed is None else parsed[0]


def normalise_origin(origin: str) -> Origin | None:
    """An origin as scheme, host and port, with the scheme's own port filled in; `None` if it is none."""
    # `urlsplit` drops white space and an empty query, and a comparison has to see them.
    if _ORIGIN.fullmatch(origin) is None:
        return None
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname:
        return None
    return parts.scheme, parts.hostname, _DEFAULT_PORTS.get(parts.scheme) if port is None else port


def _is_origin_allowed(
    policy: Policy, values: list[bytes], *, scheme: str, host: tuple[str, int | None]
) -> bool:
    if len(values) > 1:
        return False
    text = values[0].decode("latin-1").strip()
    if text == "null":
        return policy.is_null_origin_allowed
    origin = normalise_origin(text)
    if origin is None:
        return False
    name, port = host
    ours = (scheme, name, _DEFAULT_PORTS[scheme] if port is None else port)
    return origin == ours or origin in policy.origins


def _is_target_ours(policy: Policy, target: bytes) -> bool:
    # In absolute form the target's host overrides Host (RFC 9112 section 3.2.2), so it is held to the same.
    if not target or target.startswith(b"/") or b"://" not in target:
        return True
    authority = target.split(b"://", 1)[1].split(b"/", 1)[0].split(b"?", 1)[0]
    host = _parse_host(authority)
    return host is not None and host[0] in policy.hosts


def _parse_host(value: bytes) -> tuple[str, int | None] | None:
    match = _HOST.fullmatch(value.decode("latin-1").strip().lower())
    if match is None:
        return None
    port = match["port"]
    if port is not None and int(port) > 65535:
        return None
    return match["v6"] or match["name"], None if port is None else int(port)


def _has_token(query: bytes) -> bool:
    pairs = parse_qsl(query.decode("latin-1").replace(";", "&"), keep_blank_values=True)
    return any(key.strip().lower() in _TOKEN_KEYS for key, _ in pairs)


def _list_of(headers: Headers, wanted: bytes) -> list[str]:
    values: Iterable[bytes] = (value for name, value in headers if name == wanted)
    items = b",".join(values).decode("latin-1").split(",")
    return [item.strip() for item in items if item.strip()]


def _parse_address(text: str) -> str | None:
    """An IP address as proxies write it: bare, in brackets, or with a port."""
    host = normalise_host(text)
    if host is None:
        return None
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def _bad_request(message: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, ErrorCode.MALFORMED, message)
