"""Stored sessions, as commands reach them: through the server that holds the store, or in the file itself."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import quote

from streamctx.cli.rest import Progress, RequestFailed, download, send_json, upload
from streamctx.cli.target import NoServerError, Target, find_target
from streamctx.cli.views import fetch_sessions
from streamctx.discovery import state_directory
from streamctx.engine.base import StoreError, Summary
from streamctx.engine.sqlite.place import FILE_NAME
from streamctx.engine.sqlite.store import SqliteStore
from streamctx.engine.sqlite.writer import Forget
from streamctx.errors import ConfigurationError
from streamctx.hub.views import set_aside_view, stored_facts, stored_view
from streamctx.limits import DEFAULT_LIMITS

__all__ = ["Pruned", "Sessions", "created", "open_sessions"]

Pruned = dict[str, Any]
"""What `POST /v1/sessions/prune` answers."""

# So many ids fit into a request.
_IDS_MAX = 1000
_FORGET_COUNT = 100


class Sessions(Protocol):
    """What commands do with stored sessions."""

    where: str
    """For people."""
    start_command: str | None
    """What starts a server that has them; `None` if one runs."""

    def listed(self) -> list[Any]:
        """All of them, those that are live, and what was set aside as damaged, as a server tells them."""

    def prune(self, *, older_than_s: float | None, sessions: Sequence[str] | None, dry_run: bool) -> Pruned:
        """Delete sessions, or tell which ones would be; see SPEC section 16."""

    def export(self, session_id: str, file: IO[bytes], on_progress: Progress) -> None:
        """Write a session into a file."""

    def import_session(self, file: IO[bytes], on_progress: Progress) -> str:
        """Store the session of a file; gives its id."""

    def backup(self, path: Path, on_progress: Progress) -> None:
        """Copy the whole store into a new file."""


@contextmanager
def open_sessions(
    url: str | None, token_file: Path | None, data: Path | None, *, may_create: bool = False
) -> Iterator[Sessions]:
    """Reach the stored sessions.

    Args:
        url: From `--url`.
        token_file: From `--token-file`.
        data: From `--data`: the store there, without a server.
        may_create: Whether a store is made where there is none.

    Raises:
        ConfigurationError: If there is no store, or a server has it and cannot be found.
    """
    start_command = "streamctx serve"
    if data is None:
        try:
            target = find_target(url, token_file)
        except NoServerError:
            data = state_directory() / "data"
        else:
            yield _Served(target)
            return
    elif url is not None:
        raise ConfigurationError("--url and --data are both given; one says where the store is")
    else:
        start_command += f" --data {shlex.quote(str(data))}"
    if not may_create and not (data / FILE_NAME).exists():
        raise ConfigurationError(f"no server runs here, and there is no store in {data}")
    try:
        store = SqliteStore.open(data)
    except ConfigurationError as error:
        if "in use" not in str(error):
            raise
        raise ConfigurationError(
            f"a server has the store in {data}: leave --data out to go through it, "
            "and name it with --url if it is not found"
        ) from error
    try:
        yield _Local(store, data, start_command=start_command)
    finally:
        store.close()


@contextmanager
def created(path: Path) -> Iterator[IO[bytes]]:
    """Give a new file, with mode 0600, to write into."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        yield file


class _Served:
    """Through a server."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.where = target.http_url
        self.start_command: str | None = None

    def listed(self) -> list[Any]:
        return fetch_sessions(self._target)

    def prune(self, *, older_than_s: float | None, sessions: Sequence[str] | None, dry_run: bool) -> Pruned:
        if sessions is None:
            return self._prune(older_than_s, None, dry_run)
        total: Pruned = {"dry_run": dry_run, "sessions": [], "damaged": [], "in_use": [], "left_out": []}
        for start in range(0, len(sessions), _IDS_MAX):
            pruned = self._prune(older_than_s, sessions[start : start + _IDS_MAX], dry_run)
            total["retention_s"] = pruned["retention_s"]
            for name in ("sessions", "damaged", "in_use", "left_out"):
                total[name] += pruned[name]
        return total

    def _prune(self, older_than_s: float | None, sessions: Sequence[str] | None, dry_run: bool) -> Pruned:
        asked: dict[str, object] = {"dry_run": dry_run}
        if older_than_s is not None:
            asked["older_than_s"] = older_than_s
        if sessions is not None:
            asked["sessions"] = list(sessions)
        told = send_json(self._target, "POST", "/v1/sessions/prune", asked)
        if not isinstance(told, dict) or not {"retention_s", "sessions", "in_use"} <= told.keys():
            raise self._stranger()
        # A server of an earlier version knows of none.
        return {"damaged": [], **told}

    def export(self, session_id: str, file: IO[bytes], on_progress: Progress) -> None:
        download(self._target, f"/v1/sessions/{quote(session_id, safe='')}/export", file, on_progress)

    def import_session(self, file: IO[bytes], on_progress: Progress) -> str:
        match upload(self._target, "/v1/sessions/import", file, on_progress):
            case {"session": str(session_id)}:
                return session_id
            case _:
                raise self._stranger()

    def backup(self, path: Path, on_progress: Progress) -> None:
        with created(path) as file:
            download(self._target, "/v1/backup", file, on_progress)

    def _stranger(self) -> RequestFailed:
        return RequestFailed(f"{self.where} does not answer as a streamctx server does")


class _Local:
    """In the file, which no server has."""

    def __init__(self, store: SqliteStore, directory: Path, *, start_command: str) -> None:
        self._store = store
        self.where = str(directory)
        self.start_command: str | None = start_command

    def listed(self) -> list[Any]:
        return [
            *(_told(summary) for summary in self._store.summaries()),
            *(set_aside_view(found) for found in self._store.set_aside()),
        ]

    def prune(self, *, older_than_s: float | None, sessions: Sequence[str] | None, dry_run: bool) -> Pruned:
        retention_s = DEFAULT_LIMITS.retention_s
        if older_than_s is None:
            older_than_s = retention_s if sessions is None else 0.0
        before = time.time() - older_than_s
        wanted = None if sessions is None else set(sessions)
        going = [
            summary
            for summary in self._store.summaries()
            if summary.changed <= before and (wanted is None or summary.session_id in wanted)
        ]
        damaged = [
            found
            for found in self._store.set_aside()
            if found.at <= before and (wanted is None or found.session_id in wanted)
        ]
        if not dry_run:
            self._forget([summary.session_id for summary in going])
            self._store.forget_set_aside([found.key for found in damaged])
        known = {summary.session_id for summary in going} | {each.session_id for each in damaged}
        return {
            "dry_run": dry_run,
            "retention_s": retention_s,
            "sessions": [_told(summary) for summary in going],
            "damaged": [set_aside_view(found) for found in damaged],
            "in_use": [],
            "left_out": [each for each in sessions or () if each not in known],
        }

    def _forget(self, session_ids: Sequence[str]) -> None:
        for start in range(0, len(session_ids), _FORGET_COUNT):
            some = session_ids[start : start + _FORGET_COUNT]
            for error in self._store.write([Forget(session_id) for session_id in some]):
                if error is not None:
                    raise error

    def export(self, session_id: str, file: IO[bytes], on_progress: Progress) -> None:
        data = self._store.export(session_id)
        if data is None:
            raise StoreError(f"session {session_id} is not stored any more", is_fatal=False)
        file.write(data)
        on_progress(len(data), len(data))

    def import_session(self, file: IO[bytes], on_progress: Progress) -> str:
        data = file.read()
        on_progress(len(data), len(data))
        return self._store.import_session(data)

    def backup(self, path: Path, on_progress: Progress) -> None:
        total = sum(each.stat().st_size for each in Path(self.where).glob(f"{FILE_NAME}*"))
        self._store.backup(path, _steps_of(path, total, on_progress))


def _told(summary: Summary) -> dict[str, object]:
    return stored_view(summary) | stored_facts(summary)


def _steps_of(path: Path, total: int, on_progress: Progress) -> Callable[[], None]:
    def step() -> None:
        on_progress(path.stat().st_size, total)

    return step
