"""The orchestrator with its ports, as one device under test: links in and out, memory engines played by the bench."""

from __future__ import annotations

from amaranth import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.machine import Machine
from rtl.agent import AgentPort
from rtl.link import LinkSignature
from rtl.orchestrator import COUNT_BITS, Orchestrator
from sim.port_checker import Checked, CheckSignature

BOUND = 20_000  # an agent with its own endpoint is busy until the host reads what it has received
EVENTS = ("aw", "w", "b", "ar", "r", "rvalid")  # bits of `events`, lowest first: AXI handshakes, and RVALID


class AgentTop(wiring.Component):
    """`in_linkN` and `out_linkN` face the mesh at port N; `memoryN` and `responseN` are links to and from its engine,
    `portN_check` the checker around the port.

    The engines' counts are `reads` and `writes`, the same for each port. Faults are those of the blocks inside, by
    block.
    """

    def __init__(self, machine: Machine, *, orchestrator: str | None = None, port: str | None = None,
                 host_port: str | None = None, side: str | None = None):  # fmt: skip
        self.machine = machine
        self.orchestrator = Orchestrator.of(machine, mover=False, fault=orchestrator, host_port=host_port, side=side)
        self.port_fault = port
        self.own = machine.agent.own_endpoint
        self.count = 1 if self.own else len(machine.ports)
        members = {
            "host": self.orchestrator.signature.members["host"],
            "events": Out(len(EVENTS)),
            "reads": In(COUNT_BITS),
            "writes": In(COUNT_BITS),
        }
        for index in range(self.count):
            members |= {f"in_link{index}": In(LinkSignature()), f"out_link{index}": Out(LinkSignature())}
            members[f"port{index}_check"] = Out(CheckSignature())
            if not self.own:
                members |= {f"memory{index}": Out(LinkSignature()), f"response{index}": In(LinkSignature())}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        m.submodules.orchestrator = orchestrator = self.orchestrator
        bus = orchestrator.host
        wiring.connect(m, wiring.flipped(self.host), bus)
        m.d.comb += self.events.eq(
            Cat(
                bus.awvalid & bus.awready,
                bus.wvalid & bus.wready,
                bus.bvalid & bus.bready,
                bus.arvalid & bus.arready,
                bus.rvalid & bus.rready,
                bus.rvalid,
            )
        )
        for count in orchestrator.reads:
            m.d.comb += count.eq(self.reads)
        for count in orchestrator.writes:
            m.d.comb += count.eq(self.writes)
        for index in range(self.count):
            port = AgentPort(agent=True, memory=not self.own, fault=self.port_fault)
            m.submodules[f"port{index}"] = port = Checked(port, node=None, unit=False, bound=BOUND)
            wiring.connect(m, port.check, wiring.flipped(getattr(self, f"port{index}_check")))
            wiring.connect(m, port.agent, orchestrator.ports[index])
            wiring.connect(m, wiring.flipped(getattr(self, f"in_link{index}")), port.in_link)
            wiring.connect(m, port.out_link, wiring.flipped(getattr(self, f"out_link{index}")))
            if not self.own:
                response = getattr(self, f"response{index}")
                wiring.connect(m, port.memory, wiring.flipped(getattr(self, f"memory{index}")))
                m.d.comb += [
                    port.response.eq(response.flit),
                    port.response_valid.eq(response.valid),
                    response.busy.eq(~port.response_ready),
                ]
        return m
