"""One line of text to an open `Transport`: `KIND[:ARGUMENT][,KEY=VALUE...]`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from kohakutpu.machine import Machine
from kohakutpu.model import faults as model_faults
from kohakutpu.model.system import System

from ..model_transport import ModelTransport
from ..transport import CONTROL_BASE, MEMORY_BASE, Transport
from . import jtag
from .recording import Recorder, Replay, check_target
from .simulator import SIMULATORS, SimulatorTransport
from .socket_transport import TIMEOUT, SocketTransport
from .stream import AddressError, parse_address
from .wrappers import Rebased
from .xdma import XdmaTransport, check_windows

Opener = Callable[[], Transport]  # of a text that is checked


class SpecError(ValueError):
    """A text that names no transport: says what was given and what is expected."""


def _nothing_but(options: Mapping[str, str], known: Iterable[str], what: str) -> None:
    if unknown := sorted(options.keys() - set(known)):
        raise SpecError(f"{what} has no option {', '.join(unknown)}; it has {', '.join(sorted(known)) or 'none'}")


def _no_faults(faults: list[str], what: str) -> None:
    if faults:
        raise SpecError(f"fault {faults[0]} cannot be planted through {what}: plant it where the machine is started")


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    """Option `name`, a decimal number or a hexadecimal one with 0x."""
    try:
        value = int(options.get(name, str(default)), 0)
    except ValueError:
        value = -1
    if value < 0:
        raise SpecError(f"{name}={options[name]}: expected a number, such as 0x800000")
    return value


def _seconds(options: Mapping[str, str], default: float = TIMEOUT) -> float:
    """Option `timeout`."""
    text = options.get("timeout", str(default))
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e6:
        raise SpecError(f"timeout={text}: expected a number of seconds")
    return value


def _address(argument: str, kind: str) -> tuple[str, int] | Path:
    try:
        return parse_address(argument)
    except AddressError as error:
        raise SpecError(f"{kind}:{argument}: {error}") from None


def _model(argument: str, options: Mapping[str, str], machine: Machine, faults: list[str]) -> Opener:
    if argument:
        raise SpecError(f"model:{argument}: the models take no argument")
    _nothing_but(options, (), "model")
    planted = model_faults.check(faults)
    return lambda: ModelTransport(System(machine, faults=planted))


def _rtl(argument: str, options: Mapping[str, str], machine: Machine, faults: list[str]) -> Opener:
    _nothing_but(options, ("waves", "timeout"), "rtl")
    simulator = argument or SIMULATORS[0]
    if simulator not in SIMULATORS:
        raise SpecError(f"rtl:{argument}: expected one of {', '.join(SIMULATORS)}")
    planted = {}
    for fault in faults:
        place, equals, name = fault.partition("=")
        if not (place and equals and name):
            raise SpecError(f"fault {fault!r} of the gates: expected place=name, such as cluster0=lane-tie")
        planted[place] = name
    waves = Path(options["waves"]) if "waves" in options else None
    return partial(
        SimulatorTransport, machine, simulator=simulator, faults=planted, waves=waves, timeout=_seconds(options)
    )


def _socket(argument: str, options: Mapping[str, str], machine: Machine, faults: list[str]) -> Opener:
    _no_faults(faults, "socket")
    _nothing_but(options, ("timeout",), "socket")
    return partial(SocketTransport, _address(argument, "socket"), machine, timeout=_seconds(options))


def _jtag(argument: str, options: Mapping[str, str], machine: Machine, faults: list[str]) -> Opener:
    _no_faults(faults, "jtag")
    _nothing_but(options, ("axi", "burst", "control", "memory", "scratch", "realign", "timeout"), "jtag")
    address = _address(argument, "jtag") if argument else jtag.ADDRESS
    if isinstance(address, Path):
        raise SpecError(f"jtag:{argument}: expected HOST:PORT")
    control, memory = _number(options, "control", CONTROL_BASE), _number(options, "memory", MEMORY_BASE)
    if (realign := options.get("realign", "0")) not in ("0", "1"):
        raise SpecError(f"realign={realign}: expected 0 or 1")
    burst = _number(options, "burst", jtag.BURST)
    jtag.check_burst(burst)
    link = partial(
        jtag.JtagTransport, address, control=control, scratch=memory + _number(options, "scratch", 0),
        master=options.get("axi", jtag.MASTER), burst=burst,
        realign=realign == "1", timeout=_seconds(options, jtag.TIMEOUT),
    )  # fmt: skip
    return lambda: Rebased(link(), control=control, memory=memory)


def _xdma(argument: str, options: Mapping[str, str], machine: Machine, faults: list[str]) -> Opener:
    _no_faults(faults, "xdma")
    _nothing_but(options, ("control", "memory", "registers"), "xdma")
    control, memory = _number(options, "control", 0), _number(options, "memory", MEMORY_BASE)
    check_windows(memory, registers := options.get("registers", "user"))
    return partial(XdmaTransport, argument or "/dev/xdma0", registers=registers, control=control, memory=memory)


def _record(argument: str, machine: Machine, faults: list[str]) -> Opener:
    path, colon, spec = argument.partition(":")
    if not (path and colon and spec):
        raise SpecError(f"record:{argument}: expected record:FILE:SPEC, such as record:session.jsonl:model")
    check_target(Path(path))
    opener = prepare(spec, machine, faults=faults)

    def record() -> Transport:
        inner = opener()
        try:
            return Recorder(inner, machine, Path(path), spec)
        except BaseException:
            inner.close()
            raise

    return record


def _replay(argument: str, options: Mapping[str, str], machine: Machine, faults: list[str]) -> Opener:
    _no_faults(faults, "replay")
    _nothing_but(options, (), "replay")
    if not argument:
        raise SpecError("replay: expected replay:FILE")
    return partial(Replay, Path(argument), machine)


# {kind: (how it is written, what checks that and gives its opener)}
KINDS: dict[str, tuple[str, Callable[[str, Mapping[str, str], Machine, list[str]], Opener]]] = {
    "model": ("model", _model),
    "rtl": ("rtl[:verilator|icarus]", _rtl),
    "socket": ("socket:PATH|HOST:PORT", _socket),
    "jtag": ("jtag[:HOST:PORT]", _jtag),
    "xdma": ("xdma[:/dev/xdma0]", _xdma),
    "replay": ("replay:FILE", _replay),
}


def open_transport(spec: str, machine: Machine, *, faults: Iterable[str] = ()) -> Transport:
    """The transport that `spec` names, open, to `machine` or to what should be one.

    `faults` are planted in the simulated machine: names for the models, `PLACE=NAME` for the gates. Raises as `prepare`
    does, and `NoTransport` when there is no way to the machine.
    """
    return prepare(spec, machine, faults=faults)()


def prepare(spec: str, machine: Machine, *, faults: Iterable[str] = ()) -> Opener:
    """What opens the transport that `spec` names; until it is called nothing is opened.

    Raises `SpecError` for a text that names no transport, `model.faults.UnknownFault` for a fault that no model has;
    the names of the gates' faults are known once those are built.
    """
    if spec.startswith("record:"):
        return _record(spec.removeprefix("record:"), machine, list(faults))
    head, *pairs = spec.split(",")
    kind, _, argument = head.partition(":")
    if kind not in KINDS:
        known = [usage for usage, _ in KINDS.values()]
        raise SpecError(f"no transport {kind!r}: expected one of {', '.join([*known, 'record:FILE:SPEC'])}")
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise SpecError(f"{spec}: {pair!r} is no option: expected name=value")
        if name in options:
            raise SpecError(f"{spec}: option {name} is given twice")
        options[name] = value
    return KINDS[kind][1](argument, options, machine, list(faults))
