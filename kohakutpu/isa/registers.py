"""The orchestrator's register window and the memory mover behind it (spec: register map, memory mover).

Every register is 64 bits at an 8-byte-aligned byte offset; the window repeats every 64 KiB. `REGISTERS`
lists them in address order, each is also a constant of this module, and `find` maps an offset back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import lru_cache

from .fields import EncodingError, Field, Layout, field
from .flit import FLIT_WIDTH, POS_WIDTH
from .signals import SignalCode

WINDOW = 1 << 16
REGISTER_BYTES = 8
FLIT_WORDS = 5  # 64-bit words of a flit in TX_FLIT, RX_FLIT and STAGE, low word first
STAGING_FLITS = 128  # slots unless a machine says otherwise


class Access(Enum):
    RW = "RW"
    RO = "RO"
    WO = "W"
    W1C = "W1C"
    RC = "R, write clears"


@dataclass(frozen=True)
class Register:
    """One register, or an array of `count` of them `REGISTER_BYTES` apart.

    `event` marks a register whose write is itself an action, whatever the value.
    """

    name: str
    offset: int
    access: Access
    meaning: str
    layout: Layout
    count: int = 1
    event: bool = False

    def at(self, index: int = 0) -> int:
        """The byte offset of element `index`."""
        if not 0 <= index < self.count:
            raise EncodingError(f"{self.name}[{index}]: the array has {self.count} elements")
        return self.offset + REGISTER_BYTES * index


REGISTERS: list[Register] = []


def _register(name, offset, access, meaning, fields: Iterable[Field] = (), *, count=1, event=False) -> Register:
    item = Register(name, offset, access, meaning, Layout(name, 64, fields, meaning), count, event)
    REGISTERS.append(item)
    return item


def _data(meaning: str) -> list[Field]:
    return [field("data", 63, 0, meaning, hex=True)]


CTRL = _register("CTRL", 0x0000, Access.RW, "storage only", _data("storage"))
STATUS = _register("STATUS", 0x0008, Access.RO, "agent state", [
    field("mesh_ready", 2, 2, "always 1"),
    field("error", 1, 1, "a write was refused or lowered: see IRQ_STAT"),
    field("busy", 0, 0, "TX FIFO not empty or dispatch running"),
])  # fmt: skip
CAPS = _register("CAPS", 0x0010, Access.RO, "what the machine is", [
    field("grid_hi", 39, 32, "last router row and column"),
    field("grid_lo", 31, 24, "first router row and column", default=1),
    field("pos_width", 23, 16, "bits of a coordinate", default=POS_WIDTH),
    field("flit_width", 15, 0, "bits of a flit", default=FLIT_WIDTH),
])  # fmt: skip
IRQ_STAT = _register("IRQ_STAT", 0x0018, Access.W1C, "sticky errors", [
    field("error", 0, 0, "a kick past the end of staging was ignored, or PROG_CRED above an instruction FIFO lowered"),
])  # fmt: skip
IRQ_EN = _register("IRQ_EN", 0x0020, Access.RW, "storage only, no interrupt output", _data("storage"))
PROG_DST = _register("PROG_DST", 0x0040, Access.RW, "node that a dispatch goes to, read live", [
    field("y", 7, 4, "row"), field("x", 3, 0, "column"),
])  # fmt: skip
PROG_LEN = _register("PROG_LEN", 0x0048, Access.RW, "flits of a dispatch", [field("flits", 15, 0, "flits")])
PROG_KICK = _register(
    "PROG_KICK", 0x0050, Access.WO, "start a dispatch; ignored while one runs or at length 0", _data("any value"),
    event=True,
)  # fmt: skip
PROG_STAT = _register("PROG_STAT", 0x0058, Access.RO, "dispatch state", [
    field("credit", 32, 17, "instructions that may still leave"),
    field("left", 16, 1, "flits left"),
    field("run", 0, 0, "dispatch running"),
])  # fmt: skip
PROG_CRED = _register(
    "PROG_CRED", 0x0060, Access.RW, "dispatch credit; a write wins over a concurrent change",
    [field("credit", 15, 0, "instructions that may be in flight")], event=True,
)  # fmt: skip
PROG_BASE = _register("PROG_BASE", 0x0068, Access.RW, "first staging slot", [field("slot", 15, 0, "slot")])
SIG_DONE = _register(
    "SIG_DONE", 0x0070, Access.RC, "CU_SIGNAL flits of all nodes", [field("count", 15, 0, "signals, wraps")], event=True
)
AUX_STAT = _register("AUX_STAT", 0x0078, Access.RO, "mover state and memory traffic", [
    field("moves", 63, 40, "moves done"),
    field("reads", 39, 24, "memory reads of all ports, wraps"),
    field("writes", 23, 8, "32-byte words written and acknowledged, all ports, wraps"),
    field("fault", 7, 4, "mover fault"),
    field("busy", 0, 0, "mover busy"),
])  # fmt: skip
AUX_STATW = _register(
    "AUX_STATW", 0x0080, Access.RO, "interlink status words, 0 without one", _data("status word"), count=16
)
TX_FLIT = _register(
    "TX_FLIT", 0x0100, Access.WO, "flit to send, low word first, byte strobes honoured", _data("flit word"),
    count=FLIT_WORDS,
)  # fmt: skip
TX_KICK = _register(
    "TX_KICK", 0x0140, Access.WO, "send TX_FLIT as it is; ignored while TX is full or dispatch runs",
    _data("any value"), event=True,
)  # fmt: skip
TX_STATUS = _register("TX_STATUS", 0x0148, Access.RO, "TX FIFO", [field("full", 16, 16, "TX FIFO full")])
RX_FLIT = _register(
    "RX_FLIT", 0x0180, Access.RO, "head of the RX FIFO, low word first; not popped by reading", _data("flit word"),
    count=FLIT_WORDS,
)  # fmt: skip
RX_POP = _register("RX_POP", 0x01C0, Access.WO, "drop the head of the RX FIFO", _data("any value"), event=True)
RX_STATUS = _register("RX_STATUS", 0x01C8, Access.RO, "RX FIFO", [
    field("overflow", 17, 17, "a flit arrived with RX full; sticky"), field("empty", 16, 16, "RX FIFO empty"),
])  # fmt: skip
AUX_CFG = _register(
    "AUX_CFG", 0x0800, Access.WO, "mover registers at 0x00..0x7F, interlink at 0x80..0xFF", _data("forwarded"),
    count=32, event=True,
)  # fmt: skip
NODE_STATUS = _register(
    "NODE_STATUS", 0x1000, Access.RO, "last signal of each node, indexed {y,x}; survives reset",
    [
        field("code", 63, 56, "signal code", enum=SignalCode, open=True, hex=True),
        field("arg", 55, 24, "signal argument", hex=True),
        field("count", 23, 8, "signals so far, wraps"),
        field("valid", 0, 0, "a signal was seen"),
    ],
    count=256,
)  # fmt: skip
STAGE = _register(
    "STAGE", 0x2000, Access.WO, "instruction flits: slot s, word w at index 5 s + w", _data("flit word"),
    count=(WINDOW - 0x2000) // REGISTER_BYTES // FLIT_WORDS * FLIT_WORDS,
)  # fmt: skip

BY_NAME = {item.name: item for item in REGISTERS}


def stage_offset(slot: int, word: int = 0) -> int:
    """The byte offset of word `word` of staging slot `slot`."""
    if not 0 <= word < FLIT_WORDS:
        raise EncodingError(f"STAGE: word {word} of a flit, which has {FLIT_WORDS}")
    return STAGE.at(slot * FLIT_WORDS + word)


@lru_cache(maxsize=1 << 14)
def find(offset: int, staging_flits: int = STAGING_FLITS) -> tuple[Register, int] | None:
    """The register and element index at byte `offset` of the window, or None where nothing answers.

    STAGE ends after `staging_flits` slots. Offsets repeat every 64 KiB; one that is not a multiple of 8
    names the register it lies in.
    """
    offset %= WINDOW
    for item in REGISTERS:
        count = staging_flits * FLIT_WORDS if item is STAGE else item.count
        if item.offset <= offset < item.offset + REGISTER_BYTES * min(count, item.count):
            return item, (offset - item.offset) // REGISTER_BYTES
    return None


def to_words(flit: int) -> tuple[int, ...]:
    """The five 64-bit register words of a 288-bit flit, low word first; the top half of the last is 0."""
    if flit < 0 or flit >> FLIT_WIDTH:
        raise EncodingError(f"{flit:#x} is wider than a {FLIT_WIDTH}-bit flit")
    return tuple((flit >> (64 * i)) & ((1 << 64) - 1) for i in range(FLIT_WORDS))


def from_words(words: Iterable[int]) -> int:
    """The 288-bit flit that five 64-bit register words hold; the top half of the last is not looked at."""
    words = list(words)
    if len(words) != FLIT_WORDS or any(word < 0 or word >> 64 for word in words):
        raise EncodingError(f"a flit takes {FLIT_WORDS} words of 64 bits, got {[hex(word) for word in words]}")
    return sum(word << (64 * i) for i, word in enumerate(words)) & ((1 << FLIT_WIDTH) - 1)


# ---- the AUX window: memory mover and interlink -------------------------------------------------------


class MoverMode(IntEnum):
    COPY = 0
    TRANSPOSE = 1
    GATHER = 2
    GENERATE = 3
    FILL = 4


class MoverFault(IntEnum):
    NONE = 0
    INDEX_LENGTH = 1
    RANGE = 2
    AXI = 3
    MODE = 4
    ELEMENT_WIDTH = 5
    ALIGNMENT = 6


class ElementWidth(IntEnum):
    BITS_8 = 0
    BITS_16 = 1
    BITS_32 = 2
    FAULTS = 3


class Walker(IntEnum):
    SOURCE = 0
    DESTINATION = 1


_WALKER = field("walker", 0, 0, "which walker", enum=Walker)
MOVER: dict[int, Layout] = {}


def _mover(offset: int, name: str, meaning: str, *fields: Field) -> Layout:
    MOVER[offset] = layout = Layout(name, 64, fields, meaning)
    return layout


MV_CONTROL = _mover(
    0x00, "MV_CONTROL", "start; honoured only when idle",
    field("go", 16, 16, "start"),
    field("burst", 15, 13, "burst cap: 0 is 128 beats, else 2^(v-1)"),
    field("coalesce", 11, 11, "coalesce writes"),
    field("width", 4, 3, "element width of the fill pattern", enum=ElementWidth),
    field("mode", 2, 0, "what to do; 5 to 7 are unspecified", enum=MoverMode),
)  # fmt: skip
MV_WALKER = _mover(
    0x10, "MV_WALKER", "commits a walker's header",
    field("dims", 46, 44, "dimensions, the last innermost"), field("base", 43, 4, "byte address", hex=True), _WALKER,
)  # fmt: skip
MV_DIM = _mover(
    0x18, "MV_DIM", "latches one dimension; MV_AXIS commits it",
    field("stride", 51, 20, "bytes", signed=True), field("count", 19, 4, "steps; 0 acts as 1"),
    field("dim", 3, 1, "dimension"), _WALKER,
)  # fmt: skip
MV_AXIS = _mover(
    0x20, "MV_AXIS", "commits the dimension that MV_DIM latched",
    field("step", 17, 2, "axis step", signed=True), field("axis", 1, 0, "axis tag: 0 none, 1, 2"),
)  # fmt: skip
MV_BOUNDS = _mover(
    0x28, "MV_BOUNDS", "one axis' range",
    field("extent", 33, 18, "0 is unbounded"), field("base", 17, 2, "first index", signed=True),
    field("axis", 1, 1, "which axis"), _WALKER,
)  # fmt: skip
MV_INDEX = _mover(
    0x30, "MV_INDEX", "gather's index vector",
    field("count", 55, 40, "indices, at most 2048"), field("addr", 39, 0, "byte address", hex=True),
)  # fmt: skip
MV_SEED = _mover(0x38, "MV_SEED", "generator key", field("seed", 63, 0, "Philox key", hex=True))
MV_VALUE = _mover(0x40, "MV_VALUE", "fill and padding", field("value", 31, 0, "immediate", hex=True))
MV_GATHER = _mover(
    0x50, "MV_GATHER", "gather rows",
    field("words", 47, 32, "words of a row"), field("pitch", 31, 0, "bytes between rows"),
)  # fmt: skip

LK_CONTROL = Layout("LK_CONTROL", 64, [
    field("clear_faults", 2, 2, "clear sticky faults"),
    field("clear_doorbells", 1, 1, "clear doorbell counts"),
    field("enable", 0, 0, "link enabled; 1 after reset"),
], "interlink control")  # fmt: skip
LK_MESH = Layout("LK_MESH", 64, [field("mesh", 1, 0, "own mesh id")], "interlink identity")
LK_DOORBELL = Layout("LK_DOORBELL", 64, [
    field("tag", 15, 8, "delivered with it"), field("mesh", 1, 0, "destination mesh"),
], "rings a doorbell")  # fmt: skip
INTERLINK: dict[int, Layout] = {0x80: LK_CONTROL, 0x88: LK_MESH, 0x90: LK_DOORBELL}
AUX: dict[int, Layout] = MOVER | INTERLINK


def aux_offset(offset: int) -> int:
    """The window offset that a mover or interlink offset of `AUX` answers at."""
    return AUX_CFG.at(offset // REGISTER_BYTES)
