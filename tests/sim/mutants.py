"""Known-bad variants of the product, and the proof that the simulator finds each of them.

A checker that never fails proves nothing. So each kind of mistake that the promises are about is put into
the product, by exact replacement of source text, and seeds are run until a checker says so. Where a second
defence hides the mistake, that one is switched off too, and named.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import logging
import multiprocessing
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType

import msgspec

__all__ = ["Mutant", "MutantError", "Substitution", "Verdict", "apply", "describe", "hunt", "main"]

_SHARE_SEEDS = 100
_KNOWN = Path(__file__).with_name("mutant_seeds.json")
"""By name: the seed that found a mutant when `mutants --note` was last run. It saves time, no more."""
SANITY = "nothing"
"""The name of the row without a mistake, which must survive."""


class MutantError(Exception):
    """A mutant does not fit the source any more: follow what has become of it."""


@dataclass(frozen=True, slots=True)
class Substitution:
    """Other text in one function.

    `target` is a module and, after a colon, the function in it. `old` is in its source once, as it is
    written there, but for the indentation of the whole.
    """

    target: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One mistake: what is done instead, how a good programmer comes to it, and who should find it.

    Any checker may; `checkers` are those that are expected to. `masked_by` is the defence that hides the
    mistake by itself and is `off` for that reason.
    """

    name: str
    target: str
    old: str
    new: str
    why: str
    checkers: tuple[str, ...]
    masked_by: str | None = None
    off: tuple[Substitution, ...] = ()

    @property
    def substitutions(self) -> tuple[Substitution, ...]:
        """All that is changed."""
        return Substitution(self.target, self.old, self.new), *self.off


class Verdict(msgspec.Struct, frozen=True):
    """What became of a mutant.

    `seed` is the first one that found it, `checker` who did; `None` if it survived. `share` is how many of
    the first hundred seeds find it, if that was asked for.
    """

    name: str
    seed: int | None
    checker: str | None
    detail: str
    seeds: int
    cpu_s: float
    share: int | None = None


# Putting a mistake in.


def apply(substitution: Substitution) -> None:
    """Change one function of the product, for the rest of this process.

    Raises:
        MutantError: If the text to be replaced is not there exactly once, or the function has a closure.
    """
    target, old = substitution.target, substitution.old
    module_name, _, path = target.partition(":")
    module = importlib.import_module(module_name)
    *outer, name = path.split(".")
    owner: ModuleType | type = module
    for part in outer:
        owner = getattr(owner, part)
    try:
        original = inspect.getattr_static(owner, name)
    except AttributeError:
        raise MutantError(f"{target} is gone") from None
    function = original.fget if isinstance(original, property) else original
    if not isinstance(function, FunctionType) or function.__code__.co_freevars:
        raise MutantError(f"{target} is no plain function")
    source = textwrap.dedent(inspect.getsource(function))
    count = source.count(old)
    if count != 1:
        raise MutantError(f"{target} has {count} times, instead of once, the text {old!r}")
    changed = source.replace(old, substitution.new)
    code = compile(changed, f"<mutant of {target}>", "exec", __future__.annotations.compiler_flag)
    defined: dict[str, object] = {}
    exec(code, module.__dict__, defined)
    setattr(owner, name, defined[name])
    if owner is module:
        _replace_imported(name, original, defined[name])


def _replace_imported(name: str, original: object, mutated: object) -> None:
    """Other modules of the product have the function by name. The simulator keeps the good one."""
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("streamctx.") and module.__dict__.get(name) is original:
            setattr(module, name, mutated)


# Looking for it.


def hunt(mutant: Mutant | None, seeds: Sequence[int], *, share: bool = False) -> Verdict:
    """Run seeds with a mutant until one of them finds it. Only in a process of its own: it stays changed.

    Args:
        mutant: `None` runs the product as it is.
        seeds: In the order in which they are tried.
        share: Whether to run the first hundred seeds to the end, and count.

    Raises:
        MutantError: As `apply`.
    """
    from tests.sim import probes
    from tests.sim.plan import draw_plan
    from tests.sim.run import run_plan

    assert mutant is None or not probes.is_installed(), "the probes would be put around the good code"
    logging.disable(logging.CRITICAL)
    for substitution in () if mutant is None else mutant.substitutions:
        apply(substitution)
    name = SANITY if mutant is None else mutant.name
    began = time.process_time()
    first: tuple[int, str, str] | None = None
    found = run = 0
    for seed in seeds:
        if first is not None and not (share and seed < _SHARE_SEEDS):
            break
        run += 1
        violation = run_plan(draw_plan(seed)).violation
        if violation is not None:
            found += seed < _SHARE_SEEDS
            first = first or (seed, *violation)
    cpu_s = time.process_time() - began
    counted = found if share else None
    if first is None:
        return Verdict(name, None, None, "", run, cpu_s, counted)
    return Verdict(name, first[0], first[1], first[2][:500], run, cpu_s, counted)


def _hunt_by_name(task: tuple[str, Sequence[int], bool]) -> Verdict:
    from tests.sim.mutant_list import MUTANTS

    name, seeds, share = task
    mutant = next((mutant for mutant in MUTANTS if mutant.name == name), None)
    try:
        return hunt(mutant, seeds, share=share)
    except MutantError as error:
        return Verdict(name, None, None, str(error), 0, 0.0)


def hunt_all(seeds: Mapping[str, Sequence[int]], *, procs: int, share: bool) -> Iterator[Verdict]:
    """Hunt mutants by name, each in a fresh process, several at once; in the order in which they are done."""
    tasks = [(name, some, share) for name, some in seeds.items()]
    context = multiprocessing.get_context("spawn")
    with context.Pool(procs, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(_hunt_by_name, tasks, chunksize=1)


def describe(verdict: Verdict, mutant: Mutant | None) -> str:
    """One row of the table."""
    found = f"seed {verdict.seed}"
    if verdict.seed is None:
        found = "survives" if verdict.seeds else "BROKEN"
    share = "" if verdict.share is None else f"{verdict.share:>4} %"
    checker = verdict.checker or "-"
    if mutant is not None and verdict.checker is not None and verdict.checker not in mutant.checkers:
        checker += " (unexpected)"
    masked = "" if mutant is None or mutant.masked_by is None else f"without: {mutant.masked_by}"
    return (
        f"{verdict.name:<36} {found:>10} {share:>6}  {checker:<18} {verdict.cpu_s:6.1f} s  {masked}".rstrip()
    )


def seeds_for(name: str, seeds_max: int) -> Sequence[int]:
    """All seeds below `seeds_max`, and before them the one that found the mutant last."""
    known = msgspec.json.decode(_KNOWN.read_bytes(), type=dict[str, int]).get(name)
    return range(seeds_max) if known is None or known >= seeds_max else (known, *range(seeds_max))


def main(
    seeds_max: int, procs: int, only: str | None, as_json: bool, *, share: bool = False, note: bool = False
) -> int:
    """Hunt all mutants, and run the product as it is over the seeds that found them.

    Args:
        share: Whether to run the first hundred seeds for each besides.
        note: Whether to write down which seeds find them, to be tried first from then on.

    Returns:
        0 if every mutant was found, and nothing was in the product as it is.
    """
    from tests.sim.mutant_list import MUTANTS

    mutants = {mutant.name: mutant for mutant in MUTANTS if only is None or only in mutant.name}
    if not mutants:
        sys.stderr.write(f"no mutant is named {only!r}\n")
        return 2
    verdicts: list[Verdict] = []

    def take(found: Iterator[Verdict]) -> None:
        for verdict in found:
            verdicts.append(verdict)
            if not as_json:
                sys.stdout.write(describe(verdict, mutants.get(verdict.name)) + "\n")
                sys.stdout.flush()

    tried = {name: range(seeds_max) if share else seeds_for(name, seeds_max) for name in mutants}
    take(hunt_all(tried, procs=procs, share=share))
    found = {verdict.name: verdict.seed for verdict in verdicts if verdict.seed is not None}
    survivors = [verdict.name for verdict in verdicts if verdict.seed is None]
    if note:
        known = {name: found[name] for name in mutants if name in found}
        _KNOWN.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n")
    take(hunt_all({SANITY: sorted(set(found.values()))}, procs=1, share=False))
    is_sane = verdicts[-1].seed is None
    cpu_s = sum(verdict.cpu_s for verdict in verdicts)
    if as_json:
        sys.stdout.write(msgspec.json.encode(verdicts).decode() + "\n")
    else:
        sys.stdout.write(
            f"{len(mutants) - len(survivors)} of {len(mutants)} mutants found in {cpu_s:.0f} s of CPU time; "
            f"without any, {verdicts[-1].seeds} seeds have {'no' if is_sane else 'A'} violation\n"
        )
        for verdict in verdicts[:-1]:
            if verdict.seed is None:
                reason = verdict.detail or f"survives: {mutants[verdict.name].why}"
                sys.stdout.write(f"{verdict.name}: {reason}\n")
    return 0 if is_sane and not survivors else 1
