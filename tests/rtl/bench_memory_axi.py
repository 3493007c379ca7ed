"""Memory ports and host window in front of AXI memories that pause at will: every byte, response and rule of AXI."""

from __future__ import annotations

import logging
import os
import random
from collections import defaultdict
from mmap import mmap

import cocotb
import numpy as np
from cocotb.triggers import FallingEdge, with_timeout
from cocotbext.axi import AxiBurstType, AxiBus, AxiMaster, AxiRam, AxiResp
from memory_scenario import BYTES, NODES, SOURCES, burst, expected_reads, read
from support.links import Links, stutter

from kohakutpu.formats import mxfp7
from kohakutpu.formats import words as packing
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.memory import APERTURE_ADDRESS, MEM_REQ, Aperture
from sim.axi_checker import COUNTER_BITS, RULES, violations

HALF = BYTES // 2  # reads below it, writes above it
HOST_AREA = 12 << 10  # of the written half, at its end: the host's
REQUESTS = int(os.environ.get("REQUESTS", "120"))
BUDGET = 60_000
LINKS = {
    "sources": ["agent_link", *(f"in_link_{i}" for i in range(len(NODES)))],
    "sinks": [f"out_link_{i}" for i in range(len(NODES))],
    "checks": [f"port_{i}_" for i in range(len(NODES))],
    "probing": 0,
}


def pauses(seed: str, share: float):
    chance = random.Random(seed)
    while True:
        yield chance.random() < share


class Rig:
    """The masters' memories, one image for all of them, and the host's master."""

    def __init__(self, dut, image: bytes, share: float):
        dut._log.setLevel(logging.WARNING)  # the library's parts log every burst
        self.memory = mmap(-1, BYTES)
        self.memory[:] = image
        self.rams = []
        for index in range(len(NODES) + 1):
            ram = AxiRam(AxiBus.from_prefix(dut, f"axi_{index}_"), dut.clk, dut.rst, size=BYTES, mem=self.memory)
            channels = (
                ram.write_if.aw_channel, ram.write_if.w_channel, ram.write_if.b_channel, ram.read_if.ar_channel,
                ram.read_if.r_channel,
            )  # fmt: skip
            for number, channel in enumerate(channels):
                channel.set_pause_generator(pauses(f"{share} {index} {number}", share))
            self.rams.append(ram)
        self.host = AxiMaster(AxiBus.from_prefix(dut, "host_"), dut.clk, dut.rst)
        for number, channel in enumerate((self.host.write_if.b_channel, self.host.read_if.r_channel)):
            channel.set_pause_generator(pauses(f"{share} host {number}", share))
        for number, channel in enumerate(
            (self.host.write_if.aw_channel, self.host.write_if.w_channel, self.host.read_if.ar_channel)
        ):
            channel.set_pause_generator(pauses(f"{share} host out {number}", share))


async def host_life(host: AxiMaster, image: bytearray, chance: random.Random, count: int) -> None:
    """Writes, uploads and reads of the host in its own area; what is written is put into `image` too."""
    base = BYTES - HOST_AREA
    for _ in range(count):
        size = chance.choice([1, 7, 32, 33, 100, 1000, 5000])
        start = base + chance.randrange(HOST_AREA - size)
        kind = chance.random()
        if kind < 0.5:
            data = chance.randbytes(size)
            await host.write(start, data)
            image[start : start + size] = data
        elif kind < 0.75:
            entries = chance.choice([1, 2])
            # this master cuts bursts of any type at 4 KiB
            place = min(start & -32, start & -4096 | 4096 - 256 * entries, BYTES - 128 * entries)
            source = np.frombuffer(chance.randbytes(256 * entries), "<u2").astype(np.uint16).reshape(entries, 4, 32)
            layout = chance.choice("AB")
            aperture = {"A": Aperture.UPLOAD_A, "B": Aperture.UPLOAD_B}[layout]
            address = APERTURE_ADDRESS.encode(aperture=aperture, local=place)
            await host.write(address, source.astype("<u2").tobytes(), burst=AxiBurstType.FIXED)
            image[place : place + 128 * entries] = packing.to_bytes(mxfp7.pack(*mxfp7.quantise(source), layout))
        else:
            got = await host.read(start, size)
            assert got.data == bytes(image[start : start + size]), f"host read of {size} bytes at {start:#x}"


def port_life(seed: int, port: int, image: bytearray):
    """(flits for a port, responses to reads, acknowledgements by source); writes are put into `image`."""
    chance = random.Random(f"{seed} {port} axi")
    flits, reads, acks = [], [], defaultdict(list)
    areas = {}
    for number, source in enumerate(SOURCES):
        size = (HALF - HOST_AREA) // (len(SOURCES) * len(NODES)) & -32
        areas[source] = HALF + size * (port * len(SOURCES) + number), size
    for _ in range(REQUESTS):
        if chance.random() < 0.6:
            request = read(chance, port)
            address = MEM_REQ.get(request.payload, "addr")
            fields = MEM_REQ.decode(request.payload) | {"addr": address % (HALF - (1 << 13)) & -32}
            request = request._replace(payload=MEM_REQ.pack(**fields))
            flits.append(request)
            reads += expected_reads(request, image)
        else:
            source = chance.choice(SOURCES)
            start, size = areas[source]
            beats = chance.choice([1, 2, 5, 8, 8])
            address = start + 32 * chance.randrange((size - 32 * beats) // 32 + 1)
            write = burst(chance, port, source, beats, addr=address)
            flits += write
            acks[source].append(write[0].txn)
            data = b"".join(each.payload.to_bytes(32, "little") for each in write[1:])
            image[address : address + len(data)] = data
    return flits, reads, acks


@cocotb.test()
@cocotb.parametrize(share=[0.0, 0.3, 0.75])
async def bytes_and_rules(dut, share):
    seed = random.getrandbits(32)
    chance = random.Random(seed)
    before = chance.randbytes(HALF) + b"\xaa" * HALF
    rig = Rig(dut, before, share)
    links = await Links.start(dut, **LINKS)
    image = bytearray(before)
    wanted = []
    for port in range(len(NODES)):
        links.sinks[f"out_link_{port}"].busy = stutter(seed + port, share)
        flits, reads, acks = port_life(seed, port, image)
        links.sources[f"in_link_{port}"].send(*flits)
        wanted.append((reads, acks))
    hosts = cocotb.start_soon(host_life(rig.host, image, chance, 25))
    answers = sum(len(reads) + sum(map(len, acks.values())) for reads, acks in wanted)
    sinks = [links.sinks[f"out_link_{port}"] for port in range(len(NODES))]
    await links.until(lambda: sum(len(sink.received) for sink in sinks) >= answers, BUDGET, f"{answers} answers")
    await links.until(hosts.done, BUDGET, "the end of the host's transfers")
    hosts.result()
    await links.step(100)
    for port, (sink, (reads, acks)) in enumerate(zip(sinks, wanted)):
        got = [flit for _, flit in sink.received if flit.type == FlitType.MEM_RD_RESP]
        for index, (have, want) in enumerate(zip(got, reads)):
            assert have == want, f"port {port}: response {index} is {have}, expected {want}"
        assert len(got) == len(reads)
        seen = defaultdict(list)
        for _, flit in sink.received:
            if flit.type == FlitType.MEM_WR_ACK:
                seen[flit.dst].append(flit.txn)
        assert seen == acks, f"port {port}: acknowledgements"
    wrong = [at for at in range(0, BYTES, 32) if rig.memory[at : at + 32] != image[at : at + 32]]
    assert not wrong, f"memory differs in words {[hex(at) for at in wrong[:8]]}"
    check_rules(dut)
    await links.finish()
    assert int(dut.errors.value) == int(dut.refused.value) == 0
    dut._log.warning(f"{answers} answers at {share}, {links.cycle} cycles")


def check_rules(dut) -> None:
    word = int(dut.axi_violations.value)
    for index in range(len(NODES) + 1):
        broken = violations(word >> index * COUNTER_BITS * len(RULES))
        assert not broken, f"master {index}: " + "; ".join(
            f"{name}, {n} times: {RULES[name]}" for name, n in broken.items()
        )


@cocotb.test()
async def bursts_at_the_end_of_a_page(dut):
    """What the checker of AXI says of write bursts around 4 KiB, behind a memory that takes all and answers nothing."""
    for index in range(len(NODES) + 1):
        for name in ("awready", "wready", "arready", "bvalid", "rvalid"):
            getattr(dut, f"axi_{index}__{name}").value = int(name.endswith("ready"))
    for name in ("awvalid", "wvalid", "arvalid"):
        getattr(dut, f"host__{name}").value = 0
    links = await Links.start(dut, **LINKS)
    shapes = [(before, words) for before in (8, 7, 4, 2, 1, 0) for words in (1, 8)]  # fewer than slots
    for before, words in shapes:
        links.sources["in_link_0"].send(*burst(random.Random(2), 0, SOURCES[0], words, addr=0x4000 - 32 * before))
    await links.step(200)
    assert links.sources["in_link_0"].done
    check_rules(dut)


@cocotb.test()
async def what_the_window_refuses(dut):
    """DECERR in order, whatever stands before and behind, and not a byte changed."""
    rig = Rig(dut, b"\xaa" * BYTES, 0.3)
    await Links.start(dut, **LINKS)
    host = rig.host
    upload = APERTURE_ADDRESS.encode(aperture=Aperture.UPLOAD_A, local=0x800)
    bad_writes = [
        (BYTES, 32, AxiBurstType.INCR), (BYTES + 96, 640, AxiBurstType.INCR), (1 << 37, 32, AxiBurstType.INCR),
        (APERTURE_ADDRESS.encode(aperture=0, local=0), 32, AxiBurstType.INCR),
        (APERTURE_ADDRESS.pack(aperture=3), 64, AxiBurstType.INCR),
        (APERTURE_ADDRESS.pack(aperture=4, mesh=1), 256, AxiBurstType.FIXED), (upload, 32, AxiBurstType.INCR),
        (upload, 224, AxiBurstType.INCR), (upload + 8, 256, AxiBurstType.FIXED), (0x100, 96, AxiBurstType.FIXED),
        (APERTURE_ADDRESS.encode(aperture=Aperture.UPLOAD_B, local=BYTES - 96), 256, AxiBurstType.FIXED),
    ]  # fmt: skip

    def write(address, data, burst=AxiBurstType.INCR):
        return cocotb.start_soon(host.write(address, data, burst=burst))

    jobs = [(write(0x40, b"good"), AxiResp.OKAY)]
    jobs += [(write(address, b"\x55" * size, kind), AxiResp.DECERR) for address, size, kind in bad_writes]
    jobs += [(write(upload, bytes(512), AxiBurstType.FIXED), AxiResp.OKAY), (write(0x60, b"after"), AxiResp.OKAY)]
    for job, resp in jobs:
        got = await with_timeout(job, 100, "us")
        assert got.resp == resp, got
    for address, size, kind in bad_writes:
        if kind == AxiBurstType.INCR:
            got = await with_timeout(host.read(address, size), 100, "us")
            assert got.resp == AxiResp.DECERR and not any(got.data), (hex(address), got)
    # reads in flight on both sides of one that is refused
    reads = [cocotb.start_soon(host.read(address, 64)) for address in (0x40, BYTES, 0x80)]
    for job, resp, start in zip(reads, (AxiResp.OKAY, AxiResp.DECERR, AxiResp.OKAY), (b"good", b"\0", b"\xaa")):
        got = await with_timeout(job, 100, "us")
        assert got.resp == resp and got.data.startswith(start), got
    image = bytearray(b"\xaa" * BYTES)
    image[0x40:0x44], image[0x60:0x65] = b"good", b"after"
    image[0x800:0x900] = packing.to_bytes(mxfp7.pack(*mxfp7.quantise(np.zeros((2, 4, 32), np.uint16)), "A"))
    assert rig.memory[:] == bytes(image)
    check_rules(dut)


@cocotb.test()
async def errors_of_the_memory_are_counted(dut):
    """The last quarter of what the ports may address is missing: they count it and go on, the host is told."""
    rig = Rig(dut, bytes(BYTES), 0.0)
    missing = BYTES * 3 // 4
    for ram in rig.rams:
        real_read, real_write = ram.read_if._read, ram.write_if._write

        async def read_part(address, length, real=real_read):
            if address >= missing:
                raise IndexError(hex(address))
            return await real(address, length)

        async def write_part(address, data, real=real_write):
            if address >= missing:
                raise IndexError(hex(address))
            await real(address, data)

        ram.read_if._read, ram.write_if._write = read_part, write_part
    links = await Links.start(dut, **LINKS)
    chance = random.Random(1)
    source = links.sources["in_link_0"]
    source.send(*burst(chance, 0, SOURCES[0], 4, addr=missing), *burst(chance, 0, SOURCES[0], 4, addr=0))
    sink = links.sinks["out_link_0"]
    await links.until(lambda: len(sink.received) == 2, 1000)
    assert int(dut.errors.value) & 0xFFFFFFFF == 1
    got = await with_timeout(rig.host.write(missing, bytes(32)), 100, "us")
    assert got.resp == AxiResp.SLVERR
    got = await with_timeout(rig.host.read(missing, 32), 100, "us")
    assert got.resp == AxiResp.SLVERR
    await FallingEdge(dut.clk)  # where `Links` goes on
    for address in (missing, 0):
        request = MEM_REQ.pack(addr=address)
        source.send(Flit(NODES[0], SOURCES[0], FlitType.MEM_RD_REQ, 0, 1, 0, request))
    await links.until(lambda: len(sink.received) == 4, 1000)
    assert int(dut.errors.value) & 0xFFFFFFFF == 2
