"""What makes inputs for a target: atheris where it is installed, or else mutations of our own.

Atheris sees which branches of `streamctx` an input takes and builds on those that take new ones. The plain
driver sees nothing, and runs anywhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = [
    "FOLDER",
    "HANG_S",
    "Outcome",
    "Target",
    "fuzz_of",
    "has_atheris",
    "run_in_process",
    "run_target",
    "seeds",
]

Target = Callable[[bytes], None]

FOLDER = Path(__file__).parent
HANG_S = 20
"""An input that takes so long hangs: what takes longest otherwise is a hundred times as fast."""

_LENGTH_MAX = {"readers": 4096, "codec": 2048}
_LENGTH_MAX_OTHERS = 400
_RSS_MIB_MAX = 1024
_MEMORY = Path("/dev/shm")
"""Where it is there, a target makes its files in it: a disk takes ten times as long as their readers."""

_INTERESTING = b"\x00\x01\x02\x7f\x80\xff\xfe\x10\x20\x40\xc0"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of a target came to.

    `edges` are branches of `streamctx` that were taken, with their counts where atheris says so, 0 if nobody
    looked. `crash` is the input that failed.
    """

    target: str
    driver: str
    executions: int
    seconds: float
    edges: int
    crash: bytes | None
    log: str

    def summary(self) -> str:
        """One line, for people."""
        edges = f", {self.edges} edges" if self.edges else ""
        return (
            f"{self.target}: {self.executions:,} executions in {self.seconds:.0f} s by {self.driver}{edges}"
        )


def has_atheris() -> bool:
    """Whether the coverage-guided driver is installed."""
    return importlib.util.find_spec("atheris") is not None


def fuzz_of(target: str) -> Target:
    """The function that is given the inputs of a target."""
    fuzz: Target = importlib.import_module(f"tests.fuzz.targets.{target}").fuzz
    return fuzz


def seeds(target: str) -> list[Path]:
    """The committed inputs of a target, crashes of the past among them."""
    return sorted(path for kind in ("corpus", "crashes") for path in (FOLDER / kind / target).glob("*"))


def run_target(target: str, *, driver: str, seconds: float, seed: int, corpus: Path | None = None) -> Outcome:
    """Fuzz one target in a process of its own, so that not even a dead process goes unnoticed.

    Args:
        target: Its name.
        driver: `atheris` or `plain`.
        seconds: For how long.
        seed: Of the random numbers.
        corpus: Where inputs that reach something new are kept, by the one driver that knows.
    """
    with tempfile.TemporaryDirectory() as folder:
        crashes = Path(folder)
        new = corpus or crashes / "new"
        new.mkdir(parents=True, exist_ok=True)
        command = [
            *(
                sys.executable,
                "-W",
                "error",
                "-m",
                "tests.fuzz",
                "one",
                "--target",
                target,
                "--driver",
                driver,
            ),
            *("--seconds", str(seconds), "--seed", str(seed), "--crashes", folder, "--corpus", str(new)),
        ]
        environment = {**os.environ, "TMPDIR": str(_MEMORY)} if _MEMORY.is_dir() else None
        start = time.monotonic()
        finished = subprocess.run(
            command,
            cwd=FOLDER.parents[1],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
        )
        taken_s = time.monotonic() - start
        log = finished.stdout + finished.stderr
        crash = next((path.read_bytes() for path in sorted(crashes.glob("*-*"))), None)
    if finished.returncode and crash is None:
        raise RuntimeError(f"the fuzzer of {target} itself failed with {finished.returncode}:\n{log[-4000:]}")
    executions = re.findall(r"stat::number_of_executed_units:\s*(\d+)|^#(\d+)\s", log, re.MULTILINE)
    edges = re.findall(r" cov: (\d+) ", log)
    return Outcome(
        target=target,
        driver=driver,
        executions=max((int(number) for pair in executions for number in pair if number), default=0),
        seconds=taken_s,
        edges=int(edges[-1]) if edges else 0,
        crash=crash,
        log=log,
    )


def run_in_process(
    target: str, *, driver: str, seconds: float, seed: int, crashes: Path, corpus: Path
) -> None:
    """What the process of `run_target` does; with atheris it does not return."""
    if driver == "atheris":
        _run_atheris(target, seconds=seconds, seed=seed, crashes=crashes, corpus=corpus)
    else:
        _run_plain(target, seconds=seconds, seed=seed, crashes=crashes)


def _run_atheris(target: str, *, seconds: float, seed: int, crashes: Path, corpus: Path) -> None:
    atheris: Any = importlib.import_module("atheris")
    # Before anything of ours is imported: what is counted is our code's branches, and no other's.
    with atheris.instrument_imports(include=["streamctx"]):
        fuzz = fuzz_of(target)
    options = [
        f"-max_total_time={max(1, round(seconds))}",
        f"-seed={seed}",
        f"-timeout={HANG_S}",
        f"-rss_limit_mb={_RSS_MIB_MAX}",
        f"-max_len={_LENGTH_MAX.get(target, _LENGTH_MAX_OTHERS)}",
        f"-artifact_prefix={crashes}/",
        "-print_final_stats=1",
        # A program of a few bytes does nothing yet, so the length is not raised slowly.
        "-len_control=0",
        # Ten short ones find more than one that takes ten times as long.
        "-entropic_scale_per_exec_time=1",
    ]
    dictionary = FOLDER / "dictionaries" / f"{target}.txt"
    if dictionary.exists():
        options.append(f"-dict={dictionary}")
    folders = [str(corpus)]
    folders += [str(folder) for kind in ("corpus", "crashes") if (folder := FOLDER / kind / target).is_dir()]
    atheris.Setup([sys.argv[0], *options, *folders], fuzz)
    atheris.Fuzz()


def _run_plain(target: str, *, seconds: float, seed: int, crashes: Path) -> None:
    fuzz = fuzz_of(target)
    known = [path.read_bytes() for path in seeds(target)]
    chance = random.Random(seed)
    length_max = _LENGTH_MAX.get(target, _LENGTH_MAX_OTHERS)
    stop = time.monotonic() + seconds
    count = 0
    while time.monotonic() < stop:
        data = mutated(chance, known)[:length_max]
        count += 1
        try:
            with hang_fails():
                fuzz(data)
        except Exception:
            (crashes / f"crash-{count}").write_bytes(data)
            sys.stdout.write(f"#{count} failed\n")
            raise
    sys.stdout.write(f"#{count} done\n")


def mutated(chance: random.Random, known: Sequence[bytes]) -> bytes:
    """A new input: bytes of no origin, or a known one changed in a few places."""
    if not known or chance.random() < 0.2:
        return chance.randbytes(chance.choice((8, 40, 150, 500)))
    data = bytearray(chance.choice(known))
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        start = chance.randint(0, len(data))
        stop = min(len(data), start + chance.choice((1, 1, 2, 4, 16, 64)))
        match chance.randrange(6):
            case 0:
                del data[start:stop]
            case 1:
                data[start:start] = data[start:stop]
            case 2:
                data[start:stop] = chance.randbytes(stop - start)
            case 3:
                data[start:start] = chance.randbytes(chance.choice((1, 2, 8)))
            case 4:
                other = chance.choice(known)
                other_start = chance.randint(0, len(other))
                data[start:stop] = other[other_start : other_start + chance.choice((4, 16, 64, 256))]
            case _:
                data[start : start + 1] = bytes((chance.choice(_INTERESTING),))
    return bytes(data)


@contextmanager
def hang_fails() -> Iterator[None]:
    """Whatever takes `HANG_S` fails; only in the main thread of a process of our own, and not on Windows."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def fail(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"it takes more than {HANG_S} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
