"""The orchestrator over AXI and the mesh at once, against its model: every flit and every value in the same cycle."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from itertools import cycle as endless
from types import SimpleNamespace

import cocotb
from cocotbext.axi import AxiBus, AxiMaster
from cocotbext.axi.constants import AxiBurstType

from kohakutpu.isa import registers as reg
from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.signals import CU_SIGNAL, SignalCode
from kohakutpu.machine import load
from kohakutpu.model.mag import MEMORY_TYPES
from support.agent_model import AgentModel
from support.links import Links, bursts, stutter
from support.models import compare

MACHINE = replace(load(os.environ["MACHINE"]), staging_flits=24, tx_depth=4, rx_depth=5)
OWN = MACHINE.agent.own_endpoint
PORTS = 1 if OWN else len(MACHINE.ports)
NODES = [unit.node for unit in MACHINE.units]
HOME = MACHINE.agent.node
STROBES = 0xFF
AW, W, B, AR, R, RVALID = range(6)


class Host:
    """The AXI master, with a record of every access in the contract's terms."""

    def __init__(self, dut, links):
        self.dut = dut
        self.links = links
        self.master = AxiMaster(AxiBus.from_prefix(dut, "host_"), dut.clk, dut.rst)
        for interface in (self.master.write_if, self.master.read_if):
            interface.log.setLevel("WARNING")
        self.accesses = []  # (cycle, 'w' or 'r', offset, value, strobe)
        self.values = []  # what reads gave, in the order of their cycles
        self.times = []  # (kind, first handshake, last handshake, beats)
        self.memories = SimpleNamespace()  # mirror and staging as they were before the last reset
        self._write = self._read = self._beats = 0
        self._fresh = True
        links.each_cycle.append(self.watch)

    def clear(self):
        """Forget the accesses of before a reset."""
        self.accesses.clear()
        self.values.clear()
        self.times.clear()

    def watch(self, now):
        dut = self.dut
        events = int(dut.events.value)
        if not events:
            self._fresh = True
            return
        if events >> AW & 1:
            self._write, self._begun_write, self._beats = int(dut.host__awaddr.value), now, 0
        if events >> W & 1:
            value, strobe = int(dut.host__wdata.value), int(dut.host__wstrb.value)
            self.accesses.append((now + 1, "w", self._write, value, strobe))
            self._write += reg.REGISTER_BYTES
            self._beats += 1
        if events >> B & 1:
            self.times.append(("w", self._begun_write, now, self._beats))
        if events >> AR & 1:
            self._read, self._begun_read, self._left = int(dut.host__araddr.value), now, int(dut.host__arlen.value) + 1
            self._count = self._left
        if events >> RVALID & 1:
            if self._fresh:
                self.accesses.append((now, "r", self._read, 0, 0))
            self._fresh = bool(events >> R & 1)
            if self._fresh:
                self.values.append(int(dut.host__rdata.value))
                self._read += reg.REGISTER_BYTES
                self._left -= 1
                if self._left == 0:
                    self.times.append(("r", self._begun_read, now, self._count))

    async def write(self, offset, *words):
        data = b"".join(word.to_bytes(8, "little") for word in words)
        await self.master.write(offset, data)

    async def read(self, offset, count=1):
        data = (await self.master.read(offset, 8 * count)).data
        return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]

    def pause(self, seed, share):
        """Random pauses on all five channels."""
        write, read = self.master.write_if, self.master.read_if
        for index, channel in enumerate(
            (write.aw_channel, write.w_channel, write.b_channel, read.ar_channel, read.r_channel)
        ):
            chance = random.Random(seed + index)
            channel.set_pause_generator(endless([chance.random() < share for _ in range(1021)]))


async def start(dut, patterns=None):
    sources = [f"in_link{i}" for i in range(PORTS)]
    sinks = [f"out_link{i}" for i in range(PORTS)]
    if not OWN:
        sources += [f"response{i}" for i in range(PORTS)]
        sinks += [f"memory{i}" for i in range(PORTS)]
    dut.reads.value, dut.writes.value = 0x8123, 0x9456
    # behind a memory port `busy` knows two kinds of flit: those of memory traffic, which have an engine's, and the rest
    types = range(16) if OWN else [kind for kind in range(16) if kind not in MEMORY_TYPES]
    links = await Links.start(
        dut, sources=sources, sinks=sinks, checks=[f"port{i}_" for i in range(PORTS)], probe_types=types
    )
    for name, busy in (patterns or {}).items():
        links.sinks[name].busy = busy
    host = Host(dut, links)
    await links.reset()
    # memories outlive a reset, so they are what the bench before this one left
    host.memories.staging = [random.getrandbits(64) for _ in range(MACHINE.staging_flits * reg.FLIT_WORDS)]

    async def begin():
        await host.write(reg.STAGE.at(), *host.memories.staging)
        host.memories.mirror = await host.read(reg.NODE_STATUS.at(), 128) + await host.read(
            reg.NODE_STATUS.at(128), 128
        )

    await play(links, begin())
    await links.reset()
    host.clear()
    return links, host


async def play(links, activity):
    """Step the links while a coroutine of host accesses runs to its end."""
    task = cocotb.start_soon(activity)
    for _ in range(200_000):
        if task.done():
            break
        await links.step()
    assert task.done(), "the host's accesses did not end"
    task.result()


def check(links, host, sends):
    """The ports kept the rules, and a replay on the model is the same; returns the model."""
    assert not links.broken(), links.broken()
    model = AgentModel(MACHINE, links, sends, host.memories, counts=(0x8123, 0x9456))
    values = model.run(host.accesses, links.cycle)
    if links.transfers or model.moved:
        compare(links.transfers, model.moved)
    reads = [access for access in sorted(host.accesses, key=lambda item: (item[0], item[1] == "r")) if access[1] == "r"]
    for access, got, want in zip(reads, host.values, values, strict=True):
        assert got == want, f"cycle {access[0]}: {access[2]:#06x} read {got:#018x}, the model says {want:#018x}"
    return model


def program(chance, count):
    """`count` instructions as staged: any destination and source, which dispatch replaces."""
    return [
        Flit(chance.getrandbits(8), chance.getrandbits(8), FlitType.CU_INST, chance.getrandbits(8), int(i == count - 1),
             chance.getrandbits(3), chance.getrandbits(256))
        for i in range(count)
    ]  # fmt: skip


def words(flits):
    return [word for flit in flits for word in reg.to_words(flit.to_int())]


def arrivals(chance, count):
    """(cycle, flit) for one port: signals of every kind, replies, data, and memory traffic where there is some."""
    at, items = 0, []
    for _ in range(count):
        if chance.random() < 0.3:
            at += chance.randint(1, 40)
        draw = chance.random()
        src = chance.choice(NODES)
        if draw < 0.6:
            code = chance.choice([*SignalCode, SignalCode.INST_COMPLETE, SignalCode.INST_COMPLETE, 0x47])
            payload = CU_SIGNAL.encode(code=code, arg=chance.getrandbits(32))
            flit = Flit(HOME, src, FlitType.CU_SIGNAL, chance.getrandbits(8), 1, 0, payload)
        else:
            kinds = [FlitType.CU_CTRL, FlitType.CU_DATA, FlitType.MEM_RD_RESP, 11]
            if not OWN:
                kinds += [FlitType.MEM_RD_REQ, FlitType.MEM_WR_REQ, FlitType.MEM_WR_DATA] * 2
            flit = Flit(HOME, src, chance.choice(kinds), chance.getrandbits(8), chance.getrandbits(1),
                        chance.getrandbits(3), chance.getrandbits(256))  # fmt: skip
        items.append((at, flit))
    return items


def responses(chance, count):
    items = []
    at = 0
    for _ in range(count):
        at += chance.choice((0, 0, 0, 1, 5, 60))
        items.append(
            (
                at,
                Flit(
                    chance.choice(NODES),
                    HOME,
                    FlitType.MEM_RD_RESP,
                    chance.getrandbits(8),
                    1,
                    0,
                    chance.getrandbits(256),
                ),
            )
        )
    return items


def backpressure(seed, kind):
    names = [f"out_link{i}" for i in range(PORTS)] + ([] if OWN else [f"memory{i}" for i in range(PORTS)])
    make = {"free": lambda s: None, "stutter": lambda s: stutter(s, 0.5), "bursts": lambda s: bursts(s, 0.5, 80)}[kind]
    return {name: make(seed + i) for i, name in enumerate(names)}


async def busy_host(host, chance, accesses):
    """Random accesses, weighted towards what starts something."""
    at = {name: item.at for name, item in reg.BY_NAME.items()}
    for _ in range(accesses):
        draw = chance.random()
        if draw < 0.12:
            count = chance.randint(1, 6)
            await host.write(reg.stage_offset(chance.randrange(24 - count)), *words(program(chance, count)))
        elif draw < 0.30:
            length = chance.choice((0, 1, 2, 3, 5, 30))
            await host.write(at["PROG_DST"](), chance.choice(NODES))
            await host.write(at["PROG_BASE"](), chance.randrange(24))
            await host.write(at["PROG_LEN"](), *((length, 1) if chance.random() < 0.5 else (length,)))
            if chance.random() < 0.5:
                await host.write(at["PROG_KICK"](), chance.getrandbits(64))
        elif draw < 0.42:
            await host.write(at["PROG_CRED"](), chance.choice((0, 1, 2, 5, 31, 32, 33, 64, 65, 0xFFFF, 1 << 20)))
        elif draw < 0.54:
            mail = Flit(chance.choice(NODES), chance.getrandbits(8), chance.getrandbits(4), chance.getrandbits(8),
                        chance.getrandbits(1), chance.getrandbits(3), chance.getrandbits(256))  # fmt: skip
            await host.write(at["TX_FLIT"](), *words([mail]))
            if chance.random() < 0.3:
                # some bytes of a word: an access that begins and ends inside registers
                start, size = chance.randrange(30), chance.randrange(1, 9)
                await host.master.write(at["TX_FLIT"]() + start, chance.randbytes(size))
            await host.write(at["TX_KICK"](), 1)
        elif draw < 0.66:
            await host.read(at["RX_FLIT"](), 5)
            await host.write(at["RX_POP"](), *[0] * chance.choice((1, 1, 2, 8)))
        elif draw < 0.72:
            await host.write(
                chance.choice((at["IRQ_STAT"](), at["SIG_DONE"](), at["CTRL"](), reg.aux_offset(0))),
                chance.getrandbits(64),
            )
        elif draw < 0.76:
            await host.write(0x3_0000 + at["IRQ_EN"](), chance.getrandbits(64))
        else:
            first, count = chance.choice(
                ((0, 16), (0x40, 8), (0x140, 2), (0x1C8, 1), (0x1000, 40), (0x1000 + 8 * 0x10, 4), (0x800, 3))
            )
            start = chance.randrange(count)
            await host.read(first + 8 * start, chance.randint(1, count - start))


@cocotb.test()
@cocotb.parametrize(pattern=["free", "stutter", "bursts"], pauses=[0.0, 0.4])
async def equals_the_model(dut, pattern, pauses):
    """Host and mesh both busy, on every channel with and without pauses."""
    chance = random.Random(random.getrandbits(32))
    links, host = await start(dut, backpressure(chance.getrandbits(16), pattern))
    host.pause(chance.getrandbits(16), pauses)
    sends = {f"in_link{i}": arrivals(chance, 250) for i in range(PORTS)}
    if not OWN:
        sends |= {f"response{i}": responses(chance, 200) for i in range(PORTS)}
    for name, items in sends.items():
        for at, flit in items:
            links.sources[name].send(flit, at=at)
    await play(links, busy_host(host, chance, 300))
    await links.step(300)
    model = check(links, host, sends)
    assert len(host.values) > 250 and model.agent.dispatched > 20, (len(host.values), model.agent.dispatched)


@cocotb.test()
async def everything_in_one_cycle(dut):
    """A dispatch, signals and data without a gap, a link that stalls for long, and a host that reads what it can."""
    chance = random.Random(9)
    patterns = {name: bursts(11, 0.6, 40) for name in backpressure(0, "free")}
    links, host = await start(dut, patterns)
    done = CU_SIGNAL.encode(code=SignalCode.INST_COMPLETE)
    sends = {f"in_link{i}": [] for i in range(PORTS)}
    for index in range(800):
        signal = Flit(HOME, NODES[0], FlitType.CU_SIGNAL, 0, 1, 0, done)
        data = Flit(HOME, NODES[1], FlitType.CU_DATA, 0, 1, 0, chance.getrandbits(256))
        name = f"in_link{index % PORTS}"
        flit = signal if (index // PORTS + index) % 2 else data
        sends[name].append((0, flit))
        links.sources[name].send(flit)

    async def activity():
        await host.write(reg.PROG_DST.at(), NODES[0])
        await host.write(reg.PROG_CRED.at(), 4)
        for _ in range(12):
            await host.write(reg.PROG_LEN.at(), 20, 1)
            for _ in range(4):
                await host.write(reg.RX_POP.at(), 0)
                await host.read(reg.RX_FLIT.at(), 5)
                await host.read(reg.PROG_STAT.at(), 2)

    await play(links, activity())
    check(links, host, sends)


@cocotb.test()
async def accesses_take_three_cycles_and_their_beats(dut):
    """From the address handshake to the last response 2 + n cycles, so the next access can begin 3 + n after it."""
    links, host = await start(dut)

    async def activity():
        for count in (1, 2, 5, 16):
            await host.write(reg.stage_offset(0), *range(count))
            await host.read(0, count)

    await play(links, activity())
    assert [(kind, beats, last - first) for kind, first, last, beats in host.times] == [
        (kind, count, 2 + count) for count in (1, 2, 5, 16) for kind in "wr"
    ]
    # the first write beat is loaded at the end of cycle 2 of its access, the first read beat is a value of cycle 3
    _, first, _, _ = host.times[0]
    assert next(access[0] for access in host.accesses if access[1] == "w") == first + 3
    _, first, _, _ = host.times[1]
    assert next(access[0] for access in host.accesses if access[1] == "r") == first + 3


@cocotb.test()
async def the_whole_window_reads_as_the_tables_say(dut):
    """Every register, and everything between, after every one was written."""
    links, host = await start(dut)
    chance = random.Random(7)

    async def activity():
        for start in range(0, 0x4000, 8 * 128):
            await host.write(start, *[chance.getrandbits(64) for _ in range(128)])
        for start in range(0, 0x4000, 8 * 128):
            await host.read(start, 128)

    await play(links, activity())
    check(links, host, {})
    assert len(host.values) == 0x4000 // 8
    reads = [access for access in host.accesses if access[1] == "r"]
    readable = {access[2] for access, value in zip(reads, host.values, strict=True) if value}
    assert {reg.CTRL.at(), reg.CAPS.at(), reg.STATUS.at(), reg.PROG_LEN.at()} <= readable
    assert host.values[reg.CAPS.at() // 8] == reg.CAPS.layout.encode(grid_hi=MACHINE.grid_hi)


@cocotb.test()
async def a_dispatched_flit_leaves_six_cycles_after_its_kick(dut):
    links, host = await start(dut)
    chance = random.Random(1)
    flits = program(chance, 3)

    async def activity():
        await host.write(reg.stage_offset(0), *words(flits))
        await host.write(reg.PROG_DST.at(), NODES[0])
        await host.write(reg.PROG_CRED.at(), 3)
        await host.write(reg.PROG_LEN.at(), 3, 1)

    await play(links, activity())
    kicked = next(access[0] for access in host.accesses if access[2] == reg.PROG_KICK.at())
    await links.step(60)
    sent = sorted((cycle, flit) for name, sink in links.sinks.items() for cycle, flit in sink.received)
    assert sent == [(kicked + 6 + 5 * i, flit._replace(dst=NODES[0], src=HOME)) for i, flit in enumerate(flits)]


@cocotb.test()
async def reset_keeps_the_mirror_and_staging(dut):
    """Reset in mid-flight, three times; memories are those of before, everything else begins anew."""
    chance = random.Random(random.getrandbits(32))
    links, host = await start(dut)
    for _ in range(3):
        for name, busy in backpressure(chance.getrandbits(16), "stutter").items():
            links.sinks[name].busy = busy
        await links.reset()
        host.clear()
        sends = {f"in_link{i}": arrivals(chance, 60) for i in range(PORTS)}
        for name, items in sends.items():
            for at, flit in items:
                links.sources[name].send(flit, at=at)

        async def activity():
            await host.read(reg.NODE_STATUS.at(), 64)
            await host.read(reg.SIG_DONE.at(), 1)
            await host.write(reg.PROG_DST.at(), NODES[-1])
            await host.write(reg.PROG_CRED.at(), 12)
            await host.write(reg.PROG_LEN.at(), 12, 1)

        await play(links, activity())
        host.memories = check(links, host, sends).agent
        assert host.memories.run, "the dispatch was over before reset"


@cocotb.test()
async def what_is_not_a_register_access_is_refused(dut):
    """Narrow beats and other bursts get SLVERR and change nothing."""
    links, host = await start(dut)
    answers = []

    async def activity():
        await host.write(reg.CTRL.at(), 0x1122334455667788)
        for options in ({"size": 2}, {"burst": AxiBurstType.FIXED}, {"burst": AxiBurstType.WRAP}):
            answer = await host.master.write(reg.CTRL.at(), bytes(16), **options)
            answers.append(int(answer.resp))
            answer = await host.master.read(reg.CTRL.at(), 16, **options)
            answers.append(int(answer.resp))
        answers.append((await host.read(reg.CTRL.at()))[0])

    await play(links, activity())
    assert answers == [2] * 6 + [0x1122334455667788], [hex(a) for a in answers]


@cocotb.test()
async def a_dispatch_never_exceeds_its_credit(dut):
    links, host = await start(dut)
    chance = random.Random(3)

    async def activity():
        await host.write(reg.stage_offset(0), *words(program(chance, 20)))
        await host.write(reg.PROG_DST.at(), NODES[0])
        await host.write(reg.PROG_CRED.at(), 7)
        await host.write(reg.PROG_LEN.at(), 20, 1)

    await play(links, activity())
    await links.step(300)
    count = lambda: sum(len(sink.received) for sink in links.sinks.values())  # noqa: E731
    assert count() == 7
    done = CU_SIGNAL.encode(code=SignalCode.INST_COMPLETE)
    for expected in range(8, 12):
        links.sources["in_link0"].send(Flit(HOME, node(1, 0), FlitType.CU_SIGNAL, 0, 1, 0, done))
        await links.step(40)
        assert count() == expected
