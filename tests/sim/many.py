"""Many seeds of the storm: `python -m tests.sim.many 0 1000` prints those that fail."""

from __future__ import annotations

import sys
import traceback

from tests.sim.storm import storm

__all__: list[str] = []


def main(first: int, count: int) -> int:
    failed: list[int] = []
    for seed in range(first, first + count):
        if seed > first and seed % 100 == 0:
            sys.stdout.write(f"{seed - first} seeds, {len(failed)} failed\n")
            sys.stdout.flush()
        try:
            storm(seed)
        except Exception as error:
            failed.append(seed)
            where = traceback.extract_tb(error.__traceback__)[-1]
            sys.stdout.write(
                f"{seed}: {type(error).__name__} {where.filename}:{where.lineno} {str(error)[:300]}\n"
            )
            sys.stdout.flush()
    sys.stdout.write(f"{count} seeds from {first}, {len(failed)} failed: {failed}\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
