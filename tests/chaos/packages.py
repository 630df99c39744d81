"""Tools of the system that some tests need: installed where that can be done, and else named."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

__all__ = ["missing"]

_APT_GET = (
    "apt-get", "install", "--yes", "--quiet", "--no-install-recommends",
    "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10",
)  # fmt: skip
_INSTALL_S_MAX = 45.0


def missing(package: str, is_there: Callable[[], bool]) -> str | None:
    """Why the package cannot be used; `None` if it is there now."""
    if is_there():
        return None
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"{package} is not installed, and it takes root and apt-get to install it"
    try:
        subprocess.run((*_APT_GET, package), check=True, capture_output=True, timeout=_INSTALL_S_MAX)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return f"{package} is not installed, and apt-get does not install it ({error})"
    return None if is_there() else f"{package} holds another file than it used to"
