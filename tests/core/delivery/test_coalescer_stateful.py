"""`Coalescer` beside two plain lists, and a reader that must not miss the last value of a key."""

from __future__ import annotations

import sys

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from streamctx.core.delivery.coalescer import Coalescer
from tests.core.machines import machine_settings

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__: list[str] = []

KEYS = st.sampled_from(["a1", "a2", "b1", "b2", "c1", "c2"])

Entry = tuple[str, int]


class CoalescerMachine(RuleBasedStateMachine):
    """Values are numbers that only grow, so that an old one is never taken for a newer."""

    @initialize(keys_max=st.integers(1, 5))
    def start(self, keys_max: int) -> None:
        self.keys_max = keys_max
        self.coalescer: Coalescer[str, int] = Coalescer(keys_max)
        self.dirty: list[Entry] = []
        """In the order in which the keys became dirty."""
        self.clean: list[Entry] = []
        """In the order in which they were popped."""
        self.last_value = 0
        self.seen: dict[str, int] = {}
        """What the reader has of each key."""
        self.dropped = self.forgotten = 0

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4))
    def put(self, keys: list[str]) -> None:
        for key in keys:
            self._put(key)

    def _put(self, key: str) -> None:
        self.last_value += 1
        self.coalescer.put(key, self.last_value)
        if key in dict(self.dirty):
            self.dirty = [(k, self.last_value if k == key else value) for k, value in self.dirty]
            return
        self.clean = [entry for entry in self.clean if entry[0] != key]
        if len(self.dirty) + len(self.clean) == self.keys_max:
            if self.clean:
                del self.clean[0]
                self.forgotten += 1
            else:
                del self.dirty[0]
                self.dropped += 1
        self.dirty.append((key, self.last_value))

    @rule(count=st.integers(1, 4))
    def pop(self, count: int) -> None:
        for _ in range(count):
            self._pop()

    def _pop(self) -> None:
        popped = self.coalescer.pop()
        if not self.dirty:
            assert popped is None
            return
        assert popped == self.dirty.pop(0)
        self.clean.append(popped)
        key, value = popped
        assert value >= self.seen.get(key, 0)
        self.seen[key] = value

    @rule()
    def mark_all_dirty(self) -> None:
        self.coalescer.mark_all_dirty()
        self.dirty += self.clean
        self.clean = []

    @rule(key=KEYS)
    def mark_dirty(self, key: str) -> None:
        self.coalescer.mark_dirty(key)
        self.dirty += [entry for entry in self.clean if entry[0] == key]
        self.clean = [entry for entry in self.clean if entry[0] != key]

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.coalescer.forget(key)
        self._forget({key})

    @rule(prefix=st.sampled_from(["a", "b", "", "z"]))
    def forget_where(self, prefix: str) -> None:
        self.coalescer.forget_where(lambda key: key.startswith(prefix))
        self._forget({key for key, _ in self.dirty + self.clean if key.startswith(prefix)})

    def _forget(self, keys: set[str]) -> None:
        self.dirty = [entry for entry in self.dirty if entry[0] not in keys]
        self.clean = [entry for entry in self.clean if entry[0] not in keys]

    @invariant()
    def every_key_has_its_last_value(self) -> None:
        assert self.coalescer.current() == self.dirty + self.clean

    @invariant()
    def the_bound_holds_and_what_makes_room_is_counted(self) -> None:
        coalescer = self.coalescer
        assert len(coalescer) == len(self.dirty) + len(self.clean) <= self.keys_max
        assert coalescer.dirty_count == len(self.dirty)
        assert coalescer.has_dirty == bool(self.dirty)
        assert (coalescer.dropped, coalescer.forgotten) == (self.dropped, self.forgotten)

    @override
    def teardown(self) -> None:
        """A reader that goes on ends with the present value of every key that is kept."""
        if sys.exc_info()[0] is not None or not hasattr(self, "coalescer"):
            return  # What failed before is not to be hidden.
        present = dict(self.dirty + self.clean)
        while (popped := self.coalescer.pop()) is not None:
            self.seen[popped[0]] = popped[1]
        assert {key: self.seen[key] for key in present} == present


TestCoalescer = CoalescerMachine.TestCase
TestCoalescer.settings = machine_settings(examples=150, steps=40)
