"""What a FAULT signal means: its argument depends on the unit's type (spec: completion, vector core faults)."""

from __future__ import annotations

from collections.abc import Mapping

from kohakutpu.isa.flit import xy
from kohakutpu.isa.signals import SignalCode, UnitType
from kohakutpu.isa.vector import Fault
from kohakutpu.wording import counted

from .capabilities import kind_name
from .transport import TransportError

VECTOR_FAULTS: Mapping[int, str] = {
    Fault.F_DTYPE: "VLD, VST or VCVT with a format other than FP16 and FP32",
    Fault.F_VSRC: "a chain stage after the first reads V",
    Fault.F_CHAIN: "a FLAT word or the head of a chain reads C",
    Fault.F_OPCODE: "an opcode that does not go with the mode: VRED outside TREE, or no ALU word in a chain",
    Fault.F_LEN: "VFILL or VDRAIN of more than 256 words",
    Fault.F_LOOP: "VLOOP inside a loop",
    Fault.F_VL: "VSETVL of 0 or of more than 128",
    Fault.F_REDVL: "VRED with a vector length that is no multiple of 16",
    Fault.F_CUDATA: "an inbound CU_DATA burst was rejected or interleaved with another",
}


class UnitFault(TransportError):
    """A unit reported FAULT: what it was given is wrong, or the unit is."""

    exit_status = 1


def fault_text(kind: int | None, arg: int) -> str:
    """The argument of a FAULT signal in words; `kind` is the unit's CU_TYPE, None where nobody knows it."""
    if kind == UnitType.CLUSTER:
        return (
            "an inbound CU_DATA burst was rejected since the retirement before (no such buffer, past its end, or an "
            f"odd offset into accumulators); {counted(arg, 'operation')} completed since reset, modulo 65536"
        )
    if kind == UnitType.VECTOR:
        return (
            f"{Fault(arg).name}: {VECTOR_FAULTS[arg]}"
            if arg in VECTOR_FAULTS
            else f"code {arg:#x}, which no vector core has"
        )
    return (
        f"argument {arg:#x}"
        if kind is None
        else f"argument {arg:#x} of a {kind_name(kind)}, whose faults are not known"
    )


def check_fault(at: int, status: Mapping[str, int], kind: int | None, what: str) -> None:
    """Raise `UnitFault` when the last signal of node `at` (fields of NODE_STATUS) is a FAULT."""
    if status["valid"] and status["code"] == SignalCode.FAULT:
        x, y = xy(at)
        raise UnitFault(f"{what}: the unit at ({x},{y}) reports FAULT: {fault_text(kind, status['arg'])}")
