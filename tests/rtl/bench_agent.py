"""A memory port whose agent has an endpoint of its own: memory traffic passes, the rest is dropped and counted."""

from __future__ import annotations

import random

import cocotb

from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.model.mag import MEMORY_TYPES, MagPort
from kohakutpu.noc.engine import Engine
from support.agent_model import EngineTwin
from support.links import Links, bursts, stutter
from support.models import Peer, compare

PORT, UNIT = node(0, 1), node(1, 1)


@cocotb.test()
@cocotb.parametrize(stalls=["none", "stutter", "bursts"])
async def strays_are_dropped_and_counted(dut, stalls):
    links = await Links.start(dut, sources=["in_link", "response"], sinks=["out_link", "memory"],
                              probe_types=[kind for kind in range(16) if kind not in MEMORY_TYPES])  # fmt: skip
    chance = random.Random(random.getrandbits(32))
    make = {"none": lambda: None, "stutter": lambda: stutter(chance.getrandbits(16), 0.5),
            "bursts": lambda: bursts(chance.getrandbits(16), 0.5, 40)}[stalls]  # fmt: skip
    for sink in links.sinks.values():
        sink.busy = make()
    await links.reset()
    sends = {"in_link": [], "response": []}
    for name, items in sends.items():
        at = 0
        for _ in range(300):
            at += chance.choice((0, 0, 1, 6))
            items.append(
                (
                    at,
                    Flit(
                        PORT, UNIT, chance.choice(list(FlitType)), chance.getrandbits(8), 1, 0, chance.getrandbits(256)
                    ),
                )
            )
            links.sources[name].send(items[-1][1], at=at)
    await links.step(1500)
    await links.finish()

    engine, moved = Engine(), []
    port = MagPort(engine, "mag0", node=PORT, index=0)
    twin_moves = []
    port.memory = EngineTwin(port, links.sinks["memory"].busy, sends["response"], twin_moves)
    peer = Peer(engine)
    peer.busy = links.sinks["out_link"].busy
    peer.join(port)
    port.wake(0)
    for at, flit in sends["in_link"]:
        peer.send(flit, at=at)
    names = {id(peer.out): "in_link", id(port.out): "out_link"}
    engine.on_transfer = lambda cycle, link, flit: moved.append((cycle, names[id(link)], flit))
    engine.advance(links.cycle)
    moved += [(cycle, name.rstrip("0"), flit) for cycle, name, flit in twin_moves]
    assert compare(links.transfers, moved) > 800
    assert int(dut.strays.value) == port.strays > 100
