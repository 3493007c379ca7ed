"""Payloads between units and their controller: CU_SIGNAL, CU_CTRL and the CU_DATA descriptor.

Spec: payload layouts, endpoint base.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from .fields import Layout, field
from .flit import PAYLOAD_WIDTH

SIGNAL_ON_COMPLETE = 1  # bit 0 of the CU_DATA flags
CU_VERSION = 0x04  # of every unit, in CU_CAPS (spec: type codes)


class UnitType(IntEnum):
    """CU_TYPE codes: two ASCII characters for units, numbers for bench units."""

    CLUSTER = 0x4D47
    VECTOR = 0x5643
    RV32 = 0x5256
    LEGACY_MX = 0x4D58
    SAXPY = 0x5358
    TEMPLATE = 0x4B48
    BENCH_A = 0x0A10
    BENCH_E = 0x0E11


class SignalCode(IntEnum):
    INST_COMPLETE = 0x00
    BATCH_COMPLETE = 0x01
    BARRIER_REACHED = 0x02
    DATA_RECEIVED = 0x03
    FAULT = 0x04


UNIT_SIGNALS = 0x40  # codes from here up are a unit's own


class ControlOp(IntEnum):
    READ = 0
    WRITE = 1
    REPLY = 2


class ControlIndex(IntEnum):
    CAPS = 0
    STATUS = 1
    COUNTERS = 2
    DEBUG = 3
    L2_CAPS = 0xE0
    L2_BASE = 0xE1
    L2_ENABLE = 0xE2
    L2_COUNTERS = 0xE3


class Buffer(IntEnum):
    """CU_DATA buf_id by convention; a vector core has only buffer 0."""

    FIRST = 0
    SECOND = 1
    ACCUMULATOR = 2
    STAGING = 3


def _signal_code(v: Mapping[str, int]) -> str | None:
    """Codes 0x05 to 0x3f are reserved; units' own start at 0x40."""
    if max(SignalCode) < v["code"] < UNIT_SIGNALS:
        return f"code {v['code']:#04x} is reserved; units' own codes start at {UNIT_SIGNALS:#04x}"
    return None


CU_SIGNAL = Layout(
    "CU_SIGNAL",
    PAYLOAD_WIDTH,
    [
        field("code", 255, 248, "what happened", enum=SignalCode, open=True, hex=True),
        field("arg", 247, 216, "result, txn, buf_id or fault code", hex=True),
    ],
    "a unit's report to its controller",
    [_signal_code],
)

_INDEX = field("index", 247, 240, "register index", enum=ControlIndex, open=True, hex=True)
CU_CTRL_REQUEST = Layout(
    "CU_CTRL request",
    PAYLOAD_WIDTH,
    [
        field("op", 255, 248, "read or write; the endpoint base ignores it", enum=ControlOp),
        _INDEX,
        field("value", 239, 176, "value to write; addons only", hex=True),
    ],
    "register access of an endpoint",
)
CU_CTRL_REPLY = Layout(
    "CU_CTRL reply",
    PAYLOAD_WIDTH,
    [
        field("op", 255, 248, "marks a reply", default=ControlOp.REPLY, enum=ControlOp, fixed=True),
        _INDEX,
        field("value", 239, 176, "register value", hex=True),
    ],
    "the answer, to the request's source",
)
CU_CAPS = Layout(
    "CU_CAPS",
    64,
    [
        field("type", 63, 48, "CU_TYPE", enum=UnitType, open=True, hex=True),
        field("version", 47, 40, "CU_VERSION", hex=True),
        field("buffers", 39, 36, "buffers that CU_DATA may name"),
        field("inst_depth", 35, 20, "instruction FIFO depth"),
    ],
    "CU_CTRL index 0",
)
CU_STATUS = Layout(
    "CU_STATUS",
    64,
    [
        field("busy", 63, 63, "an instruction is queued or in flight, or a completion unsent"),
        field("error", 62, 62, "always 0"),
        field("inst_space", 47, 32, "free instruction FIFO entries"),
    ],
    "CU_CTRL index 1",
)
CU_COUNTERS = Layout(
    "CU_COUNTERS",
    64,
    [
        field("retired", 63, 32, "instructions retired since reset"),
        field("busy_cycles", 31, 0, "cycles busy since reset"),
    ],
    "CU_CTRL index 2; both wrap",
)
CLUSTER_DEBUG = Layout(
    "CU_DEBUG, cluster",
    64,
    [
        field("array_cycles", 63, 32, "cycles the array was busy"),
        field("fill_cycles", 31, 0, "cycles spent waiting in a FILL"),
    ],
    "CU_CTRL index 3 of a matmul cluster; cumulative",
)
VECTOR_DEBUG = Layout(
    "CU_DEBUG, vector core",
    64,
    [field("kernel_cycles", 31, 0, "cycles of the last or current RUN")],
    "CU_CTRL index 3 of a vector core",
)

CU_DATA = Layout(
    "CU_DATA descriptor",
    PAYLOAD_WIDTH,
    [
        field("buf", 255, 248, "receiver's buffer"),
        field("offset", 247, 232, "first granule of 32 bytes"),
        field("len", 231, 224, "data flits - 1"),
        field("flags", 223, 216, "bit 0: answer with DATA_RECEIVED; others 0", hex=True),
        field("ack_y", 215, 212, "row that DATA_RECEIVED goes to"),
        field("ack_x", 211, 208, "column that DATA_RECEIVED goes to; (0,0) answers the sender"),
    ],
    "first flit of a burst; len + 1 flits of 256 bits of data follow",
)
