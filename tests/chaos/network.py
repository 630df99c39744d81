"""A network of our own that drops the packets of single connections; it needs root, Linux and nftables."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator

__all__ = ["drop", "missing", "own_network", "restore"]

_CLONE_NEWNET = 0x40000000
_CHAIN = "add table inet chaos; add chain inet chaos in { type filter hook input priority 0; }"


def missing() -> str | None:
    """Why there can be no such network here."""
    if sys.platform != "linux":
        return "network namespaces are of Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "nft"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    try:
        with own_network():
            drop(())
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces cannot be used here: {error}"
    return None


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """Have all sockets and processes that this thread makes in a network with nothing but a loopback."""
    library = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(library.unshare(_CLONE_NEWNET))
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True, capture_output=True)
            yield
        finally:
            _check(library.setns(before, _CLONE_NEWNET))
    finally:
        os.close(before)


def drop(ports: Iterable[int]) -> None:
    """Drop every packet of this thread's network that goes to or comes from one of these TCP ports."""
    rules = [
        f"add rule inet chaos in tcp {side} {port} drop" for port in ports for side in ("sport", "dport")
    ]
    subprocess.run(["nft", "; ".join((_CHAIN, *rules))], check=True, capture_output=True)


def restore() -> None:
    """Drop nothing any more."""
    subprocess.run(["nft", "flush", "ruleset"], check=True, capture_output=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
