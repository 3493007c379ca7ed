"""JSON that somebody else wrote: parsed, and checked field by field before it is used."""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

STATUSES = (1, 2, 3, 4)  # exit statuses of an access that failed
ADDRESS = re.compile(r"[0-9]{1,19}")


class Malformed(ValueError):
    """A value that is not what its place is for: says where, what is there, and what is expected."""


def parse(text: str | bytes) -> Any:
    """The value of a JSON text. Raises `Malformed` for what is none, or is nested too deep to be read."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise Malformed(f"{text[:40]!r}{'...' if len(text) > 40 else ''}, expected JSON ({why})") from None


def expect(good: bool, where: str, value: Any, expected: str) -> None:
    """Raise `Malformed` unless `good`."""
    if not good:
        raise Malformed(f"{where} is {reprlib.repr(value)}, expected {expected}")


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def is_clock(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def _is_walked(value: Any) -> bool:
    return isinstance(value, dict) and all(
        ADDRESS.fullmatch(at)
        and isinstance(pairs, list)
        and all(isinstance(pair, list) and len(pair) == 2 and all(map(is_count, pair)) for pair in pairs)
        for at, pairs in value.items()
    )


# {field: (check, what it is in words)}
Fields = Mapping[str, tuple[Callable[[Any], Any], str]]
TEXT = (lambda value: isinstance(value, str), "a text")
BOOL = (lambda value: isinstance(value, bool), "true or false")
COUNT = (is_count, "a whole number, not negative")
CLOCK = (is_clock, "a finite number")
UNIT = (lambda value: value in ("cycles", "s"), "cycles or s")
WALKED = (_is_walked, "lists of pairs of whole numbers by node")
PROGRESS = (lambda value: value is None or type(value) is int, "null or a whole number")
FAILURE: Fields = {
    "text": TEXT,
    "exit_status": (lambda value: type(value) is int and value in STATUSES, "1, 2, 3 or 4"),
}


def check_fields(value: Any, fields: Fields, what: str) -> dict:
    """`value`, an object with each of `fields` as it should be. Raises `Malformed`."""
    expect(isinstance(value, dict), what, value, f"an object with {', '.join(fields)}")
    for name, (check, expected) in fields.items():
        expect(name in value, what, value, f"an object with {', '.join(fields)}; {name} is missing")
        expect(check(value[name]), f"{name} of {what}", value[name], expected)
    return value


def walked_of(value: Mapping[str, list]) -> dict[int, list[tuple[int, int]]]:
    """`Transport.walked` of its JSON."""
    return {int(at): [tuple(pair) for pair in pairs] for at, pairs in value.items()}
