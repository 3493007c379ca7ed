"""Checks of component parameters, with one wording."""

from __future__ import annotations

from collections.abc import Mapping


def positive(owner: str, **values: object) -> None:
    """Refuse with `TypeError` what is not a positive integer; names are the parameters'."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TypeError(f"{owner} {name} must be a positive integer, not {value!r}")


def known_fault(owner: str, fault: str | None, faults: Mapping[str, str]) -> str | None:
    """`fault`, a deliberate bug for benches to find; refuses with `TypeError` a name that `owner` does not know."""
    if fault is not None and fault not in faults:
        raise TypeError(f"{owner} has no fault {fault!r}; there are: {', '.join(faults)}")
    return fault
