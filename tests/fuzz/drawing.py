"""Messages drawn from a program, by what the structs say of themselves: a new type or field is drawn too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from tests.fuzz.program import Program

__all__ = ["Draw", "Hints", "draw"]

T = TypeVar("T")

Draw = Callable[[Program, "Hints"], Any]
"""Makes a value out of a program's next decisions."""

Hints = Mapping[str, Callable[[Program], Any]]
"""By field name, how to draw a value that has a chance to mean something where it arrives."""

_ITEMS_MAX = 4
_NO_HINTS: Hints = {}


def draw(program: Program, of: type[T], hints: Hints = _NO_HINTS) -> T:
    """Draw one struct; its numbers and names may be outside of what the schema allows, once in a while."""
    drawer: Draw = _drawer(of)  # type: ignore[arg-type]
    made: T = drawer(program, hints)
    return made


@functools.cache
def _drawer(of: type[Any]) -> Draw:
    return _of(inspect.type_info(of))


def _of(type_: inspect.Type) -> Draw:
    match type_:
        case inspect.StructType():
            return _struct(type_)
        case inspect.IntType():
            return _number(type_.ge or 0, type_.le)
        case inspect.FloatType():
            return lambda program, _: program.choose((0.0, 1.5, -1.0, 2.0**53, -(2.0**53), 1e300))
        case inspect.BoolType():
            return lambda program, _: program.flag()
        case inspect.NoneType():
            return lambda program, _: None
        case inspect.StrType():
            return _text(type_.min_length or 0, type_.max_length)
        case inspect.LiteralType():
            values = type_.values
            return lambda program, _: program.choose(values)
        case inspect.EnumType():
            members = tuple(type_.cls)
            return lambda program, _: program.choose(members)
        case inspect.BytesType():
            return lambda program, _: program.blob()
        case inspect.UnionType():
            kinds = tuple(map(_of, type_.types))
            return lambda program, hints: program.choose(kinds)(program, hints)
        case inspect.VarTupleType():
            item, fewest = _of(type_.item_type), type_.min_length or 0
            return lambda program, hints: tuple(
                item(program, hints) for _ in range(max(fewest, program.below(_ITEMS_MAX)))
            )
        case inspect.TupleType():
            items = tuple(map(_of, type_.item_types))
            return lambda program, hints: tuple(item(program, hints) for item in items)
        case _:
            raise TypeError(f"a message holds a {type_}, which nobody has said how to draw")


def _struct(type_: inspect.StructType) -> Draw:
    cls = type_.cls
    fields = [(field.name, _of(field.type), field.required) for field in type_.fields]

    def make(program: Program, hints: Hints) -> msgspec.Struct:
        values = {}
        for name, item, is_required in fields:
            if not is_required and program.flag():
                continue
            hint = hints.get(name)
            values[name] = hint(program) if hint is not None else item(program, hints)
        return cls(**values)

    return make


def _number(lowest: int, highest: int | None) -> Draw:
    def make(program: Program, _: Hints) -> int:
        number = program.number()
        if program.rarely(64):
            return -number
        return max(lowest, number if highest is None else min(number, highest))

    return make


def _text(shortest: int, longest: int | None) -> Draw:
    def make(program: Program, _: Hints) -> str:
        text = program.text()
        if longest is not None and program.rarely(64):
            return "n" * (longest + (program.byte() & 1))
        return text.ljust(shortest, "x")

    return make
