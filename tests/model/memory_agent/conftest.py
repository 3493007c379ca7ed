"""A memory port between a scripted sender and a receiver that can hold flits back."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from kohakutpu.formats import mxfp7, words
from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.memory import MEM_REQ, MEM_WR
from kohakutpu.machine import Dram, load
from kohakutpu.model.mag import MagPort
from kohakutpu.model.memory_agent import build_memory_agent
from kohakutpu.noc.engine import NEVER, Component, Engine, Link

PORT = node(0, 1)
UNIT = node(1, 1)
SIZE = 1 << 20


class Sender(Component):
    """Sends `(earliest cycle, flit)` in order, back to back where it can."""

    def __init__(self, engine: Engine):
        super().__init__(engine, "sender")
        self.out = Link(engine, "sender.out", self)
        self.script: list[tuple[int, Flit]] = []

    def step(self, now: int) -> int:
        if not self.script:
            return NEVER
        if self.out.flit is not None:
            self.out.wanted = True
            return NEVER
        if now < self.script[0][0]:
            return self.script[0][0]
        self.out.send(self.script.pop(0)[1])
        self.out.wanted = bool(self.script)
        return NEVER


class Receiver(Component):
    """Takes flits; with a random source it refuses some for two to nine cycles."""

    def __init__(self, engine: Engine, stall: random.Random | None):
        super().__init__(engine, "receiver")
        self.link: Link | None = None
        self.stall = stall
        self.open_at = 0
        self.closed = False

    def accept(self, flit: Flit, now: int) -> bool:
        if self.closed or now < self.open_at:
            return False
        if self.stall is not None and self.stall.random() < 0.3:
            self.open_at = now + self.stall.randint(2, 9)
            self.wake(self.open_at - 1)
            return False
        return True

    def open(self) -> None:
        self.closed = False
        self.open_at = self.engine.now + 1
        self.wake(self.engine.now)

    def step(self, now: int) -> int:
        if not self.closed and now >= self.open_at - 1:
            self.link.retry()
        return NEVER


class Bench:
    """One port of mm_mesh's memory agent; `sent` and `got` are (cycle of the transfer, flit)."""

    def __init__(self, *, latency: int = 20, cycles_per_word: int = 1, latency_seed: int | None = None,
                 skip: bool = True, stall_seed: int | None = None, size: int = SIZE, slots: int = 16,
                 errata=frozenset(), faults=frozenset()):  # fmt: skip
        machine = load("mm_mesh")
        site = dataclasses.replace(machine.ports[0], write_slots=slots)
        machine = dataclasses.replace(
            machine, ports=(site,), memory=Dram(bytes=size, latency=latency, cycles_per_word=cycles_per_word)
        )
        self.engine = Engine(skip=skip)
        self.sender = Sender(self.engine)
        self.port = MagPort(self.engine, "mag0", node=PORT, index=0)
        self.agent = build_memory_agent(
            self.engine, machine, [self.port], errata=errata, faults=faults, latency_seed=latency_seed
        )
        self.memory, self.window, self.unit = self.agent.memory, self.agent.window, self.port.memory
        self.sender.out.sink = self.port
        self.port.in_link = self.sender.out
        self.receiver = Receiver(self.engine, None if stall_seed is None else random.Random(stall_seed))
        self.receiver.link = self.port.out
        self.port.out.sink = self.receiver
        self.sent: list[tuple[int, Flit]] = []
        self.got: list[tuple[int, Flit]] = []
        self.engine.on_transfer = self._saw

    def _saw(self, cycle: int, link: Link, flit: Flit) -> None:
        (self.sent if link is self.sender.out else self.got).append((cycle, flit))

    def send(self, *flits: Flit, at: int = 0) -> None:
        """Queue flits to be valid one cycle after `at` or later."""
        self.sender.script += [(at, flit) for flit in flits]
        self.sender.wake(max(self.engine.now, self.sender.script[0][0]))

    def run(self, flits: int | None = None, budget: int = 200_000) -> list[Flit]:
        """Advance until `flits` more have come (or nothing can happen any more); everything received so far."""
        if flits is None:
            end = self.engine.now + budget
            while not self.engine.idle and self.engine.now < end:
                self.engine.advance(1000)
                if not self.engine.skip and len(self.got) == getattr(self, "_before", -1) and not self.sender.script:
                    break
                self._before = len(self.got)
        else:
            goal = len(self.got) + flits
            assert self.engine.run(lambda: len(self.got) >= goal, budget), "\n".join(self.port.describe())
        return [flit for _, flit in self.got]

    def fill(self, seed: int = 1) -> bytes:
        """Random bytes in the whole memory; they are returned."""
        data = np.random.default_rng(seed).integers(0, 256, self.memory.size, dtype=np.uint8).tobytes()
        self.memory.write(0, data)
        return data

    @staticmethod
    def read(addr: int, txn: int = 0, src: int = UNIT, **fields: int) -> Flit:
        return Flit(PORT, src, FlitType.MEM_RD_REQ, txn, 1, 0, MEM_REQ.encode(addr=addr, **fields))

    @staticmethod
    def write(addr: int, data: list[int], txn: int = 0, src: int = UNIT) -> list[Flit]:
        """Descriptor and data flits; a burst longer than 8 is not refused here."""
        head = Flit(PORT, src, FlitType.MEM_WR_REQ, txn, 0, 0, MEM_WR.pack(addr=addr, len=len(data) - 1))
        return [head] + [
            Flit(PORT, src, FlitType.MEM_WR_DATA, txn, int(i == len(data) - 1), 0, word) for i, word in enumerate(data)
        ]

    @staticmethod
    def ack(txn: int = 0, src: int = UNIT) -> Flit:
        return Flit(src, PORT, FlitType.MEM_WR_ACK, txn, 1, 0, 0)

    @staticmethod
    def expect(request: Flit, memory: bytes) -> list[Flit]:
        """The responses to a read of a still memory, by the rules of the protocol and nothing else."""
        f = MEM_REQ.decode(request.payload)
        base = f["addr"]

        def word(address: int) -> int:
            return int.from_bytes(memory[address : address + 32], "little")

        def flit(dst: int, txn: int, last: bool, index: int, data: int) -> Flit:
            return Flit(dst, PORT, FlitType.MEM_RD_RESP, txn & 255, int(last), index, data)

        if not (f["stream"] or f["quant"]):
            beats = range(f["len"] + 1)
            return [flit(request.src, request.txn, k == f["len"], 0, word(base + 32 * k)) for k in beats]
        targets = [request.src] + [f["peers"] >> 8 * i & 255 for i in range(f["npeer"])]
        count = max(f["count"], 1) if f["stream"] else 1
        out = []
        for entry in range(count):
            if f["quant"]:
                source = np.frombuffer(memory, "<u2", 128, base + 256 * entry).astype(np.uint16).reshape(1, 4, 32)
                data = words.to_ints(mxfp7.pack(*mxfp7.quantise(source), "B" if f["blayout"] else "A"))
            else:
                size = f["entry_words"] if 1 <= f["entry_words"] <= 4 else 4
                data = [word(base + 32 * (size * entry + k)) for k in range(size)]
            for dst in targets:
                out += [flit(dst, request.txn + entry, k == len(data) - 1, k, value) for k, value in enumerate(data)]
        return out


@pytest.fixture
def bench():
    """The bench class: `bench(latency=20, ...)` makes one."""
    return Bench
