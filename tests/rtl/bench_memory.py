"""Memory ports, host window and memory: gates and model live the same life, cycle for cycle and byte for byte."""

from __future__ import annotations

import os

import cocotb
from memory_rig import COUNTERS
from memory_scenario import BYTES, NODES, Model, contents, host_transfers, outbound, program, run_host
from support.host import HostDriver
from support.links import Links, bursts, stutter
from support.models import compare

from sim.dram import Backdoor

CYCLES = int(os.environ.get("CYCLES", "8000"))
LENGTH = int(os.environ.get("LENGTH", "150"))
HOST = int(os.environ.get("HOST", "25"))
LATENCY = int(os.environ["LATENCY"])
PACE = int(os.environ.get("PACE", "1"))
SIZES = {
    "queue_depth": int(os.environ.get("QUEUE_DEPTH", "64")),
    "write_slots": int(os.environ.get("WRITE_SLOTS", "16")),
}
CHECKS = [f"port_{i}_" for i in range(len(NODES))]
SEEDS = [int(word) for word in os.environ.get("SEEDS", "1,2,3,4").split(",")]


def backpressure(seed: int):
    return [None, stutter(seed, 0.3), stutter(seed, 0.8), bursts(seed, 0.5)][seed % 4]


def traffic(seed: int) -> dict:
    work = {f"in_link_{port}": program(seed, port, LENGTH) for port in range(len(NODES))}
    return work | {"agent_link": outbound(seed, LENGTH // 3)}


@cocotb.test()
async def lives_like_the_model(dut):
    total = 0
    backdoor = Backdoor(dut)
    names = ["agent_link", *(f"in_link_{i}" for i in range(len(NODES)))]
    sinks = [f"out_link_{i}" for i in range(len(NODES))]
    links = await Links.start(dut, sources=names, sinks=sinks, checks=CHECKS, probing=0)
    for position, seed in enumerate(SEEDS):
        before = contents(seed)
        model = Model(latency=LATENCY, pace=PACE, **SIZES)
        model.agent.memory.write(0, before)
        for port in range(len(NODES)):
            busy = backpressure(seed + port)
            model.busy(port, busy)
            links.sinks[f"out_link_{port}"].busy = busy
        if position:
            await links.reset()
        await backdoor.load((0, before))
        for link, items in traffic(seed).items():
            model.send(link, items)
            for cycle, flit in items:
                links.sources[link].send(flit, at=cycle)
        # one life in four is cut short by the next reset
        cycles = CYCLES if position % 4 != 3 else CYCLES // 5
        host = HostDriver(dut, host_transfers(seed, HOST))
        links.each_cycle[:] = [host.tick]
        await links.step(cycles)
        done = run_host(model, host_transfers(seed, HOST), cycles)
        count = compare(list(links.transfers), model.moved)
        for index, (got, want) in enumerate(zip(host.done, done)):
            assert got == want, f"seed {seed}: host transfer {index}: {got}, the model {want}"
        assert len(host.done) == len(done), f"{len(host.done)} host transfers were done, {len(done)} by the model"
        assert not links.broken(), f"seed {seed}: {links.broken()}"
        image = await backdoor.dump(0, BYTES)
        want = model.agent.memory.read(0, BYTES)
        wrong = [at for at in range(0, BYTES, 32) if image[at : at + 32] != want[at : at + 32]]
        assert not wrong, f"seed {seed}: memory differs in words {[hex(at) for at in wrong[:8]]}"
        counted = {name: int(getattr(dut, name).value) for name in COUNTERS}
        counted = {
            name: [word >> COUNTERS[name] * i & (1 << COUNTERS[name]) - 1 for i in range(len(NODES))]
            for name, word in counted.items()
        }
        assert counted == model.counters(), f"seed {seed}: {counted}, the model {model.counters()}"
        total += count
        dut._log.warning(f"seed {seed}: {count} transfers and {len(done)} of the host in equal cycles, {counted}")
    backdoor.close()
    dut._log.warning(f"{total} transfers compared over {len(SEEDS)} lives")
