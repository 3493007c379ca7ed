"""The vector core: an endpoint that runs kernels of 32-bit words over a flat L1.

Source: spec, vector core; timing is `docs/microarchitecture/vector-core.md`. This module is the unit at its
port: the CU_INST envelope, who sends in a cycle, and where arriving flits go.
"""

from __future__ import annotations

import numpy as np

from kohakutpu.isa.flit import FlitType
from kohakutpu.isa.signals import CU_VERSION, VECTOR_DEBUG, UnitType
from kohakutpu.isa.vector import Envelope, decode
from kohakutpu.machine import Machine, VectorUnit
from kohakutpu.model.endpoint import Endpoint
from kohakutpu.model.vector_datapath import Datapath
from kohakutpu.model.vector_memory import DrainEngine, FillEngine
from kohakutpu.model.vector_receive import PublishedReceiver, Receiver
from kohakutpu.model.vector_sequencer import Sequencer
from kohakutpu.noc.engine import NEVER, Engine

BUFFERS = 1
BUFFERS_PUBLISHED = 2
FAULTY_WORD, FAULTY_BIT = 3, 64

FAULTS = {
    "vector-alu-sign": "lane 3 of chunk 0 gives every ALU result with the wrong sign",
    "vector-stale-predicate": "a predicated write uses the bits of before the last compare",
    "vector-drain-slip": "every write burst of a drain but its first lands one word late",
    "vector-l1-bit": f"bit {FAULTY_BIT} of L1 word {FAULTY_WORD} flips whenever a flit is written there",
    "vector-lost-ack": "the first DATA_RECEIVED is never sent",
}


class VectorCore(Endpoint):
    """Vector core number `index`, at `spec`'s coordinate, bound to the memory port at node `port`.

    `errata` and `faults` are identifiers of `kohakutpu.errata` and `FAULTS`; those of other blocks are ignored.
    """

    def __init__(
        self, engine: Engine, spec: VectorUnit, *, port: int, index: int = 0, errata: frozenset[str] = frozenset(),
        faults: frozenset[str] = frozenset(),
    ):  # fmt: skip
        super().__init__(
            engine, f"vector{index}", node=spec.node, unit_type=UnitType.VECTOR, version=CU_VERSION,
            buffers=BUFFERS_PUBLISHED if "caps-buffers" in errata else BUFFERS,
            inst_depth=spec.inst_depth, recv_depth=spec.recv_depth,
        )  # fmt: skip
        self.path = Datapath(
            spec.l1_words, exp2_wrap="exp2-wrap" in errata,
            flip_sign="vector-alu-sign" in faults, stale_predicate="vector-stale-predicate" in faults,
        )  # fmt: skip
        self.fill = FillEngine(spec.node, port, spec.l1_words)
        self.drain = DrainEngine(spec.node, port, spec.l1_words, slip="vector-drain-slip" in faults)
        receiver = PublishedReceiver if "reject-silent" in errata else Receiver
        self.receiver = receiver(spec.node, spec.l1_words, lose_ack="vector-lost-ack" in faults)
        self.sequencer = Sequencer(self.path, self.fill, self.drain, self.receiver, self.settle, errata)
        self._flip_l1 = "vector-l1-bit" in faults
        self._retires: tuple[int, int, bool] | None = None  # (cycle, result, faulted) of an IMEM or DESC

    # ---- L1 ------------------------------------------------------------------------------------------------

    def settle(self, now: int) -> None:
        """Bring L1 and the registers to the end of cycle `now`, arriving flits of that cycle aside."""
        self.drain.capture(now, self._read)
        if self.path.pending:
            self.path.settle(now)

    def _read(self, word: int) -> int:
        return int.from_bytes(self.path.l1[word].tobytes(), "little")

    def _write(self, word: int, data: int, now: int) -> None:
        """A flit's payload into L1; every access of cycle `now` by the core itself comes first."""
        self.settle(now)
        if self._flip_l1 and word == FAULTY_WORD:
            data ^= 1 << FAULTY_BIT
        self.path.l1[word] = np.frombuffer(data.to_bytes(32, "little"), dtype=np.uint16)

    def l1_image(self) -> np.ndarray:
        """L1 after the last simulated cycle as uint32[words, 8], index 0 the lowest 32 bits; for benches."""
        self.settle(self.engine.now - 1)
        return self.path.l1.view(np.uint32).copy()

    def load_l1(self, image: np.ndarray) -> None:
        """Set L1 from uint32[words, 8] before a run; for benches."""
        self.path.l1[:] = np.ascontiguousarray(image, dtype=np.uint32).view(np.uint16)

    # ---- the clock -----------------------------------------------------------------------------------------

    def unit_step(self, now: int) -> int:
        following = self._instructions(now)
        sequencer = self.sequencer
        if sequencer.running:
            following = min(following, sequencer.step(now))
            if sequencer.outcome is not None:
                following = now + 1
        moved = self._send(now)
        if self.recv.items and not self.receiver.acks.full(now):
            moved |= self._receive(now)
        if moved:
            return now + 1
        return min(following, self._next_send(now))

    def _instructions(self, now: int) -> int:
        """Retire what has ended, or take the next instruction."""
        if self.in_flight is not None:
            ended = self._retires or self.sequencer.outcome
            if ended is None:
                return NEVER
            if ended[0] > now:
                return ended[0]
            self._retires = self.sequencer.outcome = None
            self.complete(now, ended[1], fault=ended[2])
            return NEVER
        if self.instruction(now) is None:
            return NEVER
        fields = decode(self.take_instruction(now).payload)
        sequencer = self.sequencer
        if fields.op == Envelope.RUN:
            sequencer.start(fields.pc, now)
            return NEVER
        if fields.op == Envelope.IMEM:
            sequencer.imem[fields.addr] = fields.word
        elif fields.op == Envelope.DESC:
            sequencer.descriptors[fields.ad].write(fields.field, fields.value, fields.stride, fields.bound)
        self._retires = (now + 1, 0, False)
        return now + 1

    def _send(self, now: int) -> bool:
        """One flit, if the output register is free: acknowledgement, read request, drain, in that order."""
        if not self.may_send:
            return False
        if self.receiver.acks.head(now) is not None:
            self.send(self.receiver.acks.pop(now))
        elif self.fill.ready(now):
            self.send(self.fill.request(now))
        elif self.drain.sendable(now) == now:
            self.drain.capture(now, self._read)
            self.send(self.drain.flit(now))
        else:
            return False
        return True

    def _next_send(self, now: int) -> int:
        """When to try to send again."""
        if self.receiver.acks.items or self.fill.ready(now + 1):
            first = now + 1
        else:
            first = self.drain.sendable(now + 1)
        if first < NEVER and self.out.flit is not None:
            self.wait_to_send()
            return NEVER
        return first

    def _receive(self, now: int) -> bool:
        """One flit from the receive FIFO."""
        if self.receive(now) is None:
            return False
        flit = self.pop_receive(now)
        word = None
        if flit.type == FlitType.MEM_RD_RESP:
            word = self.fill.place(flit.txn, now)
        elif flit.type == FlitType.CU_DATA:
            word = self.receiver.take(flit, now)
        if word is not None:
            self._write(word, flit.payload, now)
        return True

    def debug_counter(self, now: int) -> int:
        return VECTOR_DEBUG.encode(kernel_cycles=self.sequencer.counter(now))

    def describe(self) -> list[str]:
        """State for a hang report."""
        lines = super().describe()
        details = self.receiver.describe()
        if self.sequencer.running:
            details.append(self.sequencer.describe())
        if self.fill.open or self.fill.strays:
            details.append(self.fill.describe())
        if not self.drain.idle:
            details.append(self.drain.describe())
        return lines + [f"  {line}" for line in details]


def build_vector(
    engine: Engine, spec: VectorUnit, *, machine: Machine, errata: frozenset[str] = frozenset(),
    faults: frozenset[str] = frozenset(),
) -> VectorCore:  # fmt: skip
    """The vector core `spec` of `machine`; its links are connected by the caller."""
    index = machine.vectors.index(spec)
    return VectorCore(engine, spec, port=machine.ports[spec.port].node, index=index, errata=errata, faults=faults)
