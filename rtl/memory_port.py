"""A memory port: two intake queues, the read path, the write path, and whose turn it is at the output.

Timing: docs/microarchitecture/memory-agent.md. `AgentPort` (rtl/agent.py) is between it and the mesh.
"""

from __future__ import annotations

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import FlitType

from .axi import AxiSignature, Burst, Response
from .link import FLIT, LinkSignature
from .memory_issue import ADDRESS_BITS, AXI_SIZE, WORD_BITS, WORD_BYTES
from .memory_read import FAULTS as READ_FAULTS
from .memory_read import ReadPath
from .memory_write import COUNT_BITS, WritePath
from .memory_write import FAULTS as WRITE_FAULTS
from .parameters import known_fault, positive

MEMORY_AXI = AxiSignature(addr_width=ADDRESS_BITS, data_width=WORD_BITS, id_width=4)
EVENT_BITS = 32

FAULTS = {
    **READ_FAULTS,
    **WRITE_FAULTS,
    "port-acks-wait": "acknowledgements wait for as long as there are data",
    "port-splits-entries": "an acknowledgement may go between the words of an entry",
}


class MemoryPort(wiring.Component):
    """The memory engine of one port, with `memory_bytes` of memory behind it.

    Members: `in_link` (MEM_RD_REQ, MEM_WR_REQ and MEM_WR_DATA only); `response`, `response_valid`, `response_ready`, as
    `AgentPort` has them; `node`, the port's packed coordinate; `axi`, an AXI4 master. `reads` and `writes` are what
    AUX_STAT sums up, `settled` says that all writes that had arrived in full are in memory; `refused`, `warned` and
    `errors` count refused requests, broken rules that were served nevertheless, and error responses of the memory.
    """

    def __init__(self, *, memory_bytes: int, queue_depth: int, write_slots: int, fault: str | None = None):
        positive("MemoryPort", memory_bytes=memory_bytes, queue_depth=queue_depth, write_slots=write_slots)
        if memory_bytes % WORD_BYTES:
            raise TypeError(f"MemoryPort memory_bytes must be a multiple of {WORD_BYTES}, not {memory_bytes}")
        self.fault = known_fault("MemoryPort", fault, FAULTS)
        self.words = memory_bytes // WORD_BYTES
        self.queue_depth, self.write_slots = queue_depth, write_slots
        super().__init__(
            {
                "in_link": In(LinkSignature()),
                "response": Out(FLIT),
                "response_valid": Out(1),
                "response_ready": In(1),
                "node": In(8),
                "axi": Out(MEMORY_AXI),
                "reads": Out(COUNT_BITS),
                "writes": Out(COUNT_BITS),
                "settled": Out(1),
                "refused": Out(EVENT_BITS),
                "warned": Out(EVENT_BITS),
                "errors": Out(EVENT_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()

        def fault_of(table):
            return self.fault if self.fault in table else None

        m.submodules.reads = reads = ReadPath(depth=self.queue_depth, words=self.words, fault=fault_of(READ_FAULTS))
        m.submodules.writes = writes = WritePath(
            depth=self.queue_depth, slots=self.write_slots, words=self.words, fault=fault_of(WRITE_FAULTS)
        )
        is_read = self.in_link.flit.type == FlitType.MEM_RD_REQ
        accepted = self.in_link.valid & ~self.in_link.busy
        axi = self.axi
        m.d.comb += [
            self.in_link.busy.eq(reads.full | writes.full),
            reads.push.eq(accepted & is_read),
            writes.push.eq(accepted & ~is_read),
            reads.flit.eq(self.in_link.flit),
            writes.flit.eq(self.in_link.flit),
            reads.node.eq(self.node),
            writes.node.eq(self.node),
            self.reads.eq(reads.served),
            self.writes.eq(writes.served),
            self.settled.eq(writes.settled),
            axi.arburst.eq(Burst.INCR),
            axi.awburst.eq(Burst.INCR),
            axi.arsize.eq(AXI_SIZE),
            axi.awsize.eq(AXI_SIZE),
            axi.wstrb.eq(~0),
            axi.bready.eq(1),
            axi.rready.eq(1),
            writes.bvalid.eq(axi.bvalid),
        ]
        for path, outs, ins in (
            (reads, ("araddr", "arlen", "arvalid"), ("arready", "rdata", "rlast", "rvalid")),
            (writes, ("awaddr", "awlen", "awvalid", "wdata", "wlast", "wvalid"), ("awready", "wready")),
        ):
            m.d.comb += [getattr(axi, name).eq(getattr(path, name)) for name in outs]
            m.d.comb += [getattr(path, name).eq(getattr(axi, name)) for name in ins]
        m.d.sync += [
            self.refused.eq(self.refused + (reads.refused + writes.refused)),
            self.warned.eq(self.warned + (reads.warned + writes.warned)),
            self.errors.eq(
                self.errors
                + ((axi.bvalid & (axi.bresp != Response.OKAY)) + (axi.rvalid & (axi.rresp != Response.OKAY)))
            ),
        ]

        # Data before acknowledgements, which are passed over once at most, and nothing inside a unit.
        inside = Signal()
        owed = Signal()
        ack = writes.ack_valid & (~inside | (self.fault == "port-splits-entries"))
        sends = reads.send_valid & ~(ack & owed)
        m.d.comb += [
            self.response.eq(Mux(sends, reads.send, writes.ack)),
            self.response_valid.eq(sends | ack),
            reads.send_take.eq(self.response_ready & sends),
            writes.ack_take.eq(self.response_ready & ack & ~sends),
        ]
        with m.If(reads.send_take):
            m.d.sync += inside.eq(~reads.send.last)
            with m.If(ack):
                m.d.sync += owed.eq(0 if self.fault == "port-acks-wait" else 1)
        with m.Elif(writes.ack_take):
            m.d.sync += owed.eq(0)
        return m
