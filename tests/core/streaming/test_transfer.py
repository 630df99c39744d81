"""Both ends of a transfer, with a link between them that can be cut anywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.streaming.credit import ReceiveCredit
from streamctx.core.streaming.transfer import Chunk, End, EndStatus
from streamctx.core.streaming.transfer_receiver import ReceiverState, TransferError, TransferReceiver
from streamctx.core.streaming.transfer_sender import TransferSender
from streamctx.errors import LocalProtocolError

__all__: list[str] = []

SOURCE = bytes(index * 7 % 251 for index in range(5000))


def sender(start: int = 0, stop: int | None = 5000, **sizes: int) -> TransferSender:
    chosen = {"credit_bytes": 10_000, "chunk_bytes": 64, "read_ahead_bytes": 256, **sizes}
    return TransferSender(start=start, stop=stop, hasher=xxhash.xxh3_64(), **chosen)


def receiver(start: int = 0, stop: int | None = 5000, *, credit_bytes: int = 10_000) -> TransferReceiver:
    credit = ReceiveCredit(initial_bytes=credit_bytes, min_bytes=1, max_bytes=1 << 20)
    return TransferReceiver(start=start, stop=stop, credit=credit, hasher=xxhash.xxh3_64())


def read(made: TransferSender, source: bytes = SOURCE) -> None:
    wanted = made.next_read()
    if wanted is not None:
        offset, count = wanted
        made.supply(source[offset : offset + count])


def drain(made: TransferSender, source: bytes = SOURCE) -> tuple[list[Chunk], End | None]:
    chunks = []
    read(made, source)
    while made.next_size():
        chunks.append(made.next_chunk())
        read(made, source)
    return chunks, made.take_end()


def joined(chunks: list[Chunk]) -> bytes:
    return b"".join(chunk.data for chunk in chunks)


# One end.


def test_all_of_a_range_is_sent_and_then_the_end_once() -> None:
    made = sender(100, 1000)
    chunks, end = drain(made)
    assert joined(chunks) == SOURCE[100:1000]
    assert end == End(EndStatus.COMPLETE, 1000, xxhash.xxh3_64_hexdigest(SOURCE[100:1000]))
    assert made.take_end() is None


@pytest.mark.parametrize("stop", [0, None])
def test_of_an_empty_resource_only_the_end_is_sent(stop: int | None) -> None:
    chunks, end = drain(sender(0, stop), b"")
    assert not chunks
    assert end is not None
    assert (end.status, end.stop) == (EndStatus.COMPLETE, 0)


@pytest.mark.parametrize("size", [63, 64, 65, 128, 256, 257])
def test_a_source_of_unknown_size_is_sent_to_its_end(size: int) -> None:
    chunks, end = drain(sender(0, None), SOURCE[:size])
    assert joined(chunks) == SOURCE[:size]
    assert end is not None
    assert (end.status, end.stop) == (EndStatus.COMPLETE, size)


def test_a_source_that_has_become_shorter_has_changed() -> None:
    _, end = drain(sender(0, 1000), SOURCE[:900])
    assert end is not None
    assert end.status is EndStatus.CHANGED


def test_no_chunk_is_sent_without_credit() -> None:
    made = sender(credit_bytes=100)
    chunks, end = drain(made)
    assert [len(chunk.data) for chunk in chunks] == [64, 36]
    assert end is None
    with pytest.raises(LocalProtocolError):
        made.next_chunk()
    made.grant(150)
    assert made.next_size() == 50


def test_no_more_is_read_ahead_than_may_be() -> None:
    made = sender(credit_bytes=0)
    for _ in range(10):
        read(made)
    assert made.buffered_bytes == 256
    made.grant(64)
    made.next_chunk()
    assert made.next_read() == (256, 64)
    assert made.next_read() is None


def test_chunks_are_not_copied() -> None:
    made = sender()
    assert made.next_read() == (0, 256)
    made.supply(SOURCE[:256])
    chunk = made.next_chunk()
    assert chunk.data.obj is made.next_chunk().data.obj


@pytest.mark.parametrize(
    ("give_up", "status"),
    [
        (TransferSender.cancel, EndStatus.CANCELLED),
        (TransferSender.change, EndStatus.CHANGED),
        (TransferSender.fail, EndStatus.FAILED),
    ],
)
def test_after_it_was_given_up_nothing_is_sent_but_the_end(
    give_up: Callable[[TransferSender], None], status: EndStatus
) -> None:
    made = sender()
    read(made)
    made.next_chunk()
    give_up(made)
    assert made.next_size() == 0
    assert made.buffered_bytes == 0
    assert made.next_read() is None
    assert made.take_end() == End(status, 64, xxhash.xxh3_64_hexdigest(SOURCE[:64]))
    assert made.take_end() is None


def test_what_is_read_when_it_is_cancelled_is_dropped() -> None:
    made = sender()
    assert made.next_read() is not None
    made.cancel()
    made.supply(SOURCE[:256])
    assert made.next_size() == 0


def test_what_was_not_to_be_read_is_not_taken() -> None:
    with pytest.raises(LocalProtocolError):
        sender().supply(b"x")


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (6, 5)])
def test_a_range_that_there_is_not_is_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="no bytes"):
        sender(start, stop)


# The other end.


def chunk(offset: int, size: int) -> Chunk:
    return Chunk(offset, memoryview(SOURCE)[offset : offset + size])


@pytest.mark.parametrize("bad", [chunk(0, 64), chunk(128, 64), chunk(64, 0), chunk(64, 200)])
def test_a_chunk_that_does_not_follow_is_dropped_and_the_offset_stays(bad: Chunk) -> None:
    made = receiver(0, 256)
    made.receive(chunk(0, 64))
    with pytest.raises(TransferError):
        made.receive(bad)
    assert (made.offset, made.state) == (64, ReceiverState.BROKEN)
    assert made.receive(chunk(64, 64)) is None


def test_what_was_not_granted_is_dropped() -> None:
    made = receiver(credit_bytes=100)
    made.receive(chunk(0, 64))
    with pytest.raises(TransferError, match="granted"):
        made.receive(chunk(64, 64))
    assert made.offset == 64


def hash_of(stop: int) -> str:
    return xxhash.xxh3_64_hexdigest(SOURCE[:stop])


@pytest.mark.parametrize(
    "end", [End(EndStatus.COMPLETE, 128, hash_of(128)), End(EndStatus.COMPLETE, 64, hash_of(63))]
)
def test_an_end_that_does_not_fit_is_told(end: End) -> None:
    made = receiver()
    made.receive(chunk(0, 64))
    with pytest.raises(TransferError):
        made.receive_end(end)
    assert made.state is ReceiverState.BROKEN


def test_a_resource_that_is_shorter_than_was_asked_for_is_complete() -> None:
    made = receiver(0, 5000)
    made.receive(chunk(0, 64))
    made.receive_end(End(EndStatus.COMPLETE, 64, hash_of(64)))
    assert made.state is ReceiverState.ENDED


def test_after_the_end_nothing_is_granted() -> None:
    made = receiver(credit_bytes=64)
    made.receive(chunk(0, 64))
    made.receive_end(End(EndStatus.COMPLETE, 64, hash_of(64)))
    assert made.consume(64, 1.0, 0.01) is None


# Both.


@given(
    start=st.integers(min_value=0, max_value=5000),
    length=st.integers(min_value=0, max_value=5000),
    is_open=st.booleans(),
    chunk_bytes=st.integers(min_value=1, max_value=300),
    more_ahead=st.integers(min_value=0, max_value=500),
    credit_bytes=st.integers(min_value=1, max_value=2000),
    cuts=st.lists(st.integers(min_value=0, max_value=40), max_size=8),
)
def test_what_arrives_is_the_source_however_often_the_link_is_cut(
    start: int,
    length: int,
    is_open: bool,
    chunk_bytes: int,
    more_ahead: int,
    credit_bytes: int,
    cuts: list[int],
) -> None:
    stop = min(start + length, len(SOURCE))
    source, asked = (SOURCE[:stop], None) if is_open else (SOURCE, stop)
    got = bytearray()
    for cut in (*cuts, 100_000):
        offset = start + len(got)
        sizes = {"chunk_bytes": chunk_bytes, "read_ahead_bytes": chunk_bytes + more_ahead}
        ours = sender(offset, asked, credit_bytes=credit_bytes, **sizes)
        theirs = receiver(offset, asked, credit_bytes=credit_bytes)
        for _ in range(cut):
            read(ours, source)
            if not ours.next_size():
                end = ours.take_end()
                assert end is not None, "both wait for each other"
                theirs.receive_end(end)
                break
            data = theirs.receive(ours.next_chunk())
            assert data is not None
            got += data
            assert theirs.offset == start + len(got)
            limit = theirs.consume(len(data), 0.0, 0.01)
            if limit is not None:
                ours.grant(limit)
        if theirs.state is ReceiverState.ENDED:
            break
    assert theirs.state is ReceiverState.ENDED
    assert bytes(got) == source[start:stop]
