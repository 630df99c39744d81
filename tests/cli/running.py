"""The command line as real processes, each in a home of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["Home", "RunningServer", "wait_until"]

_DEADLINE_S = 20.0


class Home:
    """A place where state, discovery files and tokens of a test lie."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runtime = path / "runtime"
        self.runtime.mkdir(mode=0o700, parents=True)
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("STREAMCTX_")},
            "XDG_RUNTIME_DIR": str(self.runtime),
            "XDG_STATE_HOME": str(path / "state"),
            "HOME": str(path),
            "PYTHONUNBUFFERED": "1",
        }

    def run(self, *arguments: str, text: bool = True, **environ: str) -> subprocess.CompletedProcess[Any]:
        """Run a command to its end; its output is bytes unless `text`."""
        return subprocess.run(
            [sys.executable, "-m", "streamctx", *arguments],
            env=self.environ | environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=text,
            timeout=_DEADLINE_S,
            check=False,
        )

    @contextlib.contextmanager
    def start(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Start a command; it is killed if it has not ended with the block."""
        process = subprocess.Popen(
            [sys.executable, "-m", "streamctx", *arguments],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    @contextlib.contextmanager
    def serve(self, *arguments: str) -> Iterator[RunningServer]:
        """Run a server on a free port; it has to end well on SIGTERM."""
        ready_file = self.path / "ready.json"
        with self.start("serve", "--port", "0", "--ready-file", str(ready_file), *arguments) as process:
            wait_until(lambda: ready_file.exists() or process.poll() is not None)
            if process.poll() is not None:
                raise AssertionError(f"the server ended: {process.communicate()}")
            server = RunningServer(self, process, json.loads(ready_file.read_text()))
            yield server
            if process.poll() is None:
                server.stop()
        assert not ready_file.exists()

    @contextlib.contextmanager
    def serve_to_death(self, *arguments: str) -> Iterator[RunningServer]:
        """Run a server that is killed, and leaves what it has not removed."""
        ready_file = self.path / "ready.json"
        with self.start("serve", "--port", "0", "--ready-file", str(ready_file), *arguments) as process:
            wait_until(lambda: ready_file.exists() or process.poll() is not None)
            yield RunningServer(self, process, json.loads(ready_file.read_text()))
            process.kill()
        ready_file.unlink(missing_ok=True)


class RunningServer:
    """A server process that accepts connections."""

    def __init__(self, home: Home, process: subprocess.Popen[str], ready: dict[str, Any]) -> None:
        self.home = home
        self.process = process
        self.ready = ready
        self.output = ""
        self.errors = ""

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    @property
    def token(self) -> str:
        return Path(self.ready["token_file"]).read_text().strip()

    def stop(self) -> None:
        """End it with SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        self.output, self.errors = self.process.communicate(timeout=_DEADLINE_S)
        assert self.process.returncode == 0, self.errors


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + _DEADLINE_S
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"nothing happened within {_DEADLINE_S:g} s")
        time.sleep(0.02)
