"""The matmul cluster: sequencer, FILL, sweep, drains and inbound bursts on the endpoint base.

Timing: docs/microarchitecture/cluster.md, cycle for cycle; behaviour: spec, cluster.
"""

from __future__ import annotations

from amaranth import Array as Choice
from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.cluster import FILL_LIMIT, Op
from kohakutpu.isa.flit import FlitType, node
from kohakutpu.isa.memory import MEM_REQ
from kohakutpu.isa.signals import CLUSTER_DEBUG, UnitType

from .cluster_accumulator import FAULTS as ACCUMULATOR_FAULTS
from .cluster_accumulator import Accumulator, Command
from .cluster_array import Array
from .cluster_drain import RESULT_QUEUE, Drain, Writer, sends_floats
from .cluster_l1 import WORDS, Delay, L1Side
from .cluster_receive import Receiver, State
from .cluster_sweep import INSTRUCTION, Sweep
from .endpoint import EndpointBase
from .link import FLIT, LinkSignature, view
from .parameters import known_fault

VERSION = 0x04
CAPS_BUFFERS = 2
READ_LEN = 3
TO_OPERANDS = 3  # counter issue to the array's operands
CHAIN = 20  # counter issue to the accumulator command
DRAIN_AFTER = (19, 23)  # countdown after an issue until an explicit DRAIN may start: wide, narrow
DRAIN_AFTER_PEER = 3
PEER_AFTER_ISSUE = 21  # countdown after an issue until a peer stream may open
PEER_AFTER_COMMAND = 1

FAULTS = {
    **ACCUMULATOR_FAULTS,
    "cluster-bank-stuck": "the bank bit of FILL writes is stuck at 0",
    "cluster-pacing": "narrow sweeps are not paced",
    "cluster-last-dropped": "the final data flit of a burst leaves with last = 0",
    "cluster-ack-source": "bursts are acknowledged to their source, whatever node the descriptor names",
    "cluster-lost-completion": "the first DRAIN never retires",
    "cluster-early-drain": "an explicit DRAIN starts while the array still runs",
}


class Cluster(wiring.Component):
    """A cluster at (`x`, `y`) bound to the memory port at `port`; sizes as `machine.ClusterUnit` has them.

    Members: `in_link`, `out_link`.
    """

    def __init__(self, *, x: int, y: int, port: tuple[int, int], tiles: int, a_entries: int, b_entries: int, mantissa: int,
                 inst_depth: int, recv_depth: int, fault: str | None = None):  # fmt: skip
        self.planted = known_fault("Cluster", fault, FAULTS)
        self.at = (x, y)
        self.port = port
        self.tiles = tiles
        self.entries = (a_entries, b_entries)
        self.mantissa = mantissa
        self.depths = (inst_depth, recv_depth)
        super().__init__({"in_link": In(LinkSignature()), "out_link": Out(LinkSignature())})

    def elaborate(self, platform):
        m = Module()
        x, y = self.at
        tile_bits = (self.tiles - 1).bit_length()
        m.submodules.base = base = EndpointBase(
            x=x, y=y, unit_type=UnitType.CLUSTER, version=VERSION, buffers=CAPS_BUFFERS, inst_depth=self.depths[0],
            recv_depth=self.depths[1],
        )  # fmt: skip
        m.submodules.l1_a = l1_a = L1Side(entries=self.entries[0], layout="A")
        m.submodules.l1_b = l1_b = L1Side(entries=self.entries[1], layout="B")
        m.submodules.sweep = sweep = Sweep(tile_bits=tile_bits, paced=self.planted != "cluster-pacing")
        m.submodules.array = array = Array()
        accumulator_fault = self.planted if self.planted in ACCUMULATOR_FAULTS else None
        m.submodules.accumulator = accumulator = Accumulator(tiles=self.tiles, mantissa=self.mantissa, fault=accumulator_fault)
        m.submodules.drain = drain = Drain(tile_bits=tile_bits)
        m.submodules.writer = writer = Writer(x=x, y=y, port=self.port, drop_last=self.planted == "cluster-last-dropped")
        m.submodules.receiver = receiver = Receiver(
            x=x, y=y, limits=(4 * self.entries[0], 4 * self.entries[1], 2 * self.tiles), word=accumulator.word,
            ack_to_source=self.planted == "cluster-ack-source",
        )  # fmt: skip

        # Write acknowledgements are swallowed at the port, full FIFOs or not.
        swallowed = self.in_link.flit.type == FlitType.MEM_WR_ACK
        m.d.comb += [
            base.in_link.flit.eq(self.in_link.flit),
            base.in_link.valid.eq(self.in_link.valid & ~swallowed),
            self.in_link.busy.eq(base.in_link.busy & ~swallowed),
        ]
        wiring.connect(m, wiring.flipped(self.out_link), base.out_link)

        # ---- sequencer -------------------------------------------------------------------------------------
        inst = Signal(INSTRUCTION)
        valid, draining, requesting, malformed = Signal(), Signal(), Signal(), Signal()
        landed, operations = Signal(9), Signal(16)
        loading = data.View(INSTRUCTION, base.inst.payload)
        is_fill, is_gemm, is_drain = (valid & (inst.op == op) for op in (Op.FILL, Op.GEMM, Op.DRAIN))
        explicit, fused = is_drain & ~inst.fuse, is_drain & inst.fuse
        too_long = inst.n > FILL_LIMIT
        wanted = Mux(inst.n == 0, 1, inst.n)
        sequenced = Signal()  # the sequencer retires in this cycle, whatever arrives
        arrived = Signal()  # the FILL's last word is popped in this cycle
        wrong, counts = Signal(), Signal()
        with m.If(valid & ~is_fill & ~is_gemm & ~is_drain):
            m.d.comb += sequenced.eq(1)
        with m.If(is_fill):
            m.d.comb += [
                sequenced.eq(too_long | ((landed >= wanted) & ~requesting)), wrong.eq(too_long), counts.eq(~too_long),
            ]  # fmt: skip

        start_gemm, start_drain = Signal(), Signal()
        peer_open = receiver.state == State.PEER
        drain_wait, peer_wait = Signal(range(DRAIN_AFTER[1] + 1)), Signal(range(PEER_AFTER_ISSUE + 1))
        ready = (drain_wait == 0) & ~sweep.running & ~receiver.pair
        if self.planted == "cluster-early-drain":
            ready = ~sweep.running
        m.d.comb += [
            start_gemm.eq(is_gemm & sweep.free & ~peer_open & (~inst.emit | writer.clear)),
            start_drain.eq(explicit & ~draining & ready & ~peer_open & writer.clear),
        ]
        # The writer's last flit has left the output register, or leaves it in this cycle.
        held = Signal()
        drained = writer.clear & (~held | base.out_free)
        mismatch = ~writer.has_fused | (writer.size != wanted)
        with m.If(is_gemm):
            m.d.comb += [sequenced.eq(start_gemm), counts.eq(1)]
        with m.If(explicit):
            m.d.comb += [sequenced.eq(draining & drained), counts.eq(1)]
        with m.If(fused):
            m.d.comb += [sequenced.eq(drained), counts.eq(1), wrong.eq(mismatch)]
        if self.planted == "cluster-lost-completion":
            first = Signal(init=1)
            with m.If(is_drain & sequenced):
                m.d.sync += first.eq(0)
            m.d.comb += base.done.eq((sequenced | arrived) & ~(first & is_drain))
        else:
            m.d.comb += base.done.eq(sequenced | arrived)
        retire = sequenced | arrived
        m.d.comb += [base.result.eq((operations + counts)[:16]), base.fault.eq(wrong | malformed)]
        with m.If(retire):
            m.d.sync += [valid.eq(0), operations.eq((operations + counts)[:16]), malformed.eq(0)]
        with m.If(receiver.rejected):
            m.d.sync += malformed.eq(1)

        leads = Signal(init=1)
        own = node(x, y)
        leading = 1
        for index in range(3):
            peer = loading.peers[8 * index : 8 * index + 8]
            leading = leading & ((loading.npeer <= index) | (own < peer))
        m.d.comb += [leads.eq(leading), base.inst_take.eq(~valid & base.inst_valid)]
        with m.If(base.inst_take):
            m.d.sync += [
                inst.eq(base.inst.payload), valid.eq(1), draining.eq(0), landed.eq(0),
                requesting.eq((loading.op == Op.FILL) & (loading.n <= FILL_LIMIT) & leads),
            ]  # fmt: skip
        with m.If(start_drain):
            m.d.sync += draining.eq(1)

        # ---- sweep, array, accumulator ---------------------------------------------------------------------
        m.d.comb += [
            sweep.start.eq(start_gemm), sweep.inst.eq(inst), sweep.room.eq(writer.outstanding < RESULT_QUEUE),
            drain.start.eq(start_drain), drain.inst.eq(inst), drain.outstanding.eq(writer.outstanding),
        ]  # fmt: skip
        for side, entry in ((l1_a, sweep.a_entry), (l1_b, sweep.b_entry)):
            address = Signal(9, name=f"entry_{side.layout.lower()}")
            m.d.sync += address.eq(entry)
            m.d.comb += side.entry.eq(address)
        m.d.comb += [array.a.eq(l1_a.operand), array.b.eq(l1_b.operand)]
        m.submodules.commands = commands = Delay(width=3 + tile_bits + 8, cycles=CHAIN)
        m.submodules.scales = scales = Delay(width=64, cycles=CHAIN - TO_OPERANDS)
        issued = Signal(CHAIN)  # bit c: an issue c + 1 cycles ago
        m.d.sync += issued.eq(Cat(sweep.issue, issued))
        m.d.comb += [
            commands.enter.eq(Cat(sweep.command, sweep.tile, sweep.anchor)),
            scales.enter.eq(Cat(l1_a.scales, l1_b.scales)),
            accumulator.sums.eq(array.sums),
            accumulator.scales_a.eq(scales.leave[:32]),
            accumulator.scales_b.eq(scales.leave[32:]),
            accumulator.anchor.eq(commands.leave[3 + tile_bits :]),
            accumulator.peer.eq(receiver.pair_words),
        ]
        with m.If(issued[CHAIN - 1]):
            m.d.comb += [accumulator.command.eq(commands.leave[:3]), accumulator.address.eq(commands.leave[3 : 3 + tile_bits])]
        with m.Elif(drain.go):
            m.d.comb += [accumulator.command.eq(Mux(drain.floats, Command.SEND, Command.EMIT)), accumulator.address.eq(drain.tile)]
        with m.Elif(receiver.pair):
            m.d.comb += [accumulator.command.eq(Command.ADD_PEER), accumulator.address.eq(receiver.pair_tile)]

        with m.If(drain_wait != 0):
            m.d.sync += drain_wait.eq(drain_wait - 1)
        with m.If(receiver.pair & (drain_wait <= DRAIN_AFTER_PEER)):
            m.d.sync += drain_wait.eq(DRAIN_AFTER_PEER)
        with m.If(sweep.issue):
            m.d.sync += drain_wait.eq(Mux(sweep.narrow, DRAIN_AFTER[1], DRAIN_AFTER[0]))
        with m.If(peer_wait != 0):
            m.d.sync += peer_wait.eq(peer_wait - 1)
        with m.If((receiver.pair | drain.go) & (peer_wait <= PEER_AFTER_COMMAND)):
            m.d.sync += peer_wait.eq(PEER_AFTER_COMMAND)
        with m.If(sweep.issue):
            m.d.sync += peer_wait.eq(PEER_AFTER_ISSUE)

        # ---- results ---------------------------------------------------------------------------------------
        waiting = receiver.state == State.PEER_WAIT
        makes = start_drain | (start_gemm & inst.emit)
        rows, columns = Mux(inst.gm == 0, 1, inst.gm), Mux(inst.gn == 0, 1, inst.gn)
        m.d.comb += [
            writer.push.eq(accumulator.push), writer.granule.eq(accumulator.granule), writer.inst.eq(inst), writer.make.eq(makes),
            writer.fused.eq(is_gemm), writer.born_bound.eq(waiting),
            writer.total.eq(Mux(is_gemm, rows * columns, Mux(sends_floats(inst), Cat(0, wanted), wanted))),
            writer.bind.eq(is_gemm | (explicit & ~draining) | fused | waiting),
            writer.rebind.eq(fused & ~mismatch),
            writer.issue_one.eq((sweep.issue & sweep.emits) | (drain.go & ~drain.floats)),
            writer.issue_two.eq(drain.go & drain.floats),
        ]  # fmt: skip

        # ---- receive FIFO -----------------------------------------------------------------------------------
        flit = base.recv
        respond, describe, take = Signal(), Signal(), Signal()
        opens = waiting & (peer_wait == 0) & ~sweep.running & ~drain.issuing & ~start_gemm & ~start_drain
        m.d.comb += [
            receiver.open_peer.eq(opens),
            receiver.flit.eq(flit),
            receiver.descriptor.eq(describe),
            receiver.data.eq(take),
            base.recv_pop.eq(respond | describe | take),
        ]
        none = receiver.state == State.NONE
        with m.If(base.recv_valid):
            with m.Switch(flit.type):
                with m.Case(FlitType.MEM_RD_RESP):
                    m.d.comb += respond.eq(is_fill & ~sequenced)
                with m.Case(FlitType.CU_DATA):
                    m.d.comb += [describe.eq(none & ~receiver.ack_valid), take.eq(~none & ~waiting)]
                with m.Default():
                    m.d.comb += base.recv_pop.eq(1)
        assembly = Signal(data.ArrayLayout(256, WORDS))
        into_l1 = take & (receiver.state == State.L1)
        number = Mux(respond, flit.rsvd[:2], receiver.offset[:2])
        with m.If(respond | into_l1):
            m.d.sync += assembly[number].eq(flit.payload)
        complete = (respond | into_l1) & (number == WORDS - 1)
        bank = 0 if self.planted == "cluster-bank-stuck" else inst.fbank
        write_entry = Signal(14)
        write_a, write_b = Signal(), Signal()
        to_b = Mux(respond, inst.sel, receiver.to_b)
        m.d.sync += [
            write_entry.eq(Mux(respond, Cat(flit.txn, bank), receiver.offset[2:])),
            write_a.eq(complete & ~to_b),
            write_b.eq(complete & to_b),
        ]
        for side, write in ((l1_a, write_a), (l1_b, write_b)):
            m.d.comb += [side.write.eq(write), side.write_entry.eq(write_entry), side.words.eq(assembly)]
        fills = respond & (number == WORDS - 1)
        with m.If(fills):
            m.d.sync += landed.eq(landed + 1)
        m.d.comb += arrived.eq(fills & (landed + 1 >= wanted) & ~requesting)

        # ---- output register: acknowledgement, FILL request, results ----------------------------------------
        request = Signal(FLIT)
        read = data.View(view(MEM_REQ), request.payload)
        m.d.comb += [
            Cat(request.dst_x, request.dst_y).eq(node(*self.port)),
            Cat(request.src_x, request.src_y).eq(own),
            request.type.eq(FlitType.MEM_RD_REQ),
            request.txn.eq(inst.eoff),
            request.last.eq(1),
            read.addr.eq(Cat(inst.addr_0, inst.addr_1)),
            read.len.eq(READ_LEN),
            read.stream.eq(1),
            read.blayout.eq(inst.sel),
            read.quant.eq(~inst.preq),
            read.count.eq(wanted),
            read.peers.eq(inst.peers),
            read.npeer.eq(inst.npeer),
            base.send_valid.eq(receiver.ack_valid | requesting | writer.send_valid),
            receiver.ack_sent.eq(base.send_ready & receiver.ack_valid),
            writer.send_ready.eq(base.send_ready & ~receiver.ack_valid & ~requesting),
            base.send.eq(Choice([writer.send, request, receiver.ack])[Mux(receiver.ack_valid, 2, requesting)]),
        ]
        with m.If(base.send_ready & ~receiver.ack_valid & requesting):
            m.d.sync += requesting.eq(0)
        with m.If(writer.send_ready & writer.send_valid):
            m.d.sync += held.eq(1)
        with m.Elif(base.out_free):
            m.d.sync += held.eq(0)

        # ---- counters ----------------------------------------------------------------------------------------
        debug = Signal(view(CLUSTER_DEBUG))
        m.d.comb += base.debug.eq(debug)
        with m.If(sweep.running | issued[: CHAIN - 1].any()):
            m.d.sync += debug.array_cycles.eq(debug.array_cycles + 1)
        with m.If(is_fill):
            m.d.sync += debug.fill_cycles.eq(debug.fill_cycles + 1)
        return m
