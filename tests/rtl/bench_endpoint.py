"""The endpoint base on the worker unit, against its model and under the three phases of a link."""

from __future__ import annotations

import os
import random

import cocotb

from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.signals import CU_CTRL_REQUEST, CU_SIGNAL, SignalCode
from kohakutpu.noc.engine import Engine
from support.links import Links, bursts, stutter
from support.models import Peer, compare
from support.worker_model import WorkerModel

UNIT, HOST, OTHER = node(2, 1), node(0, 1), node(1, 0)
PARAMETERS = {"unit_type": 0x0A10, "version": 4, "buffers": 3}
INST_DEPTH, RECV_DEPTH = int(os.environ["INST_DEPTH"]), int(os.environ["RECV_DEPTH"])


def work(cycles=1, result=0, *, txn=0, last=0, fault=0, src=HOST):
    return Flit(UNIT, src, FlitType.CU_INST, txn, last, 0, result << 32 | fault << 16 | cycles)


def ask(index, txn=0, op=0, src=HOST):
    return Flit(UNIT, src, FlitType.CU_CTRL, txn, 1, 0, CU_CTRL_REQUEST.pack(op=op, index=index))


def other(chance):
    kind = chance.choice([kind for kind in range(16) if kind not in (FlitType.CU_INST, FlitType.CU_CTRL)])
    return Flit(UNIT, chance.choice((HOST, OTHER)), kind, chance.getrandbits(8), 1, chance.getrandbits(3),
                chance.getrandbits(256))  # fmt: skip


def stimulus(seed, count):
    """(cycle, flit) in order: a hostile mixture with pauses."""
    chance = random.Random(seed)
    at, items = 0, []
    for index in range(count):
        if chance.random() < 0.15:
            at += chance.randint(1, 60)
        draw = chance.random()
        src = chance.choice((HOST, OTHER))
        if draw < 0.4:
            flit = work(chance.choice((1, 1, 2, 3, 17)), chance.getrandbits(32), txn=index & 255,
                        last=chance.getrandbits(1), fault=chance.random() < 0.2, src=src)  # fmt: skip
        elif draw < 0.6:
            flit = ask(chance.choice((0, 1, 2, 3, 4, 0xE0, 0xFF)), txn=index & 255, op=chance.getrandbits(1), src=src)
        else:
            # CU_DATA goes back as it is, so it would be framed wrongly; the checker must not see that
            flit = other(chance)
            flit = flit._replace(type=FlitType.MEM_WR_ACK) if flit.type in (1, 4, 6, 8) else flit
        items.append((at, flit))
    return items


def model_run(items, busy, cycles):
    engine = Engine()
    worker = WorkerModel(engine, node=UNIT, inst_depth=INST_DEPTH, recv_depth=RECV_DEPTH, **PARAMETERS)
    peer = Peer(engine)
    peer.busy = busy
    peer.join(worker)
    moved = []
    names = {id(peer.out): "in_link", id(worker.out): "out_link"}
    engine.on_transfer = lambda cycle, link, flit: moved.append((cycle, names[id(link)], flit))
    for at, flit in items:
        peer.send(flit, at=at)
    engine.advance(cycles)
    return moved


PATTERNS = {
    "free": lambda seed: None,
    "stutter": lambda seed: stutter(seed, 0.5),
    "bursts": lambda seed: bursts(seed, 0.6, 60),
    "choked": lambda seed: stutter(seed, 0.93),
}


@cocotb.test()
@cocotb.parametrize(pattern=list(PATTERNS))
async def equals_the_model(dut, pattern):
    """Every flit in the same cycle as the model's, whatever the other side does."""
    seed = random.getrandbits(32)
    busy = PATTERNS[pattern](seed)
    items = stimulus(seed, 400)
    dut.eats.value = 1
    links = await Links.start(dut)
    links.sinks["out_link"].busy = busy
    await links.reset()
    for at, flit in items:
        links.sources["in_link"].send(flit, at=at)
    cycles = 12_000 if pattern == "choked" else 4000
    await links.step(cycles)
    assert links.sources["in_link"].done, "the bench ended before everything was sent"
    count = compare(links.transfers, model_run(items, busy, cycles))
    assert count > 600 and links.probes > 50, (count, links.probes)
    await links.finish()


@cocotb.test()
async def a_reset_in_mid_flight_leaves_nothing_behind(dut):
    seed = random.getrandbits(32)
    dut.eats.value = 1
    links = await Links.start(dut)
    for run in range(4):
        busy = stutter(seed + run, 0.5)
        links.sinks["out_link"].busy = busy
        await links.reset()
        items = stimulus(seed + run, 200)
        for at, flit in items:
            links.sources["in_link"].send(flit, at=at)
        cycles = random.randint(40, 200) if run < 3 else 2500
        await links.step(cycles)
        compare(links.transfers, model_run(items, busy, cycles))
        assert not links.broken(), links.broken()
    await links.finish()


# ---- completions in three phases: the link held, stuttered, held for good -----------------------------------


def signals(links):
    return [
        (flit.txn, CU_SIGNAL.get(flit.payload, "code"), CU_SIGNAL.get(flit.payload, "arg"))
        for _, flit in links.sinks["out_link"].received
        if flit.type == FlitType.CU_SIGNAL
    ]


def program(count):
    return [work(2, 100 + i, txn=7, last=i == count - 1) for i in range(count)]


def expected(count):
    return [(7, SignalCode.INST_COMPLETE, 100 + i) for i in range(count - 1)] + [(7, SignalCode.BATCH_COMPLETE, 7)]


@cocotb.test()
async def nothing_escapes_a_held_link(dut):
    dut.eats.value = 1
    links = await Links.start(dut)
    held = [True]
    links.sinks["out_link"].busy = lambda cycle: held[0]
    links.sources["in_link"].send(*program(8))
    await links.step(300)
    assert signals(links) == []
    held[0] = False
    await links.step(100)
    assert signals(links) == expected(8)
    await links.finish()


@cocotb.test()
@cocotb.parametrize(rhythm=[(2, 1), (7, 2), (5, 4)])
async def a_stuttering_link_loses_nothing(dut, rhythm):
    period, open_for = rhythm
    dut.eats.value = 1
    links = await Links.start(dut)
    links.sinks["out_link"].busy = lambda cycle: cycle % period >= open_for
    links.sources["in_link"].send(*program(24))
    await links.until(lambda: len(signals(links)) >= 24, 1000, "24 completions")
    assert signals(links) == expected(24)
    await links.finish()


@cocotb.test()
async def a_link_held_for_good_lets_one_out_for_each_open_cycle(dut):
    dut.eats.value = 1
    links = await Links.start(dut)
    gate = set()
    links.sinks["out_link"].busy = lambda cycle: cycle not in gate
    links.sources["in_link"].send(*program(INST_DEPTH + 40))
    await links.step(600)
    # 16 queued, one in the output register, none in flight: what came in is those and a full instruction FIFO
    accepted = len(links.sources["in_link"].sent)
    assert accepted == 17 + INST_DEPTH, accepted
    for count in range(1, 20):
        gate.add(links.cycle + 3)
        await links.step(12)
        assert len(signals(links)) == count
    links.sinks["out_link"].busy = None
    await links.until(lambda: len(signals(links)) >= INST_DEPTH + 40, 2000, "every completion")
    assert signals(links) == expected(INST_DEPTH + 40)
    await links.finish()
