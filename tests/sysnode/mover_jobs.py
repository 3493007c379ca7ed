"""Moves of the memory mover through a transport, whatever is behind it; the job of it inside the simulator."""

from __future__ import annotations

import hashlib

from mover_scenario import BYTES, WORD, Move, Walk, contents, directed

from kohakutpu.host.transport import CONTROL_BASE, MEMORY_BASE, Transport
from kohakutpu.isa import registers
from kohakutpu.isa.registers import MoverFault, MoverMode

LIMIT = 20_000  # cycles of a move

# The published bench of mm_mesh: 16 words, rows and columns swapped.
PUBLISHED = Move(
    MoverMode.COPY, 1, source=Walk(0x1000, [(4, 128, 0, 0), (4, WORD, 0, 0)]),
    target=Walk(0x2000, [(4, WORD, 0, 0), (4, 128, 0, 0)]),
)  # fmt: skip
MISALIGNED = Move(MoverMode.FILL, target=Walk(0x2008, [(2, WORD, 0, 0)]))
MOVES = [PUBLISHED, *directed(), MISALIGNED, PUBLISHED]


def carry_out(transport: Transport, seed: int) -> list[tuple[int, MoverFault, int, str]]:
    """Each of `MOVES`, one after another: (cycle of its end as polled, fault, moves counted, SHA-256 of memory)."""
    transport.write_block(MEMORY_BASE, contents(seed))
    out = []
    for item in MOVES:
        for index, value in item.writes():
            transport.write64(CONTROL_BASE + registers.AUX_CFG.at(index), value)
        start = transport.now
        while True:
            status = registers.AUX_STAT.layout.decode(transport.read64(CONTROL_BASE + registers.AUX_STAT.at()))
            if not status["busy"]:
                break
            if transport.now - start > LIMIT:
                raise TimeoutError(f"{item} did not end within {LIMIT} cycles: {status}")
        image = hashlib.sha256(transport.read_block(MEMORY_BASE, BYTES)).hexdigest()
        out.append((transport.now, MoverFault(status["fault"]), status["moves"], image))
    return out


def on_gates(machine, contents_of: int) -> list[tuple[int, MoverFault, int, str]]:
    from sim.transport import RtlTransport

    return carry_out(RtlTransport(machine), contents_of)


def by_the_rules(seed: int, generated) -> list[tuple[MoverFault, int, str]]:
    """What `carry_out` gives, the cycles apart, by plain loops; `generated(address, seed)`: a word of mode GENERATE."""
    image = bytearray(contents(seed))
    out, moves = [], 0
    for item in MOVES:
        fault, writes, _ = item.result(bytes(image), generated)
        for at, word in writes.items():
            image[at : at + WORD] = word
        moves += fault == MoverFault.NONE
        out.append((fault, moves, hashlib.sha256(image).hexdigest()))
    return out
