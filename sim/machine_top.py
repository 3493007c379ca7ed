"""What a simulator runs: a machine's top, its memory, and a monitor on every link."""

from __future__ import annotations

from amaranth import Cat, ClockSignal, Instance, Module, Mux, ResetSignal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.machine import Machine
from rtl import top
from rtl.emit import shared, verilog
from rtl.fifo import Fifo
from rtl.link import FLIT
from rtl.memory_window import HOST_AXI
from rtl.merge import merge

from . import monitor
from .dram import BackdoorSignature, Dram

TOP = "machine"
INJECTION_DEPTH = 8192  # flits that a bench may have waiting


class SimulatedTop(wiring.Component):
    """`machine` with memory behind its ports; Python sees the members and nothing else.

    Members: `cycle` counts from 0 in the first cycle after reset; `quiet` the cycles since a flit last moved on any link,
    `still` that these are at least `quiet_for`; `refused` the requests that memory ports refused; `read_words` and
    `written_words`, 32 bits a port, the words that memory ports moved; `backdoor` leads into the memory
    (`sim.dram.Backdoor`); `window` is the AXI4 slave of the host's memory window. With `agent='orchestrator'`: `host`, the
    AXI4 slave. With `agent='bench'`: `send`, pushed in each cycle with `send_push` to a FIFO of `INJECTION_DEPTH`, `unsent`
    its level; `flit` and `valid`, what arrives, taken at once.
    """

    def __init__(self, machine: Machine, *, agent: str = "orchestrator"):
        self.machine = top.MachineTop(machine, agent=agent)
        self.links = list(self.machine.links)
        memory = machine.memory
        self.dram = Dram(
            ports=len(machine.ports) + 1, memory_bytes=memory.bytes, latency=memory.latency, cycles_per_word=memory.cycles_per_word
        )
        members = {
            "cycle": Out(32), "quiet": Out(32), "quiet_for": In(32), "still": Out(1), "refused": Out(32),
            "read_words": Out(32 * len(machine.ports)), "written_words": Out(32 * len(machine.ports)),
            "backdoor": In(BackdoorSignature()), "window": In(HOST_AXI),
        }  # fmt: skip
        if agent == "bench":
            self.injection = shared(Fifo, width=FLIT.size, depth=INJECTION_DEPTH)
            members |= {
                "send": In(FLIT.size), "send_push": In(1), "unsent": Out(range(INJECTION_DEPTH + 1)),
                "flit": Out(FLIT.size), "valid": Out(1),
            }  # fmt: skip
        else:
            members["host"] = self.machine.signature.members["host"]
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        m.submodules.machine = machine = self.machine
        m.d.sync += self.cycle.eq(self.cycle + 1)
        moved = []
        for index, link in enumerate(machine.links.values()):
            m.submodules[f"monitor_{index}"] = Instance(
                monitor.NAME, p_LINK=index, i_clk=ClockSignal(), i_rst=ResetSignal(), i_cycle=self.cycle,
                i_valid=link.valid, i_busy=link.busy, i_flit=link.flit,
            )  # fmt: skip
            moved.append(link.valid & ~link.busy)
        m.d.comb += self.still.eq(self.quiet >= self.quiet_for)
        m.d.sync += self.quiet.eq(Mux(Cat(*moved).any(), 0, self.quiet + 1))
        m.submodules.dram = dram = self.dram
        wiring.connect(m, wiring.flipped(self.backdoor), dram.backdoor)
        wiring.connect(m, wiring.flipped(self.window), machine.window)
        for master, slave in zip(machine.dram, dram.axi, strict=True):
            wiring.connect(m, master, slave)
        for port, _ in enumerate(machine.engines):
            axi = machine.dram[port]
            for total, beat in ((self.read_words, axi.rvalid & axi.rready), (self.written_words, axi.wvalid & axi.wready)):
                words = total.word_select(port, 32)
                m.d.sync += words.eq(words + beat)
        m.d.comb += self.refused.eq(sum(engine.refused for engine in machine.engines))
        if self.machine.agent == "bench":
            m.submodules.injection = injection = self.injection
            bench = machine.bench
            m.d.comb += [
                injection.push.eq(self.send_push),
                injection.push_data.eq(self.send),
                injection.pop.eq(bench.send_ready),
                bench.send.eq(injection.head),
                bench.send_valid.eq(injection.valid),
                self.unsent.eq(injection.level),
                bench.take.eq(1),
                self.flit.eq(bench.flit),
                self.valid.eq(bench.valid),
            ]
        else:
            wiring.connect(m, wiring.flipped(self.host), machine.host)
        return m


def machine_verilog(machine: Machine, *, agent: str) -> tuple[str, list[str]]:
    """(Verilog text with top module `TOP`, link names by index) of what a simulator runs."""
    simulated = SimulatedTop(machine, agent=agent)
    return monitor.VERILOG + merge(verilog(simulated, name=TOP)), simulated.links
