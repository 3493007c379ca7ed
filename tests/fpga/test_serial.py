"""The serial host and the block memory, in Amaranth's simulator: every byte, and what a line may do wrong."""

import random

import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from fpga.block_memory import BlockMemory
from fpga.serial import ANSWER, UNKNOWN, Command, SerialHost

DIVISOR = 4
WORDS = 64


class Rig(wiring.Component):
    """A serial host whose window is a block memory; another port of that memory stands in for the registers."""

    def __init__(self):
        self.serial = SerialHost(divisor=DIVISOR)
        self.memory = BlockMemory(ports=2, words=WORDS)
        super().__init__({"rx": In(1, init=1), "tx": Out(1, init=1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.serial = serial = self.serial
        m.submodules.memory = store = self.memory
        wiring.connect(m, serial.window, store.axi[0])
        # registers: the low half of each word, through the other port
        host, port = serial.host, store.axi[1]
        for name in ("awaddr", "awlen", "awsize", "awburst", "awvalid", "araddr", "arlen", "arsize", "arburst", "arvalid", "wlast",
                     "wvalid", "bready", "rready"):  # fmt: skip
            m.d.comb += getattr(port, name).eq(getattr(host, name))
        for name in ("awready", "wready", "bresp", "bvalid", "arready", "rresp", "rlast", "rvalid"):
            m.d.comb += getattr(host, name).eq(getattr(port, name))
        m.d.comb += [port.wdata.eq(host.wdata), port.wstrb.eq(host.wstrb), host.rdata.eq(port.rdata)]
        m.d.comb += [serial.rx.eq(self.rx), self.tx.eq(serial.tx)]
        return m


class Line:
    """The far end of the line."""

    def __init__(self, ctx, rig):
        self.ctx, self.rig = ctx, rig

    async def send(self, *values, stop=1):
        for value in values:
            for bit in (0, *((value >> at) & 1 for at in range(8)), stop):
                self.ctx.set(self.rig.rx, bit)
                await self.ctx.tick().repeat(DIVISOR)
            self.ctx.set(self.rig.rx, 1)

    async def receive(self, count, patience=4000):
        found = []
        for _ in range(count):
            for _ in range(patience):
                if not self.ctx.get(self.rig.tx):
                    break
                await self.ctx.tick()
            else:
                raise AssertionError(f"no answer: {len(found)} of {count} bytes came")
            await self.ctx.tick().repeat(DIVISOR // 2)
            value = 0
            for at in range(8):
                await self.ctx.tick().repeat(DIVISOR)
                value |= self.ctx.get(self.rig.tx) << at
            await self.ctx.tick().repeat(DIVISOR)
            assert self.ctx.get(self.rig.tx) == 1, "no stop bit"
            found.append(value)
        return found

    async def access(self, command, address, value=None):
        data = b"" if value is None else value.to_bytes(8, "little")
        # the answer may begin while the last stop bit is still on the line
        await self.send(command, *address.to_bytes(5, "little"), *data)
        answer = await self.receive(1 if value is not None else 9)
        assert answer[0] == ANSWER
        return int.from_bytes(bytes(answer[1:]), "little")


def simulate(bench):
    rig = Rig()
    simulator = Simulator(rig)
    simulator.add_clock(1e-6)

    async def run(ctx):
        await ctx.tick().repeat(4)
        await bench(Line(ctx, rig))

    simulator.add_testbench(run)
    simulator.run()


def test_random_accesses_reach_their_bytes():
    rng = random.Random(1)
    image = bytearray(32 * WORDS)

    async def bench(line):
        for _ in range(30):
            address = 8 * rng.randrange(4 * WORDS)
            if rng.random() < 0.6:
                value = rng.getrandbits(64)
                await line.access(Command.WRITE_MEMORY, address, value)
                image[address : address + 8] = value.to_bytes(8, "little")
            else:
                assert await line.access(Command.READ_MEMORY, address) == int.from_bytes(
                    image[address : address + 8], "little"
                )
        for address in range(0, len(image), 32 * 7):
            assert await line.access(Command.READ_MEMORY, address) == int.from_bytes(
                image[address : address + 8], "little"
            )

    simulate(bench)


def test_registers_are_another_space():
    async def bench(line):
        await line.access(Command.WRITE_MEMORY, 0x40, 0x1122334455667788)
        await line.access(Command.WRITE_REGISTER, 0x60, 0x99AABBCCDDEEFF00)
        assert await line.access(Command.READ_REGISTER, 0x40) == 0x1122334455667788
        assert await line.access(Command.READ_MEMORY, 0x60) == 0x99AABBCCDDEEFF00

    simulate(bench)


def test_what_is_no_command_is_said_so():
    async def bench(line):
        await line.send(0x00)
        assert await line.receive(1) == [UNKNOWN]
        await line.access(Command.WRITE_MEMORY, 8, 7)
        assert await line.access(Command.READ_MEMORY, 8) == 7

    simulate(bench)


@pytest.mark.parametrize("sent", [1, 4, 9])
def test_a_command_that_stops_half_way_is_forgotten(sent):
    async def bench(line):
        await line.access(Command.WRITE_MEMORY, 16, 5)
        await line.send(*[Command.WRITE_MEMORY, 16, 0, 0, 0, 0, 1, 2, 3][:sent])
        await line.ctx.tick().repeat(10 * 66 * DIVISOR)
        assert await line.access(Command.READ_MEMORY, 16) == 5

    simulate(bench)


def test_a_byte_without_a_stop_bit_does_not_count():
    async def bench(line):
        await line.access(Command.WRITE_MEMORY, 16, 5)
        await line.send(Command.READ_MEMORY, stop=0)
        await line.ctx.tick().repeat(20 * DIVISOR)
        assert await line.access(Command.READ_MEMORY, 16) == 5

    simulate(bench)


def test_parameters_are_refused():
    for wrong in (0, 3, True):
        with pytest.raises(TypeError, match="SerialHost divisor must be"):
            SerialHost(divisor=wrong)
    with pytest.raises(TypeError, match="BlockMemory words must be a power of two, not 48"):
        BlockMemory(ports=1, words=48)


class Bursts(wiring.Component):
    """A block memory whose ports a test drives."""

    def __init__(self, ports):
        self.memory = BlockMemory(ports=ports, words=WORDS)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = self.memory
        return m


@pytest.mark.parametrize("ports", [1, 3])
def test_bursts_of_several_masters(ports):
    """Each writes and reads its own part of the memory, all at once, with pauses."""
    rig = Bursts(ports)
    image = {}
    done = []

    def master(number):
        rng = random.Random(number)
        axi = rig.memory.axi[number]

        async def until(ctx, signal):
            for _ in range(3000):
                seen = ctx.get(signal)
                await ctx.tick()
                if seen:
                    return
            raise AssertionError(f"port {number} waits for good")

        async def run(ctx):
            size = WORDS // ports
            for _ in range(12):
                length = rng.randrange(1, 9)
                first = number * size + rng.randrange(size - length + 1)
                if rng.random() < 0.5:
                    ctx.set(axi.awaddr, 32 * first)
                    ctx.set(axi.awlen, length - 1)
                    ctx.set(axi.awid, number)
                    ctx.set(axi.awvalid, 1)
                    await until(ctx, axi.awready)
                    ctx.set(axi.awvalid, 0)
                    for beat in range(length):
                        word, strobe = rng.getrandbits(256), rng.getrandbits(32)
                        await ctx.tick().repeat(rng.randrange(1, 3))
                        for signal, value in (
                            (axi.wdata, word), (axi.wstrb, strobe), (axi.wlast, beat == length - 1), (axi.wvalid, 1),
                        ):  # fmt: skip
                            ctx.set(signal, value)
                        await until(ctx, axi.wready)
                        ctx.set(axi.wvalid, 0)
                        mask = sum(0xFF << 8 * byte for byte in range(32) if strobe >> byte & 1)
                        image[first + beat] = image.get(first + beat, 0) & ~mask | word & mask
                    ctx.set(axi.bready, 1)
                    await until(ctx, axi.bvalid)
                    assert ctx.get(axi.bid) == number
                    ctx.set(axi.bready, 0)
                else:
                    ctx.set(axi.araddr, 32 * first)
                    ctx.set(axi.arlen, length - 1)
                    ctx.set(axi.arvalid, 1)
                    await until(ctx, axi.arready)
                    ctx.set(axi.arvalid, 0)
                    for beat in range(length):
                        await ctx.tick().repeat(rng.randrange(1, 4))
                        ctx.set(axi.rready, 1)
                        while not ctx.get(axi.rvalid):
                            await ctx.tick()
                        assert ctx.get(axi.rdata) == image.get(first + beat, 0)
                        assert ctx.get(axi.rlast) == (beat == length - 1)
                        await ctx.tick()
                        ctx.set(axi.rready, 0)
            done.append(number)

        return run

    simulator = Simulator(rig)
    simulator.add_clock(1e-6)
    for number in range(ports):
        simulator.add_testbench(master(number))
    simulator.run()
    assert sorted(done) == list(range(ports)) and image
