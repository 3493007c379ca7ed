"""The matmul cluster: sequencer, operands, sweep, array, accumulator, drains and inbound bursts on the endpoint base.

Timing: docs/microarchitecture/cluster.md, cycle for cycle; behaviour: spec, cluster.
"""

from __future__ import annotations

from types import SimpleNamespace

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import FlitType
from kohakutpu.isa.signals import CLUSTER_DEBUG, CU_VERSION, UnitType

from . import (
    cluster_accumulator, cluster_array, cluster_drain, cluster_l1, cluster_receive, cluster_sequence, cluster_sweep,
)  # fmt: skip
from .arithmetic import register
from .cluster_accumulator import TILES, Accumulator, Command
from .cluster_array import Array
from .cluster_drain import RESULT_QUEUE, Drain, Writer, sends_floats
from .cluster_l1 import ENTRIES, WORDS, Assembly, Delay, L1Side
from .cluster_lane import MANTISSA
from .cluster_receive import Receiver, State
from .cluster_sequence import Sequencer
from .cluster_sweep import Sweep
from .emit import shared
from .endpoint import EndpointBase
from .link import LinkSignature, view
from .parameters import known_fault, positive, power_of_two, within

CAPS_BUFFERS = 2
OPERANDS = 3  # cycles from an issue of the counters to the array's operands
SUMS = OPERANDS + cluster_array.LATENCY  # to the array's sums, which meet their scales and anchor
COMMAND = SUMS + 2  # to the accumulator command
# A command follows the last one to its address 5 cycles later at the earliest. Countdowns from an issue (and its pause)
# and from an ADD_PEER until an explicit DRAIN may start, whose first command is a cycle later still:
DRAIN_AFTER, DRAIN_AFTER_PEER = COMMAND - 1, 3
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

    def __init__(self, *, x: int, y: int, port: tuple[int, int], tiles: int, a_entries: int, b_entries: int,
                 mantissa: int, inst_depth: int, recv_depth: int, fault: str | None = None):  # fmt: skip
        power_of_two("Cluster", *TILES, tiles=tiles)
        power_of_two("Cluster", *ENTRIES, a_entries=a_entries, b_entries=b_entries)
        within("Cluster", *MANTISSA, mantissa=mantissa)
        positive("Cluster", inst_depth=inst_depth, recv_depth=recv_depth)
        self.fault = known_fault("Cluster", fault, FAULTS)
        self.at = {"x": x, "y": y}
        self.port = port
        self.depths = {"inst_depth": inst_depth, "recv_depth": recv_depth}
        self.tiles = tiles
        self.entries = (a_entries, b_entries)
        self.mantissa = mantissa
        super().__init__({"in_link": In(LinkSignature()), "out_link": Out(LinkSignature())})

    def _parts(self, m: Module) -> SimpleNamespace:
        """The blocks, as submodules under their names."""

        def planted(module):
            return self.fault if self.fault in module.FAULTS else None

        tile_bits = (self.tiles - 1).bit_length()
        l1_a, l1_b = (
            shared(L1Side, entries=entries, layout=layout, fault=planted(cluster_l1))
            for layout, entries in zip("AB", self.entries)
        )
        accumulator = shared(Accumulator, tiles=self.tiles, mantissa=self.mantissa, fault=planted(cluster_accumulator))
        limits = (WORDS * self.entries[0], WORDS * self.entries[1], 2 * self.tiles)
        parts = {
            "base": EndpointBase(
                **self.at, unit_type=UnitType.CLUSTER, version=CU_VERSION, buffers=CAPS_BUFFERS, **self.depths
            ),
            "sequencer": Sequencer(**self.at, port=self.port, fault=planted(cluster_sequence)),
            "assembly": shared(Assembly),
            "l1_a": l1_a,
            "l1_b": l1_b,
            "sweep": shared(Sweep, tile_bits=tile_bits, fault=planted(cluster_sweep)),
            "array": shared(Array, fault=planted(cluster_array)),
            "accumulator": accumulator,
            "drain": shared(Drain, tile_bits=tile_bits, fault=planted(cluster_drain)),
            "writer": Writer(**self.at, port=self.port, fault=planted(cluster_drain)),
            "receiver": Receiver(**self.at, limits=limits, word=accumulator.word, fault=planted(cluster_receive)),
            # what travels beside the array
            "commands": shared(Delay, width=3 + tile_bits, cycles=COMMAND),
            "anchors": shared(Delay, width=8, cycles=SUMS),
            "scales": shared(Delay, width=64, cycles=SUMS - OPERANDS),
        }
        for name, part in parts.items():
            m.submodules[name] = part
        return SimpleNamespace(**parts)

    def elaborate(self, platform):
        m = Module()
        parts = self._parts(m)
        self._port(m, parts.base)
        running = self._datapath(m, parts)
        self._start_rules(m, parts)
        self._results(m, parts)
        self._inbound(m, parts)
        self._outbound(m, parts)
        debug = Signal(view(CLUSTER_DEBUG))
        m.d.comb += parts.base.debug.eq(debug)
        m.d.sync += [
            debug.array_cycles.eq(debug.array_cycles + running),
            debug.fill_cycles.eq(debug.fill_cycles + parts.sequencer.filling),
        ]
        return m

    def _port(self, m: Module, base: EndpointBase) -> None:
        """The links. Write acknowledgements are swallowed at the port, whatever the FIFOs hold."""
        link = self.in_link
        swallowed = (link.flit.type == FlitType.MEM_WR_ACK) & (self.fault != "cluster-ack-blocks")
        m.d.comb += [
            base.in_link.flit.eq(link.flit),
            base.in_link.valid.eq(link.valid & ~swallowed),
            link.busy.eq(base.in_link.busy & ~swallowed),
        ]
        wiring.connect(m, wiring.flipped(self.out_link), base.out_link)

    def _datapath(self, m: Module, parts: SimpleNamespace):
        """Counters, L1, array, accumulator; returns whether an issue is in the counters or on its way."""
        sweep, array, accumulator, drain, receiver = (
            parts.sweep, parts.array, parts.accumulator, parts.drain, parts.receiver,
        )  # fmt: skip
        issued = Signal(COMMAND)  # bit c: an issue c + 1 cycles ago
        m.d.sync += issued.eq(Cat(sweep.issue, issued))
        m.d.comb += [
            parts.l1_a.entry.eq(register(m, sweep.a_entry, "a_entry")),
            parts.l1_b.entry.eq(register(m, sweep.b_entry, "b_entry")),
            array.a.eq(parts.l1_a.operand),
            array.b.eq(parts.l1_b.operand),
            parts.commands.enter.eq(Cat(sweep.command, sweep.tile)),
            parts.anchors.enter.eq(sweep.anchor),
            parts.scales.enter.eq(Cat(parts.l1_a.scales, parts.l1_b.scales)),
            accumulator.sums.eq(array.sums),
            accumulator.scales_a.eq(parts.scales.leave[:32]),
            accumulator.scales_b.eq(parts.scales.leave[32:]),
            accumulator.anchor.eq(parts.anchors.leave),
            accumulator.peer.eq(receiver.pair_words),
        ]
        # The start rules keep the three apart.
        with m.If(issued[COMMAND - 1]):
            m.d.comb += [
                accumulator.command.eq(parts.commands.leave[:3]),
                accumulator.address.eq(parts.commands.leave[3:]),
            ]
        with m.Elif(receiver.pair):
            m.d.comb += [accumulator.command.eq(Command.ADD_PEER), accumulator.address.eq(receiver.pair_tile)]
        with m.Else():
            m.d.comb += accumulator.address.eq(drain.tile)
            with m.If(drain.emit):
                m.d.comb += accumulator.command.eq(Command.EMIT)
            with m.Elif(drain.send):
                m.d.comb += accumulator.command.eq(Command.SEND)
        return sweep.running | issued[: 0 if self.fault == "cluster-counter" else COMMAND - 1].any()

    def _start_rules(self, m: Module, parts: SimpleNamespace) -> None:
        """When the accumulator is free enough for a DRAIN and for a peer stream."""
        sequencer, sweep, drain, receiver = parts.sequencer, parts.sweep, parts.drain, parts.receiver
        drain_wait = countdown(
            m, "drain_wait", (receiver.pair, DRAIN_AFTER_PEER), (sweep.issue, DRAIN_AFTER + sweep.pause)
        )
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

    def _results(self, m: Module, parts: SimpleNamespace) -> None:
        """Batches, and room for their granules."""
        sequencer, sweep, drain, writer, accumulator = (
            parts.sequencer, parts.sweep, parts.drain, parts.writer, parts.accumulator,
        )  # fmt: skip
        inst, gemm = sequencer.inst, sequencer.start_gemm
        m.d.comb += [
            sweep.start.eq(gemm), sweep.inst.eq(inst), sweep.room.eq(writer.outstanding < RESULT_QUEUE),
            drain.start.eq(sequencer.start_drain), drain.inst.eq(inst), drain.outstanding.eq(writer.outstanding),
            writer.inst.eq(inst), writer.make.eq(sequencer.start_drain | (gemm & inst.emit)), writer.fused.eq(gemm),
            writer.bind.eq(sequencer.binds | (parts.receiver.state == State.PEER_WAIT)),
            writer.rebind.eq(sequencer.rebinds),
            writer.issue_one.eq((sweep.issue & sweep.emits) | drain.emit), writer.issue_two.eq(drain.send),
            writer.push.eq(accumulator.push), writer.granule.eq(accumulator.granule),
            sequencer.clear.eq(writer.clear), sequencer.gone.eq(writer.gone),
            sequencer.is_fused.eq(writer.is_fused), sequencer.size.eq(writer.size),
        ]  # fmt: skip
        with m.If(gemm):
            m.d.comb += [writer.rows.eq(inst.gm | (inst.gm == 0)), writer.columns.eq(inst.gn | (inst.gn == 0))]
        with m.Else():
            m.d.comb += [writer.rows.eq(sequencer.wanted), writer.columns.eq(Mux(sends_floats(inst), 2, 1))]

    def _inbound(self, m: Module, parts: SimpleNamespace) -> None:
        """Instructions, and what the receive FIFO holds: at most one flit a cycle, by its type."""
        base, sequencer, receiver, assembly = parts.base, parts.sequencer, parts.receiver, parts.assembly
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
        for side, write in ((parts.l1_a, assembly.write_a), (parts.l1_b, assembly.write_b)):
            m.d.comb += [side.write.eq(write), side.at.eq(assembly.at), side.words.eq(assembly.words)]

    def _outbound(self, m: Module, parts: SimpleNamespace) -> None:
        """The unit's turn at the output register: acknowledgement, FILL request, results."""
        base, sequencer, receiver, writer = parts.base, parts.sequencer, parts.receiver, parts.writer
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


def countdown(m: Module, name: str, command, issue) -> Signal:
    """A register that counts down to 0 and stays there; `command` and `issue` are (event, cycles) that raise it to that
    many. After an issue it is never more than that, whatever came before."""
    left = Signal(range(PEER_AFTER + 4), name=name)
    with m.If(left != 0):
        m.d.sync += left.eq(left - 1)
    with m.If(command[0] & (left <= command[1])):
        m.d.sync += left.eq(command[1])
    with m.If(issue[0]):
        m.d.sync += left.eq(issue[1])
    return left
