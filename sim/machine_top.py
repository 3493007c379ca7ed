# amaranth: UnusedElaboratable=no
"""What a simulator runs: a machine's top, its memory, a monitor on every link and a checker at every endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from amaranth import Cat, ClockSignal, Instance, Module, Mux, ResetSignal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import node
from kohakutpu.machine import Machine
from rtl import top
from rtl.emit import shared, verilog
from rtl.endpoint import COMPLETION_DEPTH
from rtl.fifo import Fifo
from rtl.link import FLIT
from rtl.memory_window import HOST_AXI
from rtl.merge import merge

from . import monitor, tracer
from .dram import BackdoorSignature, Dram
from .port_checker import PortChecker, watch
from .port_rules import OWED_WIDTH, STATE_WIDTH, VIOLATIONS_WIDTH

TOP = "machine"
INJECTION_DEPTH = 8192  # flits that a bench may have waiting
IN_HAND = 2  # instructions that a unit has besides those in its FIFOs: in flight, and its completion on the link
BOUND = 1 << 20  # cycles that an endpoint may be busy, for each cycle that the memory takes for a word


class SimulatedTop(wiring.Component):
    """`machine` with memory behind its ports; Python sees the members and nothing else.

    Members: `cycle` counts from 0 in the first cycle after reset; `quiet` the cycles since a flit last moved on any
    link, `still` that these are at least `quiet_for`; a rise of `over` ends the trace; `activity` the cycles in which a
    link or a memory port moved something; `violations`, `owed` and `states` what the checker of each endpoint says
    (`sim.port_rules`), in the order of `endpoints`, the first lowest; `refused` the requests that memory ports refused;
    `read_words` and `written_words`, 32 bits a port, the words that memory ports moved; `settled`, a bit a port, that
    all writes that have arrived are in memory; `backdoor` leads into the memory (`sim.dram.Backdoor`); `window` is the
    AXI4 slave of the host's memory window. With `agent='orchestrator'`: `host`, the AXI4 slave. With `agent='bench'`:
    `send`, pushed in each cycle with `send_push` to a FIFO of `INJECTION_DEPTH`, `unsent` its level; `flit` and
    `valid`, what arrives, taken at once. `faults` as `MachineTop` has them.
    """

    def __init__(self, machine: Machine, *, agent: str = "orchestrator", faults: Mapping[str, str] | None = None):
        self.machine = top.MachineTop(machine, agent=agent, faults=faults)
        self.links = list(self.machine.links)
        self.endpoints = list(self.machine.endpoints)
        memory = machine.memory
        self.dram = Dram(
            ports=len(self.machine.dram),
            memory_bytes=memory.bytes,
            latency=memory.latency,
            cycles_per_word=memory.cycles_per_word,
        )
        members = {
            "cycle": Out(32), "quiet": Out(32), "quiet_for": In(32), "still": Out(1), "over": In(1),
            "activity": Out(32), "refused": Out(32),
            "read_words": Out(32 * len(machine.ports)), "written_words": Out(32 * len(machine.ports)),
            "settled": Out(len(machine.ports)),
            "violations": Out(VIOLATIONS_WIDTH * len(self.endpoints)), "owed": Out(OWED_WIDTH * len(self.endpoints)),
            "states": Out(STATE_WIDTH * len(self.endpoints)), "backdoor": In(BackdoorSignature()),
            "window": In(HOST_AXI),
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
        m.submodules.gates = machine = self.machine
        m.d.sync += self.cycle.eq(self.cycle + 1)
        moved = []
        for index, link in enumerate(machine.links.values()):
            m.submodules[f"monitor_{index}"] = Instance(
                monitor.NAME, i_clk=ClockSignal(), i_rst=ResetSignal(), i_cycle=self.cycle,
                i_valid=link.valid, i_busy=link.busy, i_flit=link.flit,
            )  # fmt: skip
            moved.append(link.valid & ~link.busy)
        m.submodules.tracer = Instance(
            tracer.NAME, i_clk=ClockSignal(), i_rst=ResetSignal(), i_over=self.over, i_cycle=self.cycle
        )
        self._check(m)
        m.d.comb += self.still.eq(self.quiet >= self.quiet_for)
        m.d.sync += self.quiet.eq(Mux(Cat(*moved).any(), 0, self.quiet + 1))
        beats = [axi.rvalid & axi.rready | axi.wvalid & axi.wready for axi in machine.dram]
        m.d.sync += self.activity.eq(self.activity + Cat(*moved, *beats).any())
        m.submodules.dram = dram = self.dram
        wiring.connect(m, wiring.flipped(self.backdoor), dram.backdoor)
        wiring.connect(m, wiring.flipped(self.window), machine.window)
        for master, slave in zip(machine.dram, dram.axi, strict=True):
            wiring.connect(m, master, slave)
        for port, _ in enumerate(machine.engines):
            axi = machine.dram[port]
            for total, beat in (
                (self.read_words, axi.rvalid & axi.rready),
                (self.written_words, axi.wvalid & axi.wready),
            ):
                words = total.word_select(port, 32)
                m.d.sync += words.eq(words + beat)
        m.d.comb += self.settled.eq(Cat(engine.settled for engine in machine.engines))
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

    def _check(self, m: Module) -> None:
        """A checker beside each endpoint. Ports of an agent send for others, and its own is busy until the host
        reads."""
        machine = self.machine.machine
        units = {f"cluster{index}": unit for index, unit in enumerate(machine.clusters)}
        units |= {f"vector{index}": unit for index, unit in enumerate(machine.vectors)}
        own = machine.agent.own_endpoint
        bound = BOUND * machine.memory.cycles_per_word
        for index, (name, endpoint) in enumerate(self.machine.endpoints.items()):
            unit = units.get(name)
            checker = shared(
                PortChecker, unit=unit is not None, named=own and name != "agent" or unit is not None,
                bound=None if name == "agent" else bound,
                outstanding=unit.inst_depth + COMPLETION_DEPTH + IN_HAND if unit else 1,
            )  # fmt: skip
            m.submodules[f"check_{name}"] = checker
            x, y = self.machine.mesh.sites[name]
            m.d.comb += [
                *watch(checker, endpoint.in_link, endpoint.out_link),
                checker.node.eq(node(x, y)),
                self.violations.word_select(index, VIOLATIONS_WIDTH).eq(checker.violations),
                self.owed.word_select(index, OWED_WIDTH).eq(checker.owed),
                self.states.word_select(index, STATE_WIDTH).eq(checker.state),
            ]


class Text(NamedTuple):
    """What a simulator compiles: Verilog with top module `TOP`; names of links and of endpoints by index."""

    verilog: str
    links: list[str]
    endpoints: list[str]


def machine_verilog(machine: Machine, *, agent: str, faults: Mapping[str, str] | None = None) -> Text:
    """The text of a `SimulatedTop`; arguments are its."""
    simulated = SimulatedTop(machine, agent=agent, faults=faults)
    text = monitor.VERILOG + merge(verilog(simulated, name=TOP))
    text += tracer.verilog(machine, agent, len(simulated.links), text, TOP)
    return Text(text, simulated.links, simulated.endpoints)
