"""A machine's memory agent as a device under test: ports at the mesh, the agent's side, the memory behind."""

from __future__ import annotations

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rtl.agent import AgentPort, AgentSide
from rtl.emit import shared
from rtl.fifo import Fifo
from rtl.link import FLIT, LinkSignature
from rtl.memory_port import EVENT_BITS, MEMORY_AXI, MemoryPort
from rtl.memory_write import COUNT_BITS
from sim.dram import BackdoorSignature, Dram

AGENT_QUEUE = 16
COUNTERS = {"reads": COUNT_BITS, "writes": COUNT_BITS, "refused": EVENT_BITS, "warned": EVENT_BITS, "errors": EVENT_BITS}


class MemoryRig(wiring.Component):
    """Memory ports at `nodes` (packed), with `dram` (keywords of `Dram`) or, without it, their AXI masters as `axi`.

    `in_link_P` and `out_link_P` are port P's links; flits sent to `agent_link` leave through the control agent's queue.
    """

    def __init__(self, *, nodes: tuple[int, ...], memory_bytes: int, queue_depth: int = 64, write_slots: int = 16,
                 dram: dict | None = None, fault: str | None = None):  # fmt: skip
        self.nodes = nodes
        sizes = {"memory_bytes": memory_bytes, "queue_depth": queue_depth, "write_slots": write_slots}
        self.engines = [shared(MemoryPort, fault=fault, **sizes) for _ in nodes]
        self.dram = Dram(ports=len(nodes), memory_bytes=memory_bytes, **dram) if dram else None
        count = len(nodes)
        members = {"in_link": In(LinkSignature()).array(count), "out_link": Out(LinkSignature()).array(count)}
        members |= {"agent_link": In(LinkSignature())}
        members |= {name: Out(bits * count) for name, bits in COUNTERS.items()}
        members |= {"settled": Out(count)}
        members |= {"backdoor": In(BackdoorSignature())} if dram else {"axi": Out(MEMORY_AXI).array(count)}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        m.submodules.side = side = AgentSide(rows=tuple(node >> 4 for node in self.nodes))
        m.submodules.tx = tx = Fifo(width=FLIT.size, depth=AGENT_QUEUE)
        m.d.comb += [
            tx.push.eq(self.agent_link.valid),
            tx.push_data.eq(self.agent_link.flit),
            self.agent_link.busy.eq(tx.full),
            side.send.eq(tx.head),
            side.send_valid.eq(tx.valid),
            tx.pop.eq(side.send_ready),
            side.take.eq(1),
        ]
        if self.dram:
            m.submodules.dram = self.dram
            wiring.connect(m, wiring.flipped(self.backdoor), self.dram.backdoor)
        for i, (node, engine) in enumerate(zip(self.nodes, self.engines)):
            m.submodules[f"engine_{i}"] = engine
            m.submodules[f"port_{i}"] = port = shared(AgentPort, agent=True, memory=True)
            wiring.connect(m, wiring.flipped(self.in_link[i]), port.in_link)
            wiring.connect(m, port.out_link, wiring.flipped(self.out_link[i]))
            wiring.connect(m, port.memory, engine.in_link)
            wiring.connect(m, side.ports[i], port.agent)
            wiring.connect(m, engine.axi, self.dram.axi[i] if self.dram else wiring.flipped(self.axi[i]))
            m.d.comb += [
                engine.node.eq(node),
                port.response.eq(engine.response),
                port.response_valid.eq(engine.response_valid),
                engine.response_ready.eq(port.response_ready),
                self.settled[i].eq(engine.settled),
                *(getattr(self, name).word_select(i, bits).eq(getattr(engine, name)) for name, bits in COUNTERS.items()),
            ]
        return m
