"""Registers of the control agent over a `Transport` (spec: driver view, register map, register shadow)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kohakutpu.isa import registers
from kohakutpu.isa.flit import FLIT_WIDTH, Flit, FlitType, xy
from kohakutpu.isa.registers import Register
from kohakutpu.isa.signals import CU_CTRL_REPLY, CU_CTRL_REQUEST, ControlIndex, ControlOp

from .transport import CONTROL_BASE, Transport, TransportError

# A repeated write of the same value may be skipped: the hardware leaves them alone and a write is no event.
SHADOWED = frozenset({registers.PROG_DST.name, registers.PROG_BASE.name, registers.PROG_LEN.name})
RX_DRAIN_POPS = 32
POLLS_PER_CHECK = 256  # polls in vain between two looks at STATUS: seldom, since a look takes the machine's time
# Waits are counted in the transport's own clock. Where the transport shows progress, the default budget is one of
# silence, and a wait as a whole may take `PATIENCE` of them.
DEFAULT_TIMEOUT = {"cycles": 2_000_000, "s": 30.0}
PATIENCE = 100
LOOKS = 16  # times within a budget that progress is looked at
# How long a flit from the mailbox may be on its way through a quiet mesh and back, and looks at the mailbox at least.
REPLY_WAIT = {"cycles": 1_000, "s": 0.05}
REPLY_LOOKS = 4
ASKED = 2  # times that a declared unit is asked before it counts as silent: of two requests at once it loses one
TXN_MASK = 0xFF


class NoAnswer(TransportError):
    """A register did not take the awaited value in time; the text ends with the machine's own report."""

    exit_status = 4


class AgentError(TransportError):
    """The agent refused something: more credit than its limit, or a dispatch past the end of staging."""

    exit_status = 4


class Driver:
    """The agent's register window at `base`; every field goes through the register tables.

    A given `timeout` bounds every wait; the default one counts from the machine's last sign of life.
    """

    def __init__(self, transport: Transport, base: int = CONTROL_BASE, *, timeout: float | None = None):
        self.transport = transport
        self.base = base
        self.timeout = DEFAULT_TIMEOUT[transport.unit] if timeout is None else timeout
        self.patient = timeout is None
        self._shadow: dict[str, int] = {}
        self._txn = 0

    def forget(self) -> None:
        """Start a program: nothing is known about any register."""
        self._shadow.clear()

    def read(self, register: Register, index: int = 0) -> dict[str, int]:
        """Every field of a register by name."""
        return register.layout.decode(self.transport.read64(self.base + register.at(index)))

    def write(self, register: Register, index: int = 0, **fields: int) -> None:
        """Write a register; fields not named take their defaults."""
        value = register.layout.encode(**fields)
        if register.name in SHADOWED:
            if self._shadow.get(register.name) == value:
                return
            self._shadow[register.name] = value
        self.transport.write64(self.base + register.at(index), value)

    def poll(
        self, register: Register, index: int = 0, *, what: str, timeout: float | None = None, **want: int
    ) -> dict[str, int]:
        """Read until every named field has the wanted value; returns every field as it was then.

        Raises `NoAnswer` after the driver's timeout, or this one, naming the register, what was wanted, what was read
        last, and what the machine is doing; `AgentError` when the agent reports that it refused something.
        """
        limit = self.timeout if timeout is None else timeout
        start = alive = looked = self.transport.now
        patient = self.patient and timeout is None
        progress = self.transport.progress if patient else None
        polls = 0
        while True:
            seen = self.read(register, index)
            if all(seen[name] == value for name, value in want.items()):
                return seen
            now = self.transport.now
            if progress is not None and now - looked > limit / LOOKS:
                looked, before, progress = now, progress, self.transport.progress
                alive = now if progress != before else alive
            if now - alive > limit or now - start > PATIENCE * limit:
                spent = f"{limit:,} {self.transport.unit}"
                if now - alive <= limit:
                    spent = (
                        f"{PATIENCE * limit:,} {self.transport.unit}, the most a wait may take, though flits still move"
                    )
                elif progress is not None:
                    spent += f" without a sign of life ({now - start:,} in all)"
                wanted = " ".join(f"{name}={value}" for name, value in want.items())
                got = " ".join(f"{name}={seen[name]}" for name in want)
                report = self.transport.diagnose()
                raise NoAnswer(
                    f"{what}: {register.name}[{index:#x}] still reads {got} after {spent}, "
                    f"wanted {wanted}" + (f"\n{report}" if report else "")
                )
            polls += 1
            if polls % POLLS_PER_CHECK == 0:
                self.check_error(what)
            self.transport.pause()

    def check_error(self, what: str) -> None:
        """Raise `AgentError` when STATUS says that the agent refused a write."""
        if self.read(registers.STATUS)["error"]:
            report = self.transport.diagnose()
            raise AgentError(
                f"{what}: the agent reports an error (STATUS.error): PROG_CRED was given more credit than the "
                "machine's "
                "limit, or a kick named flits past the end of staging" + (f"\n{report}" if report else "")
            )

    def clear_error(self) -> None:
        """Forget an error of before, so that the next one shows."""
        if self.read(registers.STATUS)["error"]:
            self.write(registers.IRQ_STAT, **dict.fromkeys(registers.IRQ_STAT.layout.fields, 1))

    # ---- programs ------------------------------------------------------------------------------------

    def stage(self, flits: Iterable[int], slot: int = 0) -> int:
        """Write 288-bit flits to consecutive staging slots from `slot`; returns how many."""
        words = b""
        count = 0
        for flit in flits:
            words += b"".join(word.to_bytes(8, "little") for word in registers.to_words(flit))
            count += 1
        if count:
            self.transport.write_block(self.base + registers.stage_offset(slot), words)
        return count

    def seed_credit(self, credit: int) -> None:
        self.write(registers.PROG_CRED, credit=credit)

    def await_dispatch(self) -> None:
        """Wait until every kicked flit has left staging."""
        self.poll(registers.PROG_STAT, run=0, what="waiting for the dispatcher before the next round is staged")

    def kick(self, x: int, y: int, slot: int, flits: int) -> None:
        """Dispatch `flits` staged flits from `slot` to node (x, y), once the dispatcher is free."""
        self.poll(registers.PROG_STAT, run=0, what=f"waiting for the dispatcher before the kick to ({x},{y})")
        self.write(registers.PROG_DST, x=x, y=y)
        self.write(registers.PROG_BASE, slot=slot)
        self.write(registers.PROG_LEN, flits=flits)
        self.write(registers.PROG_KICK, data=1)

    def node_status(self, node: int) -> dict[str, int]:
        """The status mirror of a packed node byte: code, arg, count, valid."""
        return self.read(registers.NODE_STATUS, node)

    def await_signals(self, node: int, count: int) -> dict[str, int]:
        """Wait until the mirror's 16-bit signal count of `node` is `count`, modulo 65536; the mirror's fields then.

        The mirror survives a reset, so `count` starts from what `node_status` gave before anything was sent.
        """
        x, y = xy(node)
        return self.poll(
            registers.NODE_STATUS, node, count=count & 0xFFFF, valid=1,
            what=f"waiting for signals of node ({x},{y})",
        )  # fmt: skip

    # ---- mailbox ---------------------------------------------------------------------------------------

    def send(self, flit: Flit) -> None:
        """Send one flit exactly as it is."""
        for index, word in enumerate(registers.to_words(flit.to_int())):
            self.write(registers.TX_FLIT, index, data=word)
        self.write(registers.TX_KICK, data=1)

    def receive(self) -> Flit | None:
        """Pop the mailbox; None when it is empty."""
        if self.read(registers.RX_STATUS)["empty"]:
            return None
        words = [self.read(registers.RX_FLIT, index)["data"] for index in range(registers.FLIT_WORDS)]
        self.write(registers.RX_POP, data=1)
        return Flit.from_int(registers.from_words(words))

    def drain(self) -> int:
        """Drop what waits in the mailbox; returns how many flits."""
        for count in range(RX_DRAIN_POPS):
            if self.receive() is None:
                return count
        return RX_DRAIN_POPS

    def exchange(self, request: Flit, answers: Callable[[Flit], bool]) -> Flit | None:
        """Send a flit and wait, `REPLY_WAIT` at most, for one that `answers`; None when it does not come.

        Other flits that wait in the mailbox or arrive meanwhile are dropped: they belong to nobody.
        """
        self.poll(
            registers.STATUS, busy=0, what="waiting for the agent to have sent everything, before a flit of the mailbox"
        )
        self.drain()
        self.send(request)
        transport, looks = self.transport, 0
        start = transport.now
        while True:
            flit = self.receive()
            if flit is None:
                looks += 1
                if looks > REPLY_LOOKS and transport.now - start > REPLY_WAIT[transport.unit]:
                    return None
                transport.pause()
            elif answers(flit):
                return flit

    def ask(self, at: int, index: int = ControlIndex.CAPS, *, agent: int, attempts: int = 1) -> int | None:
        """The 64-bit value behind CU_CTRL `index` of the unit at node `at`, or None when it does not answer.

        `agent` is the node that the reply goes to, where the agent receives. Only a reply from `at` itself counts: for
        an empty site the clamp makes a neighbour answer (spec: discovery). One request at a time: a unit keeps one.
        """
        for _ in range(attempts):
            self._txn = self._txn + 1 & TXN_MASK
            request = Flit(at, agent, FlitType.CU_CTRL, self._txn, 1, 0, CU_CTRL_REQUEST.encode(index=index))

            def right(flit: Flit, txn: int = self._txn) -> bool:
                reply = CU_CTRL_REPLY.decode(flit.payload)
                return (flit.type, flit.src, flit.txn, reply["op"], reply["index"]) == (
                    FlitType.CU_CTRL, at, txn, ControlOp.REPLY, index,
                )  # fmt: skip

            flit = self.exchange(request, right)
            if flit is not None:
                return CU_CTRL_REPLY.get(flit.payload, "value")
        return None

    def control(self, at: int, index: int = ControlIndex.CAPS, *, agent: int) -> int:
        """`ask` of a unit that has to be there: `NoAnswer` when it is silent."""
        value = self.ask(at, index, agent=agent, attempts=ASKED)
        if value is None:
            x, y = xy(at)
            wait = f"{REPLY_WAIT[self.transport.unit]:,} {self.transport.unit}"
            said = f"the unit at ({x},{y}) did not answer CU_CTRL index {index:#x} within {wait}, asked {ASKED} times"
            raise NoAnswer(f"{said}\n{self.transport.diagnose()}".rstrip())
        return value

    # ---- identity --------------------------------------------------------------------------------------

    def identify(self) -> dict[str, int]:
        """CAPS, refused when what answers is no control agent of this project's flit."""
        caps = self.read(registers.CAPS)
        if caps["flit_width"] != FLIT_WIDTH:
            raise TransportError(
                f"no control agent at {self.base:#x}: CAPS names a {caps['flit_width']}-bit flit, expected {FLIT_WIDTH}"
            )
        return caps
