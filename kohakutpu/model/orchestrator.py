"""The control agent: registers, staging and dispatch, status mirror, mailbox (spec: orchestrator).

Timing is `docs/microarchitecture.md`, section "Orchestrator". The host reaches it between two cycles:
`read` sees the registers as they stand at the start of cycle `now`, and what `write` changes is there in
cycle `now`, as if a register had been loaded at the end of the cycle before.
"""

from __future__ import annotations

from kohakutpu.isa import registers as reg
from kohakutpu.isa.flit import Flit, FlitType, type_name, xy
from kohakutpu.isa.signals import CU_SIGNAL, SignalCode
from kohakutpu.machine import Machine
from kohakutpu.model.mag import Agent, MagPort
from kohakutpu.noc.engine import Engine, Fifo
from kohakutpu.wording import counted

FAULTS = {
    "orchestrator-lost-credit": "no INST_COMPLETE after the second returns dispatch credit",
    "orchestrator-lost-signal": "the fifth signal is not counted in the status mirror",
    "orchestrator-stale-slot": "dispatch reads word 3 of a flit, the top of its payload, from the staging slot before",
}

WORD = (1 << 64) - 1
COUNT = 0xFFFF


class Orchestrator(Agent):
    """The orchestrator of `machine` at `node`.

    `mirror` is the status memory of 256 words that a reset leaves alone, `staging` the program memory;
    both are taken over from the orchestrator of before the reset when given. Whoever builds the machine sets
    `memory_ports`, asked for traffic counts, and `mover` where there is one.
    """

    def __init__(self, engine: Engine, machine: Machine, *, mirror: list[int] | None = None,
                 staging: list[int] | None = None, faults: frozenset[str] = frozenset()):  # fmt: skip
        agent = machine.agent
        super().__init__(engine, "agent", node=agent.node, holds=agent.own_endpoint, tx_depth=machine.tx_depth)
        self.machine = machine
        self.memory_ports: list[MagPort] = []
        self.mover = None
        self.no_mover = reg.MoverFault.NONE
        self.faults = faults & FAULTS.keys()
        self.mirror = mirror if mirror is not None else [0] * reg.NODE_STATUS.count
        self.staging = staging if staging is not None else [0] * (machine.staging_flits * reg.FLIT_WORDS)
        self.credit_limit = machine.credit_limit
        self.rx = Fifo(machine.rx_depth)
        self.overflow = False
        self.error = False
        self.stored = dict.fromkeys(("CTRL", "IRQ_EN", "PROG_DST", "PROG_LEN", "PROG_BASE"), 0)
        self.mailbox = [0] * reg.FLIT_WORDS
        self.signals = 0
        self.seen = 0  # signals since reset, for the faults
        self.completions = 0
        self.run = False
        self.fell = -1  # the cycle at whose end `run` was last cleared
        self.left = 0
        self.credit = 0
        self.pointer = 0
        self.words: list[int] = []
        self.dispatched = 0
        self.last_signal: dict[int, tuple[int, int, int]] = {}  # node -> (cycle, code, arg), for people
        self._found: dict[int, tuple[reg.Register, int] | None] = {}

    # ---- the clock -----------------------------------------------------------------------------------

    def step(self, now: int) -> int:
        """One staging word and one inbound flit a cycle; credit as it stood at the start of the cycle."""
        self._dispatch(now)
        inbound = self.take_inbound(now)
        return now + 1 if self.run and self.credit and len(self.tx.items) < self.tx.depth else inbound

    def _dispatch(self, now: int) -> None:
        if not self.run or self.credit == 0 or self.tx.full(now):
            return
        words = self.words
        source = self.pointer
        if "orchestrator-stale-slot" in self.faults and len(words) == 3:
            source -= reg.FLIT_WORDS
        words.append(self.staging[source])
        self.pointer += 1
        if len(words) == reg.FLIT_WORDS:
            flit = Flit.from_int(reg.from_words(words))
            words.clear()
            destination = self.stored["PROG_DST"]
            self.push_outbound(flit._replace(dst=destination, src=self.node), now)
            self.credit -= 1
            self.dispatched += 1
            self.left -= 1
            if self.left == 0:
                self.run, self.fell = False, now

    def transmitted(self, now: int) -> None:
        if self.run:
            self.wake(now + 1)

    def take(self, flit: Flit, now: int) -> bool:
        """Signals go to the mirror and are never refused; the rest to the receive FIFO."""
        full = self.rx.full(now)
        self.overflow |= full
        if flit.type == FlitType.CU_SIGNAL:
            self._absorb(flit, now)
            return True
        if full:
            return False
        self.rx.push(flit, now)
        return True

    def _absorb(self, flit: Flit, now: int) -> None:
        code, arg = CU_SIGNAL.get(flit.payload, "code"), CU_SIGNAL.get(flit.payload, "arg")
        self.last_signal[flit.src] = (now, code, arg)
        self.seen += 1
        if "orchestrator-lost-signal" in self.faults and self.seen == 5:
            return
        count = reg.NODE_STATUS.layout.get(self.mirror[flit.src], "count") + 1
        self.mirror[flit.src] = reg.NODE_STATUS.layout.encode(code=code, arg=arg, count=count & COUNT, valid=1)
        self.signals = (self.signals + 1) & COUNT
        if code == SignalCode.INST_COMPLETE:
            self.completions += 1
            if "orchestrator-lost-credit" in self.faults and self.completions > 2:
                return
            self.credit = (self.credit + 1) & COUNT

    # ---- the host's side -----------------------------------------------------------------------------

    def _find(self, offset: int) -> tuple[str, reg.Register | None, int]:
        offset %= reg.WINDOW
        if offset not in self._found:
            found = reg.find(offset, self.machine.staging_flits)
            self._found[offset] = ("", None, 0) if found is None else (found[0].name, *found)
        return self._found[offset]

    def read(self, offset: int, now: int) -> int:
        """The 64-bit value at byte `offset` of the window; 0 where nothing answers."""
        name, register, index = self._find(offset)
        match name:
            case "NODE_STATUS":
                return self.mirror[index]
            case "STATUS":
                return register.layout.encode(mesh_ready=1, error=self.error, busy=self.run or bool(self.tx.items))
            case "CAPS":
                return register.layout.encode(grid_hi=self.machine.grid_hi)
            case "IRQ_STAT":
                return int(self.error)
            case "CTRL" | "IRQ_EN" | "PROG_DST" | "PROG_LEN" | "PROG_BASE":
                return self.stored[name]
            case "PROG_STAT":
                return register.layout.encode(credit=self.credit, left=self.left, run=self.run)
            case "PROG_CRED":
                return self.credit
            case "SIG_DONE":
                return self.signals
            case "AUX_STAT":
                return self._aux_stat()
            case "TX_STATUS":
                return register.layout.encode(full=self.tx.full(now))
            case "RX_FLIT":
                head = self.rx.head(now)
                return 0 if head is None else reg.to_words(head.to_int())[index]
            case "RX_STATUS":
                return register.layout.encode(overflow=self.overflow, empty=self.rx.head(now) is None)
            case _:
                return 0

    def _aux_stat(self) -> int:
        mover = self.mover
        moves = {"fault": self.no_mover}
        if mover is not None:
            moves = {"moves": mover.done, "fault": mover.fault, "busy": mover.busy}
        engines = [port.memory for port in self.memory_ports]
        reads, writes = sum(engine.reads for engine in engines), sum(engine.writes for engine in engines)
        return reg.AUX_STAT.layout.encode(reads=reads & COUNT, writes=writes & COUNT, **moves)

    def write(self, offset: int, value: int, now: int, strobe: int = 0xFF) -> None:
        """A 64-bit write at byte `offset`; ignored where nothing answers. `strobe` counts for TX_FLIT only."""
        name, register, index = self._find(offset)
        before = now - 1
        match name:
            case "STAGE":
                self.staging[index] = value
            case "CTRL" | "IRQ_EN":
                self.stored[name] = value
            case "PROG_DST" | "PROG_LEN" | "PROG_BASE":
                self.stored[name] = value & sum(item.mask for item in register.layout.fields.values())
            case "PROG_KICK":
                if not self._running(before):
                    self._kick(now)
            case "PROG_CRED":
                credit = register.layout.get(value, "credit")
                self.error |= credit > self.credit_limit
                self.credit = min(credit, self.credit_limit)
                self.wake(now)
            case "IRQ_STAT":
                self.error &= not value & 1
            case "SIG_DONE":
                self.signals = 0
            case "TX_FLIT":
                mask = sum(0xFF << (8 * byte) for byte in range(8) if strobe >> byte & 1)
                self.mailbox[index] = self.mailbox[index] & ~mask | value & mask
            case "TX_KICK":
                if not self._running(before) and not self.tx.full(before):
                    self.push_outbound(Flit.from_int(reg.from_words(self.mailbox)), before)
            case "RX_POP":
                if self.rx.head(before) is not None:
                    self.rx.pop(before)
                    self.wake(now)
            case "AUX_CFG":
                self._configure(index * reg.REGISTER_BYTES, value, now)

    def _configure(self, offset: int, value: int, now: int) -> None:
        """Forward to the mover; where none is built, starting it is a mode fault in AUX_STAT."""
        if self.mover is not None:
            self.mover.configure(offset, value, now)
        elif offset in reg.MOVER and reg.MOVER[offset] is reg.MV_CONTROL and reg.MV_CONTROL.get(value, "go"):
            self.no_mover = reg.MoverFault.MODE

    def _running(self, cycle: int) -> bool:
        """`run` as it stood at the start of the cycle that has just passed."""
        return self.run or self.fell == cycle

    def _kick(self, now: int) -> None:
        """Start a dispatch; past the end of staging it is refused and reported instead."""
        length, base = self.stored["PROG_LEN"], self.stored["PROG_BASE"]
        if length == 0:
            return
        if base + length > self.machine.staging_flits:
            self.error = True
            return
        self.run, self.left, self.pointer = True, length, base * reg.FLIT_WORDS
        self.wake(now)

    def describe(self) -> list[str]:
        lines = []
        if self.run:
            x, y = xy(self.stored["PROG_DST"])
            lines.append(
                f"  dispatch to ({x},{y}): {counted(self.left, 'flit')} left, credit {self.credit}, "
                f"{self.dispatched} sent since reset"
            )
        if self.tx.items:
            flit = self.tx.items[0]
            lines.append(
                f"  {counted(len(self.tx), 'flit')} to send, the first a {type_name(flit.type)} for {xy(flit.dst)}"
            )
        if self.rx.items:
            lines.append(f"  {counted(len(self.rx), 'received flit')} not read by the host")
        if self.dropped:
            lines.append(f"  {counted(self.dropped, 'flit')} dropped because the receive FIFO was full")
        signals = counted(self.signals, "signal")
        return [f"{self.name} {xy(self.node)}: credit {self.credit}, {signals} since SIG_DONE was cleared", *lines]
