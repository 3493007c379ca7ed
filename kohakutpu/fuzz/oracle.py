"""What a program must do, without time: an answer that owes nothing to the models.

Streams are carried out one after the other, instruction by instruction, by `cluster_reference` and `vector_reference`.
That is the answer only where order in time cannot show. So every access is noted, and a program in which two streams
of a phase meet at one word, or one runs into what it has not waited for, is not judged: `Unjudged` says where.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kohakutpu.formats import mxfp7, words
from kohakutpu.fuzz.accesses import Accesses, Unjudged
from kohakutpu.fuzz.cluster_reference import MW, Reference
from kohakutpu.fuzz.program import Program, Statement
from kohakutpu.fuzz.reach import reached
from kohakutpu.fuzz.vector_reference import Interpreter
from kohakutpu.isa import cluster, vector
from kohakutpu.isa.cluster import FILL_LIMIT, Op, Side
from kohakutpu.isa.flit import Flit, FlitType, node, unpack_peers
from kohakutpu.isa.framing import Framing
from kohakutpu.isa.memory import ADDRESS_WIDTH, ENTRY_WORDS, MEM_WR, WORD_BYTES, decode_request
from kohakutpu.isa.signals import (
    CU_DATA,
    SIGNAL_ON_COMPLETE,
    Buffer,
    SignalCode,
)  # fmt: skip
from kohakutpu.isa.vector import Envelope
from kohakutpu.model.cluster import Cluster
from kohakutpu.model.cluster_receive import Burst
from kohakutpu.model.system import System

SOURCE_WORDS = 8  # of an entry that is converted
PATIENCE = 5000  # instructions of one vector core and program
BURST = 8  # granules of a cluster's burst
ADDRESS_MASK = (1 << ADDRESS_WIDTH) - 1


class Arrival(NamedTuple):
    """A flit that the bench must get: from `src`, in the order of its kind. Zero payloads stand for any."""

    src: int
    kind: str
    what: tuple


def entries_of(source: list[int], blayout: bool) -> list[list[int]]:
    """The operand words of FP16 entries, eight 256-bit words each."""
    halves = words.from_ints(source).view("<u4").tobytes()
    q, scale = mxfp7.quantise(
        np.frombuffer(halves, dtype="<u2").reshape(-1, mxfp7.LANES, mxfp7.BLOCK).astype(np.uint16)
    )
    packed = words.to_ints(mxfp7.pack(q, scale, "B" if blayout else "A").reshape(-1, 8))
    return [packed[at : at + mxfp7.WORDS] for at in range(0, len(packed), mxfp7.WORDS)]


class ClusterState(Reference):
    """A cluster, its assembly register and the batch of its last emitting GEMM that nobody has sent."""

    def __init__(self, unit):
        super().__init__(unit.tiles.tiles, unit.side[Side.A].entries)
        self.sides = {side.name: unit.side[side].entries for side in Side}
        self.assembly = list(unit.assembly.words)
        self.batch: tuple | None = None  # (words, instruction) of an emitting GEMM, not sent yet
        last = unit.writer.batch
        self.fused = last.total if last is not None and last.fused else 0  # granules of the last batch, if a GEMM's
        self.operations = unit.operations
        self.emitting = False  # the last GEMM emits
        self.sweeping: set[tuple[str, int]] = set()  # entries that a sweep may still read
        if unit.sweep is not None:
            unit.sweep.evaluate(unit.sweep.issues)
        self.tiles = unit.tiles.words.tolist()
        for side in Side:
            ints = words.to_ints(unit.side[side].packed.view("<u4").reshape(-1, 8).astype(np.uint32))
            self.l1[side.name] = {at: ints[4 * at : 4 * at + 4] for at in range(len(ints) // 4)}

    def index(self, side: str, bank: int, offset: int) -> int:
        return (bank << 8 | offset & 255) % self.sides[side]


class VectorState(Interpreter):
    """A vector core as it is in the model, and who it tells of what it does."""

    def __init__(self, oracle: Oracle, unit):
        image = unit.l1_image()
        super().__init__(len(image))
        path, sequencer = unit.path, unit.sequencer
        self.oracle, self.node, self.port = oracle, unit.node, unit.fill.port
        self.v[:] = path.v.reshape(16, 8, 16)
        self.s, self.k = list(path.s), list(path.k)
        self.p[:] = path.p.reshape(4, 8, 16)
        self.vl, self.mode = sequencer.vl, int(sequencer.mode)
        self.l1 = words.to_ints(image)
        self.imem = list(sequencer.imem)
        self.base = [descriptor.base for descriptor in sequencer.descriptors]
        self.dims = [list(descriptor.dims) for descriptor in sequencer.descriptors]
        self.landing: set[int] = set()
        self.left = PATIENCE

    def fetch(self, address: int) -> int:
        return self.oracle.load(address)

    def store(self, address: int, word: int) -> None:
        self.oracle.save(address, word)

    def transmit(self, w, payloads: list[int]) -> None:
        record = vector.PEER_RECORD.decode(self.base[w.ad])
        head = CU_DATA.pack(
            buf=w.buf,
            offset=record["offset"],
            len=len(payloads) - 1,
            flags=w.signal,
            ack_y=record["ack_y"],
            ack_x=record["ack_x"],
        )
        self.oracle.deliver(self.node, node(w.x, w.y), head, payloads, record["fin"])

    def touched(self, word: int, *, write: bool = False, landing: bool = False) -> None:
        if word in self.landing and not landing:
            raise Unjudged(f"L1 word {word} is used before its fill has landed")
        self.oracle.accesses.note("l1", self.node, word, write=write)
        if landing:
            self.landing.add(word)

    def waited(self) -> None:
        self.landing.clear()

    def decoded(self, w) -> None:
        self.left -= 1
        if not self.left:
            raise Unjudged(f"a kernel of more than {PATIENCE} instructions")


def in_burst(unit) -> bool:
    """A unit of the models waits for the rest of a burst, or has not yet reported a refused one."""
    if isinstance(unit, Cluster):
        return unit.receiver.state is not Burst.NONE or unit.malformed
    return bool(unit.receiver.describe()) or unit.receiver.fault


class Oracle:
    """The answer for one program on `system`, from its state before; see `differences`."""

    def __init__(self, system: System):
        self.system = system
        self.agent = system.machine.agent.node
        self.ports = {port.node for port in system.machine.ports}
        self.size = system.memory.size
        self.reached = [self._receiver(at) for at in reached(system.machine)]
        self.memory: dict[int, int] = {}
        self.accesses = Accesses()
        self.arrivals: list[Arrival] = []
        types = {unit.node: ClusterState for unit in system.machine.clusters}
        self.units = {}
        for at, unit in system.units.items():
            self.units[at] = types[at](unit) if at in types else VectorState(self, unit)
            if at in types and unit.tiles.format.mantissa != MW:
                raise Unjudged(f"{unit.name} has a mantissa of {unit.tiles.format.mantissa} bits")
            if at in types and unit.writer.outstanding:
                raise Unjudged(f"{unit.name} still holds results of the program before")
            if in_burst(unit):
                raise Unjudged(f"{unit.name} is in a burst of the program before")

    def _receiver(self, at: int | None) -> int | None:
        """Who takes a flit that is not for the memory at node `at`."""
        if at in self.ports and not self.system.machine.agent.own_endpoint:
            return self.agent
        return at

    # ---- memory ------------------------------------------------------------------------------------------

    def load(self, address: int) -> int:
        """The word of memory that holds `address`; zero where there is none."""
        address &= ADDRESS_MASK & -WORD_BYTES
        if not self._inside(address, 1):
            return 0
        if self.accesses.written("memory", address):
            raise Unjudged(f"memory at {address:#x} is read in the phase that writes it")
        self.accesses.note("memory", address, write=False)
        if address not in self.memory:
            self.memory[address] = int.from_bytes(self.system.memory.read(address, WORD_BYTES), "little")
        return self.memory[address]

    def save(self, address: int, word: int) -> None:
        address &= ADDRESS_MASK & -WORD_BYTES
        if not self._inside(address, 1):
            return
        if self.accesses.read("memory", address):
            raise Unjudged(f"memory at {address:#x} is written in the phase that reads it")
        self.accesses.note("memory", address, write=True)
        self.memory[address] = word

    def _inside(self, address: int, count: int) -> bool:
        return (address & -WORD_BYTES) + WORD_BYTES * count <= self.size

    def words_at(self, address: int, count: int) -> list[int]:
        """What one read request returns: zeros when any of it is outside."""
        if not self._inside(address, count):
            return [0] * count
        return [self.load(address + WORD_BYTES * at) for at in range(count)]

    def entries(self, address: int, count: int, size: int, layout: int | None) -> list[list[int]]:
        """`count` entries of `size` words, or converted ones in A (0) or B (1) `layout`; zeros when any is outside."""
        if layout is not None:
            if not self._inside(address, SOURCE_WORDS * count):
                return [[0] * ENTRY_WORDS] * count
            return entries_of(self.words_at(address, SOURCE_WORDS * count), bool(layout))
        source = self.words_at(address, size * count)
        return [source[size * at : size * (at + 1)] for at in range(count)]

    def burst(self, address: int, payloads: list[int]) -> None:
        """One write burst, dropped when any of it is outside."""
        if self._inside(address, len(payloads)):
            for at, payload in enumerate(payloads):
                self.save(address + WORD_BYTES * at, payload)

    # ---- bursts between nodes ----------------------------------------------------------------------------

    def deliver(
        self, source: int, target: int, head: int, payloads: list[int], fin: int = 0, txn: int | None = None
    ) -> None:
        """A CU_DATA burst from `source`, to a unit, to the bench, or to nobody."""
        target = self.reached[target]
        unit, burst = self.units.get(target), CU_DATA.decode(head)
        if target == self.agent:
            last = len(payloads) - 1
            for at, payload in enumerate([head, *payloads], -1):
                self.arrivals.append(Arrival(source, "data", (int(at == last), payload)))
            return
        if unit is None:
            return
        self.accesses.note("burst", target, write=True)
        if isinstance(unit, VectorState):
            if burst["buf"] or burst["offset"] + len(payloads) > unit.words:
                raise Unjudged("a refused burst: when F_CUDATA is raised is a matter of time")
            for at, payload in enumerate(payloads, burst["offset"]):
                unit.touched(at, write=True)
                unit.l1[at] = payload
        else:
            self._into_cluster(unit, target, burst, payloads)
        if burst["flags"] & SIGNAL_ON_COMPLETE:
            answer = node(burst["ack_x"], burst["ack_y"]) or source
            if self.reached[answer] == self.agent:
                self.arrivals.append(Arrival(target, "received", (burst["buf"],)))

    def _into_cluster(self, unit: ClusterState, target: int, burst: dict, payloads: list[int]) -> None:
        buf, offset = burst["buf"], burst["offset"]
        limit = {
            Buffer.FIRST: 4 * unit.sides["A"],
            Buffer.SECOND: 4 * unit.sides["B"],
            Buffer.ACCUMULATOR: 2 * len(unit.tiles),
        }
        if offset + len(payloads) > limit.get(buf, 0) or (buf == Buffer.ACCUMULATOR and offset % 2):
            raise Unjudged("a refused burst: which completion reports it is a matter of time")
        if buf == Buffer.ACCUMULATOR:
            self.accesses.note("accumulator", target, write=True)
            unit.peer(offset, payloads)
            return
        side = "AB"[buf]
        self.accesses.note("assembly", target, write=True)
        for at, payload in enumerate(payloads, offset):
            unit.assembly[at % 4] = payload
            if at % 4 == 3:
                self._fill_entry(unit, target, side, at // 4, list(unit.assembly))

    def _fill_entry(self, unit: ClusterState, target: int, side: str, entry: int, block: list[int]) -> None:
        if (side, entry) in unit.sweeping:
            raise Unjudged(f"entry {entry} of {side} is replaced while a sweep may read it")
        self.accesses.note("entry", target, side, entry, write=True)
        unit.l1[side][entry] = block

    # ---- clusters ----------------------------------------------------------------------------------------

    def _complete(self, at: int, flit: Flit, fault: bool, arg: int | None = None) -> None:
        if flit.src != self.agent:
            return
        code = SignalCode.FAULT if fault else SignalCode.BATCH_COMPLETE if flit.last else SignalCode.INST_COMPLETE
        if code is SignalCode.BATCH_COMPLETE:
            arg = flit.txn
        self.arrivals.append(Arrival(at, "complete", (flit.txn, code, arg)))

    def cluster(self, at: int, flit: Flit) -> None:
        """One instruction of the cluster at node `at`."""
        unit: ClusterState = self.units[at]
        inst = cluster.decode(flit.payload)
        if inst.op not in (Op.FILL, Op.GEMM, Op.DRAIN):
            self._complete(at, flit, False, unit.operations & 0xFFFF)
            return
        if inst.op == Op.FILL and inst.n > FILL_LIMIT:
            self._complete(at, flit, True, unit.operations & 0xFFFF)
            return
        fault = {Op.FILL: self._fill, Op.GEMM: self._gemm, Op.DRAIN: self._drain}[inst.op](at, unit, inst)
        unit.operations += 1
        self._complete(at, flit, fault, unit.operations & 0xFFFF)

    def _fill(self, at: int, unit: ClusterState, inst) -> bool:
        peers = unpack_peers(inst.peers, inst.npeer)
        count = max(inst.n, 1)
        readers = [self.reached[peer] for peer in peers]
        if any(reader in self.units for reader in readers):
            raise Unjudged("a fill that other units take part in")
        if not all(at < peer for peer in peers):
            raise Unjudged("a fill that another unit leads")
        blocks = self.entries(inst.addr, count, ENTRY_WORDS, inst.sel if not inst.preq else None)
        port = self.system.units[at].port
        for entry, block in enumerate(blocks):
            self._responses(port, readers, block, (inst.eoff + entry) & 0xFF)
            self.accesses.note("assembly", at, write=True)
            self._fill_entry(
                unit, at, Side(inst.sel).name, unit.index(Side(inst.sel).name, inst.fbank, inst.eoff + entry), block
            )
        unit.assembly = list(blocks[-1])
        return False

    def _gemm(self, at: int, unit: ClusterState, inst) -> bool:
        self._send_batch(at, unit)
        gm, gn, nk = max(inst.gm, 1), max(inst.gn, 1), max(inst.nk, 1)
        reads = {("A", unit.index("A", inst.abank, inst.aoff + step)) for step in range(gm * nk)}
        reads |= {("B", unit.index("B", inst.bbank, inst.boff + step)) for step in range(gn * nk)}
        for side, entry in reads:
            self.accesses.note("entry", at, side, entry, write=False)
        self.accesses.note("accumulator", at, write=True)
        unit.sweeping |= reads
        emitted = unit.gemm(
            inst.gm, inst.gn, inst.nk, acc=inst.acc, anchor=inst.anchor, aoff=inst.aoff, boff=inst.boff,
            abank=inst.abank, bbank=inst.bbank,
        )  # fmt: skip
        if inst.emit:
            unit.batch, unit.fused = (emitted, inst), len(emitted)
        unit.emitting = bool(inst.emit)
        return False

    def _send_batch(self, at: int, unit: ClusterState, inst=None) -> None:
        """The batch that waits goes to its GEMM's destination, or to that of the instruction `inst`."""
        if unit.batch is not None:
            (granules, own), unit.batch = unit.batch, None
            self._send(at, granules, inst or own)

    def _drain(self, at: int, unit: ClusterState, inst) -> bool:
        count = max(inst.n, 1)
        if inst.fuse:
            fits = unit.fused == count
            self._send_batch(at, unit, inst if fits else None)
            if unit.emitting and fits:
                unit.sweeping.clear()
            return not fits
        self._send_batch(at, unit)
        self.accesses.note("accumulator", at, write=True)
        floats = inst.dnode and inst.dbuf == Buffer.ACCUMULATOR
        self._send(at, unit.send(count) if floats else unit.emit(count), inst)
        unit.fused = 0
        unit.sweeping.clear()
        return False

    def _send(self, at: int, granules: list[int], inst) -> None:
        target = node(inst.dst_x, inst.dst_y)
        for first in range(0, len(granules), BURST):
            part, index = granules[first : first + BURST], first & 0xFFFF
            if not inst.dnode:
                self.burst((inst.addr + WORD_BYTES * index) & ADDRESS_MASK, part)
                continue
            head = CU_DATA.pack(
                buf=inst.dbuf, offset=((inst.addr >> 5) + index) & 0xFFFF, len=len(part) - 1, flags=inst.dflags,
                ack_y=inst.dack_y, ack_x=inst.dack_x,
            )  # fmt: skip
            self.deliver(at, target, head, part)

    # ---- vector cores ------------------------------------------------------------------------------------

    def vector(self, at: int, flit: Flit) -> None:
        """One instruction of the vector core at node `at`."""
        unit: VectorState = self.units[at]
        inst = vector.decode(flit.payload)
        if inst.op == Envelope.RUN:
            fault = unit.run(unit.imem, inst.pc)
            if fault and unit.landing:
                raise Unjudged("a fault while a fill is on its way")
            self._complete(at, flit, bool(fault), fault or None)
            return
        if inst.op == Envelope.IMEM:
            unit.imem[inst.addr] = inst.word
        elif inst.op == Envelope.DESC:
            unit.describe(inst.ad, inst.field, inst.value)
        self._complete(at, flit, False, 0)

    # ---- what the bench sends ----------------------------------------------------------------------------

    def _responses(self, port: int, readers: list[int | None], block: list[int], txn: int, entry: bool = True) -> None:
        """One unit of a read's answer, to each of those of `readers` that is the bench."""
        for _ in range(readers.count(self.agent)):
            self.accesses.note("responses", port, write=True)
            for at, word in enumerate(block):
                last = int(at == len(block) - 1)
                self.arrivals.append(Arrival(port, "response", (txn, last, at if entry else 0, word)))

    def _read(self, flit: Flit) -> None:
        request = decode_request(flit.payload)
        plain = not (request.stream or request.quant)
        peers = () if plain else unpack_peers(request.peers, request.npeer)
        readers = [self.reached[reader] for reader in (flit.src, *peers)]
        if any(reader in self.units for reader in readers):
            raise Unjudged("a read that answers to a unit which has not asked")
        if plain:
            self._responses(flit.dst, readers, self.words_at(request.addr, request.len + 1), flit.txn, entry=False)
            return
        count = max(request.count, 1) if request.stream else 1
        size = request.entry_words if 1 <= request.entry_words <= ENTRY_WORDS else ENTRY_WORDS
        blocks = self.entries(request.addr, count, size, request.blayout if request.quant else None)
        for at, block in enumerate(blocks):
            self._responses(flit.dst, readers, block, (flit.txn + at) & 0xFF)

    def _statement(self, statement: Statement) -> None:
        framing = Framing()
        burst: list[Flit] = []
        for flit in statement.flits:
            unit = self.units.get(flit.dst)
            if flit.type == FlitType.CU_INST:
                if unit is not None:
                    (self.vector if isinstance(unit, VectorState) else self.cluster)(flit.dst, flit)
            elif flit.type == FlitType.CU_DATA:
                self._gather(flit, burst, CU_DATA, framing.is_descriptor(flit))
            elif flit.type in (FlitType.MEM_WR_REQ, FlitType.MEM_WR_DATA) and flit.dst in self.ports:
                self._gather(flit, burst, MEM_WR, flit.type == FlitType.MEM_WR_REQ)
            elif flit.type == FlitType.MEM_RD_REQ and flit.dst in self.ports:
                self._read(flit)
            elif flit.type == FlitType.MEM_RD_RESP and unit is not None:
                raise Unjudged("a response that nobody has asked for")
        if burst:
            raise Unjudged("a burst that is cut short")

    def _gather(self, flit: Flit, burst: list[Flit], layout, first: bool) -> None:
        """Collect the flits of one burst, and carry it out when it is whole."""
        if first and burst:
            raise Unjudged("a burst inside a burst")
        burst.append(flit)
        head = burst[0]
        if layout is MEM_WR and head.type != FlitType.MEM_WR_REQ:
            raise Unjudged("write data without a write")
        total = layout.get(head.payload, "len") + 1
        if len(burst) <= total:
            if flit.last:
                raise Unjudged("a burst that says `last` early")
            return
        if not flit.last:
            raise Unjudged("a burst without `last`")
        payloads = [each.payload for each in burst[1:]]
        burst.clear()
        if layout is CU_DATA:
            self.deliver(head.src, head.dst, head.payload, payloads)
            return
        if total <= BURST:
            self.burst(MEM_WR.get(head.payload, "addr"), payloads)
        if head.src == self.agent:
            self.accesses.note("acknowledgements", head.dst, write=True)
            self.arrivals.append(Arrival(head.dst, "ack", (head.txn,)))

    def run(self, program: Program) -> None:
        """Carry out `program`. Raises `Unjudged`."""
        for streams in program.phases():
            self.accesses.clear()
            for name, statements in streams.items():
                self.accesses.stream = name
                for statement in statements:
                    self._statement(statement)
            for unit in self.units.values():
                if isinstance(unit, ClusterState):
                    if unit.batch is not None:
                        raise Unjudged("results that nobody sends")
                    unit.sweeping.clear()
                elif unit.landing:
                    raise Unjudged("a fill that nobody waits for")
