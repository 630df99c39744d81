"""The producer's end of a transfer: reads ahead, cuts chunks as credit allows, ends once."""

from __future__ import annotations

from collections import deque

from streamctx.core.streaming.credit import SendCredit
from streamctx.core.streaming.transfer import Chunk, End, EndStatus, Hasher
from streamctx.errors import LocalProtocolError

__all__ = ["TransferSender"]


class TransferSender:
    """Sends `[start, stop)` of a resource.

    The caller reads the source: it asks `next_read`, reads elsewhere, and answers with `supply`, `change` or
    `fail`; one read at a time. What is read and not sent is never more than `read_ahead_bytes`. No piece is
    copied, so a chunk ends where a read did.

    Once `take_end` has given the end, all calls are without effect: what was still being read or granted
    comes too late.
    """

    __slots__ = (
        "_ahead_bytes",
        "_chunk_bytes",
        "_credit",
        "_end",
        "_hasher",
        "_is_ended",
        "_is_reading",
        "_pieces",
        "_read_ahead_bytes",
        "_read_offset",
        "_sent_offset",
        "_stop",
    )

    def __init__(
        self,
        *,
        start: int,
        stop: int | None,
        credit_bytes: int,
        chunk_bytes: int,
        read_ahead_bytes: int,
        hasher: Hasher,
    ) -> None:
        """Start with nothing read.

        Args:
            start: The offset of the first byte.
            stop: One past the last; `None` if only the source knows.
            credit_bytes: What the consumer has granted with its request.
            chunk_bytes: Of the largest chunk.
            read_ahead_bytes: What to read before it can be sent.
            hasher: Takes what is sent.

        Raises:
            ValueError: If the range, or one of the sizes, is none.
        """
        if start < 0 or (stop is not None and stop < start):
            raise ValueError(f"there are no bytes from {start} to {stop}")
        if chunk_bytes < 1 or read_ahead_bytes < chunk_bytes:
            raise ValueError(f"chunks of {chunk_bytes} bytes, {read_ahead_bytes} bytes are read ahead")
        self._stop = stop
        self._credit = SendCredit(credit_bytes)
        self._chunk_bytes = chunk_bytes
        self._read_ahead_bytes = read_ahead_bytes
        self._hasher = hasher
        self._pieces: deque[memoryview] = deque()
        self._ahead_bytes = 0
        self._read_offset = self._sent_offset = start
        self._is_reading = False
        self._end: EndStatus | None = None
        self._is_ended = False

    @property
    def buffered_bytes(self) -> int:
        """What was read and not sent."""
        return self._ahead_bytes

    def set_chunk_bytes(self, chunk_bytes: int) -> None:
        """Cut other chunks from now on, as the rate of the link asks for."""
        self._chunk_bytes = max(1, min(chunk_bytes, self._read_ahead_bytes))

    # The source.

    def next_read(self) -> tuple[int, int] | None:
        """What to read now, as offset and count; `None` if nothing is."""
        if self._is_reading or self._end is not None or self._read_offset == self._stop:
            return None
        room = self._read_ahead_bytes - self._ahead_bytes
        # Not in small pieces, since chunks would be as small.
        if room < self._chunk_bytes:
            return None
        count = room - room % self._chunk_bytes
        if self._stop is not None:
            count = min(count, self._stop - self._read_offset)
        self._is_reading = True
        return self._read_offset, count

    def supply(self, data: bytes | memoryview) -> None:
        """Take what was read. Nothing means that the source has no more.

        Raises:
            LocalProtocolError: If nothing was being read.
        """
        if not self._is_reading:
            raise LocalProtocolError("nothing was to be read")
        self._is_reading = False
        if self._end is not None:
            return
        if not len(data):
            if self._stop is None:
                self._stop = self._read_offset
            else:
                # It was longer when it was opened.
                self.change()
            return
        self._pieces.append(memoryview(data))
        self._ahead_bytes += len(data)
        self._read_offset += len(data)

    def change(self) -> None:
        """Send nothing more, since the source has changed."""
        self._is_reading = False
        self._give_up(EndStatus.CHANGED)

    def fail(self) -> None:
        """Send nothing more, since the source cannot be read."""
        self._is_reading = False
        self._give_up(EndStatus.FAILED)

    # The consumer.

    def grant(self, limit_bytes: int) -> None:
        """Take over a limit of the consumer."""
        self._credit.grant(limit_bytes)

    def cancel(self) -> None:
        """Send nothing more, since the consumer wants none."""
        self._give_up(EndStatus.CANCELLED)

    # What to send.

    def next_size(self) -> int:
        """How many bytes the chunk has that can be sent now; 0 if none can."""
        if not self._pieces:
            return 0
        return min(len(self._pieces[0]), self._chunk_bytes, self._credit.available_bytes)

    def next_chunk(self) -> Chunk:
        """Cut a chunk.

        Raises:
            LocalProtocolError: If none can be sent now.
        """
        size = self.next_size()
        if not size:
            raise LocalProtocolError("there is no chunk to send")
        piece = self._pieces[0]
        data = piece[:size]
        if size == len(piece):
            self._pieces.popleft()
        else:
            self._pieces[0] = piece[size:]
        self._credit.spend(size)
        self._hasher.update(data)
        chunk = Chunk(self._sent_offset, data)
        self._sent_offset += size
        self._ahead_bytes -= size
        return chunk

    def take_end(self) -> End | None:
        """The end, once there is one and all chunks before it were taken; only the first time."""
        if self._is_ended:
            return None
        if self._end is None and self._sent_offset == self._stop:
            self._end = EndStatus.COMPLETE
        if self._end is None:
            return None
        self._is_ended = True
        return End(self._end, self._sent_offset, self._hasher.hexdigest())

    def _give_up(self, status: EndStatus) -> None:
        if self._end is None:
            self._end = status
            self._pieces.clear()
            self._ahead_bytes = 0
