"""Random life of memory ports, the same for the model and the gates: every form of request, every broken rule."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import numpy as np
from support.host import Transfer
from support.models import Peer

from kohakutpu.formats import mxfp7, words
from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.memory import APERTURE_ADDRESS, MEM_REQ, Aperture
from kohakutpu.machine import Dram, load
from kohakutpu.model.mag import Agent, MagPort
from kohakutpu.model.memory_agent import MemoryAgent, build_memory_agent
from kohakutpu.noc.engine import Engine

NODES = (node(0, 1), node(0, 2))
SOURCES = (node(1, 1), node(2, 1), node(1, 2), node(3, 2), node(1, 0))
BYTES = 1 << 16
AGENT_QUEUE = 16


def contents(seed: int) -> bytes:
    """The whole memory before a life: FP16 of every size, some subnormal, some infinite."""
    return np.random.default_rng(seed).integers(0, 1 << 16, BYTES // 2, dtype=np.uint16).astype("<u2").tobytes()


def flit(port: int, source: int, kind: FlitType, payload: int, *, txn: int, last: int = 1) -> Flit:
    return Flit(NODES[port], source, kind, txn, last, 0, payload)


def address(chance: random.Random, span: int) -> int:
    """A word address, often in a part of memory that everybody uses, sometimes around a 4 KiB boundary."""
    kind = chance.random()
    if kind < 0.5:
        return 32 * chance.randrange(64)
    if kind < 0.7:
        return 4096 * chance.randrange(1, BYTES >> 12) - 32 * chance.randrange(8)
    return 32 * chance.randrange((BYTES - span) // 32)


def broken_address(chance: random.Random) -> int:
    aperture = APERTURE_ADDRESS.pack(aperture=chance.choice([0, 3, 4]), local=0x100)
    return chance.choice([BYTES - 32 * chance.randrange(4), BYTES, 1 << 20, aperture, 1 << 36, (1 << 40) - 32])


def read(chance: random.Random, port: int) -> Flit:
    fields = {"addr": address(chance, 1 << 12)}
    if chance.random() < 0.06:
        fields["addr"] = broken_address(chance)
    if chance.random() < 0.05:
        fields["addr"] |= chance.randrange(32)
    kind = chance.random()
    if kind < 0.4:
        fields |= {"len": chance.choice([0, 0, 0, 1, 3, 7, 15, 31]), "npeer": chance.randrange(4), "count": 3}
    else:
        fields |= {
            "stream": int(chance.random() < 0.8), "quant": int(kind > 0.7), "blayout": chance.randrange(2),
            "count": chance.choice([0, 1, 1, 2, 3, 5, 9]), "entry_words": chance.choice([0, 1, 2, 3, 4, 5, 200]),
            "npeer": chance.choice([0, 0, 0, 1, 2, 3]), "peers": chance.getrandbits(24), "len": chance.randrange(4),
        }  # fmt: skip
    return flit(port, chance.choice(SOURCES), FlitType.MEM_RD_REQ, MEM_REQ.pack(**fields), txn=chance.getrandbits(8))


def burst(
    chance: random.Random, port: int, source: int, words: int, *, addr: int, wrong_last: bool = False
) -> list[Flit]:
    txn = chance.getrandbits(8)
    out = [flit(port, source, FlitType.MEM_WR_REQ, MEM_REQ.pack(addr=addr, len=words - 1), txn=txn, last=0)]
    for k in range(words):
        last = int(k == words - 1) ^ int(wrong_last and k == words // 2)
        out.append(flit(port, source, FlitType.MEM_WR_DATA, chance.getrandbits(256), txn=txn, last=last))
    return out


def writes(chance: random.Random, port: int) -> list[Flit]:
    """One to four writes of different sources, interleaved, and now and then something that no port should be sent."""
    streams = []
    for source in chance.sample(SOURCES, chance.choice([1, 1, 1, 2, 3])):
        words = chance.choice([1, 1, 2, 3, 5, 8, 8, 8])
        addr = address(chance, 1 << 9)
        odd = chance.random()
        if odd < 0.04:
            words = chance.choice([9, 12, 20])
        elif odd < 0.08:
            addr = broken_address(chance)
        elif odd < 0.1:
            addr |= chance.randrange(32)
        stream = burst(chance, port, source, words, addr=addr, wrong_last=chance.random() < 0.03)
        if odd > 0.97:  # a second write of the source while the first is open
            stream[1:1] = burst(chance, port, source, 1, addr=address(chance, 1 << 9))[:1]
            stream.append(flit(port, source, FlitType.MEM_WR_DATA, chance.getrandbits(256), txn=0))
        streams.append(stream)
    if chance.random() < 0.05:
        streams.append([flit(port, node(9, 9), FlitType.MEM_WR_DATA, 1, txn=0)])
    out = []
    while streams:
        stream = chance.choice(streams)
        out.append(stream.pop(0))
        streams = [each for each in streams if each]
    return out


def program(seed: int, port: int, length: int) -> list[tuple[int, Flit]]:
    """(cycle, flit) to send to port number `port`."""
    chance = random.Random(f"{seed} {port}")
    out: list[tuple[int, Flit]] = []
    now = 0
    for _ in range(length):
        now += chance.choice([0, 0, 0, 0, 1, 7, 60])
        kind = chance.random()
        if kind < 0.5:
            flits = [read(chance, port) for _ in range(chance.choice([1, 1, 2, 5]))]
        elif kind < 0.93:
            flits = writes(chance, port)
        else:
            flits = [
                flit(port, chance.choice(SOURCES), chance.choice([3, 6, 7, 8, 12]), chance.getrandbits(256), txn=1)
            ]
        out += [(now, each) for each in flits]
    return out


def outbound(seed: int, length: int) -> list[tuple[int, Flit]]:
    """(cycle, flit) of the control agent."""
    chance = random.Random(f"{seed} agent")
    now, out = 0, []
    for _ in range(length):
        now += chance.choice([0, 0, 3, 100])
        to = node(chance.randrange(4), chance.randrange(5))
        out.append((now, Flit(to, NODES[0], FlitType.CU_INST, chance.getrandbits(8), 1, 0, chance.getrandbits(256))))
    return out


class Relay(Agent):
    """The control agent of the rig: what comes on its link leaves by its transmit FIFO, what arrives is dropped."""

    def __init__(self, engine: Engine):
        super().__init__(engine, "relay", node=NODES[0], holds=False, tx_depth=AGENT_QUEUE)

    def accept(self, flit: Flit, now: int) -> bool:
        if len(self.tx.items) >= AGENT_QUEUE:
            return False
        self.push_outbound(flit, now)
        return True

    def transmitted(self, now: int) -> None:
        self.link.retry()

    def take(self, flit: Flit, now: int) -> bool:
        return True

    def step(self, now: int) -> int:
        return self.take_inbound(now)


class Model:
    """The rig on the cycle models: `run` returns the transfers, named as the rig's links."""

    def __init__(self, *, latency: int, pace: int, queue_depth: int = 64, write_slots: int = 16, skip: bool = True):
        machine = load("ship_2x2")
        sites = tuple(
            dataclasses.replace(site, queue_depth=queue_depth, write_slots=write_slots) for site in machine.ports
        )
        assert tuple(site.node for site in sites) == NODES
        memory = Dram(bytes=BYTES, latency=latency, cycles_per_word=pace)
        self.engine = Engine(skip=skip)
        self.relay = Relay(self.engine)
        self.ports = [MagPort(self.engine, f"mag{i}", node=at, index=i, agent=self.relay) for i, at in enumerate(NODES)]
        self.relay.ports = self.ports
        self.agent: MemoryAgent = build_memory_agent(
            self.engine, dataclasses.replace(machine, ports=sites, memory=memory), self.ports
        )
        self.moved: list[tuple[int, str, Flit]] = []
        self.names: dict[int, str] = {}
        self.sources: dict[str, Peer] = {}
        for i, port in enumerate(self.ports):
            peer = self.sources[f"in_link_{i}"] = Peer(self.engine, f"peer{i}")
            peer.join(port)
            self.names |= {peer.out.index: f"in_link_{i}", port.out.index: f"out_link_{i}"}
        sender = self.sources["agent_link"] = Peer(self.engine, "host")
        sender.out.sink = self.relay
        self.relay.link = sender.out
        self.names[sender.out.index] = "agent_link"
        self.engine.on_transfer = lambda cycle, link, flit: self.moved.append((cycle, self.names[link.index], flit))

    def busy(self, port: int, function: Callable[[int], bool] | None) -> None:
        self.sources[f"in_link_{port}"].busy = function

    def send(self, link: str, items: list[tuple[int, Flit]]) -> None:
        for cycle, flit in items:
            self.sources[link].send(flit, at=cycle)

    def counters(self) -> dict[str, list[int]]:
        """What the gates count as well."""
        engines = self.agent.engines
        return {
            "reads": [each.reads & 0xFFFF for each in engines], "writes": [each.writes & 0xFFFF for each in engines],
            "refused": [each.refused for each in engines], "warned": [each.warned for each in engines],
            "errors": [0 for _ in engines],
        }  # fmt: skip


# ---- the host -------------------------------------------------------------------------------------------------


def host_transfers(seed: int, length: int) -> list[Transfer]:
    """Writes, reads and uploads of a host, some around 4 KiB boundaries, some back to back."""
    chance = random.Random(f"{seed} host")
    now, out = 1, []  # what is on the pins in cycle 0 was chosen before reset ended
    for _ in range(length):
        now += chance.choice([0, 0, 5, 200, 600])
        kind = chance.random()
        size = chance.choice([1, 8, 31, 32, 33, 64, 300, 1000, 5000])
        start = chance.choice([address(chance, 1 << 13), chance.randrange(BYTES - (1 << 13))])
        start = min(start, BYTES - size)
        if kind < 0.4:
            out.append(Transfer(now, start, chance.randbytes(size)))
        elif kind < 0.75:
            out.append(Transfer(now, start, None, size))
        else:
            entries = chance.choice([1, 1, 2, 3, 5, 20])
            place = min(start & -32, BYTES - 128 * entries)
            aperture = APERTURE_ADDRESS.encode(
                aperture=chance.choice([Aperture.UPLOAD_A, Aperture.UPLOAD_B]), local=place
            )
            out.append(Transfer(now, aperture, chance.randbytes(256 * entries)))
    return out


def run_host(model: Model, transfers: list[Transfer], end: int) -> list[tuple[int, int, bytes | None, int]]:
    """The transfers on the model until cycle `end`, as `HostDriver.done` has them."""
    done = []
    engine, window = model.engine, model.agent.window
    for transfer in transfers:
        if transfer.at >= end:
            break
        engine.advance(max(0, transfer.at - engine.now))
        begun = engine.now
        if begun >= end:
            break
        if transfer.data is None:
            window.begin_read(transfer.address, transfer.length)
        else:
            window.begin_write(transfer.address, transfer.data)
        if not engine.run(lambda: not window.busy, end - begun):
            break
        done.append((begun, engine.now, window.take_data() if transfer.data is None else None, 0))
    engine.advance(max(0, end - engine.now))
    return done


def expected_reads(request: Flit, image: bytes) -> list[Flit]:
    """The responses to a read of a still memory, by the rules of the protocol and nothing else."""
    f = MEM_REQ.decode(request.payload)
    base, port = f["addr"], request.dst

    def word(at: int) -> int:
        return int.from_bytes(image[at : at + 32], "little")

    if not (f["stream"] or f["quant"]):
        return [
            Flit(request.src, port, FlitType.MEM_RD_RESP, request.txn, int(k == f["len"]), 0, word(base + 32 * k))
            for k in range(f["len"] + 1)
        ]
    out = []
    for entry in range(max(f["count"], 1) if f["stream"] else 1):
        if f["quant"]:
            source = np.frombuffer(image, "<u2", 128, base + 256 * entry).astype(np.uint16).reshape(1, 4, 32)
            data = words.to_ints(mxfp7.pack(*mxfp7.quantise(source), "AB"[f["blayout"]]))
        else:
            size = f["entry_words"] if 1 <= f["entry_words"] <= 4 else 4
            data = [word(base + 32 * (size * entry + k)) for k in range(size)]
        for dst in [request.src, *(f["peers"] >> 8 * i & 255 for i in range(f["npeer"]))]:
            out += [
                Flit(dst, port, FlitType.MEM_RD_RESP, (request.txn + entry) & 255, int(k == len(data) - 1), k, value)
                for k, value in enumerate(data)
            ]
    return out
