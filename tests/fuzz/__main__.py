"""Fuzz for some time, run one input again, or choose which of the inputs found are worth committing.

```console
$ python -m tests.fuzz run --seconds 60             # all targets, each its share
$ python -m tests.fuzz run --seconds 600 --target hub
$ python -m tests.fuzz replay hub tests/fuzz/crashes/hub/…
$ python -m tests.fuzz distil                       # after long runs
```

New inputs collect in `build/fuzz/`. One that fails is made as small as it can be and stored in
`tests/fuzz/crashes/`; a test runs it for ever.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.drivers import FOLDER, Outcome, fuzz_of, has_atheris, run_in_process, run_target, seeds
from tests.fuzz.minimising import failure_of, fewest, minimised

__all__ = ["TARGETS", "main", "run"]

TARGETS = {"hub": 5, "client": 5, "text": 2, "codec": 2, "readers": 2, "websocket": 1, "pattern": 1}
"""With their shares of the time: a state machine has more to be found in it than a parser."""

_FOUND = Path("build", "fuzz")
_MINIMISE_S = 60
_CORPUS_BYTES_MAX = 40_000
"""Of one target, in the repository."""


def run(
    targets: Sequence[str], *, seconds: float, driver: str, seed: int, processes: int = 1, keeps: bool = False
) -> list[Outcome]:
    """Fuzz targets; the time is that of all processes together, shared out among the targets.

    Returns:
        One outcome for each, in order; the crashes in them are minimised.
    """
    shares = sum(TARGETS[target] for target in targets)

    def run_one(target: str) -> Outcome:
        outcome = run_target(
            target,
            driver=driver,
            seconds=seconds * TARGETS[target] / shares,
            seed=seed,
            corpus=FOLDER.parents[1] / _FOUND / target if keeps else None,
        )
        return outcome

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(run_one, targets))


def store(outcome: Outcome) -> tuple[Path, str]:
    """Keep the input of a failure; returns its file and how it fails."""
    assert outcome.crash is not None
    fuzz = fuzz_of(outcome.target)
    failure = failure_of(fuzz, outcome.crash)
    data = minimised(fuzz, outcome.crash, seconds=_MINIMISE_S)
    path = FOLDER / "crashes" / outcome.target / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if failure is None:
        return path, f"It does not fail outside of the fuzzer:\n{outcome.log[-4000:]}"
    return path, f"{failure[0]} at {failure[1]}:{failure[2]}: {failure[3]}"


def main(arguments: Sequence[str]) -> int:
    """The command; the exit status is 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--seconds", type=float, default=60)
    running.add_argument("--target", choices=TARGETS, action="append")
    running.add_argument(
        "--driver", choices=("atheris", "plain"), default="atheris" if has_atheris() else "plain"
    )
    running.add_argument("--seed", type=int, default=None)
    running.add_argument("--processes", type=int, default=1)
    one = commands.add_parser("one")
    one.add_argument("--target", required=True)
    one.add_argument("--driver", required=True)
    one.add_argument("--seconds", type=float, required=True)
    one.add_argument("--seed", type=int, required=True)
    one.add_argument("--crashes", type=Path, required=True)
    one.add_argument("--corpus", type=Path, required=True)
    replaying = commands.add_parser("replay")
    replaying.add_argument("target", choices=TARGETS)
    replaying.add_argument("files", type=Path, nargs="+")
    distilling = commands.add_parser("distil")
    distilling.add_argument("--target", choices=TARGETS, action="append")
    options = parser.parse_args(arguments)
    match options.command:
        case "one":
            run_in_process(
                options.target,
                driver=options.driver,
                seconds=options.seconds,
                seed=options.seed,
                crashes=options.crashes,
                corpus=options.corpus,
            )
        case "run":
            return _run(options)
        case "replay":
            for path in options.files:
                fuzz_of(options.target)(path.read_bytes())
        case _:
            for target in options.target or TARGETS:
                _distil(target)
    return 0


def _run(options: argparse.Namespace) -> int:
    if not has_atheris():
        _say("atheris is not installed here: inputs are made blindly, without seeing what they reach")
    # A red run of CI is to be the change's own.
    seed = options.seed or (1 if os.environ.get("CI") else random.randrange(1, 2**31))
    _say(f"seed {seed}")
    found = 0
    for outcome in run(
        options.target or list(TARGETS),
        seconds=options.seconds,
        driver=options.driver,
        seed=seed,
        processes=options.processes,
        keeps=True,
    ):
        _say(outcome.summary())
        if outcome.crash is not None:
            path, failure = store(outcome)
            _say(f"  FAILED: {failure}\n  python -m tests.fuzz replay {outcome.target} {path}")
            found += 1
    return 1 if found else 0


def _distil(target: str) -> None:
    found = [*seeds(target), *(FOLDER.parents[1] / _FOUND / target).glob("*")]
    chosen = fewest(fuzz_of(target), [path.read_bytes() for path in found], bytes_max=_CORPUS_BYTES_MAX)
    folder = FOLDER / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*"):
        path.unlink()
    for data in chosen:
        (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    _say(f"{target}: {len(chosen)} of {len(found)} inputs, {sum(map(len, chosen))} bytes")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
