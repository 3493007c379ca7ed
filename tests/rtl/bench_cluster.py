"""Cocotb side of the cluster bench: the gates and the model live the same life, flit for flit and cycle for cycle."""

import os

import cocotb
from cluster_scenario import AT, HOST, PORT, UNIT, Memory, program
from support.links import Links, bursts, stutter
from support.models import Peer, compare

from kohakutpu.machine import ClusterUnit
from kohakutpu.model.cluster import Cluster
from kohakutpu.noc.engine import Engine

CYCLES = int(os.environ.get("CYCLES", "9000"))
LENGTH = int(os.environ.get("LENGTH", "150"))
SEEDS = [int(word) for word in os.environ.get("SEEDS", "1,2,3,4").split(",")]


def backpressure(seed: int):
    return [None, stutter(seed, 0.3), stutter(seed, 0.8), bursts(seed, 0.5)][seed % 4]


def model_life(seed: int, latency: int, before: Cluster | None) -> tuple[list, Cluster]:
    """Transfers of one life; the memories are those of the life before, as a reset leaves them."""
    engine = Engine()
    unit = Cluster(engine, "cluster0", ClusterUnit(x=AT & 15, y=AT >> 4, **UNIT), port=PORT)
    if before is not None:
        if before.sweep is not None:
            before.sweep.evaluate(before.sweep.issued(engine.now + CYCLES))
        unit.side, unit.tiles = before.side, before.tiles
    peer = Peer(engine)
    peer.join(unit)
    peer.busy = backpressure(seed)
    peer.on_flit = Memory(peer, seed, latency, peer.wake)
    for cycle, flit in program(seed, LENGTH):
        peer.send(flit, at=cycle)
    moved = []
    names = {peer.out.index: "in_link", unit.out.index: "out_link"}
    engine.on_transfer = lambda cycle, link, flit: moved.append((cycle, names[link.index], flit))
    engine.advance(CYCLES)
    return moved, unit


@cocotb.test()
async def lives_like_the_model(dut):
    total, unit = 0, None
    links = await Links.start(dut)
    for position, seed in enumerate(SEEDS):
        if position:
            await links.reset()
        latency = [1, 20, 7][seed % 3]
        sink, source = links.sinks["out_link"], links.sources["in_link"]
        sink.busy = backpressure(seed)
        sink.on_flit = Memory(source, seed, latency)
        for cycle, flit in program(seed, LENGTH):
            source.send(flit, at=cycle)
        await links.step(CYCLES)
        moved, unit = model_life(seed, latency, unit)
        count = compare(list(links.transfers), moved)
        total += count
        dut._log.warning(f"seed {seed}: {count} transfers in equal cycles")
    dut._log.warning(f"{total} transfers compared over {len(SEEDS)} lives, host {HOST:#x}")
