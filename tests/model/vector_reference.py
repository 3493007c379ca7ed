"""Two independent readings of the vector core: what a program does, and when its beats issue.

`Interpreter` carries out one instruction at a time, eagerly, chunk by chunk. `IssueStage` is the issue stage of
docs/microarchitecture/vector-core.md as registers stepped cycle by cycle: pending bits with tags, reservation
shift registers, countdowns. Neither imports `kohakutpu.model`.
"""

from dataclasses import dataclass

import numpy as np

from kohakutpu.formats import alu, e8m15, reduction
from kohakutpu.isa.vector import ALU_OPS, COMPARES, STAGES, Opcode, decode_word

WORDS = 512


class Interpreter:
    """Architectural state, and `run`. L1 and memory hold 256-bit integers."""

    def __init__(self):
        self.v = np.zeros((16, 8, 16), dtype=np.uint32)
        self.s = [0] * 16
        self.k = [0, 0x3F8000, 0xBF8000, 0]
        self.p = np.zeros((4, 8, 16), dtype=bool)
        self.vl, self.mode = 128, 0
        self.l1 = [0] * WORDS
        self.memory = {}
        self.base = [0] * 8
        self.dims = [[(0, 1)] * 4 for _ in range(8)]

    def describe(self, ad, part, value):
        if part == 0:
            self.base[ad] = value
        elif part <= 4:
            stride = (value >> 16) & 0x3FFFF
            stride -= (stride & 0x20000) << 1
            self.dims[ad][part - 1] = (stride, (value & 0xFFFF) or 1)

    def walk(self, ad, start):
        """Addresses of a walk, without end: the odometer, and its last position for good."""
        index = [0, 0, 0, 0]
        while True:
            yield start + sum(i * stride for i, (stride, _) in zip(index, self.dims[ad]))
            for d in range(4):
                index[d] += 1
                if index[d] < self.dims[ad][d][1]:
                    break
                index[d] = 0
            else:
                index = [bound - 1 for _, bound in self.dims[ad]]

    def length(self, ad):
        product = 1
        for _, bound in self.dims[ad]:
            product *= bound
        return product

    def run(self, program, pc=0):
        """Until VHALT (returns 0); these programs raise no fault."""
        loop = None
        while True:
            if loop and pc == loop[1]:
                if loop[2] > 1:
                    loop[2] -= 1
                    pc = loop[0]
                else:
                    loop = None
            w = decode_word(program[pc])
            pc += 1
            chunks = range(-(-self.vl // 16))
            if w.op in ALU_OPS:
                words = [w]
                while len(words) < STAGES[self.mode]:
                    words.append(decode_word(program[pc]))
                    pc += 1
                for chunk in chunks:
                    self.lanes(words, chunk)
            elif w.op == Opcode.VHALT:
                return 0
            elif w.op == Opcode.VSETI:
                value = program[pc] & 0xFFFFFF
                pc += 1
                if w.sa == 3:
                    self.k[3] = value
                else:
                    self.s[w.vd] = value
            elif w.op == Opcode.VSETVL:
                self.vl = self.s[w.va]
            elif w.op == Opcode.VSETMODE:
                self.mode = w.mode
            elif w.op == Opcode.VLOOP:
                if w.vb:
                    loop = [pc, pc + w.vb, self.s[w.va]]
            elif w.op in (Opcode.VLD, Opcode.VST):
                self.move(w, chunks)
            elif w.op == Opcode.VCVT:
                for c in chunks:
                    value = self.v[w.va, c].copy()
                    self.v[w.vd, c] = value if w.dtype == 2 else e8m15.from_fp16(e8m15.to_fp16(value))
            elif w.op == Opcode.VSHUF:
                turn = self.s[w.vb] & 15
                for c in chunks:
                    old = self.v[w.va, c].tolist()
                    self.v[w.vd, c] = [old[(i + turn) % 16] for i in range(16)]
            elif w.op == Opcode.VBCAST:
                if w.sa == 1:
                    for c in chunks:
                        self.v[w.vd, c] = self.s[w.va]
                else:
                    self.s[w.vd] = int(self.v[w.va, 0, 0])
            elif w.op == Opcode.VRED:
                self.reduce(w)
            elif w.op == Opcode.VFILL:
                walk = self.walk(w.ad, self.base[w.ad])
                for i in range(self.length(w.ad)):
                    self.l1[(w.l1 + i) % WORDS] = self.memory.get(next(walk) % (1 << 40), 0)
            elif w.op == Opcode.VDRAIN:
                walk = self.walk(w.ad, self.base[w.ad])
                for i in range(self.length(w.ad)):
                    self.memory[next(walk) % (1 << 40)] = self.l1[(w.l1 + i) % WORDS]
            else:
                assert w.op == Opcode.VBAR, w

    def lanes(self, words, chunk):
        """One chunk of an ALU word or chain, stage after stage."""
        chain = None
        for w in words:
            operands = []
            for selector, register in ((w.sa, w.va), (w.sb, w.vb), (w.sc, w.vc)):
                if selector == 0:
                    operands.append(self.v[register, chunk])
                elif selector == 2:
                    operands.append(chain)
                else:
                    value = self.s[register] if selector == 1 else self.k[register & 3]
                    operands.append(np.full(16, value, dtype=np.uint32))
            chain, holds = alu.execute(w.op, *operands)
        w = words[-1]
        for i in range(16):
            if 16 * chunk + i >= self.vl:
                continue
            if w.op in COMPARES:
                self.p[w.pr, chunk, i] = holds[i]
            elif w.pm == 0 or bool(self.p[w.pr, chunk, i]) == (w.pm == 1):
                self.v[w.vd, chunk, i] = chain[i]

    def move(self, w, chunks):
        walk = self.walk(w.ad, self.base[w.ad] + w.offset)
        for c in chunks:
            for half in range(w.dtype):
                word = next(walk) % WORDS
                part = slice(None) if w.dtype == 1 else slice(8 * half, 8 * half + 8)
                kind = np.uint16 if w.dtype == 1 else np.uint32
                if w.op == Opcode.VLD:
                    data = np.frombuffer(self.l1[word].to_bytes(32, "little"), dtype=kind)
                    self.v[w.vd, c, part] = e8m15.from_fp16(data) if w.dtype == 1 else e8m15.from_fp32(data)
                else:
                    data = self.v[w.vd, c, part]
                    data = e8m15.to_fp16(data) if w.dtype == 1 else e8m15.to_fp32(data)
                    self.l1[word] = int.from_bytes(data.astype(kind).tobytes(), "little")

    def reduce(self, w):
        if w.kind >= 6:
            self.s[w.vd] = reduction.vote(w.kind, self.p[w.pr].reshape(-1)[: self.vl])
            return
        a, b = (self.v[register].reshape(-1)[: self.vl] for register in (w.va, w.vb))
        value, leaves = reduction.reduce(w.kind, a, b)
        self.s[w.vd] = value
        if leaves is not None:
            self.v[w.vb].reshape(-1)[: self.vl] = leaves


# ---- the issue stage -----------------------------------------------------------------------------------------


@dataclass
class Issue:
    """One instruction as it enters the queue. `depth` is 0 for what does not use the lanes."""

    kind: str  # lanes, reduction, vote, to_scalar, short, load, store
    beats: int
    phases: int  # beats a chunk
    sources: tuple[int, ...] = ()
    vd: int | None = None  # vector register written
    write: int = 0  # cycles from issue to that write
    depth: int = 0
    compare: int | None = None
    votes: int | None = None  # P register read
    first: int = -1
    last: int = -1


class IssueStage:
    """`push` an instruction when `full` is false, then `clock`; `now` is the current cycle."""

    def __init__(self):
        self.now = 0
        self.queue = []
        self.beat = 0
        self.pending = [False] * 128
        self.tag = [0] * 128
        self.sequence = 0
        self.writes = []  # (cycle, chunk address, tag) in flight
        self.compares = []  # (cycle, P register)
        self.slots = [[False] * 80, [False] * 80]  # register writes k cycles from now, by bank
        self.leaving = 0  # cycles until the latest lane beat is past its last stage
        self.gap = 0
        self.wrote = {}  # (register, chunk) -> write cycle of the newest write

    @property
    def full(self):
        return len(self.queue) >= 2

    def may_issue(self, item):
        chunk = self.beat // item.phases
        if any(self.pending[8 * r + chunk] for r in item.sources):
            return False
        if item.kind in ("short", "load"):
            if self.pending[8 * item.vd + chunk] or self.slots[chunk % 2][item.write]:
                return False
        if item.depth and self.leaving >= 15 * item.depth:
            return False
        if item.kind == "reduction" and self.beat == 0 and self.gap:
            return False
        return item.votes is None or not any(p == item.votes for _, p in self.compares)

    def clock(self, pushed=None):
        """One cycle; an instruction pushed in it can issue in the next. Returns the beat issued, or None."""
        now = self.now
        # what is written in this cycle no longer holds anything back in it
        for _, address, tag in [w for w in self.writes if w[0] == now]:
            if self.tag[address] == tag:
                self.pending[address] = False
        self.writes = [w for w in self.writes if w[0] > now]
        self.compares = [c for c in self.compares if c[0] > now]
        issued = None
        if self.queue and self.may_issue(self.queue[0]):
            issued = item = self.queue[0]
            chunk = self.beat // item.phases
            if self.beat == 0:
                item.first = now
            if item.vd is not None:
                self.slots[chunk % 2][item.write] = True
                if (self.beat + 1) % item.phases == 0 or self.beat + 1 == item.beats:
                    address = 8 * item.vd + chunk
                    self.sequence += 1
                    self.pending[address], self.tag[address] = True, self.sequence
                    self.writes.append((now + item.write, address, self.sequence))
                    self.wrote[item.vd, chunk] = now + item.write
            if item.depth:
                self.leaving = 15 * item.depth
            self.beat += 1
            if self.beat == item.beats:
                item.last = now
                if item.compare is not None:
                    self.compares.append((now + item.write, item.compare))
                if item.kind == "reduction":
                    self.gap = 21
                self.queue.pop(0)
                self.beat = 0
        if pushed is not None:
            self.queue.append(pushed)
        self.slots = [bank[1:] + [False] for bank in self.slots]
        self.leaving = max(0, self.leaving - 1)
        self.gap = max(0, self.gap - 1)
        self.now += 1
        return issued
