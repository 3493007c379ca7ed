"""What runs inside the simulator for the benches of traces: accesses of the host's bus."""

from __future__ import annotations

from kohakutpu.host.transport import CONTROL_BASE, MEMORY_BASE
from kohakutpu.isa import registers


def accesses(machine) -> list[tuple[str, int]]:
    """How many cycles each kind of access takes."""
    from sim.transport import RtlTransport

    transport = RtlTransport(machine)
    stage = CONTROL_BASE + registers.stage_offset(0)
    took = []

    def time(what: str, access, *arguments) -> object:
        start = transport.now
        result = access(*arguments)
        took.append((what, transport.now - start))
        return result

    time("a register", transport.write64, CONTROL_BASE + registers.CTRL.at(), 1)
    time("a register back", transport.read64, CONTROL_BASE + registers.CTRL.at())
    time("five registers", transport.write_block, stage, bytes(40))
    time("a long block", transport.write_block, stage, bytes(8 * 300))
    data = bytes(range(1, 249)) * 40
    time("memory", transport.write_block, MEMORY_BASE + 0xF08, data)
    assert time("memory back", transport.read_block, MEMORY_BASE + 0xF08, len(data)) == data
    assert transport.read_block(MEMORY_BASE + 0xF00, 16) == bytes(8) + data[:8], "strobes keep what is beside it"
    transport.pause()
    return took


def outside(machine) -> None:
    """A read past the end of memory."""
    from sim.transport import RtlTransport

    RtlTransport(machine).read_block(MEMORY_BASE + machine.memory_bytes, 32)
