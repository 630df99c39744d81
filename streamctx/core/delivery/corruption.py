"""Whether so many frames are corrupt that the connection is of no use."""

from __future__ import annotations

__all__ = ["CorruptionMeter"]


class CorruptionMeter:
    """Counts corrupt frames among the last `window` ones.

    Bit `i` of `_recent` tells whether the frame `i` frames ago was corrupt. Frames
    that were never seen count as good.

    Source: SPEC DIG-4.
    """

    __slots__ = ("_mask", "_recent", "_window", "corrupt_count")

    def __init__(self, window: int) -> None:
        """Start as if all frames had been good.

        Args:
            window: Frames looked back on.

        Raises:
            ValueError: If the window is empty.
        """
        if window < 1:
            raise ValueError(f"window is {window}, expected at least 1")
        self.corrupt_count = 0
        """Corrupt frames since the start."""
        self._window = window
        self._mask = (1 << window) - 1
        self._recent = 0

    def record(self, is_corrupt: bool) -> bool:
        """Note one frame.

        Returns:
            Whether more than `window / 2` of the last `window` frames were corrupt,
            however few were seen before: close with 4110.
        """
        if not is_corrupt and not self._recent:
            return False
        self._recent = ((self._recent << 1) | is_corrupt) & self._mask
        self.corrupt_count += is_corrupt
        return self._recent.bit_count() * 2 > self._window
