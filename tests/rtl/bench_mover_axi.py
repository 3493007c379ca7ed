"""The memory mover in front of an AXI memory that pauses at will, and fails: every byte and rule of AXI."""

from __future__ import annotations

import logging
import os
import random
from mmap import mmap

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge
from cocotbext.axi import AxiBus, AxiRam
from mover_rig import SEEN
from mover_scenario import BYTES, WORD, Move, Walk, contents, move

from kohakutpu.isa.registers import MoverFault, MoverMode
from kohakutpu.model.mover import generated_word
from sim.axi_checker import RULES, violations

PERIOD = 4  # ns
MOVES = int(os.environ.get("MOVES", "20"))
ELEMENTS = int(os.environ.get("ELEMENTS", "100"))
BUDGET = 20_000  # cycles of a move
HALF = BYTES // 2


def pauses(seed: str, share: float):
    chance = random.Random(seed)
    while True:
        yield chance.random() < share


class Rig:
    """The mover's registers, and the memory behind it."""

    def __init__(self, dut, seed: int, share: float):
        self.dut = dut
        self.share = share
        dut._log.setLevel(logging.WARNING)  # the library's parts log every burst
        self.memory = mmap(-1, BYTES)
        self.memory[:] = contents(seed)
        self.ram = AxiRam(AxiBus.from_prefix(dut, "axi_"), dut.clk, dut.rst, size=BYTES, mem=self.memory)
        reads, writes = self.ram.read_if, self.ram.write_if
        channels = (writes.aw_channel, writes.w_channel, writes.b_channel, reads.ar_channel, reads.r_channel)
        for number, channel in enumerate(channels):
            channel.set_pause_generator(pauses(f"{share} {number}", share))

    @classmethod
    async def start(cls, dut, seed: int, share: float) -> Rig:
        dut.write.value = dut.index.value = dut.data.value = 0
        dut.rst.value = 1
        rig = cls(dut, seed, share)
        cocotb.start_soon(Clock(dut.clk, PERIOD, "ns").start())
        for _ in range(3):
            await FallingEdge(dut.clk)
        dut.rst.value = 0
        await FallingEdge(dut.clk)
        return rig

    def status(self) -> dict[str, int]:
        word, out = int(self.dut.seen.value), {}
        for name, bits in SEEN.items():
            out[name] = word & (1 << bits) - 1
            word >>= bits
        return out

    async def run(self, item: Move) -> dict[str, int]:
        """Write the registers, wait for the end; the status then."""
        dut = self.dut
        for index, value in item.writes():
            dut.write.value, dut.index.value, dut.data.value = 1, index, value
            await FallingEdge(dut.clk)
        dut.write.value = 0
        for _ in range(BUDGET):
            status = self.status()
            if not status["busy"]:
                return status
            await FallingEdge(dut.clk)
        raise AssertionError(f"{item} did not end within {BUDGET} cycles: {self.status()}")

    def check_rules(self) -> None:
        broken = violations(int(self.dut.axi_violations.value))
        assert not broken, "; ".join(f"{name}, {n} times: {RULES[name]}" for name, n in broken.items())

    def check_memory(self, image: bytes, what: str = "move") -> None:
        wrong = [hex(at) for at in range(0, BYTES, WORD) if self.memory[at : at + WORD] != image[at : at + WORD]]
        assert not wrong, f"{what}: memory differs in words {wrong[:8]}"

    def fail_from(self, address: int, *, reads: bool, writes: bool) -> None:
        """Answer what is at `address` and behind it with an error."""
        for interface, name, fails in ((self.ram.read_if, "_read", reads), (self.ram.write_if, "_write", writes)):
            real = getattr(interface, name)

            async def part(at, what, *, real=real, fails=fails):
                if fails and at >= address:
                    raise IndexError(hex(at))
                return await real(at, what)

            setattr(interface, name, part)


@cocotb.test()
@cocotb.parametrize(share=[0.0, 0.6])
async def bytes_and_rules(dut, share):
    """Moves of every kind from the lower half of memory to the upper one leave what a plain loop leaves."""
    seed = random.getrandbits(32)
    chance = random.Random(seed)
    rig = await Rig.start(dut, seed, share)
    image = bytearray(contents(seed))
    moves, words, ends = 0, 0, set()
    for _ in range(MOVES):
        while True:
            item = move(chance, elements=ELEMENTS, apart=True)
            fault, writes, reads = item.result(bytes(image), generated_word)
            if not reads & writes.keys():  # else what is read depends on how far reads run ahead
                break
        status = await rig.run(item)
        for at, word in writes.items():
            image[at : at + WORD] = word
        assert status["fault"] == fault, f"{item} ends with fault {status['fault']}, expected {fault}"
        moves += fault == MoverFault.NONE
        assert status["moves"] == moves, f"{status['moves']} moves counted, {moves} were made"
        rig.check_memory(image, str(item))
        words += len(writes)
        ends.add(fault)
    rig.check_rules()
    assert moves and words
    dut._log.warning(f"pauses {share}: {moves} of {MOVES} moves, {words} words, ends {sorted(ends)}")


def straight(mode: int, start: int, to: int, elements: int, **more: int) -> Move:
    dims = [(elements, WORD, 0, 0)]
    return Move(mode, source=Walk(start, dims), target=Walk(to, dims), **more)


@cocotb.test()
@cocotb.parametrize(share=[0.0, 0.5])
async def errors_of_the_memory_end_a_move(dut, share):
    """Fault AXI; what was read with an error is not written, what came before it is, and the next move is as any."""
    rig = await Rig.start(dut, 1, share)
    image = contents(1)
    missing = HALF - 8 * WORD
    rig.fail_from(missing, reads=True, writes=False)
    start, to = missing - 10 * WORD, HALF
    status = await rig.run(straight(MoverMode.COPY, start, to, 18))
    assert (status["fault"], status["moves"]) == (MoverFault.AXI, 0), status
    good = bytearray(image)
    good[to : to + 10 * WORD] = image[start:missing]
    rig.check_memory(good)
    # the vector's last word: no element is issued
    status = await rig.run(straight(MoverMode.GATHER, 0, to, 4, vector=missing - WORD, count=12, words=1))
    assert (status["fault"], status["moves"]) == (MoverFault.AXI, 0), status
    rig.check_memory(good)
    status = await rig.run(straight(MoverMode.COPY, 0x2000, to, 18))
    assert (status["fault"], status["moves"]) == (MoverFault.NONE, 1), status
    good[to : to + 18 * WORD] = image[0x2000 : 0x2000 + 18 * WORD]
    rig.check_memory(good)
    rig.fail_from(BYTES - 4 * WORD, reads=False, writes=True)
    status = await rig.run(straight(MoverMode.FILL, 0, BYTES - 20 * WORD, 20, value=0x01020304))
    assert (status["fault"], status["moves"]) == (MoverFault.AXI, 1), status
    good[BYTES - 20 * WORD : BYTES - 4 * WORD] = bytes.fromhex("04030201") * (16 * WORD // 4)
    rig.check_memory(good)
    status = await rig.run(straight(MoverMode.GENERATE, 0, to, 1, seed=5))
    assert (status["fault"], status["moves"]) == (MoverFault.NONE, 2), status
    rig.check_rules()
