"""What runs inside the simulator: jobs of `sim.machine.simulate` for the whole-machine benches."""

from __future__ import annotations


import peer_scenario as peer

from kohakutpu.isa.flit import Flit


class BenchPort:
    """A simulation with a bench in the agent's place, as the peer bench wants it; notes what was injected when."""

    def __init__(self, machine):
        self.machine = machine
        self.injected: list[tuple[int, list[Flit]]] = []

    def received(self) -> list[Flit]:
        return [flit for _, flit in self.machine.received]

    def inject(self, flits: list[Flit]) -> None:
        self.injected.append((self.machine.now, list(flits)))
        self.machine.inject(flits)

    def wait(self, condition, budget: int) -> bool:
        return self.machine.wait(condition, budget)

    def advance(self, cycles: int) -> None:
        self.machine.advance(cycles)

    def memory_word(self, index: int) -> bytes:
        return self.machine.read_memory(32 * index, 32)


def peer_bench(machine, operands: int) -> dict:
    """The peer bench; what it found, and what is needed to repeat it on the model."""
    port = BenchPort(machine)
    checks = peer.run(port, *peer.operands(operands))
    return {
        "count": checks.count, "errors": checks.errors, "injected": port.injected, "received": machine.received,
        "cycles": machine.now,
    }  # fmt: skip


def play(machine, groups: list[tuple[int, list[Flit]]], memory: list[tuple[int, bytes]], quiet: int, budget: int,
         look: list[tuple[int, int]]) -> dict:  # fmt: skip
    """Inject `groups`, each after as many cycles as it says, until no link moved for `quiet`; memory before and at the
    end."""
    port = BenchPort(machine)
    for address, data in memory:
        machine.write_memory(address, data)
    for pause, flits in groups:
        machine.advance(pause)
        port.inject(flits)
    if not machine.wait_quiet(quiet, budget):
        raise RuntimeError(f"the mesh was not quiet for {quiet} cycles within {budget}\n{machine.report()}")
    return {
        "injected": port.injected, "received": machine.received, "cycles": machine.now,
        "memory": [machine.read_memory(address, length) for address, length in look],
    }  # fmt: skip


