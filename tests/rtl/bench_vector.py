"""Cocotb side of the vector core bench: the gates and the model live the same life, flit for flit and cycle for cycle."""

import os

import cocotb
from support.links import Links, bursts, stutter
from support.models import Peer, compare
from vector_scenario import AT, INST_DEPTH, PORT, RECV_DEPTH, World

from kohakutpu.machine import VectorUnit
from kohakutpu.model.vector import VectorCore
from kohakutpu.noc.engine import Engine

KERNELS = int(os.environ.get("KERNELS", "8"))
L1_WORDS = int(os.environ.get("L1_WORDS", "512"))
SEEDS = [int(word) for word in os.environ.get("SEEDS", "1,2,3,4").split(",")]
BUDGET = 60_000
TAIL = 100


def backpressure(seed: int):
    return [None, stutter(seed, 0.3), stutter(seed, 0.8), bursts(seed, 0.5)][seed % 4]


def model_life(seed: int, cycles: int) -> list:
    engine = Engine()
    unit = VectorUnit(x=AT & 15, y=AT >> 4, l1_words=L1_WORDS, inst_depth=INST_DEPTH, recv_depth=RECV_DEPTH)
    core = VectorCore(engine, unit, port=PORT)
    peer = Peer(engine)
    peer.join(core)
    peer.busy = backpressure(seed)
    world = World(peer, seed, kernels=KERNELS, l1_words=L1_WORDS)
    peer.on_flit = world.on_flit
    world.start()
    moved = []
    names = {peer.out.index: "in_link", core.out.index: "out_link"}
    engine.on_transfer = lambda cycle, link, flit: moved.append((cycle, names[link.index], flit))
    engine.advance(cycles)
    return moved


@cocotb.test()
async def lives_like_the_model(dut):
    total = 0
    links = await Links.start(dut)
    for position, seed in enumerate(SEEDS):
        if position:
            await links.reset()
        sink, source = links.sinks["out_link"], links.sources["in_link"]
        sink.busy = backpressure(seed)
        world = World(source, seed, kernels=KERNELS, l1_words=L1_WORDS)
        sink.on_flit = world.on_flit
        world.start()
        while not world.done and links.cycle < BUDGET:
            await links.step(100)
        await links.step(TAIL)
        count = compare(list(links.transfers), model_life(seed, links.cycle))
        assert world.done, f"seed {seed}: {world.owed} instructions were not completed within {BUDGET} cycles, by the model either"
        total += count
        dut._log.warning(f"seed {seed}: {count} transfers in equal cycles, {links.cycle} cycles")
    dut._log.warning(f"{total} transfers compared over {len(SEEDS)} lives")
