"""The Python 2.7 environment in which Autobahn's wstest runs: made once, from hash-pinned lists, and kept."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ROOT", "UnavailableError", "clean_environment", "wstest_python"]

ROOT = Path(__file__).parents[2]

_HOME = ROOT / ".venv-autobahn"
_WSTEST_LOCK = ROOT / "requirements/autobahn.txt"
_VIRTUALENV_LOCK = ROOT / "requirements/autobahn-virtualenv.txt"

_BUILD_TIMEOUT_S = 240.0
_PIP_INSTALL = (
    *("-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"),
    # Without a network the answer is to come soon.
    *("--retries", "1", "--timeout", "20", "--require-hashes"),
)
_SAY_PYTHON = "import sys; assert sys.version_info[:2] == (2, 7); print(sys.executable)"


class UnavailableError(Exception):
    """wstest cannot be run here; the message says why."""


def wstest_python() -> Path:
    """The interpreter that has `autobahntestsuite`; the first call takes 20 seconds to make it.

    Raises:
        UnavailableError: If there is no Python 2.7, or a package cannot be had.
    """
    python27 = _python27()
    locks = _WSTEST_LOCK.read_bytes() + _VIRTUALENV_LOCK.read_bytes()
    wanted = f"{python27} {hashlib.sha256(locks).hexdigest()}"
    python = _HOME / "python2.7/bin/python"
    ready = _HOME / "ready"
    _HOME.mkdir(exist_ok=True)
    with _alone():
        if not ready.exists() or ready.read_text() != wanted:
            ready.unlink(missing_ok=True)
            _build(python27, python)
            ready.write_text(wanted)
    return python


def clean_environment() -> dict[str, str]:
    """Our environment without what would lead another Python to our packages."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    with (_HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(python27: str, python: Path) -> None:
    virtualenv = _HOME / "virtualenv"
    for folder in (virtualenv, python.parents[1]):
        shutil.rmtree(folder, ignore_errors=True)
    _run(
        "virtualenv cannot be installed",
        *(sys.executable, *_PIP_INSTALL, "--only-binary", ":all:", "--target", str(virtualenv)),
        *("-r", str(_VIRTUALENV_LOCK)),
    )
    _run(
        "virtualenv makes no environment",
        *(sys.executable, "-m", "virtualenv", "--quiet", "--no-periodic-update"),
        *("--app-data", str(_HOME / "app-data"), "--python", python27, str(python.parents[1])),
        python_path=virtualenv,
    )
    _run(
        "autobahntestsuite cannot be installed",
        *(str(python), *_PIP_INSTALL, "--no-python-version-warning", "--no-deps", "--no-compile"),
        # The two packages that come as source only need nothing but the setuptools which is there.
        *("--no-build-isolation", "-r", str(_WSTEST_LOCK)),
    )
    _run("autobahntestsuite cannot be imported", str(python), "-c", "import autobahntestsuite.wstest")


def _run(failure: str, *command: str, python_path: Path | None = None) -> None:
    environment = clean_environment()
    if python_path is not None:
        environment["PYTHONPATH"] = str(python_path)
    try:
        subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{failure} within {_BUILD_TIMEOUT_S:.0f} s") from error
    except subprocess.CalledProcessError as error:
        lines = (error.stderr.strip() or error.stdout.strip() or "no output").splitlines()
        raise UnavailableError(f"{failure}: {lines[-1]}") from error


def _python27() -> str:
    for command, environment in _candidates():
        found = _output(command, "-c", _SAY_PYTHON, environment=environment)
        if found is not None:
            return found
    raise UnavailableError("no Python 2.7 found, neither as python2.7 on PATH nor by pyenv")


def _candidates() -> Iterator[tuple[str, dict[str, str]]]:
    environment = clean_environment()
    on_path = shutil.which("python2.7")
    if on_path is not None:
        yield on_path, environment
    pyenv = shutil.which("pyenv")
    if pyenv is None:
        return
    versions = _output(pyenv, "versions", "--bare", environment=environment) or ""
    for version in versions.split():
        if version.startswith("2.7"):
            chosen = environment | {"PYENV_VERSION": version}
            found = _output(pyenv, "which", "python", environment=chosen)
            if found is not None:
                yield found, chosen


def _output(*command: str, environment: dict[str, str]) -> str | None:
    try:
        finished = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.strip()
