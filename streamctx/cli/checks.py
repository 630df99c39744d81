"""What `streamctx doctor` looks at."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio

from streamctx import __version__
from streamctx.cli.rest import RequestFailed, get_json
from streamctx.cli.target import Target
from streamctx.cli.tasks import run_async
from streamctx.client.client import connect
from streamctx.discovery import ServerRecord, list_servers, state_directory
from streamctx.engine.sqlite.inspection import Inspection, inspect
from streamctx.engine.sqlite.library import StandardDatabase
from streamctx.engine.sqlite.place import FILE_NAME, prepare
from streamctx.engine.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION
from streamctx.errors import ConfigurationError, StreamctxError
from streamctx.hub.hub import Hub
from streamctx.hub.ports import Principal
from streamctx.server.config import ServerConfig
from streamctx.server.serve import serve
from streamctx.server.tokens import default_token_file, read_token

__all__ = ["DEPENDENCIES", "EXTRAS", "Finding", "all_findings"]

DISTRIBUTION = "streamctx-server"

DEPENDENCIES = (
    "anyio",
    "click",
    "httptools",
    "msgspec",
    "rich",
    "starlette",
    "uvicorn",
    "uvloop",
    "websockets",
    "xxhash",
)
"""Distributions that are needed; uvloop where there is one."""

EXTRAS = {"watch": ("watchfiles",)}
"""Distributions that each optional extra brings."""

_SELF_TEST_TIMEOUT_S = 10.0

# Of a file of SQLite (https://sqlite.org/fileformat2.html#the_database_header).
_HEAD_BYTES = 100

_FREE_BYTES_MIN = 100_000_000

# A clock before this release was made has never been set.
_CLOCK_MIN_S = 1_735_689_600.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    status: Literal["ok", "warning", "broken"]
    message: str


def all_findings(data: Path | None = None) -> list[Finding]:
    """Do all checks, in the order in which a person should read them.

    Args:
        data: A data directory to look at, in place of that of a server that was told none.
    """
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        check_python,
        check_dependencies,
        check_extras,
        check_import_name,
        check_clock,
        check_token,
        lambda: check_store(data),
        check_servers,
        check_loopback,
    )
    return [finding for check in checks for finding in check()]


def check_python() -> Iterator[Finding]:
    """The interpreter, the platform, and this version."""
    where = f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}"
    is_new_enough = sys.version_info >= (3, 11)
    yield Finding("streamctx", "ok", __version__)
    yield Finding(
        "python", "ok" if is_new_enough else "broken", where if is_new_enough else f"{where}; 3.11 is needed"
    )


def check_dependencies() -> Iterator[Finding]:
    """The versions of what is needed."""
    versions = {name: _version_of(name) for name in DEPENDENCIES}
    missing = [name for name, version in versions.items() if version is None and name != "uvloop"]
    present = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
    if missing:
        yield Finding("dependencies", "broken", f"missing: {', '.join(missing)}; present: {present}")
    else:
        yield Finding("dependencies", "ok", present)
    if versions["uvloop"] is None and sys.platform != "win32":
        yield Finding("uvloop", "warning", "not installed; the server works and is slower")


def check_extras() -> Iterator[Finding]:
    """The optional parts, or how to get them."""
    for extra, names in EXTRAS.items():
        missing = [name for name in names if _version_of(name) is None]
        if missing:
            line = f"not installed; pip install '{DISTRIBUTION}[{extra}]'"
            yield Finding(f"extra {extra}", "ok", line)
        else:
            present = ", ".join(f"{name} {_version_of(name)}" for name in names)
            yield Finding(f"extra {extra}", "ok", present)


def check_import_name() -> Iterator[Finding]:
    """Another project on the index has our import name as its own; both in one place break each other."""
    others = set(importlib.metadata.packages_distributions().get("streamctx", ())) - {DISTRIBUTION}
    if _version_of("streamctx") is not None:
        others.add("streamctx")
    if others:
        names = ", ".join(sorted(others))
        yield Finding(
            "import name",
            "warning",
            f"{names} also provides the module streamctx and is another project: uninstall it, "
            f"then reinstall {DISTRIBUTION}",
        )
    else:
        yield Finding("import name", "ok", "no other distribution provides the module streamctx")


def check_clock() -> Iterator[Finding]:
    """The clock that timeouts run on, and the one that people read."""
    resolution_s = time.get_clock_info("monotonic").resolution
    now = time.time()
    if now < _CLOCK_MIN_S:
        yield Finding("clock", "warning", f"it says {time.strftime('%Y-%m-%d', time.gmtime(now))}: set it")
    elif resolution_s > 0.02:
        yield Finding("clock", "warning", f"its resolution is {resolution_s * 1000:g} ms; timers are coarse")
    else:
        text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
        yield Finding("clock", "ok", f"{text}, resolution {resolution_s * 1e9:g} ns")


def check_token() -> Iterator[Finding]:
    """The token file of a server that was told no other one."""
    path = default_token_file()
    try:
        read_token(path)
    except FileNotFoundError:
        yield Finding("token file", "ok", f"{path} is not there yet; `streamctx serve` makes it")
    except ConfigurationError as error:
        yield Finding("token file", "broken", str(error))
    else:
        yield _modes_of(path)


def check_store(data: Path | None = None) -> Iterator[Finding]:
    """The store of a server that was told no other place, if there is one, and what reads it.

    It is not opened as a server does, which would change it; while a server has it, its head alone is read.
    """
    yield Finding("sqlite", "ok", ".".join(map(str, StandardDatabase.version)))
    directory = state_directory() / "data" if data is None else data
    if not (directory / FILE_NAME).exists():
        if data is not None:
            yield Finding("store", "broken", f"there is no store in {directory}")
        return
    try:
        path = prepare(directory)
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        used_bytes = sum(each.stat().st_size for each in directory.iterdir())
        free_bytes = shutil.disk_usage(directory).free
        fault = _fault_in_head(head, has_log=path.with_name(f"{FILE_NAME}-wal").exists())
        inspection = Inspection(fault) if fault else inspect(path)
    except ConfigurationError as error:
        yield Finding("store", "broken", str(error))
        return
    except OSError as error:
        yield Finding("store", "broken", f"{directory} cannot be read: {error.strerror}")
        return
    mode = stat.S_IMODE(directory.stat().st_mode)
    where = f"{directory}, mode {mode:04o}, {used_bytes / 1e6:,.1f} MB, {free_bytes / 1e9:,.1f} GB are free"
    if inspection.session_count is not None:
        where += f", {_counted(inspection.session_count)}"
    if inspection.fault is not None:
        yield Finding("store", "broken", f"{where}: {inspection.fault}")
    elif free_bytes < _FREE_BYTES_MIN:
        yield Finding("store", "warning", f"{where}: make room")
    else:
        yield Finding("store", "ok", where)
    if inspection.set_aside:
        yield Finding("damaged", "warning", _damaged_text(len(inspection.set_aside), str(directory)))


def _counted(count: int) -> str:
    return f"{count} session{'' if count == 1 else 's'}"


def _damaged_text(count: int, where: str) -> str:
    return (
        f"in {where} {_counted(count)} set aside as damaged: "
        "`streamctx sessions` lists them, `sessions prune` deletes them, backups may have them whole"
    )


def _fault_in_head(head: bytes, *, has_log: bool) -> str | None:
    """What is wrong with a store, as far as the first bytes of its file tell."""
    if len(head) < _HEAD_BYTES:
        # It is all in the log still, if there is one, for as long as the server runs that began it.
        return None if has_log else "the file is empty or cut off; restore a backup, or move it away"
    version, application = (int.from_bytes(head[start : start + 4]) for start in (60, 68))
    if not head.startswith(b"SQLite format 3\0"):
        return "the file is no database; restore a backup, or move it away"
    if application != APPLICATION_ID and not (has_log and application == 0):
        return "the file is the database of another program"
    if version > SCHEMA_VERSION:
        return f"it was written by a newer streamctx (schema {version}, known is {SCHEMA_VERSION})"
    return None


def check_servers() -> Iterator[Finding]:
    """The servers of this user that run here."""
    records = list_servers()
    if not records:
        yield Finding("servers", "ok", "none runs; start one with `streamctx serve`")
    for record in records:
        yield from _check_server(record)


def check_loopback() -> Iterator[Finding]:
    """A server and a client in this process, over a real socket, for a moment."""
    try:
        took_s = run_async(_edit_over_loopback)
    except TimeoutError:
        message = f"nothing within {_SELF_TEST_TIMEOUT_S:g} s: does something filter loopback connections?"
        yield Finding("self-test", "broken", message)
    except Exception as error:  # Whatever it is, finding it is what this is for.
        yield Finding("self-test", "broken", f"WebSocket over loopback: {type(error).__name__}: {error}")
    else:
        yield Finding(
            "self-test", "ok", f"an edit went over a WebSocket on loopback and back in {took_s * 1000:.1f} ms"
        )


def _version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _modes_of(path: Path) -> Finding:
    file_mode = stat.S_IMODE(path.stat().st_mode)
    directory_mode = stat.S_IMODE(path.parent.stat().st_mode)
    message = f"{path}, mode {file_mode:04o} in a directory of mode {directory_mode:04o}"
    if directory_mode & 0o022:
        return Finding("token file", "broken", f"{message}: others may write to it (chmod 0700)")
    return Finding("token file", "ok", message)


def _check_server(record: ServerRecord) -> Iterator[Finding]:
    name = f"server {record.pid}"
    uds = Path(record.uds) if record.uds is not None and record.url.startswith("ws://localhost/") else None
    target = Target(url=record.url, http_url=record.http_url, token="", uds=uds)
    try:
        health = get_json(target, "/healthz")
        told = get_json(target, "/version")
    except RequestFailed as error:
        yield Finding(name, "broken", str(error))
        return
    version = told.get("version") if isinstance(told, dict) else None
    if not isinstance(health, dict) or not isinstance(version, str):
        yield Finding(name, "broken", f"{record.http_url} does not answer as a streamctx server does")
        return
    where = f"{record.http_url}, version {version}"
    if record.token_file is None:
        yield Finding(name, "ok", f"{where}; its token is in no file")
        return
    try:
        token = read_token(Path(record.token_file))
        target = Target(url=record.url, http_url=record.http_url, token=token, uds=uds)
        listed = get_json(target, "/v1/sessions?stored=true")
        store = _store_of(target)
    except FileNotFoundError:
        yield Finding(name, "broken", f"{where}; its token file {record.token_file} is gone")
        return
    except (RequestFailed, ConfigurationError) as error:
        yield Finding(name, "broken", f"{where}; {error}")
        return
    if version != __version__:
        yield Finding(name, "warning", f"{where}; this is {__version__}: restart it")
        return
    if store is not None and store.fault is not None:
        yield Finding(name, "broken", f"{where}; {store.where}; cannot store: {store.fault}")
        return
    stores = f"{store.where}, " if store is not None else ""
    yield Finding(name, "ok", f"{where}, {stores}health {health.get('status')}, token accepted")
    damaged = listed.get("damaged") if isinstance(listed, dict) else None
    if isinstance(damaged, list) and damaged:
        yield Finding("damaged", "warning", _damaged_text(len(damaged), record.http_url))


@dataclass(frozen=True, slots=True)
class _ServerStore:
    where: str
    fault: str | None


def _store_of(target: Target) -> _ServerStore | None:
    """What a server says of its store; `None` if it does not say it, to us or at all.

    Raises:
        RequestFailed: If it fails otherwise.
    """
    try:
        told = get_json(target, "/v1/store")
    except RequestFailed as error:
        if error.status == 501:
            return _ServerStore("stores nothing", None)
        # Of an earlier version, or the token has not the scope.
        if error.status in (403, 404):
            return None
        raise
    match told:
        case {"directory": str(directory), "fault": str() | None as fault}:
            return _ServerStore(f"stores in {directory}", fault)
        case _:
            return None


async def _edit_over_loopback() -> float:
    """How long an edit and its acknowledgement took, in seconds."""
    with anyio.fail_after(_SELF_TEST_TIMEOUT_S):
        config = ServerConfig(port=0, ephemeral=True, discovery=False)
        assert config.token is not None
        principal = Principal("doctor", frozenset({"produce"}))
        hub = Hub(tokens={config.token: principal}, version=__version__)
        async with (
            serve(hub, config) as server,
            connect(server.url, config.token, name="streamctx doctor", role="produce") as client,
        ):
            await client.ready()
            document = await client.open("doctor:self-test", "text\n")
            await client.flush()
            started = time.perf_counter()
            document.edit((0, 0, 0, 0, "the same "))
            await client.flush()
            took_s = time.perf_counter() - started
            view = hub.document(principal, client.session_id or "", "1")
            if view is None or view["text"] != document.text:
                raise StreamctxError("the server's text is not the one that was sent")
        return took_s
