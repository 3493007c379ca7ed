"""Cocotb side of the vector core bench: gates and model live the same life, flit for flit and cycle for cycle."""

import os
import random
from bisect import bisect_left
from functools import cache

import cocotb
from support.conformance import Profile, conform
from support.links import Links, bursts, stutter
from support.models import Peer, compare
from vector_scenario import AT, HOST, INST_DEPTH, PORT, RECV_DEPTH, World, slot_cases, slot_kernels

from kohakutpu.errata import parse
from kohakutpu.isa import vector as isa
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import (
    CU_CTRL_REQUEST,
    CU_DATA,
    CU_SIGNAL,
    SIGNAL_ON_COMPLETE,
    ControlIndex,
    SignalCode,
    UnitType,
)
from kohakutpu.isa.vector import Opcode
from kohakutpu.machine import VectorUnit
from kohakutpu.model.vector import VectorCore
from kohakutpu.noc.engine import Engine
from rtl.vector import FAULTS

KERNELS = int(os.environ.get("KERNELS", "8"))
L1_WORDS = int(os.environ.get("L1_WORDS", "512"))
SEEDS = [int(word) for word in os.environ.get("SEEDS", "1,2,3,4").split(",")]
ERRATA = parse(os.environ["ERRATA"].split())
STILL = 20_000  # cycles without a flit after which a life is given up
TAIL = 100
LOOK = 500  # cycles between comparisons


def backpressure(seed: int):
    return [None, stutter(seed, 0.3), stutter(seed, 0.8), bursts(seed, 0.5)][seed % 4]


def model_core() -> tuple[Engine, Peer, list]:
    """A model core with a peer, and the list that its transfers are noted in."""
    engine = Engine()
    unit = VectorUnit(x=AT & 15, y=AT >> 4, l1_words=L1_WORDS, inst_depth=INST_DEPTH, recv_depth=RECV_DEPTH)
    core = VectorCore(engine, unit, port=PORT, errata=ERRATA)
    peer = Peer(engine)
    peer.join(core)
    moved = []
    names = {peer.out.index: "in_link", core.out.index: "out_link"}
    engine.on_transfer = lambda cycle, link, flit: moved.append((cycle, names[link.index], flit))
    return engine, peer, moved


@cache
def model_life(seed: int) -> tuple[list, int]:
    """The transfers of a life in the model, in order, and the cycles it lasts."""
    engine, peer, moved = model_core()
    peer.busy = backpressure(seed)
    world = World(peer, seed, kernels=KERNELS, l1_words=L1_WORDS)
    peer.on_flit = world.on_flit
    world.start()
    while not world.done:
        seen = len(moved)
        engine.advance(STILL)
        assert len(moved) > seen, f"seed {seed}: nothing moves in the model and {world.owed} instructions are owed"
    return sorted(moved), moved[-1][0] + TAIL


async def life(links: Links, seed: int, *, cycles: int | None = None) -> int:
    """A life of the gates from reset on, or its first `cycles`; returns how many transfers were the model's.
    AssertionError where they differ.
    """
    sink, source = links.sinks["out_link"], links.sources["in_link"]
    sink.busy = backpressure(seed)
    world = World(source, seed, kernels=KERNELS, l1_words=L1_WORDS)
    sink.on_flit = world.on_flit
    world.start()
    model, end = model_life(seed)
    end = cycles or end
    same = 0
    while links.cycle < end:
        await links.step(min(LOOK, end - links.cycle))
        known = bisect_left(model, (links.cycle,))
        same += compare(links.transfers[same:], model[same:known]) if len(links.transfers) > same or known > same else 0
    await links.finish(owing=True)
    return same


@cocotb.test()
async def lives_like_the_model(dut):
    links = await Links.start(dut)
    total = 0
    for seed in SEEDS:
        total += await life(links, seed, cycles=links.chance.randrange(500, 3000))  # cut short by a reset
        await links.reset()
        count = await life(links, seed)
        await links.reset()
        total += count
        dut._log.warning(f"seed {seed}: {count} transfers in equal cycles, {model_life(seed)[1]} cycles")
    dut._log.warning(f"{total} transfers compared over {len(SEEDS)} lives")


@cocotb.test()
async def every_source_slot(dut):
    """Every operation with every source in every operand, as the model computes it: what the compiler may use."""

    def world(source) -> World:
        return World(source, 1, kernels=0, l1_words=L1_WORDS, hostile=False, given=slot_kernels())

    links = await Links.start(dut)
    engine, peer, moved = model_core()
    peers = {peer: world(peer), links.sources["in_link"]: world(links.sources["in_link"])}
    peer.on_flit = peers[peer].on_flit
    links.sinks["out_link"].on_flit = peers[links.sources["in_link"]].on_flit
    for made in peers.values():
        made.start()
    while not peers[peer].done:
        engine.advance(STILL)
    end = moved[-1][0] + TAIL
    while links.cycle < end:
        await links.step(min(STILL, end - links.cycle))
    assert compare(links.transfers, sorted(moved)) > 0
    results = [
        flit.payload for _, link, flit in links.transfers if link == "out_link" and flit.type == FlitType.MEM_WR_DATA
    ]
    codes = {CU_SIGNAL.get(flit.payload, "code") for _, _, flit in links.transfers if flit.type == FlitType.CU_SIGNAL}
    assert codes <= {SignalCode.INST_COMPLETE, SignalCode.BATCH_COMPLETE}, f"the kernels signal {codes}"
    cases = slot_cases()
    assert len(results) >= 2 * len(cases)
    dut._log.warning(f"{len(cases)} choices of sources, {len(set(results))} different words of results")
    assert len(set(results[: 2 * len(cases)])) > 100, "the operations hardly differ"


def stray(source, at: int | None) -> None:
    """A kernel of one VFILL of a word, never answered, and a response for it that leaves in cycle `at`."""
    words = [isa.encode(Opcode.VFILL, ad=0, l1=9), isa.encode(Opcode.VHALT)]
    payloads = [isa.IMEM.encode(addr=place, word=word) for place, word in enumerate(words)]
    for payload in [*payloads, isa.RUN.encode(pc=0)]:
        source.send(Flit(AT, HOST, FlitType.CU_INST, 0, 0, 0, payload))
    if at is not None:
        source.send(Flit(AT, PORT, FlitType.MEM_RD_RESP, 9, 1, 0, 1), at=at)


def model_stray(at: int | None, cycles: int) -> list:
    engine, peer, moved = model_core()
    stray(peer, at)
    engine.advance(cycles)
    return sorted(moved)


@cocotb.test()
async def only_what_was_asked_for_is_taken(dut):
    """A response around the cycle of its request: the kernel ends if it came after it, and not otherwise."""
    links = await Links.start(dut)
    asked = next(cycle for cycle, link, flit in model_stray(None, 100) if flit.type == FlitType.MEM_RD_REQ)
    ended = []
    for at in range(asked - 8, asked + 4):
        await links.reset()
        stray(links.sources["in_link"], at)
        await links.step(100)
        compare(links.transfers, model_stray(at, 100))
        ended.append(sum(flit.type == FlitType.CU_SIGNAL for _, _, flit in links.transfers) == 3)
    assert not ended[0] and ended[-1] and ended == sorted(ended), ended
    dut._log.warning(f"request valid in {asked}, responses sent from {asked - 8} on, taken: {ended}")


SHOWN = 24  # words of L1


def refused(source) -> None:
    """Bursts that are taken and that are not: of no buffer, past the end, short, long, of two senders at once. Then
    CU_CAPS is asked for, and there are a kernel that ends and one that drains what L1 holds."""
    chance = random.Random(1)
    bursts = [
        (HOST, {"length": SHOWN}), (HOST, {"buf": 1, "length": 3}), (HOST, {"offset": L1_WORDS - 2, "length": 4}),
        (HOST, {"offset": 2, "length": 2}), (HOST, {"offset": 5, "length": 4, "says": 6}),
        (HOST, {"offset": 8, "length": 3}), (HOST, {"offset": 12, "length": 4, "says": 2}),
        (HOST, {"offset": 14, "length": 1}),
    ]  # fmt: skip
    flits = [flit for sender, fields in bursts for flit in burst_of(chance, sender, **fields)]
    one, two = burst_of(chance, HOST, offset=16, length=4), burst_of(chance, PORT, offset=18, length=3)
    flits += [flit for pair in zip(one, two) for flit in pair] + one[len(two) :]
    flits += burst_of(chance, PORT, offset=22, length=2)
    flits.append(Flit(AT, HOST, FlitType.CU_CTRL, 1, 1, 0, CU_CTRL_REQUEST.encode(index=ControlIndex.CAPS)))
    words = [isa.encode(Opcode.VHALT), isa.encode(Opcode.VDRAIN, ad=0), isa.encode(Opcode.VHALT)]
    payloads = [isa.IMEM.encode(addr=place, word=word) for place, word in enumerate(words)]
    payloads += [isa.DESC_DIM.encode(ad=0, field=isa.DescField.DIM0, stride=32, bound=SHOWN)]
    payloads += [isa.RUN.encode(pc=pc) for pc in (0, 1)]
    for flit in flits + [Flit(AT, HOST, FlitType.CU_INST, 0, 0, 0, payload) for payload in payloads]:
        source.send(flit)


def burst_of(chance: random.Random, sender: int, *, length: int, offset: int = 0, buf: int = 0,
             says: int | None = None) -> list[Flit]:  # fmt: skip
    """A CU_DATA burst of `length` words whose descriptor `says` how many there are."""
    head = CU_DATA.encode(buf=buf, offset=offset, len=(says or length) - 1, flags=SIGNAL_ON_COMPLETE)
    payloads = enumerate([head, *(chance.getrandbits(256) for _ in range(length))])
    return [Flit(AT, sender, FlitType.CU_DATA, 0, int(place == length), 0, payload) for place, payload in payloads]


@cocotb.test()
async def bursts_that_are_refused(dut):
    """Taken, refused and framed as the model does, with its errata or without."""
    links = await Links.start(dut)
    engine, peer, moved = model_core()
    refused(peer)
    engine.advance(600)
    refused(links.sources["in_link"])
    await links.step(600)
    assert compare(links.transfers, sorted(moved)) > 100
    drained = sum(flit.type == FlitType.MEM_WR_DATA for _, _, flit in links.transfers)
    assert drained == SHOWN, f"{drained} words of L1 were shown"


@cocotb.test()
async def conforms(dut):
    """What every endpoint must do (`support.conformance`); a VFILL that memory never answers wedges a core."""
    words = [isa.encode(Opcode.VHALT), isa.encode(Opcode.VFILL, ad=0, l1=9), isa.encode(Opcode.VHALT)]
    order = lambda payload, txn=0, last=0: Flit(AT, HOST, FlitType.CU_INST, txn, last, 0, payload)  # noqa: E731
    profile = Profile(
        node=AT, host=HOST, unit_type=UnitType.VECTOR, version=4,
        setup=[order(isa.IMEM.encode(addr=place, word=word)) for place, word in enumerate(words)],
        quick=lambda txn, last: order(isa.RUN.encode(pc=0), txn, last),
        wedge=lambda txn: order(isa.RUN.encode(pc=1), txn),
    )  # fmt: skip
    await conform(dut, profile)


@cocotb.test()
async def every_planted_fault_is_found(dut):
    """Each fault in turn is switched on for whole lives until one of them differs; with none on, they do not."""
    dut.planted.value = 0
    links = await Links.start(dut)
    for seed in SEEDS[:2]:
        await life(links, seed)
        await links.reset()
    missed = []
    for number, fault in enumerate(FAULTS, start=1):
        dut.planted.value = number
        for seed in SEEDS:
            await links.reset()
            try:
                await life(links, seed)
            except AssertionError as error:
                dut._log.warning(f"{fault}: seed {seed}: {str(error).splitlines()[0]}")
                break
        else:
            missed.append(fault)
    assert not missed, f"planted and not found: {', '.join(missed)}"
