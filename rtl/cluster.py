"""The matmul cluster: sequencer, operands, sweep, array, accumulator, drains and inbound bursts on the endpoint base.

Timing: docs/microarchitecture/cluster.md, cycle for cycle; behaviour: spec, cluster.
"""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import FlitType, node
from kohakutpu.isa.signals import CLUSTER_DEBUG, UnitType

from . import cluster_accumulator, cluster_array, cluster_drain, cluster_l1, cluster_receive, cluster_sequence, cluster_sweep
from .arithmetic import register
from .cluster_accumulator import Accumulator, Command
from .cluster_array import Array
from .cluster_drain import RESULT_QUEUE, Drain, Writer, sends_floats
from .cluster_l1 import WORDS, Assembly, Delay, L1Side
from .cluster_receive import Receiver, State
from .cluster_sequence import Sequencer
from .cluster_sweep import Sweep
from .emit import shared
from .endpoint import EndpointBase
from .link import LinkSignature, view
from .parameters import known_fault

VERSION = 0x04
CAPS_BUFFERS = 2
OPERANDS = 3  # cycles from an issue of the counters to the array's operands
SUMS = OPERANDS + cluster_array.LATENCY  # to the array's sums, which meet their scales and anchor
COMMAND = SUMS + 2  # to the accumulator command
# A command follows the last one to its address 5 cycles later at the earliest. Countdowns from an issue and from an
# ADD_PEER until an explicit DRAIN may start, whose first command is a cycle later still:
DRAIN_AFTER, DRAIN_AFTER_NARROW, DRAIN_AFTER_PEER = COMMAND - 1, COMMAND + 3, 3
# and from an issue and from any other command until a peer stream may open, whose first ADD_PEER is 3 cycles later:
PEER_AFTER, PEER_AFTER_COMMAND = COMMAND + 1, 1

FAULTS = {
    "cluster-bank-stuck": "the bank bit of FILL writes is stuck at 0",
    "cluster-early-drain": "an explicit DRAIN starts while the array still runs",
    "cluster-early-peer": "a peer stream opens while the array still runs",
    "cluster-ack-blocks": "write acknowledgements wait for room like any other flit",
    "cluster-counter": "the array's counter stops with the last issue",
    **cluster_sequence.FAULTS, **cluster_l1.FAULTS, **cluster_sweep.FAULTS, **cluster_array.FAULTS,
    **cluster_accumulator.FAULTS, **cluster_drain.FAULTS, **cluster_receive.FAULTS,
}  # fmt: skip


class Cluster(wiring.Component):
    """A cluster at (`x`, `y`) bound to the memory port at `port`; sizes as `machine.ClusterUnit` has them.

    Members: `in_link`, `out_link`.
    """

    def __init__(self, *, x: int, y: int, port: tuple[int, int], tiles: int, a_entries: int, b_entries: int, mantissa: int,
                 inst_depth: int, recv_depth: int, fault: str | None = None):  # fmt: skip
        self.fault = known_fault("Cluster", fault, FAULTS)
        tile_bits = (tiles - 1).bit_length()

        def planted(module):
            return fault if fault in module.FAULTS else None

        self.base = EndpointBase(x=x, y=y, unit_type=UnitType.CLUSTER, version=VERSION, buffers=CAPS_BUFFERS,
                                 inst_depth=inst_depth, recv_depth=recv_depth)  # fmt: skip
        self.sequencer = Sequencer(x=x, y=y, port=port, fault=planted(cluster_sequence))
        self.assembly = shared(Assembly)
        self.sides = {
            layout: shared(L1Side, entries=entries, layout=layout, fault=planted(cluster_l1))
            for layout, entries in (("A", a_entries), ("B", b_entries))
        }
        self.sweep = shared(Sweep, tile_bits=tile_bits, fault=planted(cluster_sweep))
        self.array = shared(Array, fault=planted(cluster_array))
        self.accumulator = shared(Accumulator, tiles=tiles, mantissa=mantissa, fault=planted(cluster_accumulator))
        self.drain = shared(Drain, tile_bits=tile_bits, fault=planted(cluster_drain))
        self.writer = Writer(x=x, y=y, port=port, fault=planted(cluster_drain))
        self.receiver = Receiver(x=x, y=y, limits=(WORDS * a_entries, WORDS * b_entries, 2 * tiles),
                                 word=self.accumulator.word, fault=planted(cluster_receive))  # fmt: skip
        super().__init__({"in_link": In(LinkSignature()), "out_link": Out(LinkSignature())})

    def elaborate(self, platform):
        m = Module()
        for name in ("base", "sequencer", "assembly", "sweep", "array", "accumulator", "drain", "writer", "receiver"):
            m.submodules[name] = getattr(self, name)
        m.submodules.l1_a, m.submodules.l1_b = self.sides["A"], self.sides["B"]
        self._port(m)
        running = self._datapath(m)
        self._start_rules(m)
        self._results(m)
        self._inbound(m)
        self._outbound(m)
        debug = Signal(view(CLUSTER_DEBUG))
        m.d.comb += self.base.debug.eq(debug)
        m.d.sync += [
            debug.array_cycles.eq(debug.array_cycles + running),
            debug.fill_cycles.eq(debug.fill_cycles + self.sequencer.filling),
        ]
        return m

    def _port(self, m: Module) -> None:
        """The links. Write acknowledgements are swallowed at the port, whatever the FIFOs hold."""
        base, link = self.base, self.in_link
        swallowed = (link.flit.type == FlitType.MEM_WR_ACK) & (self.fault != "cluster-ack-blocks")
        m.d.comb += [
            base.in_link.flit.eq(link.flit),
            base.in_link.valid.eq(link.valid & ~swallowed),
            link.busy.eq(base.in_link.busy & ~swallowed),
        ]
        wiring.connect(m, wiring.flipped(self.out_link), base.out_link)

    def _datapath(self, m: Module):
        """Counters, L1, array, accumulator; returns whether an issue is in the counters or on its way."""
        sweep, array, accumulator, drain, receiver = self.sweep, self.array, self.accumulator, self.drain, self.receiver
        for layout, side, entry, operand in (("a", "A", sweep.a_entry, array.a), ("b", "B", sweep.b_entry, array.b)):
            m.d.comb += [
                self.sides[side].entry.eq(register(m, entry, f"{layout}_entry")),
                operand.eq(self.sides[side].operand),
            ]
        issued = Signal(COMMAND)  # bit c: an issue c + 1 cycles ago
        m.d.sync += issued.eq(Cat(sweep.issue, issued))
        m.submodules.commands = commands = shared(Delay, width=3 + len(sweep.tile), cycles=COMMAND)
        m.submodules.anchors = anchors = shared(Delay, width=8, cycles=SUMS)
        m.submodules.scales = scales = shared(Delay, width=64, cycles=SUMS - OPERANDS)
        m.d.comb += [
            commands.enter.eq(Cat(sweep.command, sweep.tile)),
            anchors.enter.eq(sweep.anchor),
            scales.enter.eq(Cat(self.sides["A"].scales, self.sides["B"].scales)),
            accumulator.sums.eq(array.sums),
            accumulator.scales_a.eq(scales.leave[:32]),
            accumulator.scales_b.eq(scales.leave[32:]),
            accumulator.anchor.eq(anchors.leave),
            accumulator.peer.eq(receiver.pair_words),
        ]
        # The start rules keep the three apart.
        with m.If(issued[COMMAND - 1]):
            m.d.comb += [accumulator.command.eq(commands.leave[:3]), accumulator.address.eq(commands.leave[3:])]
        with m.Elif(receiver.pair):
            m.d.comb += [accumulator.command.eq(Command.ADD_PEER), accumulator.address.eq(receiver.pair_tile)]
        with m.Else():
            m.d.comb += accumulator.address.eq(drain.tile)
            with m.If(drain.emit):
                m.d.comb += accumulator.command.eq(Command.EMIT)
            with m.Elif(drain.send):
                m.d.comb += accumulator.command.eq(Command.SEND)
        return sweep.running | issued[: 0 if self.fault == "cluster-counter" else COMMAND - 1].any()

    def _start_rules(self, m: Module) -> None:
        """When the accumulator is free enough for a DRAIN and for a peer stream."""
        sequencer, sweep, drain, receiver = self.sequencer, self.sweep, self.drain, self.receiver
        drain_wait = countdown(
            m, "drain_wait",
            (receiver.pair, DRAIN_AFTER_PEER), (sweep.issue, DRAIN_AFTER), (sweep.issue & sweep.narrow, DRAIN_AFTER_NARROW),
        )  # fmt: skip
        peer_wait = countdown(
            m, "peer_wait", (receiver.pair | drain.emit | drain.send, PEER_AFTER_COMMAND), (sweep.issue, PEER_AFTER)
        )
        settled = (drain_wait == 0) | (self.fault == "cluster-early-drain")
        peer_settled = (peer_wait == 0) | (self.fault == "cluster-early-peer")
        m.d.comb += [
            sequencer.sweep_free.eq(sweep.free),
            sequencer.settled.eq(settled & ~sweep.running & ~receiver.pair),
            sequencer.peer_open.eq(receiver.state == State.PEER),
            receiver.open_peer.eq(
                (receiver.state == State.PEER_WAIT) & peer_settled & ~sweep.running & ~drain.issuing
                & ~sequencer.start_gemm & ~sequencer.start_drain
            ),
        ]  # fmt: skip

    def _results(self, m: Module) -> None:
        """Batches, and room for their granules."""
        sequencer, sweep, drain, writer, accumulator = self.sequencer, self.sweep, self.drain, self.writer, self.accumulator
        inst, gemm = sequencer.inst, sequencer.start_gemm
        m.d.comb += [
            sweep.start.eq(gemm), sweep.inst.eq(inst), sweep.room.eq(writer.outstanding < RESULT_QUEUE),
            drain.start.eq(sequencer.start_drain), drain.inst.eq(inst), drain.outstanding.eq(writer.outstanding),
            writer.inst.eq(inst), writer.make.eq(sequencer.start_drain | (gemm & inst.emit)), writer.fused.eq(gemm),
            writer.bind.eq(sequencer.binds | (self.receiver.state == State.PEER_WAIT)), writer.rebind.eq(sequencer.rebinds),
            writer.issue_one.eq((sweep.issue & sweep.emits) | drain.emit), writer.issue_two.eq(drain.send),
            writer.push.eq(accumulator.push), writer.granule.eq(accumulator.granule),
            sequencer.clear.eq(writer.clear), sequencer.gone.eq(writer.gone),
            sequencer.is_fused.eq(writer.is_fused), sequencer.size.eq(writer.size),
        ]  # fmt: skip
        with m.If(gemm):
            m.d.comb += [writer.rows.eq(inst.gm | (inst.gm == 0)), writer.columns.eq(inst.gn | (inst.gn == 0))]
        with m.Else():
            m.d.comb += [writer.rows.eq(sequencer.wanted), writer.columns.eq(Mux(sends_floats(inst), 2, 1))]

    def _inbound(self, m: Module) -> None:
        """Instructions, and what the receive FIFO holds: at most one flit a cycle, by its type."""
        base, sequencer, receiver, assembly = self.base, self.sequencer, self.receiver, self.assembly
        flit, state, inst = base.recv, receiver.state, sequencer.inst
        respond = Signal()
        with m.Switch(flit.type):
            with m.Case(FlitType.MEM_RD_RESP):
                m.d.comb += [respond.eq(base.recv_valid & sequencer.receives), base.recv_pop.eq(respond)]
            with m.Case(FlitType.CU_DATA):
                m.d.comb += [
                    receiver.descriptor.eq(base.recv_valid & (state == State.NONE) & ~receiver.ack_valid),
                    receiver.data.eq(base.recv_valid & (state != State.NONE) & (state != State.PEER_WAIT)),
                    base.recv_pop.eq(receiver.descriptor | receiver.data),
                ]
            with m.Default():
                m.d.comb += base.recv_pop.eq(base.recv_valid)
        bank = inst.fbank & (self.fault != "cluster-bank-stuck")
        number = Mux(respond, flit.rsvd, receiver.offset)[: (WORDS - 1).bit_length()]
        m.d.comb += [
            sequencer.head.eq(base.inst), sequencer.head_valid.eq(base.inst_valid), base.inst_take.eq(sequencer.take),
            base.done.eq(sequencer.done), base.result.eq(sequencer.result), base.fault.eq(sequencer.wrong),
            sequencer.malformed.eq(receiver.rejected),
            sequencer.landed.eq(respond & (number == WORDS - 1)),
            receiver.flit.eq(flit),
            assembly.put.eq(respond | (receiver.data & (state == State.L1))),
            assembly.word.eq(flit.payload),
            assembly.number.eq(number),
            assembly.to_b.eq(Mux(respond, inst.sel, receiver.to_b)),
            assembly.entry.eq(Mux(respond, Cat(flit.txn, bank), receiver.offset[2:])),
        ]  # fmt: skip
        for side, write in ((self.sides["A"], assembly.write_a), (self.sides["B"], assembly.write_b)):
            m.d.comb += [side.write.eq(write), side.at.eq(assembly.at), side.words.eq(assembly.words)]

    def _outbound(self, m: Module) -> None:
        """The unit's turn at the output register: acknowledgement, FILL request, results."""
        base, sequencer, receiver, writer = self.base, self.sequencer, self.receiver, self.writer
        m.d.comb += [
            base.send_valid.eq(receiver.ack_valid | sequencer.request_valid | writer.send_valid),
            writer.out_free.eq(base.out_free),
        ]
        with m.If(receiver.ack_valid):
            m.d.comb += [base.send.eq(receiver.ack), receiver.ack_sent.eq(base.send_ready)]
        with m.Elif(sequencer.request_valid):
            m.d.comb += [base.send.eq(sequencer.request), sequencer.request_sent.eq(base.send_ready)]
        with m.Else():
            m.d.comb += [base.send.eq(writer.send), writer.send_ready.eq(base.send_ready)]


def countdown(m: Module, name: str, *loads) -> Signal:
    """A register that counts down to 0 and stays there; each (event, cycles) of `loads` raises it to that many."""
    left = Signal(range(max(cycles for _, cycles in loads) + 1), name=name)
    with m.If(left != 0):
        m.d.sync += left.eq(left - 1)
    for event, cycles in sorted(loads, key=lambda load: load[1]):
        with m.If(event & (left <= cycles)):
            m.d.sync += left.eq(cycles)
    return left
