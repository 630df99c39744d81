"""A server process: started, looked at, signalled, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from streamctx.limits import DEFAULT_LIMITS, Limits
from tests.hostile.arena import Arena, log_faults

__all__ = [
    "Assistant",
    "Child",
    "EarlyExit",
    "ServerProcess",
    "client_process",
    "flood_process",
    "server_process",
]

ROOT = Path(__file__).parents[2]

_START_S_MAX = 20.0
_STOP_S_MAX = 15.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class EarlyExit(AssertionError):
    """A process has ended before it was ready."""

    def __init__(self, status: int, log: str) -> None:
        super().__init__(f"it ended with {status}: {log}")
        self.status = status


class Child:
    """A process of ours."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def exit_status(self, within_s: float = _STOP_S_MAX) -> int:
        async with asyncio.timeout(within_s):
            return await self.process.wait()

    # From /proc.

    def rss_bytes(self) -> int:
        status = self._proc("status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def cpu_s(self) -> float:
        """What it has used of the processor."""
        fields = self._proc("stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def descriptors(self) -> int:
        return len(list(self._proc("fd").iterdir()))

    def peer_ports(self, port: int) -> set[int]:
        """The ports of the peers whose connections to that port of ours it holds."""
        held = set()
        for link in self._proc("fd").iterdir():
            with contextlib.suppress(OSError):
                held.add(os.readlink(link))
        rows = (line.split() for line in self._proc("net/tcp").read_text().splitlines()[1:])
        return {
            int(row[2].split(":")[1], 16)
            for row in rows
            if int(row[1].split(":")[1], 16) == port and f"socket:[{row[9]}]" in held
        }

    def _proc(self, name: str) -> Path:
        return Path("/proc", str(self.process.pid), name)


@contextlib.asynccontextmanager
async def _child(
    arguments: Sequence[str],
    environ: Mapping[str, str],
    *,
    log: Path | None = None,
    command: Sequence[str] = (),
) -> AsyncIterator[Child]:
    """Run Python with these arguments, behind `command` if given; it is killed if it has not ended.

    Its input and output are pipes; its errors go to `log`.
    """
    with contextlib.ExitStack() as stack:
        errors = None if log is None else stack.enter_context(log.open("ab"))
        process = await asyncio.create_subprocess_exec(
            *command,
            sys.executable,
            *arguments,
            cwd=ROOT,
            env={**os.environ, **environ},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        # Also reads what is left in the pipes, and closes them.
        await process.communicate()


class ServerProcess(Child):
    """A server that accepts connections on loopback."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, token: str, limits: Limits) -> None:
        super().__init__(process)
        self.port = port
        self.token = token
        self.limits = limits
        self.arena = Arena(port, token, limits)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/stream"

    async def metrics(self) -> dict[str, int]:
        """Everything that `/metrics` says, in whole numbers."""
        body = (await self.arena.get("/metrics")).body.decode()
        lines = (line.removeprefix("streamctx_").split() for line in body.splitlines())
        return {name: round(float(value)) for name, value in lines}

    async def stop(self, within_s: float = _STOP_S_MAX) -> None:
        """End it with SIGTERM; it has to take that well."""
        self.send_signal(signal.SIGTERM)
        assert await self.exit_status(within_s) == 0


@contextlib.asynccontextmanager
async def server_process(
    home: Path,
    limits: Limits | None = None,
    *,
    port: int = 0,
    environ: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
    module: Sequence[str] = ("streamctx",),
    options: Sequence[str] = (),
    may_fail: bool = False,
) -> AsyncIterator[ServerProcess]:
    """Run a server; its state lies in `home`, so that the next one there has the same token.

    A server that still runs at the end is stopped, and its log must hold no fault of ours.

    Args:
        home: An empty folder, or one that a server had before.
        limits: `None` runs `streamctx serve` itself, which has the limits of the product.
        port: 0 takes a free one.
        environ: More variables for it.
        command: What to put before it, such as `unshare --net`.
        module: With the limits of the product: the module in place of `streamctx`, and arguments of its own.
        options: With the limits of the product: more options of `streamctx serve`.
        may_fail: Whether the log may hold errors.
    """
    ready_file, log = home / "ready.json", home / "server.log"
    ready_file.unlink(missing_ok=True)
    if limits is None:
        arguments = ["-m", *module, "serve", "--port", str(port), "--ready-file", str(ready_file), *options]
    else:
        arguments = ["-m", "tests.chaos.server_process", str(port), str(ready_file), _to_json(limits)]
    places = {"XDG_STATE_HOME": str(home / "state"), "XDG_RUNTIME_DIR": str(home)}
    async with _child(arguments, {**places, **(environ or {})}, log=log, command=command) as started:
        process = started.process
        async with asyncio.timeout(_START_S_MAX):
            while not ready_file.exists():
                if process.returncode is not None:
                    raise EarlyExit(process.returncode, log.read_text())
                await asyncio.sleep(0.02)
        server = ServerProcess(process, *_address(ready_file), limits or DEFAULT_LIMITS)
        yield server
        if process.returncode is None:
            await server.stop()
    assert may_fail or log_faults(log.read_text(errors="replace").splitlines()) == []


def _address(ready_file: Path) -> tuple[int, str]:
    ready = json.loads(ready_file.read_bytes())
    port = int(ready["url"].split(":")[2].split("/")[0])
    return port, Path(ready["token_file"]).read_text().strip()


class Assistant(Child):
    """A process that says `ready`, works until its input ends, and then says in JSON what it did."""

    async def finish(self) -> Any:
        """Have it end well; returns what it did."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        async with asyncio.timeout(_STOP_S_MAX):
            done = json.loads(await self.process.stdout.readline())
        assert await self.exit_status() == 0
        return done


@contextlib.asynccontextmanager
async def client_process(
    url: str, token: str, limits: Limits, *kinds: str, environ: Mapping[str, str] | None = None
) -> AsyncIterator[Assistant]:
    """Run clients, see `tests.chaos.client_process`; `finish` returns the counters of each."""
    arguments = ["-m", "tests.chaos.client_process", url, token, _to_json(limits), *kinds]
    async with _assistant(arguments, environ or {}) as assistant:
        yield assistant


@contextlib.asynccontextmanager
async def flood_process(port: int, token: str) -> AsyncIterator[Assistant]:
    """Run attackers, see `tests.chaos.flood_process`; `finish` returns how often each of them came."""
    async with _assistant(["-m", "tests.chaos.flood_process", str(port), token], {}) as assistant:
        yield assistant


@contextlib.asynccontextmanager
async def _assistant(arguments: Sequence[str], environ: Mapping[str, str]) -> AsyncIterator[Assistant]:
    async with _child(arguments, environ) as started:
        assert started.process.stdout is not None
        async with asyncio.timeout(_START_S_MAX):
            assert await started.process.stdout.readline() == b"ready\n"
        yield Assistant(started.process)


def _to_json(limits: Limits) -> str:
    """Those that are not as always."""
    changed = {
        field.name: getattr(limits, field.name)
        for field in dataclasses.fields(Limits)
        if getattr(limits, field.name) != field.default
    }
    return json.dumps(changed)
