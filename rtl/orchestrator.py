"""The control agent: registers, staging and dispatch, mirror, mailbox (docs/microarchitecture.md, orchestrator)."""

from __future__ import annotations

from amaranth import Array, Cat, Const, Module, Mux, ResetSignal, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa import registers as reg
from kohakutpu.isa.flit import FLIT_WIDTH, FlitType, node
from kohakutpu.isa.signals import CU_SIGNAL, SignalCode
from kohakutpu.machine import Machine

from .agent import AgentSide, AgentSignature
from .emit import shared
from .fifo import Fifo
from .host_port import DATA_WIDTH, HOST, HostPort
from .link import FLIT, view
from .mover import MoverSignature
from .parameters import known_fault, positive

COUNT_BITS = 16
STATUS = view(reg.NODE_STATUS.layout)

FAULTS = {
    "lost-credit": "an INST_COMPLETE that is absorbed in the cycle of a dispatched flit returns no credit",
    "batch-credit": "BATCH_COMPLETE returns credit too",
    "late-count": "of two signals of one node in consecutive cycles the mirror counts one",
    "stale-word": "the read of staging does not look ahead after a pause: a word is read twice",
    "kick-restarts": "a kick while a dispatch runs starts it anew",
    "source-kept": "dispatch leaves the source of a staged flit as it is",
    "pop-loses": "RX_POP drops the head only when nothing arrives in that cycle",
    "strobe-ignored": "TX_FLIT ignores byte strobes",
}


class Orchestrator(wiring.Component):
    """The orchestrator at (`x`, `y`) behind ports on `rows`.

    `holds` says that what it cannot take waits (an endpoint of its own) and is not dropped (memory ports);
    `credit_limit` is the smallest instruction FIFO of the machine, `grid_hi` what CAPS reports, `memory_ports` how
    many engines AUX_STAT sums up; `mover` says that there is a memory mover, without one GO raises its mode fault.
    `host_port` and `side` plant a fault in those blocks. Members: `host` (AXI4 slave), `ports` (one `AgentSignature` a
    row), `reads` and `writes` (each memory engine's counts modulo 65536), and `mover` (`MoverSignature`) with a mover.
    """

    def __init__(self, *, x: int, y: int, rows: tuple[int, ...], holds: bool, grid_hi: int, credit_limit: int,
                 memory_ports: int, staging_flits: int, tx_depth: int, rx_depth: int, mover: bool,
                 fault: str | None = None, host_port: str | None = None, side: str | None = None):  # fmt: skip
        positive("Orchestrator", grid_hi=grid_hi, credit_limit=credit_limit, memory_ports=memory_ports,
                 staging_flits=staging_flits, tx_depth=tx_depth, rx_depth=rx_depth)  # fmt: skip
        if staging_flits * reg.FLIT_WORDS > reg.STAGE.count:
            raise TypeError(
                f"Orchestrator staging_flits must be at most {reg.STAGE.count // reg.FLIT_WORDS}, not {staging_flits}"
            )
        self.node = node(x, y)
        self.rows, self.holds = tuple(rows), holds
        self.grid_hi, self.credit_limit, self.memory_ports = grid_hi, credit_limit, memory_ports
        self.staging_flits, self.tx_depth, self.rx_depth = staging_flits, tx_depth, rx_depth
        self.has_mover = mover
        self.fault = known_fault("Orchestrator", fault, FAULTS)
        self.inner_faults = {"host_port": host_port, "side": side}
        super().__init__(
            {
                "host": In(HOST),
                "ports": In(AgentSignature()).array(len(self.rows)),
                "reads": In(COUNT_BITS).array(memory_ports),
                "writes": In(COUNT_BITS).array(memory_ports),
                **({"mover": Out(MoverSignature())} if mover else {}),
            }
        )

    @classmethod
    def of(cls, machine: Machine, *, mover: bool, **faults: str | None) -> Orchestrator:
        """The orchestrator of a machine; `mover` and `faults` are the constructor's."""
        agent = machine.agent
        return cls(
            x=agent.x, y=agent.y, rows=(agent.y,) if agent.own_endpoint else tuple(port.y for port in machine.ports),
            holds=agent.own_endpoint, grid_hi=machine.grid_hi, memory_ports=len(machine.ports),
            credit_limit=min(unit.inst_depth for unit in machine.units), staging_flits=machine.staging_flits,
            tx_depth=machine.tx_depth, rx_depth=machine.rx_depth, mover=mover, **faults,
        )  # fmt: skip

    def elaborate(self, platform):
        m = Module()
        m.submodules.host_port = self.bus = bus = HostPort(fault=self.inner_faults["host_port"])
        wiring.connect(m, wiring.flipped(self.host), bus.host)
        m.submodules.side = self.side = side = AgentSide(rows=self.rows, fault=self.inner_faults["side"])
        for mine, theirs in zip(self.ports, side.ports, strict=True):
            wiring.connect(m, wiring.flipped(mine), theirs)
        m.submodules.tx = self.tx = tx = shared(Fifo, width=FLIT.size, depth=self.tx_depth)
        m.submodules.rx = self.rx = shared(Fifo, width=FLIT.size, depth=self.rx_depth)
        m.d.comb += [side.send.eq(tx.head), side.send_valid.eq(tx.valid), tx.pop.eq(side.send_ready)]

        self.readable: dict[str, object] = {}  # register name -> its value, 64 bits
        self.error = Signal()
        self.credit = Signal(COUNT_BITS)
        self.completed = Signal()  # an INST_COMPLETE was absorbed in this cycle
        self.dispatched = Signal()  # a flit was pushed by dispatch in this cycle
        self.run = Signal()
        self._storage(m)
        self._dispatch(m)
        self._mailbox(m)
        self._absorb(m)
        self._statistics(m)
        self._read(m)
        return m

    def _selects(self, register: reg.Register, index, count: int | None = None):
        """`index`, a register's number in the window, names an element of `register`."""
        first = register.offset // reg.REGISTER_BYTES
        count = count or register.count
        return (index == first) if count == 1 else (index >= first) & (index < first + count)

    def _written(self, register: reg.Register, count: int | None = None):
        """This cycle loads an element of `register`."""
        return self.bus.write & self._selects(register, self.bus.write_index, count)

    def _element(self, register: reg.Register, index, count: int):
        """Which element of `register`, one of `count`, the number `index` names."""
        return (index - register.offset // reg.REGISTER_BYTES)[: max(1, (count - 1).bit_length())]

    def _storage(self, m: Module) -> None:
        """Registers that only keep what is written, as far as they have fields."""
        self.stored = {}
        for register in (reg.CTRL, reg.IRQ_EN, reg.PROG_DST, reg.PROG_LEN, reg.PROG_BASE):
            width = sum(item.width for item in register.layout.fields.values())
            self.stored[register.name] = kept = Signal(width, name=register.name)
            self.readable[register.name] = kept
            with m.If(self._written(register)):
                m.d.sync += kept.eq(self.bus.write_data)
        with m.If(self._written(reg.IRQ_STAT) & self.bus.write_data[0]):
            m.d.sync += self.error.eq(0)
        self.readable["IRQ_STAT"] = self.error

    def _dispatch(self, m: Module) -> None:
        bus, tx, run, credit = self.bus, self.tx, self.run, self.credit
        words = self.staging_flits * reg.FLIT_WORDS
        m.submodules.staging = staging = memory.Memory(shape=DATA_WIDTH, depth=words, init=[])
        load = staging.write_port()
        read = staging.read_port(transparent_for=[load])
        m.d.comb += [
            load.addr.eq(self._element(reg.STAGE, bus.write_index, words)),
            load.data.eq(bus.write_data),
            load.en.eq(self._written(reg.STAGE, words)),
        ]

        length, base = self.stored["PROG_LEN"], self.stored["PROG_BASE"]
        start = Signal(range(words + 1))  # 5 * PROG_BASE, one cycle behind it; a kick is another access
        left = Signal(COUNT_BITS)
        pointer = Signal(range(words + 1))
        word = Signal(range(reg.FLIT_WORDS))
        gathered = [Signal(DATA_WIDTH, name=f"word_{i}") for i in range(reg.FLIT_WORDS - 1)]
        kick, refused, fetch = Signal(), Signal(), Signal()
        stopped = run & (self.fault != "kick-restarts")
        m.d.sync += start.eq((base << 2) + base)
        m.d.comb += [
            refused.eq(base + length > self.staging_flits),
            kick.eq(self._written(reg.PROG_KICK) & ~stopped & (length != 0)),
            fetch.eq(run & ~tx.full & (credit != 0)),
            self.dispatched.eq(fetch & (word == reg.FLIT_WORDS - 1)),
        ]
        following = Signal(range(words + 1))
        m.d.comb += following.eq(pointer)
        with m.If(fetch):
            m.d.comb += following.eq(pointer + 1)
            m.d.sync += word.eq(Mux(self.dispatched, 0, word + 1))
            for i, kept in enumerate(gathered):
                with m.If(word == i):
                    m.d.sync += kept.eq(read.data)
        with m.If(self.dispatched):
            m.d.sync += left.eq(left - 1)
            with m.If(left == 1):
                m.d.sync += run.eq(0)
        with m.If(kick & refused):
            m.d.sync += self.error.eq(1)
        with m.If(kick & ~refused):
            m.d.comb += following.eq(start)
            m.d.sync += [run.eq(1), left.eq(length)]
        m.d.sync += pointer.eq(following)
        behind = Signal()
        if self.fault == "stale-word":
            m.d.sync += behind.eq(tx.full)
        m.d.comb += [read.addr.eq(Mux(behind, pointer, following)), read.en.eq(1)]

        staged = Signal(FLIT)
        m.d.comb += staged.eq(Cat(*gathered, read.data)[:FLIT_WIDTH])
        self.outgoing = Signal(FLIT)
        m.d.comb += [
            self.outgoing.eq(staged),
            Cat(self.outgoing.dst_x, self.outgoing.dst_y).eq(self.stored["PROG_DST"]),
        ]
        if self.fault != "source-kept":
            m.d.comb += Cat(self.outgoing.src_x, self.outgoing.src_y).eq(Const(self.node, 8))

        # Credit: a host write wins over what the cycle itself does.
        returned = self.completed & ~(self.dispatched if self.fault == "lost-credit" else 0)
        m.d.sync += credit.eq(credit + returned - self.dispatched)
        wanted = bus.write_data[:COUNT_BITS]
        with m.If(self._written(reg.PROG_CRED)):
            m.d.sync += credit.eq(wanted)
            with m.If(wanted > self.credit_limit):
                m.d.sync += [credit.eq(self.credit_limit), self.error.eq(1)]

        state = Signal(view(reg.PROG_STAT.layout))
        m.d.comb += [state.credit.eq(credit), state.left.eq(left), state.run.eq(run)]
        self.readable |= {"PROG_STAT": state, "PROG_CRED": credit}

    def _mailbox(self, m: Module) -> None:
        """TX_FLIT as it stands, or what dispatch has put together; the receive FIFO's head."""
        bus, tx, rx = self.bus, self.tx, self.rx
        mail = Signal(reg.FLIT_WORDS * DATA_WIDTH)
        with m.If(self._written(reg.TX_FLIT)):
            element = self._element(reg.TX_FLIT, bus.write_index, reg.FLIT_WORDS)
            for i in range(reg.FLIT_WORDS):
                for byte in range(reg.REGISTER_BYTES):
                    with m.If((element == i) & (bus.write_strobe[byte] | (self.fault == "strobe-ignored"))):
                        m.d.sync += mail.word_select(reg.REGISTER_BYTES * i + byte, 8).eq(
                            bus.write_data.word_select(byte, 8)
                        )
        sent = Signal()
        m.d.comb += [
            sent.eq(self._written(reg.TX_KICK) & ~self.run & ~tx.full),
            tx.push.eq(self.dispatched | sent),
            tx.push_data.eq(Mux(self.run, self.outgoing, mail[:FLIT_WIDTH])),
            rx.pop.eq(self._written(reg.RX_POP) & ~(rx.push if self.fault == "pop-loses" else 0)),
        ]
        status = Signal(view(reg.STATUS.layout))
        tx_status = Signal(view(reg.TX_STATUS.layout))
        rx_status = Signal(view(reg.RX_STATUS.layout))
        self.overflow = Signal()
        m.d.comb += [
            status.mesh_ready.eq(1),
            status.error.eq(self.error),
            status.busy.eq(self.run | tx.valid),
            tx_status.full.eq(tx.full),
            rx_status.overflow.eq(self.overflow),
            rx_status.empty.eq(~rx.valid),
        ]
        head = Signal(reg.FLIT_WORDS * DATA_WIDTH)
        m.d.comb += head.eq(Mux(rx.valid, rx.head, 0))
        self.received = Array(head.word_select(i, DATA_WIDTH) for i in range(reg.FLIT_WORDS))
        self.readable |= {"STATUS": status, "TX_STATUS": tx_status, "RX_STATUS": rx_status}

    def _absorb(self, m: Module) -> None:
        """Signals to the mirror, the rest to the receive FIFO, which holds or drops what it has no room for."""
        side, rx, bus = self.side, self.rx, self.bus
        flit = side.flit
        signal = data.View(view(CU_SIGNAL), flit.payload)
        is_signal = Signal()
        seen = Signal()
        signals = Signal(COUNT_BITS)
        codes = [SignalCode.INST_COMPLETE, *([SignalCode.BATCH_COMPLETE] if self.fault == "batch-credit" else [])]
        m.d.comb += [
            is_signal.eq(flit.type == FlitType.CU_SIGNAL),
            # the mirror must not change in the first cycle of reset, in which a flit may still be there
            seen.eq(side.valid & is_signal & ~ResetSignal()),
            self.completed.eq(seen & signal.code.matches(*codes)),
            rx.push.eq(side.valid & ~is_signal),
            rx.push_data.eq(flit),
            side.take.eq(side.valid & (is_signal | ~rx.full | (not self.holds))),
        ]
        with m.If(side.valid & rx.full):
            m.d.sync += self.overflow.eq(1)
        m.d.sync += signals.eq(signals + seen)
        with m.If(self._written(reg.SIG_DONE)):
            m.d.sync += signals.eq(0)
        self.readable["SIG_DONE"] = signals

        # The mirror: block RAM for the host, and its counts once more where they can be read in the same cycle.
        nodes = reg.NODE_STATUS.count
        m.submodules.mirror = mirror = memory.Memory(shape=STATUS.size, depth=nodes, init=[])
        m.submodules.counts = counts = memory.Memory(shape=COUNT_BITS, depth=nodes, init=[])
        update, look = mirror.write_port(), counts.read_port(domain="comb")
        host, count = mirror.read_port(transparent_for=[update]), counts.write_port()
        source = Cat(flit.src_x, flit.src_y)
        entry = Signal(STATUS)
        m.d.comb += [
            look.addr.eq(source),
            entry.code.eq(signal.code),
            entry.arg.eq(signal.arg),
            entry.count.eq(look.data + 1),
            entry.valid.eq(1),
            update.addr.eq(source), update.data.eq(entry), update.en.eq(seen),
            host.addr.eq(self._element(reg.NODE_STATUS, bus.read_index, nodes)), host.en.eq(1),
        ]  # fmt: skip
        keep = m.d.sync if self.fault == "late-count" else m.d.comb
        keep += [count.addr.eq(source), count.data.eq(entry.count), count.en.eq(seen)]
        self.mirrored = host.data

    def _statistics(self, m: Module) -> None:
        """AUX_STAT: memory traffic of all ports, and the mover's state, or the fault of one that is not there."""
        aux = Signal(view(reg.AUX_STAT.layout))
        m.d.comb += [aux.reads.eq(sum(self.reads)), aux.writes.eq(sum(self.writes))]
        if self.has_mover:
            m.d.comb += [
                self.mover.write.eq(self._written(reg.AUX_CFG)),
                self.mover.index.eq(self._element(reg.AUX_CFG, self.bus.write_index, reg.AUX_CFG.count)),
                self.mover.data.eq(self.bus.write_data),
                aux.busy.eq(self.mover.busy), aux.moves.eq(self.mover.moves), aux.fault.eq(self.mover.fault),
            ]  # fmt: skip
        else:
            no_mover = Signal(4)
            go = data.View(view(reg.MV_CONTROL), self.bus.write_data).go
            control = next(offset for offset, layout in reg.MOVER.items() if layout is reg.MV_CONTROL)
            with m.If(self.bus.write & (self.bus.write_index == reg.aux_offset(control) // reg.REGISTER_BYTES) & go):
                m.d.sync += no_mover.eq(reg.MoverFault.MODE)
            m.d.comb += aux.fault.eq(no_mover)
        self.readable["AUX_STAT"] = aux
        self.readable["CAPS"] = Const(reg.CAPS.layout.encode(grid_hi=self.grid_hi), DATA_WIDTH)

    def _read(self, m: Module) -> None:
        """The select of each register is decoded one cycle before its value is wanted."""
        bus = self.bus
        element = Signal(range(reg.FLIT_WORDS))
        sources = {name: value for name, value in self.readable.items()}
        sources |= {"NODE_STATUS": self.mirrored, "RX_FLIT": self.received[element]}
        with m.If(bus.read_next):
            m.d.sync += element.eq(self._element(reg.RX_FLIT, bus.read_index, reg.FLIT_WORDS))
        value = 0
        for name, source in sources.items():
            select = Signal(name=f"select_{name}")
            with m.If(bus.read_next):
                m.d.sync += select.eq(self._selects(reg.BY_NAME[name], bus.read_index))
            word = Signal(DATA_WIDTH, name=f"read_{name}")
            m.d.comb += word.eq(source)
            value |= word & select.replicate(DATA_WIDTH)
        m.d.comb += bus.read_data.eq(value)
