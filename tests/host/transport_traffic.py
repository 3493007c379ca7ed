"""Random accesses through any transport, held against what they must give: no word lost, none done twice.

Memory is held against a shadow. Registers that only keep a value are, too. What a repeated write would do shows in the
mailbox: every request that is sent is answered once, in order, and every pop takes one answer. A `Ledger` inside of a
transport sees what arrives there, and its words must be those that were written.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque

from kohakutpu.host.driver import Driver
from kohakutpu.host.transport import CONTROL_BASE, MEMORY_BASE, WORD, Transport, locate
from kohakutpu.host.transports.wrappers import Wrapper
from kohakutpu.isa import registers
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import CU_CTRL_REQUEST
from kohakutpu.machine import Machine

REGION = 0x4_0000  # offset in memory
SIZE = 1 << 15  # bytes
STORAGE = (registers.CTRL, registers.IRQ_EN)
OUTSTANDING = 8  # requests without an answer; the mailbox holds 16 flits
LOOKS = 400  # at the mailbox for an answer that is on its way


class Ledger(Wrapper):
    """Counts and digests the register words that reach `inner`, and the memory bytes; what is asked for in the other
    order is another digest.
    """

    def __init__(self, inner: Transport):
        super().__init__(inner)
        self.words = 0
        self.digest = hashlib.sha256()
        self.writes: list[int] = []  # control addresses in order, of the last few

    def write64(self, address: int, value: int) -> None:
        self.write_block(address, value.to_bytes(WORD, "little"))

    def write_block(self, address: int, data: bytes) -> None:
        self.inner.write_block(address, data)
        if locate(address, len(data), "write")[0] == "control":
            for at in range(0, len(data), WORD):
                self.digest.update((address + at).to_bytes(8, "little") + data[at : at + WORD])
                self.words += 1


class Traffic:
    """A stream of random accesses that `seed` fixes; `accesses` and `words` are what was asked for so far.

    `longest` is in words, of a block; `events` is how often an access is one of the mailbox, `blocks` how often it is a
    block.
    """

    def __init__(self, transport: Transport, machine: Machine, seed: int, *, longest: int = 64, events: float = 0.05,
                 blocks: float = 0.3):  # fmt: skip
        self.ledger = Ledger(transport)  # at this end: what was asked
        self.transport = self.ledger
        self.driver = Driver(self.ledger)
        self.machine = machine
        self.random = random.Random(seed)
        self.longest, self.events, self.blocks = longest, events, blocks
        self.accesses = self.words = self.requests = 0
        self.shadow = bytearray(self.random.randbytes(SIZE))
        self.storage = {register.name: 0 for register in STORAGE}
        self.waiting: deque[tuple[int, int]] = deque()  # (txn, node) of the requests that were sent
        self.driver.drain()
        self.transport.write_block(MEMORY_BASE + REGION, bytes(self.shadow))
        for register in STORAGE:
            self.transport.write64(CONTROL_BASE + register.offset, 0)

    def run(self, accesses: int) -> None:
        """At least so many accesses more, then everything that is still out, and the whole memory region."""
        end = self.accesses + accesses
        while self.accesses < end:
            self._step()
        while self.waiting:
            self._receive()
        self._count(1)
        assert self.driver.receive() is None, (
            f"an answer too many at {self._at(registers.RX_FLIT):#x}: a write was done twice"
        )
        self._expect(MEMORY_BASE + REGION, bytes(self.shadow), self.transport.read_block(MEMORY_BASE + REGION, SIZE))

    def _count(self, words: int, accesses: int = 1) -> None:
        self.accesses += accesses
        self.words += words

    def _at(self, register) -> int:
        return CONTROL_BASE + register.offset

    def _expect(self, address: int, expected: bytes, found: bytes) -> None:
        if expected != found:
            at = (
                next((i for i, (a, b) in enumerate(zip(expected, found)) if a != b), min(len(expected), len(found)))
                // WORD
                * WORD
            )
            raise AssertionError(
                f"access {self.accesses}: {found[at : at + WORD].hex()} at {address + at:#x}, expected "
                f"{expected[at : at + WORD].hex()} ({len(found)} bytes of {len(expected)})"
            )

    def _step(self) -> None:
        draw = self.random.random()
        if draw < self.events:
            self._send() if len(self.waiting) < OUTSTANDING and self.random.random() < 0.6 else self._receive()
        elif draw < 2 * self.events:
            self._register()
        else:
            self._memory(self.random.random() < self.blocks)

    def _memory(self, block: bool) -> None:
        words = self.random.randint(1, self.longest) if block else 1
        at = self.random.randrange(0, SIZE - WORD * words + 1, WORD)
        address, span = MEMORY_BASE + REGION + at, slice(at, at + WORD * words)
        self._count(words)
        if self.random.random() < 0.5:
            data = self.random.randbytes(WORD * words)
            self.shadow[span] = data
            if block:
                self.transport.write_block(address, data)
            else:
                self.transport.write64(address, int.from_bytes(data, "little"))
            return
        if block:
            found = self.transport.read_block(address, WORD * words)
        else:
            found = self.transport.read64(address).to_bytes(WORD, "little")
        self._expect(address, bytes(self.shadow[span]), found)

    def _register(self) -> None:
        register = self.random.choice(STORAGE)
        self._count(1)
        if self.random.random() < 0.5:
            self.storage[register.name] = value = self.random.getrandbits(64)
            self.transport.write64(self._at(register), value)
        else:
            expected = self.storage[register.name].to_bytes(WORD, "little")
            self._expect(
                self._at(register), expected, self.transport.read64(self._at(register)).to_bytes(WORD, "little")
            )

    def _send(self) -> None:
        self.requests += 1
        unit = self.random.choice(self.machine.units)
        txn = self.requests & 0xFF
        self.driver.send(
            Flit(unit.node, self.machine.agent.node, FlitType.CU_CTRL, txn, 1, 0, CU_CTRL_REQUEST.encode(index=0))
        )
        self.waiting.append((txn, unit.node))
        self._count(registers.FLIT_WORDS + 1, registers.FLIT_WORDS + 1)

    def _receive(self) -> None:
        """The next answer. Two units may answer in either order, one unit answers in its own."""
        if not self.waiting:
            return
        for _ in range(LOOKS):
            flit = self.driver.receive()
            self._count(1)
            if flit is not None:
                break
            self.transport.pause()
        else:
            raise AssertionError(
                f"access {self.accesses}: no answer at {self._at(registers.RX_FLIT):#x} to request "
                f"{self.waiting[0][0]:#x}: lost"
            )
        self._count(registers.FLIT_WORDS + 1, registers.FLIT_WORDS + 1)
        of_unit = [txn for txn, node in self.waiting if node == flit.src]
        assert of_unit and of_unit[0] == flit.txn, (
            f"access {self.accesses}: at {self._at(registers.RX_FLIT):#x} came an answer of {flit.src:#04x} to request "
            f"{flit.txn:#x}; it was asked {[hex(txn) for txn in of_unit]}: a write was lost or done twice"
        )
        self.waiting.remove((flit.txn, flit.src))
