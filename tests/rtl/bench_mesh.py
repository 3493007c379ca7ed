"""A whole mesh against its model: every link's flits in the same cycles, whoever sends and however the sinks stall."""

from __future__ import annotations

import os
import random

import cocotb

from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.machine import load
from support.links import Links, bursts, stutter
from support.mesh_model import run_mesh
from support.mesh_top import grid, inner_links
from support.models import compare

from rtl.mesh import endpoint_sites

NX, NY, DEPTH = (int(os.environ[name]) for name in ("NX", "NY", "DEPTH"))
MESH_OF = os.environ.get("MESH_OF")  # of a machine whose mesh it is, in place of a grid that is full of endpoints
MACHINE = load(MESH_OF) if MESH_OF else grid(NX, NY, DEPTH)
SITES = {name: node(x, y) for name, (x, y) in endpoint_sites(MACHINE).items()}
INNER = inner_links(MACHINE)
FACTOR = int(os.environ.get("FACTOR", "1"))  # how much more random traffic than usual


class Traffic:
    """Flits to send, by endpoint; the payload numbers them."""

    def __init__(self, chance):
        self.chance = chance
        self.sends = {name: [] for name in SITES}
        self.count = 0

    def add(self, source, destination, at=0):
        chance = self.chance
        self.count += 1
        kind = chance.choice(list(FlitType))
        payload = chance.getrandbits(200) << 56 | self.count
        self.sends[source].append(
            (
                at,
                Flit(
                    destination,
                    SITES[source],
                    kind,
                    chance.getrandbits(8),
                    chance.getrandbits(1),
                    chance.getrandbits(3),
                    payload,
                ),
            )
        )


class Observer:
    """Notes what moves on the links that no endpoint sees."""

    def __init__(self, dut, links):
        self.moved = dut.moved
        self.flits = [getattr(dut, f"{name.replace('.', '_')}_seen") for name in INNER]
        self.links = links
        links.each_cycle.append(self.look)

    def look(self, now):
        moved = int(self.moved.value)
        while moved:
            index = (moved & -moved).bit_length() - 1
            moved &= moved - 1
            self.links.transfers.append((now, INNER[index], Flit.from_int(int(self.flits[index].value))))


async def start(dut):
    links = await Links.start(
        dut, sources=[f"{name}_out" for name in SITES], sinks=[f"{name}_in" for name in SITES],
        checks=[f"{name}_" for name in SITES],
    )  # fmt: skip
    Observer(dut, links)
    return links


async def play(links, traffic, busy, budget):
    """Send everything, wait until it has arrived, and compare with the model."""
    for name in SITES:
        links.sinks[f"{name}_in"].busy = busy.get(name)
    await links.reset()
    for name, items in traffic.sends.items():
        for at, flit in items:
            links.sources[f"{name}_out"].send(flit, at=at)
    arrived = lambda: sum(len(sink.received) for sink in links.sinks.values())  # noqa: E731
    await links.until(lambda: arrived() >= traffic.count, budget, f"the arrival of {traffic.count} flits")
    await links.step(50)
    await links.finish()
    delivered(links, traffic)
    compare(links.transfers, run_mesh(MACHINE, traffic.sends, busy, links.cycle))


def delivered(links, traffic):
    """Nothing lost, nothing twice, each at its node, in order for each pair: without the model's help."""
    sent = [flit for items in traffic.sends.values() for _, flit in items]
    received = {name: [flit for _, flit in links.sinks[f"{name}_in"].received] for name in SITES}
    assert sorted(flit for flits in received.values() for flit in flits) == sorted(sent)
    for name, flits in received.items():
        assert all(flit.dst == SITES[name] for flit in flits), f"a flit for another node arrived at {name}"
        for source, items in traffic.sends.items():
            here = [flit for flit in flits if flit.src == SITES[source]]
            assert here == [flit for _, flit in items if flit.dst == SITES[name]], f"order from {source} to {name}"


def patterns(seed):
    kinds = [lambda s: None, lambda s: stutter(s, 0.3), lambda s: stutter(s, 0.8), lambda s: bursts(s, 0.5, 50)]
    chance = random.Random(seed)
    return {name: chance.choice(kinds)(seed + i) for i, name in enumerate(SITES)}


@cocotb.test()
async def all_to_all(dut):
    """Everyone to everyone, itself too where a router brings it back, as fast as the links go."""
    links = await start(dut)
    traffic = Traffic(random.Random(1))
    order = list(SITES)
    for shift in range(len(order)):
        for index, name in enumerate(order):
            traffic.add(name, SITES[order[(index + shift) % len(order)]])
    await play(links, traffic, {}, 4000)


@cocotb.test()
async def flood(dut):
    """All to one, then all along the diagonal, while that one stalls."""
    links = await start(dut)
    chance = random.Random(random.getrandbits(32))
    for target in (chance.choice(list(SITES)), "mag0"):
        traffic = Traffic(chance)
        for _ in range(12):
            for name in SITES:
                traffic.add(name, SITES[target])
        await play(links, traffic, {target: stutter(3, 0.4)}, 6000)
    traffic = Traffic(chance)
    order = list(SITES)
    for _ in range(40):
        for index, name in enumerate(order):
            traffic.add(name, SITES[order[-1 - index]])
    await play(links, traffic, {}, 6000)


@cocotb.test()
async def random_traffic(dut):
    """Anyone to anyone with pauses, under different stalls everywhere."""
    links = await start(dut)
    chance = random.Random(random.getrandbits(32))
    for _ in range(2 * FACTOR):
        traffic = Traffic(chance)
        for name in SITES:
            at = 0
            for _ in range(30):
                at += chance.choice((0, 0, 0, 1, 7, 40))
                traffic.add(name, chance.choice(list(SITES.values())), at)
        await play(links, traffic, patterns(chance.getrandbits(16)), 20_000)


@cocotb.test()
async def a_reset_empties_the_mesh(dut):
    """What is in flight is gone, and the arbiters start as they did in cycle 0."""
    links = await start(dut)
    chance = random.Random(random.getrandbits(32))
    for _ in range(3):
        traffic = Traffic(chance)
        for name in SITES:
            for _ in range(20):
                traffic.add(name, chance.choice(list(SITES.values())))
        busy = patterns(chance.getrandbits(16))
        for name in SITES:
            links.sinks[f"{name}_in"].busy = busy.get(name)
        await links.reset()
        for name, items in traffic.sends.items():
            for at, flit in items:
                links.sources[f"{name}_out"].send(flit, at=at)
        await links.step(chance.randint(11, 60))
        await links.finish()
        compare(links.transfers, run_mesh(MACHINE, traffic.sends, busy, links.cycle))


@cocotb.test()
async def every_destination_leads_somewhere(dut):
    """All 256 destinations from one corner and from the middle, corners and what lies outside too."""
    links = await start(dut)
    traffic = Traffic(random.Random(5))
    for name in ("mag0", list(SITES)[len(SITES) // 2]):
        for destination in range(256):
            traffic.add(name, destination)
    for name, items in traffic.sends.items():
        for at, flit in items:
            links.sources[f"{name}_out"].send(flit, at=at)
    await links.step(1200)
    await links.finish()
    assert compare(links.transfers, run_mesh(MACHINE, traffic.sends, {}, links.cycle)) > 1024
