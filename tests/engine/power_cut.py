"""Cut the power of a store at any moment, and look at what the next start finds.

    python -m tests.engine.power_cut --cuts 5000

A workload runs on a disk in memory (`tests.engine.disk`), and before some of the changes that reach that disk
the power goes. What the disk may then hold is written to a real one, opened by the store as it is in
production, and compared: it has to be what was acknowledged, or that and the one transaction that was on its
way.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import click

from streamctx.core.session.stored import StoredSession
from streamctx.engine.sqlite import SqliteStore
from streamctx.engine.sqlite.codec import encode_batch
from streamctx.engine.sqlite.opening import FileDurability
from streamctx.engine.sqlite.upkeep import Thresholds
from streamctx.engine.sqlite.writer import Append, Fence, Forget, Snapshot, Write
from tests.engine.apsw_database import ApswDatabase
from tests.engine.disk import Disk, Image
from tests.engine.model import Model, applied
from tests.engine.samples import batch, document, record, state

__all__ = ["Cut", "Verdict", "run"]

_SESSIONS = tuple(f"s{index}" for index in range(6))
# Long enough for several snapshots of each session, sweeps, checkpoints and restarts.
_ROUNDS = 160


@dataclass(frozen=True, slots=True)
class Cut:
    """A disk as it may be found, how many transactions were acknowledged before, and what was going on.

    `seed` is that of the workload, which runs the same again.
    """

    image: Image
    acknowledged: int
    during: str
    seed: int = 0


@dataclass(slots=True)
class Workload:
    """Some minutes of a server's life. `history` are all states of the store, one for each transaction."""

    seed: int
    directory: Path
    durability: FileDurability
    cut_chance: float
    history: list[Model] = field(default_factory=lambda: [{}])
    acknowledged: int = 0
    cuts: list[Cut] = field(default_factory=list)
    now: float = 1_000_000.0
    during: str = "start"

    def run(self) -> None:
        """Live, and keep what was found at each cut."""
        chance = random.Random(self.seed)
        cut_chance = random.Random(self.seed + 1)

        def on_call(what: str) -> None:
            if cut_chance.random() < self.cut_chance:
                image = disk.cut(cut_chance)
                self.cuts.append(Cut(image, self.acknowledged, f"{self.during}, {what}", self.seed))

        disk = Disk(f"power-cut-{self.seed}-{self.durability}", on_call)
        try:
            store = self._open(disk)
            for _ in range(_ROUNDS):
                self._round(store, chance)
                if chance.random() < 0.03:
                    self.during = "restart"
                    store.close()
                    store = self._open(disk)
            self.during = "close"
            store.close()
        finally:
            disk.unregister()

    def _open(self, disk: Disk) -> SqliteStore:
        return SqliteStore.open(
            self.directory,
            durability=self.durability,
            history_s=30.0,
            thresholds=Thresholds(
                checkpoint_bytes=200_000, flush_rows=40, sweep_rows_min=10, ballast_bytes=4096
            ),
            clock=lambda: self.now,
            database=lambda path: ApswDatabase(path, vfs=disk.name),
        )

    def _round(self, store: SqliteStore, chance: random.Random) -> None:
        self.now += chance.choice((0.1, 1.0, 10.0))
        model = self.history[-1]
        operations: list[Write] = []
        for _ in range(chance.randint(1, 6)):
            chosen = self._choose(model, chance)
            model = applied(model, chosen)
            operations += chosen
        self.history.append(model)
        self.during = "write"
        assert store.write(operations) == [None] * len(operations)
        self.acknowledged += 1
        self.during = "upkeep"
        for _ in range(chance.randint(0, 3)):
            store.upkeep(is_idle=chance.random() < 0.3)

    def _choose(self, model: Model, chance: random.Random) -> list[Write]:
        """Choose what to do with one session."""
        session_id = chance.choice(_SESSIONS)
        stored = model.get(session_id)
        step = len(self.history)
        if stored is None or chance.random() < 0.08:
            epoch = "e1" if stored is None else chance.choice((stored.record.epoch, f"e{step}"))
            return [Fence(record(session_id, epoch, lease=step))]
        if chance.random() < 0.02:
            return [Forget(session_id)]
        epoch = stored.record.epoch
        if chance.random() < 0.15:
            count = chance.randint(0, 3)
            documents = [document(alias + 1, "x" * chance.randint(0, 3000)) for alias in range(count)]
            return [Snapshot(session_id, epoch, state(step, *documents))]
        added = [
            batch(step * 10 + index, "y" * chance.randint(1, 400))
            for index in range(chance.choice((1, 1, 2, 5)))
        ]
        return [Append(session_id, epoch, encode_batch(item)) for item in added]


Verdict: TypeAlias = str
"""`kept`, `lost` if something acknowledged is not there, or what is wrong with the file."""


def judge(cut: Cut, history: Sequence[Model], source: Path, directory: Path) -> Verdict:
    """Open what a cut has left, and tell whether it is what it has to be."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    for path, content in cut.image.items():
        file = directory / Path(path).relative_to(source)
        file.touch(mode=0o600)
        file.write_bytes(content)
    store = SqliteStore.open(directory, thresholds=Thresholds(ballast_bytes=4096))
    found: dict[str, StoredSession] = {}
    for summary in store.summaries():
        loaded = store.load(summary.session_id)
        if not isinstance(loaded, StoredSession):
            return f"damaged: {loaded and loaded.reason}"
        found[summary.session_id] = loaded
        store.tail(summary.session_id, 0.0)
    for session_id, stored in found.items():
        # And it goes on from there.
        more = batch(1)
        store.append(session_id, stored.record.epoch, more)
        assert store.load(session_id) == StoredSession(stored.record, stored.state, (*stored.batches, more))
    store.close()
    with contextlib.closing(sqlite3.connect(directory / "store.db")) as connection:
        integrity = connection.execute("PRAGMA integrity_check").fetchone()
    if integrity != ("ok",):
        return f"malformed: {integrity}"
    if found in history[cut.acknowledged : cut.acknowledged + 2]:
        return "kept"
    return "lost" if found in history[: cut.acknowledged] else "neither what was, nor what is"


def run(*, cut_count: int, durability: FileDurability, seed: int) -> Iterator[tuple[Cut, Verdict]]:
    """Cut and judge so many times."""
    # In memory where there is such a place: the disk of the test is that of the shim.
    place = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=place if place.is_dir() else None) as name:
        root = Path(name)
        done = 0
        while done < cut_count:
            workload = Workload(seed, root / "source", durability, cut_chance=0.04)
            workload.run()
            seed += 1
            for cut in workload.cuts[: cut_count - done]:
                done += 1
                yield cut, judge(cut, workload.history, root / "source", root / "found")


def main() -> None:
    parser = argparse.ArgumentParser(description="Cut the power of a store, and look at what is left.")
    parser.add_argument("--cuts", type=int, default=5000)
    parser.add_argument("--durability", choices=("full", "relaxed"), default="full")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.getLogger("streamctx.engine").setLevel(logging.ERROR)
    verdicts: Counter[str] = Counter()
    moments: Counter[str] = Counter()
    for cut, verdict in run(cut_count=arguments.cuts, durability=arguments.durability, seed=arguments.seed):
        verdicts[verdict] += 1
        if verdict != "kept" and arguments.durability == "full":
            click.echo(f"  seed {cut.seed}, cut during {cut.during}: {verdict}")
        moments[cut.during] += 1
    click.echo(f"{arguments.cuts} cuts, durability {arguments.durability}, seed {arguments.seed}")
    for name, counter in (("found", verdicts), ("cut during", moments)):
        for key, count in counter.most_common():
            click.echo(f"  {name} {key}: {count}")


if __name__ == "__main__":
    main()
