"""What a replay found: counts, latencies and hashes, as JSON and for people."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Latencies", "Report", "percentile", "sha256_of_texts"]


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """The smallest value that at least this fraction of all values does not exceed (nearest rank).

    Args:
        ordered: All values, rising, at least one.
        fraction: From 0 to 1.
    """
    rank = max(1, math.ceil(round(fraction * len(ordered), 9)))
    return ordered[rank - 1]


def sha256_of_texts(texts: Mapping[int, str]) -> str:
    """One hash over the texts of all documents, in the order of their aliases.

    For a single document it is the SHA-256 of its UTF-8.
    """
    digest = hashlib.sha256()
    for position, alias in enumerate(sorted(texts)):
        if position:
            digest.update(b"\xff")  # Never in UTF-8, so that texts cannot run into each other.
        digest.update(texts[alias].encode())
    return digest.hexdigest()


class Latencies:
    """Durations, collected in seconds and reported in milliseconds."""

    __slots__ = ("values",)

    def __init__(self, values: Iterable[float] = ()) -> None:
        self.values: list[float] = list(values)

    def add(self, duration_s: float) -> None:
        """Count one."""
        self.values.append(duration_s)

    def summary_ms(self) -> dict[str, float | None]:
        """The percentiles; all `None` if there is no value."""
        ordered = sorted(self.values)
        points = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
        return {
            name: round(percentile(ordered, fraction) * 1000, 3) if ordered else None
            for name, fraction in points.items()
        }


@dataclass(slots=True, kw_only=True)
class Report:
    """The outcome of one replay.

    `retransmitted` to `resumes` are sums over both ends of every connection, as far as they are known.
    `sha256_server` and `sha256_observer` are `None` where there is no such copy.
    """

    edits: int
    events: int
    seconds: float
    ack: Latencies = field(repr=False)
    observer: Latencies = field(repr=False)
    retransmitted: int = 0
    nacks: int = 0
    skipped: int = 0
    duplicates: int = 0
    corrupt: int = 0
    resumes: int = 0
    sha256_expected: str
    sha256_server: str | None = None
    sha256_observer: str | None = None
    is_observed: bool = False
    problems: list[str] = field(default_factory=list)
    """What else keeps the replay from being verified, for people."""

    @property
    def verified(self) -> bool:
        """Whether every copy equals the expected text, and nothing else went wrong."""
        is_observer_equal = not self.is_observed or self.sha256_observer == self.sha256_expected
        return self.sha256_server == self.sha256_expected and is_observer_equal and not self.problems

    @property
    def edits_per_s(self) -> float:
        """Edits a second, from the first edit until everything was confirmed."""
        return self.edits / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, object]:
        """The report as a JSON object; its keys are a promise."""
        return {
            "edits": self.edits,
            "events": self.events,
            "seconds": round(self.seconds, 3),
            "edits_per_s": round(self.edits_per_s, 1),
            "ack_ms": self.ack.summary_ms(),
            "observer_ms": self.observer.summary_ms(),
            "retransmitted": self.retransmitted,
            "nacks": self.nacks,
            "skipped": self.skipped,
            "duplicates": self.duplicates,
            "corrupt": self.corrupt,
            "resumes": self.resumes,
            "sha256_expected": self.sha256_expected,
            "sha256_server": self.sha256_server,
            "sha256_observer": self.sha256_observer,
            "verified": self.verified,
        }

    def lines(self) -> list[str]:
        """The report for people."""
        amount = f"{self.edits:,} edits, {self.events:,} events in {self.seconds:.2f} s"
        lines = [
            f"{amount}: {self.edits_per_s:,.0f} edits/s",
            f"acknowledged after   {_shown(self.ack)}",
        ]
        if self.is_observed:
            lines.append(f"seen by the observer {_shown(self.observer)}")
        lines.append(
            f"repairs: {self.retransmitted:,} retransmitted, {self.nacks:,} nacks, {self.skipped:,} skipped, "
            f"{self.duplicates:,} duplicates, {self.corrupt:,} corrupt, {self.resumes:,} resumes"
        )
        copies = [("expected", self.sha256_expected), ("server", self.sha256_server)]
        if self.is_observed:
            copies.append(("observer", self.sha256_observer))
        for name, digest in copies:
            lines.append(f"{name:<9} sha-256 {digest or 'none'}")
        lines += self.problems
        lines.append("verified" if self.verified else "NOT VERIFIED")
        return lines


def _shown(latencies: Latencies) -> str:
    values = latencies.summary_ms()
    return ", ".join(
        f"{name} {'-' if value is None else f'{value:,.1f} ms'}" for name, value in values.items()
    )
