"""What a built-in is, and the one table of them: `verbs` fills it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .conversions import assign, element_of, is_number, refuse
from .errors import Source
from .tree import Expression

Typing = Callable[[list[Expression], Source], tuple[list[Expression], object]]


@dataclass(frozen=True)
class Verb:
    """A built-in.

    `rendezvous`: "" or the scope whose live members must all arrive, "wave" or "workgroup". `width`: its answer needs
    the wave width. `options`: the constants that the source must state, by name and type, None where one may be left
    out. `changes`: the index of the argument, a tile, that takes the value.
    """

    name: str
    counts: tuple[int, ...]
    typing: Typing
    rendezvous: str = ""
    width: bool = False
    options: tuple[tuple[str, type, object], ...] = ()
    changes: int | None = None
    atomic: bool = False


VERBS: dict[str, Verb] = {}


def declare(name: str, counts: tuple[int, ...], typing: Typing, **more) -> None:
    """Enter a verb into the table."""
    VERBS[name] = Verb(name, counts, typing, **more)


def argument(value: Expression, kind, at: Source) -> Expression:
    """An argument as its parameter's type; a float never becomes an integer by itself."""
    have = value.type
    if is_number(have) and is_number(kind) and element_of(have).kind == "float" and element_of(kind).kind == "int":
        refuse(f"an argument of {have} where {kind} is taken; a form for floats or {element_of(kind)}(...) says it", at)
    return assign(value, kind, "an argument", value.at)


def fixed(*parameters, gives) -> Typing:
    """Typing of a verb with one signature."""

    def typing(arguments, at):
        return [argument(value, kind, at) for value, kind in zip(arguments, parameters, strict=True)], gives

    return typing
