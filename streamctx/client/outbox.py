"""An outbox on disk: when it is written, when it is made smaller, and when it gives up.

The session says what has to be on disk, `OutboxFile` puts it there. What cannot be kept is never kept in
part: a log that cannot be written is removed, so that the next process begins a new session.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from streamctx.client.outbox_file import OutboxFile
from streamctx.core.session.client_events import ClientSettings
from streamctx.core.session.client_session import ClientSession
from streamctx.core.session.outbox_records import OutboxRecord, ProcessStarted
from streamctx.core.session.outbox_state import OutboxDamaged, OutboxState
from streamctx.limits import MIB

__all__ = ["Outbox", "OutboxStatus"]

logger = logging.getLogger("streamctx.client")

_COMPACT_BYTES_MIN = 4 * MIB
"""A smaller log is not made smaller still: to write it anew costs about as much as to have written it."""
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatus:
    """How the outbox on disk fares."""

    found: Literal["nothing", "session", "documents", "damage"]
    """What another process had left: nothing, a session to go on with, documents alone, for a new session,
    or what could not be used."""
    is_suspended: bool
    """Whether nothing is on disk now: there was too much, or the disk took nothing."""
    size_bytes: int
    compactions: int
    suspensions: int


class Outbox:
    """Keeps one session on disk, as long as it fits.

    `save` after every call of the session; then nothing of that moment may leave before `sync` has returned.
    """

    def __init__(
        self,
        file: OutboxFile,
        settings: ClientSettings,
        *,
        fsync: bool,
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        """Go on with the session of another process, or begin one.

        Args:
            file: Locked, and not read yet.
            settings: Of the session.
            fsync: Whether the file survives a power cut.
            clock: Monotonic seconds.
            jitter: Returns a number in [0, 1).

        Raises:
            ConfigurationError: If the file is not ours alone, or cannot be read.
        """
        self._file = file
        self._clock = clock
        self._bytes_max = settings.limits.outbox_bytes_max
        self._compactions = self._suspensions = 0
        self._compact_at = 0
        self._retry_at = 0.0
        self._started = ProcessStarted(clock(), time.time(), "" if fsync else _boot(), settings.unit)
        state = self._read()
        if state is not None and state.is_worth_keeping:
            try:
                self.session = ClientSession.restored(settings, state, self._started, jitter=jitter)
            except OutboxDamaged as damage:
                self._say_damaged(damage)
                state = None
        if state is None or not state.is_worth_keeping:
            self.session = ClientSession(settings, jitter=jitter, keeps_outbox=True)
            self._found: Literal["nothing", "session", "documents", "damage"] = (
                "damage" if state is None else "nothing"
            )
        else:
            self._found = "documents" if self.session.session_id is None else "session"
        logger.info(
            "outbox: found %s, %d documents and %d events",
            self._found,
            len(self.session.documents),
            self.session.pending,
        )
        self._compact()
        self._compactions = 0

    @property
    def status(self) -> OutboxStatus:
        """How it fares."""
        return OutboxStatus(
            found=self._found,
            is_suspended=not self._file.is_open,
            size_bytes=self._file.size_bytes,
            compactions=self._compactions,
            suspensions=self._suspensions,
        )

    def save(self) -> None:
        """Write what has changed; it is in the hands of the system then, and survives this process.

        Whatever goes wrong is logged and counted, and the session goes on.
        """
        session = self.session
        records = session.take_outbox_records()
        if not self._file.is_open:
            now = self._clock()
            if now >= self._retry_at:
                self._retry_at = now + _RETRY_S
                if session.outbox_bytes <= self._bytes_max // 2:
                    self._compact()
            return
        if session.take_purge():
            self._compact()
        elif records:
            self._append(records)

    async def sync(self) -> None:
        """Wait until what was saved survives a power cut, if that is wanted."""
        try:
            await self._file.sync()
        except OSError as error:
            self._suspend(f"it could not be written: {error.strerror}")

    def end(self) -> None:
        """The session has ended well: there is nothing to go on with."""
        self._file.abandon()
        self._retry_at = float("inf")

    def close(self) -> None:
        """Let another process have it, as it is."""
        self._file.close()

    def _read(self) -> OutboxState | None:
        """What there is; `None` if it cannot be used."""
        try:
            return self._file.read(self._bytes_max)
        except OutboxDamaged as damage:
            self._say_damaged(damage)
            return None

    def _say_damaged(self, damage: OutboxDamaged) -> None:
        logger.warning("the outbox cannot be used, and a new session begins: %s", damage)

    def _append(self, records: list[OutboxRecord]) -> None:
        try:
            is_written = self._file.append(records, self._compact_at)
        except OSError as error:
            self._suspend(f"it could not be written: {error.strerror}")
            return
        if not is_written:
            self._compact()

    def _compact(self) -> None:
        """Write the present state in place of all that led to it."""
        # So that it does not have to be done again soon.
        bytes_max = self._bytes_max * 3 // 4
        try:
            is_written = self._file.rewrite(self.session.outbox_snapshot(self._started), bytes_max)
        except OSError as error:
            self._suspend(f"it could not be written: {error.strerror}")
            return
        if not is_written:
            self._suspend(f"there is more than {bytes_max} bytes to keep")
            return
        self._compactions += 1
        self._compact_at = min(self._bytes_max, max(_COMPACT_BYTES_MIN, 2 * self._file.size_bytes))

    def _suspend(self, reason: str) -> None:
        """Keep nothing for now; what is there would not be the truth."""
        if self._file.is_open or not self._suspensions:
            logger.warning("session %s has no outbox on disk for now: %s", self.session.session_id, reason)
            self._suspensions += 1
        self._file.abandon()
        self._retry_at = self._clock() + _RETRY_S


def _boot() -> str:
    """What identifies this start of the machine, where the system tells it: Linux."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
