"""Both stores against a dictionary: what can be read is what was put, and never more than fits."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streamctx.errors import ErrorCode
from streamctx.resources.base import ResourceError, ResourceInfo, Source
from streamctx.resources.blobs import Blobs, BlobWriter, DiskBlobs, MemoryBlobs
from tests.resources.blob_stores import Clock, content, digest_of, uri_of

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__: list[str] = []

BYTES_MAX = 100
BLOB_BYTES_MAX = 60
COUNT_MAX = 6
CONTENTS = [content(size_bytes, seed) for seed, size_bytes in enumerate((0, 1, 10, 20, 30, 40, 59, 60, 61))]
contents = st.sampled_from(CONTENTS)


class BlobsMachine(RuleBasedStateMachine):
    """`stored` is every content that was committed, the most recently used last; some may be evicted."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        # In memory where there is such a place, for the syncs.
        ram = Path("/dev/shm")
        self.directory = Path(tempfile.mkdtemp(dir=ram if ram.is_dir() else None))
        self.is_disk = False
        self.blobs: Blobs = MemoryBlobs(bytes_max=0)
        self.stored: dict[str, bytes] = {}
        self.writers: dict[bytes, tuple[BlobWriter, bytearray]] = {}
        self.resting: dict[bytes, bytes] = {}
        self.sources: list[tuple[Source, bytes]] = []
        self.pins: list[bytes] = []

    @initialize(is_disk=st.booleans())
    def choose(self, is_disk: bool) -> None:
        self.is_disk = is_disk
        self.open_store()

    def open_store(self) -> None:
        if self.is_disk:
            self.blobs = DiskBlobs(
                self.directory,
                bytes_max=BYTES_MAX,
                blob_bytes_max=BLOB_BYTES_MAX,
                count_max=COUNT_MAX,
                clock=self.clock,
            )
        else:
            self.blobs = MemoryBlobs(
                bytes_max=BYTES_MAX, blob_bytes_max=BLOB_BYTES_MAX, count_max=COUNT_MAX, clock=self.clock
            )

    @override
    def teardown(self) -> None:
        for source, _ in self.sources:
            source.close()
        for writer, _ in self.writers.values():
            writer.close()
        self.blobs.close()
        shutil.rmtree(self.directory)

    def expect_refusal(self, error: ResourceError, data: bytes) -> None:
        if len(data) > BLOB_BYTES_MAX:
            assert error.code is ErrorCode.TOO_LARGE
        elif data in self.writers:
            assert error.code is ErrorCode.UNAVAILABLE
        else:
            assert error.code is ErrorCode.LIMIT
            assert not self.fits(data)

    def fits(self, data: bytes) -> bool:
        """Whether there is room for a new content once all that may go is gone."""
        kept = {uri_of(other): len(other) for _, other in self.sources}
        kept |= {uri_of(other): len(other) for other in self.pins if self.is_readable(other)}
        charged = [*kept.values(), *(len(other) for other in self.writers)]
        charged += [len(part) for other, part in self.resting.items() if other != data]
        return sum(charged) + len(data) <= BYTES_MAX and len(charged) < COUNT_MAX

    def is_readable(self, data: bytes) -> bool:
        return uri_of(data) in {info.uri for info in self.blobs.list()}

    @rule(data=contents)
    def put(self, data: bytes) -> None:
        try:
            info = self.blobs.put(data)
        except ResourceError as error:
            self.expect_refusal(error, data)
            return
        assert info.etag == digest_of(data)
        self.stored[info.uri] = data
        if data not in self.writers:
            self.resting.pop(data, None)
        source = self.blobs.open(info.uri)
        assert source.read(0, 1000) == data
        source.close()

    @rule(data=contents)
    def begin(self, data: bytes) -> None:
        try:
            begun = self.blobs.begin(digest_of(data), len(data))
        except ResourceError as error:
            self.expect_refusal(error, data)
            return
        if isinstance(begun, ResourceInfo):
            assert self.is_readable(data)
            return
        assert data not in self.writers
        part = self.resting.pop(data, b"")
        assert begun.offset == len(part)
        self.writers[data] = begun, bytearray(part)

    @precondition(lambda self: self.writers)
    @rule(choice=st.data(), count=st.integers(min_value=0, max_value=61), is_right=st.booleans())
    def write(self, choice: st.DataObject, count: int, is_right: bool) -> None:
        data = choice.draw(st.sampled_from(list(self.writers)))
        writer, part = self.writers[data]
        chunk = data[len(part) : len(part) + count]
        chunk = chunk if is_right else bytes(byte ^ 1 for byte in chunk)
        writer.write(len(part), chunk)
        part += chunk
        assert writer.offset == len(part)

    @precondition(lambda self: self.writers)
    @rule(choice=st.data(), is_finished=st.booleans())
    def commit(self, choice: st.DataObject, is_finished: bool) -> None:
        data = choice.draw(st.sampled_from(list(self.writers)))
        writer, part = self.writers[data]
        if is_finished:
            writer.write(len(part), data[len(part) :])
            part += data[len(part) :]
        try:
            info = writer.commit()
        except ResourceError as error:
            if len(part) < len(data):
                assert error.code is ErrorCode.LENGTH_MISMATCH
                return
            assert error.code is ErrorCode.HASH_MISMATCH
            assert part != data
        else:
            assert part == data
            self.stored[info.uri] = data
        del self.writers[data]

    @precondition(lambda self: self.writers)
    @rule(choice=st.data(), is_kept=st.booleans())
    def end(self, choice: st.DataObject, is_kept: bool) -> None:
        data = choice.draw(st.sampled_from(list(self.writers)))
        writer, part = self.writers.pop(data)
        if is_kept:
            writer.close()
            if part:
                self.resting[data] = bytes(part)
        else:
            writer.abandon()

    @rule(data=contents)
    def open(self, data: bytes) -> None:
        try:
            source = self.blobs.open(uri_of(data))
        except ResourceError as error:
            assert error.code is ErrorCode.NOT_FOUND
            return
        assert uri_of(data) in self.stored
        self.sources.append((source, data))

    @precondition(lambda self: self.sources)
    @rule(choice=st.data())
    def close(self, choice: st.DataObject) -> None:
        index = choice.draw(st.integers(min_value=0, max_value=len(self.sources) - 1))
        source, data = self.sources.pop(index)
        assert source.read(0, 1000) == data
        source.close()

    @rule(data=contents)
    def pin(self, data: bytes) -> None:
        try:
            self.blobs.pin(uri_of(data))
        except ResourceError:
            assert not self.is_readable(data)
        else:
            self.pins.append(data)

    @precondition(lambda self: self.pins)
    @rule(choice=st.data())
    def unpin(self, choice: st.DataObject) -> None:
        data = choice.draw(st.sampled_from(self.pins))
        self.pins.remove(data)
        self.blobs.unpin(uri_of(data))

    @precondition(lambda self: self.is_disk)
    @rule()
    def start_again(self) -> None:
        before = {info.uri for info in self.blobs.list()}
        self.blobs.close()
        for data, (writer, part) in self.writers.items():
            writer.close()
            if part:
                self.resting[data] = bytes(part)
        self.writers.clear()
        self.pins.clear()
        self.open_store()
        assert {info.uri for info in self.blobs.list()} == before

    @rule()
    def pass_an_hour(self) -> None:
        # Parts do not expire here: how many are there stays known.
        self.clock.now += 3600 if self.clock.now < 1_700_050_000 else 0

    @invariant()
    def no_more_than_fits(self) -> None:
        counters = self.blobs.counters
        assert counters.bytes <= BYTES_MAX
        assert counters.count <= COUNT_MAX
        listed = list(self.blobs.list())
        charged = sum(info.size_bytes or 0 for info in listed) + sum(len(data) for data in self.writers)
        assert counters.bytes == charged + sum(len(part) for part in self.resting.values())
        assert counters.count == len(listed) + len(self.writers) + len(self.resting)

    @invariant()
    def what_is_readable_was_put(self) -> None:
        for info in self.blobs.list():
            assert info.size_bytes == len(self.stored[info.uri])

    @invariant()
    def what_is_open_or_pinned_is_there(self) -> None:
        listed = {info.uri for info in self.blobs.list()}
        for source, data in self.sources:
            assert source.read(0, 1000) == data
        for data in self.pins:
            assert uri_of(data) in listed


TestBlobs = BlobsMachine.TestCase
TestBlobs.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
