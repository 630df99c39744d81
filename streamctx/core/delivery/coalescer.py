"""Latest value wins: the newest value of each key, and which of them are not yet sent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Coalescer"]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Coalescer(Generic[Key, Value]):
    """Values by key; a key is dirty from `put` until `pop`, and clean afterwards.

    A value that was put is popped, or replaced by a later one of its key that is:
    the last value always comes out. No key is in both maps. `_dirty` is in the order
    in which keys became dirty, `_clean` in that in which they were popped.
    """

    __slots__ = ("_clean", "_dirty", "_keys_max", "dropped", "forgotten")

    def __init__(self, keys_max: int) -> None:
        """Start empty.

        Raises:
            ValueError: If not even one key may be kept.
        """
        if keys_max < 1:
            raise ValueError(f"keys_max is {keys_max}, expected at least 1")
        self.forgotten = 0
        """Clean keys that made room: their value is not sent again after a resume."""
        self.dropped = 0
        """Dirty keys that made room because none was clean: their value was never sent."""
        self._keys_max = keys_max
        self._dirty: OrderedDict[Key, Value] = OrderedDict()
        self._clean: OrderedDict[Key, Value] = OrderedDict()

    @property
    def has_dirty(self) -> bool:
        """Whether `pop` would return a value."""
        return bool(self._dirty)

    @property
    def dirty_count(self) -> int:
        """Keys whose present value was not popped."""
        return len(self._dirty)

    def __len__(self) -> int:
        """Return how many keys are kept, dirty and clean."""
        return len(self._dirty) + len(self._clean)

    def put(self, key: Key, value: Value) -> None:
        """Make `value` the present one of its key.

        A new key beyond `keys_max` takes the place of the clean key that was popped
        longest ago or, if all are dirty, of the one that was dirty first.
        """
        if key in self._dirty:
            self._dirty[key] = value
            return
        if key in self._clean:
            del self._clean[key]
        elif len(self) >= self._keys_max:
            if self._clean:
                self._clean.popitem(last=False)
                self.forgotten += 1
            else:
                self._dirty.popitem(last=False)
                self.dropped += 1
        self._dirty[key] = value

    def pop(self) -> tuple[Key, Value] | None:
        """Take the key that has been dirty longest, with its present value, or `None`."""
        if not self._dirty:
            return None
        key, value = self._dirty.popitem(last=False)
        self._clean[key] = value
        return key, value

    def current(self) -> list[tuple[Key, Value]]:
        """Return every key with its present value, dirty ones first."""
        return [*self._dirty.items(), *self._clean.items()]

    def mark_dirty(self, key: Key) -> None:
        """Let the newest value of a key, if there is one, come out once more."""
        if key in self._clean:
            self._dirty[key] = self._clean.pop(key)

    def mark_all_dirty(self) -> None:
        """Have every present value popped again, after those that are dirty already."""
        self._dirty.update(self._clean)
        self._clean.clear()

    def forget(self, key: Key) -> None:
        """Drop a key and its value, if it is kept."""
        self._dirty.pop(key, None)
        self._clean.pop(key, None)

    def forget_where(self, predicate: Callable[[Key], bool]) -> None:
        """Drop all keys that the predicate accepts, such as those of a closed document."""
        for key in [key for key, _ in self.current() if predicate(key)]:
            self.forget(key)
