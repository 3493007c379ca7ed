"""One line of text to an open `Transport`: `KIND[:ARGUMENT][,KEY=VALUE...]`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kohakutpu.machine import Machine
from kohakutpu.model.system import System

from ..model_transport import ModelTransport
from ..transport import Transport


class SpecError(ValueError):
    """A text that names no transport: says what was given and what is expected."""


def _nothing_but(options: Mapping[str, str], known: Iterable[str], what: str) -> None:
    if unknown := sorted(options.keys() - set(known)):
        raise SpecError(f"{what} has no option {', '.join(unknown)}; it has {', '.join(sorted(known)) or 'none'}")


def _model(argument: str, options: Mapping[str, str], machine: Machine, faults: list[str]) -> Transport:
    if argument:
        raise SpecError(f"model:{argument}: the models take no argument")
    _nothing_but(options, (), "model")
    return ModelTransport(System(machine, faults=faults))


# {kind: (how it is written, its opener)}
KINDS: dict[str, tuple[str, Callable[[str, Mapping[str, str], Machine, list[str]], Transport]]] = {
    "model": ("model", _model),
}


def open_transport(spec: str, machine: Machine, *, faults: Iterable[str] = ()) -> Transport:
    """The transport that `spec` names, open, to `machine` or to what should be one.

    `faults` are planted in the simulated machine: names for the models, `PLACE=NAME` for the gates. Raises `SpecError`
    for a text that names no transport, `NoTransport` when there is no way to the machine.
    """
    head, *pairs = spec.split(",")
    kind, _, argument = head.partition(":")
    if kind not in KINDS:
        raise SpecError(f"no transport {kind!r}: expected one of {', '.join(usage for usage, _ in KINDS.values())}")
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise SpecError(f"{spec}: {pair!r} is no option: expected name=value")
        if name in options:
            raise SpecError(f"{spec}: option {name} is given twice")
        options[name] = value
    return KINDS[kind][1](argument, options, machine, list(faults))
