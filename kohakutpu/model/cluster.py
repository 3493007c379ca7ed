"""The matmul cluster: sequencer, FILL, sweep, drains and inbound bursts on the endpoint base.

Timing is `docs/microarchitecture/cluster.md`; behaviour is the spec's cluster page. Registers hold their
start-of-cycle values through `unit_step`: its parts run in an order in which none sees what another has
changed in the same cycle, except where the document calls a path combinational.
"""

from __future__ import annotations

from kohakutpu.isa.cluster import FILL_LIMIT, Instruction, Op, Side, decode
from kohakutpu.isa.flit import Flit, FlitType, unpack_peers, xy
from kohakutpu.isa.memory import MEM_REQ
from kohakutpu.isa.signals import CLUSTER_DEBUG, CU_VERSION, Buffer, UnitType
from kohakutpu.machine import ClusterUnit, Machine
from kohakutpu.noc.engine import NEVER, Engine
from kohakutpu.wording import counted

from .cluster_drain import RESULT_QUEUE, Batch, Destination, Drain, Writer
from .cluster_l1 import Assembly, L1Side
from .cluster_receive import GRANULES_PER_TILE, Burst, Receiver
from .cluster_sweep import CHAIN, Sweep
from .cluster_tiles import REUSE_MIN, TileStore
from .endpoint import Endpoint

CAPS_BUFFERS = 2  # operand buffers; the accumulator (buffer 2) is not one of them, on the published unit either
READ_LEN = 3
PEER_LEAD = 3  # cycles from a peer stream's opening to its first ADD_PEER
COUNT_MASK = 0xFFFF
WORD32 = 0xFFFFFFFF

FAULTS = {
    "cluster-bank-stuck": "the bank bit of FILL writes into a cluster's L1 is stuck at 0",
    "cluster-l1-bit": "one significand bit of word 0 flips in every A entry that a cluster's L1 takes",
    "cluster-tile-bit": "a fraction bit of lane 0 of sub-tile 0 flips at every accumulation of a cluster",
    "cluster-pacing": "a cluster does not pace sweeps of fewer than 5 sub-tiles: the earlier of two close adds is lost",
    "cluster-last-dropped": "the final data flit of a cluster's burst leaves with last = 0",
    "cluster-drain-ack": "node drains of a cluster name no acknowledgement node, so that the answer comes back to it",
    "cluster-ack-source": "a cluster acknowledges a burst to its source, whatever node the descriptor names",
    "cluster-lost-completion": "a cluster's first DRAIN retires without its completion signal",
}
_L1_FLIP = 3  # byte of a packed entry: bit 249 of word 0 counted from the top, the low bit of its first slot
_L1_FLIP_BIT = 0x02


class Cluster(Endpoint):
    """A matmul cluster at `node`, whose FILLs and memory drains address the memory port at `port`.

    `unit` gives its sizes. Memories are zero at configuration: a tile that no LOAD has opened reads as zero.
    """

    def __init__(self, engine: Engine, name: str, unit: ClusterUnit, *, port: int,
                 faults: frozenset[str] = frozenset()):  # fmt: skip
        super().__init__(
            engine, name, node=unit.node, unit_type=UnitType.CLUSTER, version=CU_VERSION, buffers=CAPS_BUFFERS,
            inst_depth=unit.inst_depth, recv_depth=unit.recv_depth,
        )  # fmt: skip
        self.port = port
        self.faults = faults
        self.side = {Side.A: L1Side(unit.a_entries, "A"), Side.B: L1Side(unit.b_entries, "B")}
        self.assembly = Assembly()
        flip = 1 << (unit.mantissa - 10) if "cluster-tile-bit" in faults else 0
        self.tiles = TileStore(unit.tiles, unit.mantissa, flip=flip)
        self.receiver = Receiver(
            self.node,
            {
                Buffer.FIRST: self.side[Side.A].granules,
                Buffer.SECOND: self.side[Side.B].granules,
                Buffer.ACCUMULATOR: GRANULES_PER_TILE * unit.tiles,
            },
            to_source="cluster-ack-source" in faults,
        )
        self.writer = Writer(last_kept="cluster-last-dropped" not in faults)
        self.inst_word: Instruction | None = None  # the instruction register; None when idle
        self.taken_at = 0  # the cycle in which it was loaded
        self.request: Flit | None = None  # the FILL request, until it is sent
        self.landed = 0
        self.sweep: Sweep | None = None  # the last GEMM, running or done
        self.drain: Drain | None = None  # the last explicit DRAIN, running or done
        self.draining = False  # the explicit DRAIN in the instruction register has started
        self.peer_command = -REUSE_MIN  # the cycle of the last ADD_PEER
        self.operations = 0  # fills, GEMMs and drains completed
        self.malformed = False  # a burst was rejected since the last retirement
        self.drained = False  # a DRAIN has retired; for the injected fault
        self._fill_cycles = 0
        self._array_cycles = 0
        self._array_from = 0  # where the current unbroken span of array work began

    # ---- inbound -----------------------------------------------------------------------------------

    def accept(self, flit: Flit, now: int) -> bool:
        """Phase A: write acknowledgements are swallowed at the port, full FIFOs or not."""
        if flit.type == FlitType.MEM_WR_ACK:
            return True
        return super().accept(flit, now)

    def debug_counter(self, now: int) -> int:
        filling = 0
        if self.inst_word is not None and self.inst_word.op == Op.FILL:
            filling = now - 1 - self.taken_at
        return CLUSTER_DEBUG.pack(
            array_cycles=(self._array_cycles + self._array_span(now)) & WORD32,
            fill_cycles=(self._fill_cycles + filling) & WORD32,
        )

    def _array_span(self, now: int) -> int:
        """Cycles before `now` of the last unbroken span in which an issue was on its way to the accumulator."""
        if self.sweep is None:
            return 0
        return max(0, min(now, self.sweep.last_issue + CHAIN) - self._array_from)

    # ---- the clock ---------------------------------------------------------------------------------

    def unit_step(self, now: int) -> int:
        idle = self.inst_word is None
        filling = not idle and self.inst_word.op == Op.FILL
        requesting = self.request is not None
        answering = self.receiver.acknowledge is not None
        outstanding, clear = self.writer.outstanding, self.writer.idle
        ready = self.writer.next_flit(now)
        active = self._output(now, ready)
        active |= self._issue(now, outstanding)
        following = NEVER
        if not idle:
            following = self._sequence(now, requesting, clear)
            active |= self.inst_word is None
        elif self.instruction(now) is not None:
            self._take(now)
            active = True
        active |= self._receive(now, filling, requesting, answering)
        if active or (not ready and self.writer.next_flit(now)):
            return now + 1
        if self.receiver.state is Burst.PEER_WAIT:
            following = min(following, self._peer_settled())
        if self.sweep is not None and outstanding < RESULT_QUEUE:
            following = min(following, self.sweep.next_emit)
        if self.drain is not None and self.drain.issuing and self.drain.next > now:
            following = min(following, self.drain.next)
        writer = self.writer
        if writer.visible and writer.batch.destination is not None and writer.visible[0] > now:
            following = min(following, writer.visible[0])
        return following

    def _output(self, now: int, ready: bool) -> bool:
        """Load the output register: acknowledgement, then FILL request, then the drain."""
        receiver, writer = self.receiver, self.writer
        if receiver.acknowledge is None and self.request is None and not ready:
            return False
        if not self.may_send:
            self.wait_to_send()
            return False
        if receiver.acknowledge is not None:
            self.send(receiver.acknowledge)
            receiver.acknowledge = None
        elif self.request is not None:
            self.send(self.request)
            self.request = None
        else:
            self.send(writer.pop(now))
        return True

    def _issue(self, now: int, outstanding: int) -> bool:
        """The counters that add granules: an emitting sweep's last K block, an explicit drain."""
        sweep = self.sweep
        if sweep is not None and sweep.next_emit <= now and outstanding < RESULT_QUEUE:
            sweep.emit(now)
            self.writer.issue_emit(now + CHAIN)
            return True
        return self.drain is not None and self.drain.step(now, outstanding, self.writer)

    # ---- instructions ------------------------------------------------------------------------------

    def _take(self, now: int) -> None:
        """Load the instruction register; a FILL's request is due from the next cycle."""
        self.inst_word = inst = decode(self.take_instruction(now).payload)
        self.taken_at = now
        self.draining = False
        self.landed = 0
        leads = all(self.node < peer for peer in unpack_peers(inst.peers, inst.npeer))
        if inst.op == Op.FILL and inst.n <= FILL_LIMIT and leads:
            self.request = self._fill_request(inst)

    def _sequence(self, now: int, requesting: bool, clear: bool) -> int:
        """Start or retire the instruction in the register; returns when to look again (NEVER: on the next change).

        The flags are start-of-cycle registers: a FILL request is unsent, every granule of the batch is sent.
        """
        inst = self.inst_word
        if inst.op == Op.FILL:
            return self._fill(now, inst, requesting)
        if inst.op == Op.GEMM:
            return self._gemm(now, inst, clear)
        if inst.op == Op.DRAIN:
            return (self._fused if inst.fuse else self._explicit)(now, inst, clear)
        self._retire(now)
        return NEVER

    def _retire(self, now: int, *, fault: bool = False, counted: bool = False) -> None:
        self.operations += counted
        op, self.inst_word = self.inst_word.op, None
        self.complete(now, self.operations & COUNT_MASK, fault=fault or self.malformed)
        self.malformed = False
        if op == Op.DRAIN and not self.drained:
            self.drained = True
            if "cluster-lost-completion" in self.faults:
                self.completions.items.pop()

    def _fill(self, now: int, inst: Instruction, requesting: bool) -> int:
        """A FILL that asks for too much is refused; one whose data came before its request retires after it."""
        if inst.n > FILL_LIMIT or (self.landed >= max(inst.n, 1) and not requesting):
            self._fill_cycles += now - self.taken_at
            self._retire(now, fault=inst.n > FILL_LIMIT, counted=inst.n <= FILL_LIMIT)
        return NEVER

    def _fill_request(self, inst: Instruction) -> Flit:
        payload = MEM_REQ.pack(
            addr=inst.addr, len=READ_LEN, stream=1, blayout=inst.sel, quant=1 - inst.preq, count=max(inst.n, 1),
            peers=inst.peers, npeer=inst.npeer,
        )  # fmt: skip
        return Flit(self.port, self.node, FlitType.MEM_RD_REQ, inst.eoff, 1, 0, payload)

    def _gemm(self, now: int, inst: Instruction, clear: bool) -> int:
        batch = self.writer.batch
        if batch is not None:
            batch.bind()
        start = 0 if self.sweep is None else self.sweep.last_issue
        if now < start or self.receiver.state is Burst.PEER or (inst.emit and not clear):
            return start if start > now else NEVER
        if self.sweep is not None:
            self.sweep.evaluate(self.sweep.issues)
            if now >= self.sweep.last_issue + CHAIN:
                self._array_cycles += self._array_span(now)
                self._array_from = now + 1
        else:
            self._array_from = now + 1
        sides = self.side[Side.A], self.side[Side.B]
        paced = "cluster-pacing" not in self.faults
        self.sweep = sweep = Sweep(inst, now, *sides, self.tiles, before=self.sweep, paced=paced)
        if sweep.emits:
            self.writer.batch = Batch(sweep.subtiles, sweep.word, self._destination(inst), fused=True)
        self._retire(now, counted=True)
        return NEVER

    def _explicit(self, now: int, inst: Instruction, clear: bool) -> int:
        """A DRAIN that issues its own commands: starts when the accumulator is free, retires when all has left."""
        writer = self.writer
        if self.draining:
            return self._all_left(now, clear, fault=False)
        if writer.batch is not None:
            writer.batch.bind()
        start = max(self.sweep.settled if self.sweep else 0, self.peer_command + REUSE_MIN - 1)
        if now < start or self.receiver.state is Burst.PEER or not clear:
            return start if start > now else NEVER
        if self.sweep is not None:
            self.sweep.evaluate(self.sweep.issues)
        self.draining = True
        self.drain = drain = Drain(inst, now)
        words = self.tiles.send(0, drain.subtiles) if drain.floats else self.tiles.emit(0, drain.subtiles)
        writer.batch = Batch(len(words), lambda index, _: words[index], self._destination(inst), fused=False)
        return NEVER

    def _fused(self, now: int, inst: Instruction, clear: bool) -> int:
        """A DRAIN that only waits: it binds the emitting GEMM's batch to its own destination and sees it leave."""
        batch = self.writer.batch
        if batch is None or not batch.fused or batch.total != max(inst.n, 1):
            if batch is not None:
                batch.bind()
            return self._all_left(now, clear, fault=True)
        batch.bind(self._destination(inst))
        return self._all_left(now, clear, fault=False)

    def _all_left(self, now: int, clear: bool, *, fault: bool) -> int:
        """Retire a DRAIN once every granule is sent and the last flit has left the output register."""
        if clear:
            if self.out.flit is None or self.out.flit is not self.writer.sent:
                self._retire(now, fault=fault, counted=True)
            else:
                self.wait_to_send()
        return NEVER

    def _destination(self, inst: Instruction) -> Destination:
        if "cluster-drain-ack" in self.faults:
            inst = inst._replace(dack_x=0, dack_y=0)
        return Destination(inst, self.node, self.port)

    # ---- the receive FIFO --------------------------------------------------------------------------

    def _receive(self, now: int, filling: bool, requesting: bool, answering: bool) -> bool:
        """Pop at most one received flit; True when anything changed. The flags are start-of-cycle registers."""
        receiver = self.receiver
        opened = receiver.state is Burst.PEER_WAIT and self._open_peer(now)
        flit = self.receive(now)
        if flit is None:
            return opened
        if flit.type == FlitType.MEM_RD_RESP:
            if not filling or self.inst_word is None:
                return opened
            self._response(now, self.pop_receive(now), requesting)
        elif flit.type != FlitType.CU_DATA:
            self.pop_receive(now)
        elif receiver.state is Burst.NONE:
            if answering:
                return opened
            self.malformed |= not receiver.open(self.pop_receive(now))
        elif receiver.state is Burst.PEER_WAIT or opened:
            return opened
        else:
            self._data(now, self.pop_receive(now).payload)
        return True

    def _response(self, now: int, flit: Flit, requesting: bool) -> None:
        """A word of the FILL in flight, placed by its header."""
        inst = self.inst_word
        packed = self.assembly.put(flit.rsvd & (len(self.assembly.words) - 1), flit.payload)
        if packed is None:
            return
        side = self.side[Side(inst.sel)]
        bank = 0 if "cluster-bank-stuck" in self.faults else inst.fbank
        self._commit(now, side, side.address(bank, flit.txn), packed)
        self.landed += 1
        if self.landed >= max(inst.n, 1) and not requesting:
            self._fill_cycles += now - self.taken_at
            self._retire(now, counted=True)

    def _data(self, now: int, word: int) -> None:
        """A data flit of the open burst."""
        receiver = self.receiver
        if receiver.state is Burst.L1:
            entry, number = divmod(receiver.offset, len(self.assembly.words))
            packed = self.assembly.put(number, word)
            if packed is not None:
                side = self.side[Side.A if receiver.buf == Buffer.FIRST else Side.B]
                self._commit(now, side, entry, packed)
        elif receiver.state is Burst.PEER:
            tile, half = divmod(receiver.offset, GRANULES_PER_TILE)
            if half:
                self.tiles.add_peer(tile, receiver.low, word)
                self.peer_command = now + 1
            else:
                receiver.low = word
        receiver.advance()

    def _commit(self, now: int, side: L1Side, entry: int, packed: bytes) -> None:
        sweep = self.sweep
        if sweep is not None and sweep.needs(side, entry):
            sweep.evaluate(sweep.issued(now))  # what was issued by now reads the old entry
        if "cluster-l1-bit" in self.faults and side is self.side[Side.A]:
            packed = bytes([*packed[:31], packed[31] ^ _L1_FLIP_BIT, *packed[32:]])
        side.write(entry, packed)

    def _peer_settled(self) -> int:
        """The first cycle in which a peer stream may open, as far as earlier accumulator commands go."""
        last = self.peer_command
        if self.sweep is not None:
            last = max(last, self.sweep.last_issue + CHAIN)
        if self.drain is not None:
            last = NEVER if self.drain.issuing else max(last, self.drain.last_command)
        return last + REUSE_MIN - PEER_LEAD

    def _open_peer(self, now: int) -> bool:
        """Open the waiting stream when the accumulator is free; bind a batch that would keep it busy."""
        if self.writer.batch is not None:
            self.writer.batch.bind()
        if now < self._peer_settled():
            return False
        if self.sweep is not None:
            self.sweep.evaluate(self.sweep.issues)
        self.receiver.state = Burst.PEER
        return True

    # ---- for people --------------------------------------------------------------------------------

    def describe(self) -> list[str]:
        lines = super().describe()
        inst = self.inst_word
        batch = self.writer.batch
        if inst is not None and inst.op == Op.FILL:
            lines.append(
                f"  FILL of {counted(max(inst.n, 1), 'entry', plural='entries')} into {Side(inst.sel).name}: "
                f"{self.landed} have landed, "
                f"{'request not sent' if self.request else 'waiting for memory at ' + str(xy(self.port))}"
            )
        elif inst is not None:
            kind = Op(inst.op).name if inst.op in list(Op) else f"opcode {inst.op}"
            lines.append(f"  {kind} waits; {counted(self.operations, 'operation')} completed")
        if batch is not None and not self.writer.idle:
            bound = "" if batch.destination else ", not bound to a destination"
            lines.append(
                f"  {batch.taken} of {counted(batch.total, 'granule')} sent, {self.writer.outstanding} issued and "
                f"waiting{bound}"
            )
        lines += self.receiver.describe()
        return lines


def build_cluster(engine: Engine, spec: ClusterUnit, *, machine: Machine, errata: frozenset[str] = frozenset(),
                  faults: frozenset[str] = frozenset()) -> Cluster:  # fmt: skip
    """The cluster that `spec`, one of `machine.clusters`, describes.

    No erratum of the cluster is reproducible, so `errata` changes nothing here.
    """
    index = machine.clusters.index(spec)
    return Cluster(engine, f"cluster{index}", spec, port=machine.port_of(spec).node, faults=faults)
