"""When the words of a vector program issue: the queue, the beats and the waits of `docs/microarchitecture/vector-core.md`.

Left out: register bank ports, chains of depth 2 and 4 and the compares that a vote waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kohakutpu.isa.vector import COMPARES, OPERANDS, DType, Opcode, RedKind, Source

LANE, SHORT, LOAD, STORE = 17, 3, 6, 3  # cycles from a beat to the write that it makes
TREE, TREE_WIDE, GAP, VOTE = 55, 62, 21, 4  # of a reduction: to the scalar (above 8 beats), to the next one; of a vote
WIDE = 8  # beats
SHORT_WORDS = (Opcode.VCVT, Opcode.VSHUF, Opcode.VBCAST)


@dataclass
class Lanes:
    """What has been issued so far, in cycles."""

    start: float
    ends: list[float] = field(init=False)  # last beats of the two latest words
    vectors: dict[int, tuple[float, int]] = field(default_factory=dict)  # when chunk 0 may be read, cycles from chunk to chunk
    scalars: dict[int, float] = field(default_factory=dict)  # when one may be read
    reduced: float = float("-inf")  # last beat of the latest reduction
    stored: float = float("-inf")  # last write of a store
    written: float = float("-inf")  # last write of all

    def __post_init__(self):
        self.ends = [self.start - 1, self.start - 1]

    @property
    def issued(self) -> float:
        """When the queue is empty."""
        return self.ends[-1] + 1

    def scalar(self, register: int) -> float:
        """When decode may read a scalar register."""
        return self.scalars.get(register, self.start)

    def put(self, i, now: float, chunks: int) -> float:
        """A word that decode sees in cycle `now`, of `chunks` chunks; returns when it may see the next one."""
        reads, needs = _operands(i)
        reduces = i.op == Opcode.VRED
        vote = reduces and i.kind >= RedKind.ANY
        double = (reduces and i.kind >= RedKind.SUMSQ) or (i.op in (Opcode.VLD, Opcode.VST) and i.dtype == DType.FP32)
        pace = 2 if double and not vote else 1
        gathers = i.op == Opcode.VBCAST and i.sa != Source.S
        beats = 1 if vote or gathers else pace * chunks
        pushed = max([now, self.ends[-2] + 1, *(self.scalar(register) for register in needs)])
        begin = max(pushed, self.ends[-1]) + 1
        for register in reads:
            ready, made = self.vectors.get(register, (self.start, 1))
            begin = max(begin, ready, ready + (made - pace) * (chunks - 1) if beats > 1 else ready)
        if i.op in (Opcode.VLD, *SHORT_WORDS) and not gathers:  # no short write overtakes a longer one
            begin = max(begin, self.vectors.get(i.vd, (self.start, 1))[0])
        if reduces and not vote:
            begin = max(begin, self.reduced + GAP)
            self.reduced = begin + beats - 1
        end = begin + beats - 1
        self.ends = [self.ends[-1], end]
        self._write(i, begin, end, pace, gathers, vote)
        return pushed + 1

    def _write(self, i, begin: float, end: float, pace: int, gathers: bool, vote: bool) -> None:
        wait = LOAD if i.op == Opcode.VLD else SHORT if i.op in SHORT_WORDS else LANE
        if i.op == Opcode.VST:
            self.stored = wait = end + STORE
        elif i.op == Opcode.VRED:
            wait = end + (VOTE if vote else TREE_WIDE if end - begin >= WIDE else TREE)
            self.scalars[i.vd] = wait
            if i.kind == RedKind.EXPSUM:
                self.vectors[i.vb] = begin + LANE + pace - 1, pace
        elif gathers:
            self.scalars[i.vd] = wait = end + wait
        else:
            if i.op not in COMPARES:
                self.vectors[i.vd] = begin + wait + pace - 1, pace
            wait += end
        self.written = max(self.written, wait)


def _operands(i) -> tuple[list[int], list[int]]:
    """The vector registers that a word reads chunk by chunk, and the scalar ones."""
    if i.op == Opcode.VLD:
        return [], []
    if i.op == Opcode.VST:
        return [i.vd], []
    if i.op == Opcode.VRED:
        if i.kind >= RedKind.ANY:
            return [], [i.vd]
        return [i.va, i.vb] if i.kind in (RedKind.SUMSQ, RedKind.DOT) else [i.va], [i.vd]
    if i.op == Opcode.VBCAST:
        return ([], [i.va]) if i.sa == Source.S else ([i.va], [i.vd])
    if i.op == Opcode.VSHUF:
        return [i.va], [i.vb]
    if i.op == Opcode.VCVT:
        return [i.va], []
    chosen = [(getattr(i, "s" + letter), getattr(i, "v" + letter)) for letter in OPERANDS[i.op]]
    return [r for s, r in chosen if s == Source.V], [r for s, r in chosen if s == Source.S]
