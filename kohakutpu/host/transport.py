"""The one seam to a machine: 64-bit registers and memory, whatever answers behind them.

Loader, discovery and bring-up scripts see only this class and cannot tell a model, an RTL simulation and
a card apart (spec: driver view, transports).

Host address map of one mesh: the agent's 64 KB register window at `CONTROL_BASE`, and the mesh's whole
40-bit inside address space (DRAM, apertures) at `MEMORY_BASE`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

CONTROL_BASE = 0x1000_0000
CONTROL_SIZE = 0x1_0000
MEMORY_BASE = 1 << 40
MEMORY_SIZE = 1 << 40
WORD = 8


class TransportError(RuntimeError):
    """An access the transport cannot perform: names the address and what was expected."""


class NoTransport(TransportError):
    """The way to the machine could not be opened, or was lost: says which, and during what access."""

    exit_status = 3


class Unanswered(TransportError):
    """The way is open and an access got no answer in time: names the access, and what is known of the machine."""

    exit_status = 4


class Transport(ABC):
    """Little-endian 64-bit accesses at byte addresses that are multiples of 8.

    `write_block` and `read_block` are equivalent to ascending single words; lengths are multiples of 8.
    `bulk` says that blocks are much cheaper than words. `now` and `unit` are the transport's own clock
    (simulated cycles or seconds), in which time-outs are counted.
    """

    bulk: bool = False
    unit: str = "s"
    # What the artifact before left walked in the vector cores (`Artifact.walked`); the loader's to keep, here because
    # it is a state of the machine.
    walked: Mapping[int, list[tuple[int, int]]] = MappingProxyType({})

    @abstractmethod
    def write64(self, address: int, value: int) -> None: ...

    @abstractmethod
    def read64(self, address: int) -> int: ...

    @abstractmethod
    def write_block(self, address: int, data: bytes) -> None: ...

    @abstractmethod
    def read_block(self, address: int, length: int) -> bytes: ...

    @property
    @abstractmethod
    def now(self) -> float:
        """The transport's clock in `unit`."""

    def pause(self) -> None:
        """Wait a little between two polls."""

    @property
    def progress(self) -> int | None:
        """A count that moves while the machine works by itself; None where nobody can know."""
        return None

    def diagnose(self) -> str:
        """What the machine is doing, for the report of a time-out; empty where nobody can know."""
        return ""

    def close(self) -> None:
        """Let go of the machine."""

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()


def check_access(address: int, length: int, what: str) -> None:
    """Refuse an access that no transport may be asked for."""
    if not isinstance(address, int) or address < 0:
        raise TransportError(f"{what}: address {address!r} is not a non-negative integer")
    if address % WORD:
        raise TransportError(f"{what}: address {address:#x} is not a multiple of {WORD}")
    if length <= 0 or length % WORD:
        raise TransportError(f"{what} at {address:#x}: length {length} is not a positive multiple of {WORD}")


def locate(address: int, length: int, what: str) -> tuple[str, int]:
    """('control' or 'memory', offset inside that window) of a host access; refuses one outside both windows."""
    check_access(address, length, what)
    if CONTROL_BASE <= address and address + length <= CONTROL_BASE + CONTROL_SIZE:
        return "control", address - CONTROL_BASE
    if MEMORY_BASE <= address and address + length <= MEMORY_BASE + MEMORY_SIZE:
        return "memory", address - MEMORY_BASE
    raise TransportError(
        f"{what} of {length} bytes at {address:#x} is in no window: control is {CONTROL_BASE:#x}..+{CONTROL_SIZE:#x}, "
        f"memory {MEMORY_BASE:#x}..+{MEMORY_SIZE:#x}"
    )
