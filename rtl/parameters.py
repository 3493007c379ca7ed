"""Checks of component parameters, with one wording."""

from __future__ import annotations

from collections.abc import Mapping

from amaranth import Const

OFF = Const(0, 1)  # for a fault that may be planted by a signal and is not


def positive(owner: str, **values: object) -> None:
    """Refuse with `TypeError` what is not a positive integer; names are the parameters'."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TypeError(f"{owner} {name} must be a positive integer, not {value!r}")


def power_of_two(owner: str, least: int, most: int, **values: object) -> None:
    """Refuse with `TypeError` what is not a power of two from `least` to `most`; names are the parameters'."""
    positive(owner, **values)
    for name, value in values.items():
        if not least <= value <= most or value & (value - 1):
            raise TypeError(f"{owner} {name} must be a power of two from {least} to {most}, not {value!r}")


def within(owner: str, least: int, most: int, **values: object) -> None:
    """Refuse with `TypeError` what is not an integer from `least` to `most`; names are the parameters'."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise TypeError(f"{owner} {name} must be an integer from {least} to {most}, not {value!r}")


def known_fault(owner: str, fault: str | None, faults: Mapping[str, str]) -> str | None:
    """`fault`, a deliberate bug for benches to find; refuses with `TypeError` a name that `owner` does not know."""
    if fault is not None and fault not in faults:
        raise TypeError(f"{owner} has no fault {fault!r}; there are: {', '.join(faults)}")
    return fault
