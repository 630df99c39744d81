"""The sockets that a server listens on, made by us so that their modes and errors are ours."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from streamctx.discovery import list_servers
from streamctx.errors import ConfigurationError
from streamctx.server.private_files import make_private_directory

__all__ = ["listen_tcp", "listen_unix", "unlink_socket"]


def listen_tcp(host: str, port: int) -> socket.socket:
    """A bound TCP socket; port 0 takes a free one.

    Raises:
        ConfigurationError: If the address cannot be had. If a streamctx server of this user holds the port,
            the message names it.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"host: {host!r} is not an address of this machine ({error})") from error
    # `localhost` can be two addresses; clients that try the other one first come back to this one.
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"port: {port} is in use by {_holder_of(port)}; 0 takes a free one"
            ) from error
        raise ConfigurationError(f"host: cannot listen on {host} port {port}: {error.strerror}") from error
    return sock


def listen_unix(path: Path) -> socket.socket:
    """A bound Unix socket that only its owner can connect to; one left by a dead server is replaced.

    Raises:
        ConfigurationError: If something else has the path, or a server is listening there.
    """
    make_private_directory(path.parent)
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mode has to be right from the first instant, which only the umask can do.
    umask = os.umask(0o177)
    try:
        sock.bind(os.fspath(path))
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        raise ConfigurationError(f"uds: cannot listen on {path}: {reason}") from error
    finally:
        os.umask(umask)
    return sock


def unlink_socket(path: Path, inode: int) -> None:
    """Remove our Unix socket, unless another one stands there by now."""
    with contextlib.suppress(OSError):
        if path.stat().st_ino == inode:
            path.unlink()


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigurationError(f"uds: {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"uds: {path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise ConfigurationError(f"uds: {path} is in use ({error})") from error
    raise ConfigurationError(f"uds: {path} is in use by a server that is running")


def _holder_of(port: int) -> str:
    for record in list_servers():
        if record.url.split("/", 3)[2].endswith(f":{port}"):
            return f"the streamctx server with process id {record.pid} ({record.http_url})"
    return "another program"
