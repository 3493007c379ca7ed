"""The peer bench of mm_mesh: one tile drained to the agent and to the vector core, compared through the transport.

Cluster (2,1), vector core (1,0), memory port (0,1); the bench stands at the agent's place (1,1) and is the only
source of instructions. The same tile is drained twice from the same L1, once to the bench and once into the
vector core, which writes its L1 back to memory; equality needs no float model. The scenario runs on anything that
offers `Port`, and makes 163 checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from kohakutpu.formats import mxfp7, words
from kohakutpu.isa import cluster, vector
from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.signals import CU_DATA, CU_SIGNAL, SignalCode
from kohakutpu.isa.vector import DescField, Opcode


class Places(NamedTuple):
    """Nodes that take part: the bench's, in the agent's place, a cluster and the vector core that it drains to."""

    agent: int
    cluster: int
    core: int


AGENT, CLUSTER, CORE = MM_MESH = Places(node(1, 1), node(2, 1), node(1, 0))
GM = GN = 3
NK = 2
TILES = GM * GN
TXN = 0x40  # every instruction's program id
UNIT_SCALE = mxfp7.SCALE_BIAS << 3
DRAINED, DOUBLED = 0x8000, 0x8800  # byte addresses of the copied and of the computed tile
CHECKS = 163


class Port(Protocol):
    """What a machine offers the bench."""

    def received(self) -> list[Flit]: ...  # everything that arrived at (1,1), in order
    def inject(self, flits: list[Flit]) -> None: ...
    def wait(self, condition: Callable[[], bool], budget: int) -> bool: ...
    def advance(self, cycles: int) -> None: ...
    def memory_word(self, index: int) -> bytes: ...


class Checks:
    """Counts what was checked and keeps what failed."""

    def __init__(self):
        self.count = 0
        self.errors: list[str] = []

    def check(self, holds: bool, what: str) -> None:
        self.count += 1
        if not holds:
            self.errors.append(what)

    def summary(self) -> str:
        return f"{self.count} checks, {len(self.errors)} errors"


def operands(seed: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Small integers A int8[12,64] and B int8[64,12]."""
    random = np.random.default_rng(seed)
    return (
        random.integers(-4, 4, (4 * GM, 32 * NK)).astype(np.int8),
        random.integers(-4, 4, (32 * NK, 4 * GN)).astype(np.int8),
    )


def _burst(at: Places, buffer: int, image: np.ndarray) -> list[Flit]:
    """A CU_DATA burst of operand words to the cluster's `buffer`."""
    data = words.to_ints(image.reshape(-1, 8))
    head = CU_DATA.encode(buf=buffer, offset=0, len=len(data) - 1)
    flit = Flit(at.cluster, at.agent, FlitType.CU_DATA, 0, 0, 0, head)
    return [flit, *(flit._replace(last=int(i == len(data) - 1), payload=word) for i, word in enumerate(data))]


def _instructions(target: int, agent: int, *payloads: int) -> list[Flit]:
    return [Flit(target, agent, FlitType.CU_INST, TXN, 0, 0, payload) for payload in payloads]


def to_core(*payloads: int, at: Places = MM_MESH) -> list[Flit]:
    """Instructions for the vector core."""
    return _instructions(at.core, at.agent, *payloads)


def _image(start: int, program: list[int]) -> list[int]:
    return [vector.IMEM.encode(addr=start + i, word=word) for i, word in enumerate(program)]


def _dim(ad: int, stride: int, bound: int) -> int:
    return vector.DESC_DIM.encode(ad=ad, field=DescField.DIM0, stride=stride, bound=bound)


def phases(a: np.ndarray, b: np.ndarray, at: Places = MM_MESH) -> list[list[Flit]]:
    """The 99 flits in four groups, each sent after the waits of the one before."""
    ones = np.full((TILES, mxfp7.LANES), UNIT_SCALE, np.uint8)
    entries_a = a.reshape(GM, 4, NK, 32).transpose(0, 2, 1, 3).reshape(-1, 4, 32)
    entries_b = b.T.reshape(GN, 4, NK, 32).transpose(0, 2, 1, 3).reshape(-1, 4, 32)
    gemm = cluster.GEMM.encode(gm=GM, gn=GN, nk=NK)
    ax, ay = at.agent & 15, at.agent >> 4
    drain = {"op": cluster.Op.DRAIN, "n": TILES, "nk": 0, "dnode": 1}  # the recorded bench leaves nk clear
    agent_drain = cluster.WORD.encode(**drain, dst_x=ax, dst_y=ay)
    core_drain = cluster.WORD.encode(**drain, dst_x=at.core & 15, dst_y=at.core >> 4, dflags=1, dack_x=ax, dack_y=ay)
    scales = ones[: len(entries_a)]
    first = _burst(at, 0, _first_word_scales(mxfp7.pack(entries_a, scales, "A")))
    first += _burst(at, 1, _first_word_scales(mxfp7.pack(entries_b, scales, "B")))
    first += _instructions(at.cluster, at.agent, gemm, agent_drain)
    second = _instructions(at.cluster, at.agent, gemm, core_drain)
    copy = [vector.encode(Opcode.VDRAIN, ad=0), vector.encode(Opcode.VHALT)]
    base = lambda ad, address: vector.DESC_BASE.encode(ad=ad, field=DescField.BASE, base=address)  # noqa: E731
    third = to_core(*_image(0, copy), base(0, DRAINED), _dim(0, 32, TILES), vector.RUN.encode(pc=0), at=at)
    double = [vector.encode(Opcode.VSETI), 16, vector.encode(Opcode.VSETVL), vector.encode(Opcode.VSETMODE)]
    for tile in range(TILES):
        double += [
            vector.encode(Opcode.VLD, ad=1, vd=0, offset=tile),
            vector.encode(Opcode.VADD, vd=1, va=0, vb=0, vc=0),
            vector.encode(Opcode.VST, ad=2, vd=1, offset=tile),
        ]
    double += [vector.encode(Opcode.VDRAIN, ad=3, l1=64), vector.encode(Opcode.VHALT)]
    fourth = to_core(
        *_image(8, double), base(1, 0), _dim(1, 1, 1), base(2, 64), _dim(2, 1, 1), base(3, DOUBLED), _dim(3, 32, TILES),
        vector.RUN.encode(pc=8), at=at,
    )  # fmt: skip
    return [first, second, third, fourth]


def _first_word_scales(image: np.ndarray) -> np.ndarray:
    """Operand words with the scale bytes in word 0 only, where the cluster reads them."""
    image = image.copy()
    image[:, 1:, 0] = 0
    return image


class _Seen:
    """What has arrived at the bench, by kind."""

    def __init__(self, port: Port):
        self.received = port.received

    def data(self) -> list[Flit]:
        return [flit for flit in self.received() if flit.type == FlitType.CU_DATA]

    def signals(self, source: int, *, data_received: bool) -> list[dict[str, int]]:
        found = [
            CU_SIGNAL.decode(f.payload) for f in self.received() if f.type == FlitType.CU_SIGNAL and f.src == source
        ]
        return [signal for signal in found if (signal["code"] == SignalCode.DATA_RECEIVED) == data_received]

    def fault(self) -> bool:
        return any(signal["code"] == SignalCode.FAULT for signal in self.signals(CORE, data_received=False))


def granules(data: list[Flit]) -> tuple[int, dict[int, bytes]]:
    """(number of descriptors, granule by offset) of the bursts in `data`."""
    descriptors, image, left, offset = 0, {}, 0, 0
    for flit in data:
        if left == 0:
            head = CU_DATA.decode(flit.payload)
            descriptors, left, offset = descriptors + 1, head["len"] + 1, head["offset"]
        else:
            image[offset] = flit.payload.to_bytes(32, "little")
            offset, left = offset + 1, left - 1
    return descriptors, image


def doubled(bits: int) -> int:
    """An FP16 pattern times two by its exponent; zeros and subnormals are left as they are."""
    return bits + 0x400 if bits & 0x7C00 else bits


def run(port: Port, a: np.ndarray, b: np.ndarray) -> Checks:
    """Run the bench; the result says how many checks were made and which failed."""
    checks, seen = Checks(), _Seen(port)
    first, second, third, fourth = phases(a, b)

    port.inject(first)
    came = port.wait(lambda: len(seen.data()) >= TILES + -(-TILES // 8), 200_000)
    checks.check(came, "the tile did not arrive within 200,000 cycles")
    descriptors, golden = granules(seen.data())
    checks.check(len(golden) == TILES, f"{len(golden)} data flits, expected {TILES}")
    checks.check(descriptors == -(-TILES // 8), f"{descriptors} descriptors, expected {-(-TILES // 8)}")

    port.inject(second)
    came = port.wait(lambda: len(seen.signals(CORE, data_received=True)) >= 2, 200_000)
    checks.check(came, "the acknowledgements did not arrive within 200,000 cycles")
    acks = seen.signals(CORE, data_received=True)
    checks.check(len(acks) == 2, f"{len(acks)} DATA_RECEIVED, expected 2")
    checks.check(bool(acks) and acks[-1]["arg"] == 0, f"the last acknowledgement names {acks[-1:]}, expected buffer 0")
    checks.check(not seen.fault(), "the vector core raised a fault on delivery")

    port.inject(third)
    came = port.wait(lambda: len(seen.signals(CORE, data_received=False)) >= 5, 400_000)
    port.advance(400)
    checks.check(came, "the vector core did not retire 5 instructions within 400,000 cycles")
    for tile in range(TILES):
        have = port.memory_word(DRAINED // 32 + tile)
        checks.check(
            have == golden.get(tile),
            f"sub-tile {tile} in memory is {have.hex()}, drained {golden.get(tile, b'').hex()}",
        )

    port.inject(fourth)
    came = port.wait(lambda: len(seen.signals(CORE, data_received=False)) >= 45, 400_000)
    port.advance(400)
    checks.check(came, "the vector core did not retire 45 instructions in all within 400,000 cycles")
    checks.check(not seen.fault(), "the vector core raised a fault in the epilogue")
    for tile in range(TILES):
        have = np.frombuffer(port.memory_word(DOUBLED // 32 + tile), "<u2")
        want = np.frombuffer(golden.get(tile, bytes(32)), "<u2")
        for lane in range(16):
            expected = doubled(int(want[lane]))
            checks.check(
                int(have[lane]) == expected, f"sub-tile {tile} lane {lane}: {have[lane]:04x}, expected {expected:04x}"
            )
    return checks
