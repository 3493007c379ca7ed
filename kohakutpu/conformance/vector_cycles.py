"""Kernel cycles of the published vector core by its own formulas (spec: vector core, timing as implemented), and ours.

The published cycles of a program are what its sequencer takes for the words that the program runs through: no data
and no memory contents enter, and a memory answers after `LATENCY` cycles, as in the recordings. A test holds the
formulas to every recorded kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kohakutpu.isa import vector as isa
from kohakutpu.isa.vector import ALU_OPS, COMPARES, STAGES, DescField, DType, Mode, Opcode, RedKind, Source

from .vector import VectorBench

PENDING = {1: 18, 2: 33, 4: 63}  # from a producer's last beat to a dependent first beat, by chain depth
DRAIN = 79  # from the last beat to the decode of a word that waits for the lanes
FILLED = 22  # from the end of a VFILL to the decode of a word that waits for it
DRAINING = frozenset(
    {Opcode.VSETMODE, Opcode.VLD, Opcode.VST, Opcode.VCVT, Opcode.VSHUF, Opcode.VBCAST, Opcode.VHALT}
)
STEPS = 100_000
WINDOW = 8  # instructions on their way at once; more than the core queues would hold up its memory


@dataclass
class PublishedCore:
    """What of a core's state decides how long a kernel takes; it persists from run to run."""

    image: dict[int, int] = field(default_factory=dict)
    bounds: dict[tuple[int, int], int] = field(default_factory=dict)
    scalars: dict[int, int] = field(default_factory=dict)
    length: int = isa.VL_MAX
    mode: Mode = Mode.FLAT

    def instruct(self, payload: int) -> int | None:
        """Take a CU_INST payload; the kernel cycles of a RUN."""
        instruction = isa.decode(payload)
        if instruction.op == isa.Envelope.IMEM:
            self.image[instruction.addr] = instruction.word
        elif instruction.op == isa.Envelope.DESC and instruction.field > DescField.BASE:
            self.bounds[instruction.ad, instruction.field] = instruction.bound
        elif instruction.op == isa.Envelope.RUN:
            return self.run(instruction.pc)
        return None

    def _words(self, ad: int) -> int:
        dims = range(DescField.DIM0, DescField.DIM0 + isa.DIMS)
        return math.prod(max(self.bounds.get((ad, part), 1), 1) for part in dims)

    def run(self, pc: int) -> int:
        """Kernel cycles of the program at `pc`. Raises ValueError for one that does not come to VHALT."""
        now, last, filled = 0, -DRAIN, -FILLED  # decode of the word; the last beat; the end of the last fill
        ready: dict[int, int] = {}  # vector register -> first beat that may use it
        loop: tuple[int, int, int] | None = None  # count, top, end
        chain: list = []
        for _ in range(STEPS):
            if loop is not None and not chain and pc == loop[2]:
                count, top, end = loop
                loop, pc = ((count - 1, top, end), top) if count > 1 else (None, pc)
            pc %= isa.IMEM_WORDS
            word = isa.decode_word(self.image[pc])
            op, chunks = word.op, math.ceil(self.length / 16)
            pc += 1
            if op in DRAINING:
                now = max(now, last + DRAIN)
            if op in (Opcode.VBAR, Opcode.VFILL, Opcode.VHALT):
                now = max(now, filled + FILLED)
            if op in ALU_OPS:
                depth = STAGES[self.mode]
                chain.append(word)
                if len(chain) < depth:
                    now += 4
                    continue
                first = max([now + 1, *(ready.get(r, 0) for r in (chain[0].va, chain[0].vb, chain[0].vc, word.vd))])
                last = first + depth * chunks - 1
                if op not in COMPARES and depth * chunks % 32:  # its count of pending writes has 5 bits
                    ready[word.vd] = last + PENDING[depth]
                now, chain = last + 5, []
            elif op == Opcode.VRED:
                if word.kind < RedKind.ANY:
                    now += (1 if word.kind < RedKind.SUMSQ else 2) * chunks + 145
                    last = now - 66
                else:
                    now += 4
            elif op in (Opcode.VLD, Opcode.VST):
                per = {DType.FP16: (4, 3), DType.FP32: (8, 4)}[word.dtype][op == Opcode.VST]
                now += per * chunks + 5
            elif op == Opcode.VBCAST and word.sa != Source.S:
                now += 8
            elif op in (Opcode.VCVT, Opcode.VSHUF, Opcode.VBCAST):
                now += 3 * chunks + 5
            elif op == Opcode.VSETVL:
                self.length = self.scalars[word.va]
                now += 4
            elif op == Opcode.VLOOP:
                loop = (self.scalars[word.va], pc, pc + word.vb)
                now += 4
            elif op == Opcode.VSETMODE:
                self.mode = Mode(word.mode)
                now += 4
            elif op == Opcode.VSETI:
                if word.sa != Source.K:
                    self.scalars[word.vd] = self.image[pc] & 0xFFFFFF
                pc += 1
                now += 6
            elif op == Opcode.VBAR:
                now += 5
            elif op == Opcode.VFILL:
                now += 3 * self._words(word.ad) + 8
                filled = now
            elif op == Opcode.VDRAIN:
                now += 3 * self._words(word.ad) + (11 if word.peer else 10)
            else:  # VHALT
                return 2 + now + 3
        raise ValueError(f"no VHALT within {STEPS} words")


def published_cycles(payloads: Iterable[int]) -> list[int]:
    """Kernel cycles of each RUN of one core's instructions on the published core."""
    core = PublishedCore()
    return [cycles for payload in payloads if (cycles := core.instruct(payload)) is not None]


def our_cycles(payloads: Sequence[int]) -> list[int]:
    """Kernel cycles of each RUN on the cycle model of our core, alone with a memory that answers after `LATENCY`."""
    bench = VectorBench()
    for first in range(0, len(payloads), WINDOW):
        window = payloads[first : first + WINDOW]
        bench.instruct(*window)
        bench.wait(first + len(window))
    runs = [place for place, payload in enumerate(payloads) if isa.decode(payload).op == isa.Envelope.RUN]
    return [bench.completions()[place].arg for place in runs]
