"""A machine's memory agent as a device under test: ports, the control agent's side, the host window, the memory."""

from __future__ import annotations

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rtl import memory_window
from rtl.agent import AgentPort, AgentSide
from rtl.emit import shared
from rtl.fifo import Fifo
from rtl.link import FLIT, LinkSignature
from rtl.memory_port import EVENT_BITS, MEMORY_AXI, MemoryPort
from rtl.memory_window import HOST_AXI, MemoryWindow
from rtl.memory_write import COUNT_BITS
from sim.axi_checker import COUNTER_BITS, RULES, AxiChecker
from sim.dram import BackdoorSignature, Dram
from sim.port_checker import Checked, CheckSignature

AGENT_QUEUE = 16
LONGEST, LONGEST_HOST = 8, 128  # beats of a burst
COUNTERS = {
    "reads": COUNT_BITS,
    "writes": COUNT_BITS,
    "refused": EVENT_BITS,
    "warned": EVENT_BITS,
    "errors": EVENT_BITS,
}
# What a host drives, and what it sees, each as one word, the first field lowest.
HOST_ADDRESS = ("addr", "len", "size", "burst", "id")
HOST_DATA = ("wdata", "wstrb", "wlast")
HOST_FLAGS = ("awvalid", "wvalid", "bready", "arvalid", "rready")
HOST_STATUS = ("awready", "wready", "bvalid", "bresp", "bid", "arready", "rvalid", "rresp", "rid", "rlast")


def width(names: tuple[str, ...], prefix: str = "") -> int:
    return sum(HOST_AXI.members[prefix + name].shape for name in names)


class MemoryRig(wiring.Component):
    """Memory ports at `nodes` (packed) and a host window. `in_link_P` and `out_link_P` are port P's links; flits sent
    to `agent_link` leave through the control agent's queue.

    With `dram` (keywords of `Dram`) there is a memory behind, and the host is driven in words: what `host_*` say is on
    the window's pins in the next cycle; `host_status` and `host_rdata` are what it says in this one. Without it `host`
    is the window's AXI4 slave, `axi_M` are the masters, the window's last, and `axi_violations` the counters of their
    checkers.
    """

    def __init__(self, *, nodes: tuple[int, ...], memory_bytes: int, queue_depth: int = 64, write_slots: int = 16,
                 dram: dict | None = None, fault: str | None = None):  # fmt: skip
        self.nodes = nodes
        sizes = {"memory_bytes": memory_bytes, "queue_depth": queue_depth, "write_slots": write_slots}
        window_fault = fault if fault in memory_window.FAULTS else None
        self.engines = [shared(MemoryPort, fault=fault if window_fault is None else None, **sizes) for _ in nodes]
        self.window = MemoryWindow(memory_bytes=memory_bytes, fault=window_fault)
        self.dram = Dram(ports=len(nodes) + 1, memory_bytes=memory_bytes, **dram) if dram else None
        count = len(nodes)
        members = {"in_link": In(LinkSignature()).array(count), "out_link": Out(LinkSignature()).array(count)}
        members |= {"agent_link": In(LinkSignature())} | {
            f"port_{i}_check": Out(CheckSignature()) for i in range(count)
        }
        members |= {name: Out(bits * count) for name, bits in COUNTERS.items()}
        pins = {
            "host_aw": In(width(HOST_ADDRESS, "aw")), "host_ar": In(width(HOST_ADDRESS, "ar")),
            "host_w": In(width(HOST_DATA)),
            "host_flags": In(len(HOST_FLAGS)), "host_status": Out(width(HOST_STATUS)), "host_rdata": Out(256),
        }  # fmt: skip
        if dram:
            members |= {"backdoor": In(BackdoorSignature())} | pins
        else:
            members |= {f"axi_{i}": Out(MEMORY_AXI) for i in range(count + 1)}
            members |= {"host": In(HOST_AXI), "axi_violations": Out((count + 1) * COUNTER_BITS * len(RULES))}
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
        settled = Signal(len(self.nodes))
        for i, (node, engine) in enumerate(zip(self.nodes, self.engines)):
            m.submodules[f"engine_{i}"] = engine
            # `busy` of a memory port depends on the flit's type, so that it is never probed
            inner = shared(AgentPort, agent=True, memory=True)
            m.submodules[f"port_{i}"] = port = Checked(inner, node=None, unit=False)
            wiring.connect(m, port.check, wiring.flipped(getattr(self, f"port_{i}_check")))
            wiring.connect(m, wiring.flipped(self.in_link[i]), port.in_link)
            wiring.connect(m, port.out_link, wiring.flipped(self.out_link[i]))
            wiring.connect(m, port.memory, engine.in_link)
            wiring.connect(m, side.ports[i], port.agent)
            m.d.comb += [
                engine.node.eq(node),
                port.response.eq(engine.response),
                port.response_valid.eq(engine.response_valid),
                engine.response_ready.eq(port.response_ready),
                settled[i].eq(engine.settled),
                *(
                    getattr(self, name).word_select(i, bits).eq(getattr(engine, name))
                    for name, bits in COUNTERS.items()
                ),
            ]
        m.submodules.window = window = self.window
        m.d.comb += window.settled.eq(settled.all())
        masters = [*(engine.axi for engine in self.engines), window.axi]
        if self.dram:
            self._host_pins(m, window.host)
            m.submodules.dram = self.dram
            wiring.connect(m, wiring.flipped(self.backdoor), self.dram.backdoor)
            for master, slave in zip(masters, self.dram.axi):
                wiring.connect(m, master, slave)
            return m
        wiring.connect(m, wiring.flipped(self.host), window.host)
        for i, master in enumerate(masters):
            wiring.connect(m, master, wiring.flipped(getattr(self, f"axi_{i}")))
            m.submodules[f"check_{i}"] = check = shared(
                AxiChecker,
                addr_width=40,
                data_width=256,
                id_width=4,
                longest=LONGEST_HOST if i == len(self.nodes) else LONGEST,
            )
            m.d.comb += [getattr(check, name).eq(getattr(master, name)) for name in MEMORY_AXI.members]
            m.d.comb += self.axi_violations.word_select(i, len(check.violations)).eq(check.violations)
        return m

    def _host_pins(self, m: Module, host) -> None:
        for names, prefix, word in (
            (HOST_ADDRESS, "aw", self.host_aw), (HOST_ADDRESS, "ar", self.host_ar), (HOST_DATA, "", self.host_w),
            (HOST_FLAGS, "", self.host_flags),
        ):  # fmt: skip
            pins = Signal(len(word), name=f"pins_{prefix}{names[0]}")
            m.d.sync += pins.eq(word)
            m.d.comb += Cat(*(getattr(host, prefix + name) for name in names)).eq(pins)
        m.d.comb += [
            self.host_status.eq(Cat(*(getattr(host, name) for name in HOST_STATUS))),
            self.host_rdata.eq(host.rdata),
        ]
