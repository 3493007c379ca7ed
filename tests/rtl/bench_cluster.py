"""Cocotb side of the cluster bench: the gates and the model live the same life, flit for flit and cycle for cycle."""

import os
import random
from collections import defaultdict

import cocotb
from cluster_scenario import AT, HOST, PORT, Life, World, unit_of
from support.conformance import Profile, conform
from support.links import Links, bursts, stutter
from support.models import Peer, compare

from kohakutpu.isa.cluster import FILL, GEMM
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import Buffer, UnitType
from kohakutpu.model.cluster import Cluster
from kohakutpu.noc.engine import Engine

SIZES = os.environ["SIZES"]
LENGTH = int(os.environ.get("LENGTH", "120"))
SEEDS = [int(word) for word in os.environ.get("SEEDS", "1").split(",")]
BUDGET = 1000 * LENGTH  # cycles in which a life must be over
QUIET = 50  # cycles after the last completion until nothing moves inside
# A cluster takes write acknowledgements whatever its FIFOs hold: the one type that `busy` tells apart.
TYPES = [kind for kind in range(16) if kind != FlitType.MEM_WR_ACK]


def backpressure(seed: int):
    return [None, stutter(seed, 0.3), stutter(seed, 0.8), bursts(seed, 0.5)][seed % 4]


def model_life(
    life: Life, seed: int, before: Cluster | None = None, cycles: int | None = None
) -> tuple[list, Cluster, int]:
    """Transfers of one life, the unit after it, and how many cycles it took, or those of its first `cycles`.

    `before` is the unit that lived before the reset: memories stay as it left them.
    """
    engine = Engine()
    unit = Cluster(engine, "cluster0", life.unit, port=PORT)
    if before is not None:
        unit.side, unit.tiles = before.side, before.tiles
    peer = Peer(engine)
    peer.join(unit)
    peer.busy = backpressure(seed)
    world = World(peer, life, seed, peer.wake)
    peer.on_flit = world
    moved = []
    names = {peer.out.index: "in_link", unit.out.index: "out_link"}
    engine.on_transfer = lambda cycle, link, flit: moved.append((cycle, names[link.index], flit))
    if cycles is None:
        assert engine.run(lambda: world.done, BUDGET), "\n".join(["the life hangs", *unit.describe()])
        cycles = engine.now + QUIET
    engine.advance(cycles - engine.now)
    if unit.sweep is not None:
        unit.sweep.evaluate(unit.sweep.issued(engine.now))
    return moved, unit, cycles


async def gate_life(links: Links, life: Life, seed: int, moved: list, cycles: int) -> int:
    """The gates live it too, from reset on; returns how many transfers there were. Stops at the first that differs."""
    sink, source = links.sinks["out_link"], links.sources["in_link"]
    sink.busy = backpressure(seed)
    await links.reset()
    sink.on_flit = World(source, life, seed)
    expected = defaultdict(list)
    for transfer in moved:
        expected[transfer[0]].append(transfer)
    seen = 0

    def look(cycle: int) -> None:
        nonlocal seen
        new, seen = links.transfers[seen:], len(links.transfers)
        if sorted(new) != sorted(expected.pop(cycle, [])):
            compare(links.transfers, [transfer for transfer in moved if transfer[0] <= cycle])

    links.each_cycle[:] = [look]
    await links.step(cycles)
    assert not links.broken(), links.broken()
    return compare(links.transfers, moved)


@cocotb.test()
async def lives_like_the_model(dut):
    """One life after the other, with resets between them that leave the memories as they are."""
    links = await Links.start(dut, probe_types=TYPES)
    total, unit = 0, None
    for seed in SEEDS:
        life = Life(SIZES, seed, LENGTH, scrub=False)
        moved, unit, cycles = model_life(life, seed, unit)
        count = await gate_life(links, life, seed, moved, cycles)
        total += count
        dut._log.warning(f"{SIZES}, seed {seed}: {count} transfers in {cycles} equal cycles")
    dut._log.warning(f"{SIZES}: {total} transfers over {len(SEEDS)} lives, {links.probes} probes")
    await links.finish()


@cocotb.test()
async def resets_in_mid_flight(dut):
    """Whatever a reset interrupts, the next life is that of a fresh unit."""
    links = await Links.start(dut, probe_types=TYPES)
    total = 0
    for seed in SEEDS:
        chance = random.Random(f"cut {seed}")
        life = Life(SIZES, seed, LENGTH, scrub=True)
        cycles = 400 + chance.randrange(2000)
        moved, _, _ = model_life(life, seed, cycles=cycles)
        total += await gate_life(links, life, seed, moved, cycles)
    dut._log.warning(f"{SIZES}: {total} transfers, cut short {len(SEEDS)} times")


def order(payload: int, txn: int, last: int = 0) -> Flit:
    return Flit(AT, HOST, FlitType.CU_INST, txn, last, 0, payload)


@cocotb.test()
async def conforms(dut):
    """What every endpoint must do (`support.conformance`); a FILL that memory never answers wedges a cluster."""
    profile = Profile(
        node=AT, host=HOST, unit_type=UnitType.CLUSTER, version=4, burst=2, bound=2000, probe_types=TYPES,
        uncounted=(Buffer.ACCUMULATOR,), quick=lambda txn, last: order(GEMM.encode(gm=1, gn=1), txn, last),
        wedge=lambda txn: order(FILL.encode(n=1), txn),
    )  # fmt: skip
    assert unit_of(SIZES).inst_depth > 1
    await conform(dut, profile)
