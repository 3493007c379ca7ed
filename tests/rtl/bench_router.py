"""One router against its model on all ports, and its latency."""

from __future__ import annotations

import os
import random

import cocotb

from kohakutpu.isa.flit import Flit
from kohakutpu.noc.engine import Engine
from kohakutpu.noc.router import Port, Router
from support.links import Links, bursts, stutter
from support.models import Peer, compare

from rtl.router import PORTS, masked_turns

X, Y, NX, NY, DEPTH = (int(os.environ[name]) for name in ("X", "Y", "NX", "NY", "DEPTH"))


def model():
    engine = Engine()
    router = Router(engine, "router", x=X, y=Y, x_hi=NX, y_hi=NY, depth=DEPTH)
    return engine, router


TABLE = model()[1].table
MASKED = masked_turns(X, Y, NX, NY)
REACHABLE = {port: [dst for dst in range(256) if (int(port), int(TABLE.port[dst])) not in MASKED] for port in Port}


def run_model(sends, busy, cycles):
    engine, router = model()
    names, moved = {}, []
    for port, name in zip(Port, PORTS):
        peer = Peer(engine, name)
        peer.busy = busy.get(name)
        peer.in_link = router.outputs[port]
        peer.out.sink, router.inputs[port].link, router.outputs[port].sink = router.inputs[port], peer.out, peer
        names |= {id(peer.out): f"in_{name}", id(router.outputs[port]): f"out_{name}"}
        peer.wake(0)
        for at, flit in sends[name]:
            peer.send(flit, at=at)
    engine.on_transfer = lambda cycle, link, flit: moved.append((cycle, names[id(link)], flit))
    engine.advance(cycles)
    return moved


def traffic(chance, count, pauses):
    sends = {}
    for port, name in zip(Port, PORTS):
        at, items = 0, []
        for _ in range(count):
            at += chance.choice((0, 0, 0, 2, 9)) if pauses else 0
            items.append((at, Flit(chance.choice(REACHABLE[port]), chance.getrandbits(8), chance.getrandbits(4),
                                   chance.getrandbits(8), chance.getrandbits(1), chance.getrandbits(3),
                                   chance.getrandbits(256))))  # fmt: skip
        sends[name] = items
    return sends


async def start(dut):
    return await Links.start(
        dut, sources=[f"in_{name}" for name in PORTS], sinks=[f"out_{name}" for name in PORTS], checks=()
    )


@cocotb.test()
@cocotb.parametrize(stalls=["none", "stutter", "bursts", "one"], pauses=[False, True])
async def equals_the_model(dut, stalls, pauses):
    links = await start(dut)
    chance = random.Random(random.getrandbits(32))
    for _ in range(2):
        busy = {}
        for index, name in enumerate(PORTS):
            if stalls == "stutter":
                busy[name] = stutter(chance.getrandbits(16), 0.4)
            elif stalls == "bursts" or stalls == "one" and index == chance.randrange(5):
                busy[name] = bursts(chance.getrandbits(16), 0.5, 60)
        for name in PORTS:
            links.sinks[f"out_{name}"].busy = busy.get(name)
        await links.reset()
        sends = traffic(chance, 80, pauses)
        for name, items in sends.items():
            for at, flit in items:
                links.sources[f"in_{name}"].send(flit, at=at)
        await links.step(random.choice((60, 900)))
        assert compare(links.transfers, run_model(sends, busy, links.cycle)) > 30


@cocotb.test()
async def a_flit_alone_takes_three_cycles(dut):
    links = await start(dut)
    for port, name in zip(Port, PORTS):
        await links.reset()
        flit = Flit(REACHABLE[port][0], 0, 1, 2, 1, 0, 3)
        links.sources[f"in_{name}"].send(flit)
        await links.step(20)
        assert [cycle for cycle, _, _ in links.transfers] == [1, 4], links.transfers


@cocotb.test()
async def each_input_sustains_one_flit_a_cycle(dut):
    """Through every output at once, where the turns allow it."""
    links = await start(dut)
    for port, name in zip(Port, PORTS):
        await links.reset()
        destination = REACHABLE[port][-1]
        links.sources[f"in_{name}"].send(*[Flit(destination, 0, 1, i, 1, 0, i) for i in range(60)])
        await links.step(80)
        received = [cycle for sink in links.sinks.values() for cycle, _ in sink.received]
        assert received == list(range(4, 64))
