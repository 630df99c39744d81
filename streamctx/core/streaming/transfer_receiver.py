"""The consumer's end of a transfer: takes verified chunks in order, and knows where to resume."""

from __future__ import annotations

import enum

from streamctx.core.streaming.credit import CreditExceeded, ReceiveCredit
from streamctx.core.streaming.transfer import Chunk, End, EndStatus, Hasher

__all__ = ["ReceiverState", "TransferError", "TransferReceiver"]


class TransferError(Exception):
    """The producer breaks the rules of a transfer; `offset` of the receiver is still good to resume from."""


class ReceiverState(enum.Enum):
    """Where a transfer stands."""

    RECEIVING = "receiving"
    BROKEN = "broken"
    """A chunk is missing, or too many came: cancel it, and ask anew from `offset`."""
    ENDED = "ended"


class TransferReceiver:
    """Receives a resource from `start` on.

    `offset` is one past the last byte that was taken; it moves over whole chunks alone, whose digests were
    right, and never over a gap. So a resume asks for no byte that is here and misses none.
    """

    __slots__ = ("_credit", "_hasher", "_offset", "_state", "_stop")

    def __init__(self, *, start: int, stop: int | None, credit: ReceiveCredit, hasher: Hasher) -> None:
        """Start with nothing received.

        Args:
            start: What was asked for first.
            stop: One past the last byte that was asked for; `None` for all there is.
            credit: As much as was granted with the request.
            hasher: Takes what is received.
        """
        self._offset = start
        self._stop = stop
        self._credit = credit
        self._hasher = hasher
        self._state = ReceiverState.RECEIVING

    @property
    def state(self) -> ReceiverState:
        """Where it stands."""
        return self._state

    @property
    def offset(self) -> int:
        """Where to resume."""
        return self._offset

    @property
    def buffered_bytes(self) -> int:
        """What was received and not consumed."""
        return self._credit.buffered_bytes

    def receive(self, chunk: Chunk) -> memoryview | None:
        """Take a chunk; give its bytes to the application, and call `consume` when it has them.

        Returns:
            `None` for a chunk that comes after the transfer is over here.

        Raises:
            TransferError: If a chunk before it is missing, or it was not asked for or granted. It is dropped.
        """
        if self._state is not ReceiverState.RECEIVING:
            return None
        size = len(chunk.data)
        if chunk.offset != self._offset:
            raise self._broken(f"a chunk at {chunk.offset}, expected {self._offset}")
        if not size or (self._stop is not None and chunk.offset + size > self._stop):
            raise self._broken(f"a chunk of {size} bytes at {chunk.offset}, the end is {self._stop}")
        try:
            self._credit.receive(size)
        except CreditExceeded as error:
            raise self._broken(str(error)) from error
        self._hasher.update(chunk.data)
        self._offset += size
        return chunk.data

    def consume(self, count_bytes: int, now: float, rtt_s: float) -> int | None:
        """The application has taken bytes: the limit to announce, or `None`, as `ReceiveCredit.consume`."""
        limit_bytes = self._credit.consume(count_bytes, now, rtt_s)
        return limit_bytes if self._state is ReceiverState.RECEIVING else None

    def receive_end(self, end: End) -> None:
        """Take the end. After one that is complete all that was asked for is here, and is what was sent.

        Raises:
            TransferError: If bytes are missing or are not those that were sent. From where they differ nobody
                knows: resume is no use, but to start anew is.
        """
        if self._state is not ReceiverState.RECEIVING:
            return
        if end.status is EndStatus.COMPLETE:
            if end.stop != self._offset or (self._stop is not None and end.stop > self._stop):
                raise self._broken(f"the end is at {end.stop}, {self._offset} was reached")
            if end.hash != self._hasher.hexdigest():
                raise self._broken("the bytes received do not have the hash of those sent")
        self._state = ReceiverState.ENDED

    def _broken(self, message: str) -> TransferError:
        self._state = ReceiverState.BROKEN
        return TransferError(message)
