"""What a unit says of itself in CU_CAPS and CU_STATUS, and what a description says it should (spec: endpoint base)."""

from __future__ import annotations

from dataclasses import dataclass

from kohakutpu.isa.signals import CU_CAPS, CU_STATUS, CU_VERSION, UnitType
from kohakutpu.machine import ClusterUnit, Machine, VectorUnit
from kohakutpu.wording import counted

CLUSTER_BUFFERS = 2  # published, although a cluster takes accumulator floats in a third
VECTOR_BUFFERS = {False: 1, True: 2}  # by whether the machine has the erratum caps-buffers
KINDS = {UnitType.CLUSTER: "matmul cluster", UnitType.VECTOR: "vector core", UnitType.RV32: "RV32 core"}


def kind_name(kind: int) -> str:
    """A CU_TYPE for people: its name, or else its two characters."""
    if kind in KINDS:
        return KINDS[kind]
    characters = kind.to_bytes(2, "big")
    text = characters.decode("ascii", "replace")
    return f"unit of type {kind:#06x}" + (f" ({text!r})" if text.isascii() and text.isprintable() else "")


@dataclass(frozen=True)
class Capabilities:
    """CU_CAPS by field: CU_TYPE, CU_VERSION, buffers that CU_DATA may name, and entries of the instruction FIFO."""

    type: int
    version: int
    buffers: int
    inst_depth: int

    @classmethod
    def decode(cls, value: int) -> Capabilities:
        """From the 64-bit word behind CU_CTRL index 0."""
        return cls(**CU_CAPS.decode(value))

    @property
    def name(self) -> str:
        return kind_name(self.type)

    def differences(self, other: Capabilities) -> list[str]:
        """What differs, a text for each field: this one's value first."""
        texts = {
            "type": lambda caps: caps.name,
            "version": lambda caps: f"version {caps.version:#04x}",
            "buffers": lambda caps: f"{counted(caps.buffers, 'buffer')}",
            "inst_depth": lambda caps: f"an instruction FIFO of {caps.inst_depth}",
        }
        return [
            f"{text(self)}, expected {text(other)}"
            for field, text in texts.items()
            if getattr(self, field) != getattr(other, field)
        ]


@dataclass(frozen=True)
class Status:
    """CU_STATUS by field; `space` is the free entries of the instruction FIFO. `error` is always 0 in hardware."""

    busy: int
    error: int
    space: int

    @classmethod
    def decode(cls, value: int) -> Status:
        """From the 64-bit word behind CU_CTRL index 1."""
        fields = CU_STATUS.decode(value)
        return cls(fields["busy"], fields["error"], fields["inst_space"])


def kind_of(unit: ClusterUnit | VectorUnit) -> UnitType:
    return UnitType.CLUSTER if isinstance(unit, ClusterUnit) else UnitType.VECTOR


def expected(machine: Machine, unit: ClusterUnit | VectorUnit) -> Capabilities:
    """What `unit` of `machine` has to answer."""
    kind = kind_of(unit)
    buffers = CLUSTER_BUFFERS if kind is UnitType.CLUSTER else VECTOR_BUFFERS["caps-buffers" in machine.errata]
    return Capabilities(kind, CU_VERSION, buffers, unit.inst_depth)
