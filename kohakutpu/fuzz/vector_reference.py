"""What a vector program does, one instruction at a time, eagerly, chunk by chunk; it imports nothing of the models.

Source: spec, vector core. Results of operations are those of `kohakutpu.formats`, which golden vectors hold to the
published hardware.
"""

import numpy as np

from kohakutpu.formats import alu, e8m15, reduction
from kohakutpu.isa.vector import ALU_OPS, COMPARES, IMEM_WORDS, STAGES, WALK_LIMIT, Fault, Opcode, decode_word

WORDS = 512  # of L1
ADDRESS_MASK = (1 << 40) - 1


class Interpreter:
    """Architectural state, and `run`. L1 and memory hold 256-bit integers; L1 has `words` of them.

    Whoever wants to know what a program touches, or has another memory, overrides the methods of the first section.
    """

    def __init__(self, words=WORDS):
        self.words = words
        self.v = np.zeros((16, 8, 16), dtype=np.uint32)
        self.s = [0] * 16
        self.k = [0, 0x3F8000, 0xBF8000, 0]
        self.p = np.zeros((4, 8, 16), dtype=bool)
        self.vl, self.mode = 128, 0
        self.l1 = [0] * words
        self.memory = {}
        self.base = [0] * 8
        self.dims = [[(0, 1)] * 4 for _ in range(8)]

    # ---- the outside -------------------------------------------------------------------------------------

    def fetch(self, address):
        """The word at a byte address of memory."""
        return self.memory.get(address, 0)

    def store(self, address, word):
        self.memory[address] = word

    def transmit(self, w, payloads):
        """A peer VDRAIN, the decoded word `w`, sends these words."""
        raise NotImplementedError

    def touched(self, word, *, write=False, landing=False):
        """L1 word `word` is read or written; `landing`: by a fill, some time before the next `waited`."""

    def waited(self):
        """Every fill has landed."""

    def decoded(self, w):
        """The instruction that begins with `w` is about to be carried out."""

    # ---- instructions ------------------------------------------------------------------------------------

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
        """Run `program`, by address, until VHALT (returns 0) or a fault (returns its code)."""
        loop = None
        while True:
            pc %= IMEM_WORDS
            if loop and pc == loop[1]:
                if loop[2] > 1:
                    loop[2] -= 1
                    pc = loop[0]
                else:
                    loop = None
            w = decode_word(program[pc])
            self.decoded(w)
            if fault := self.refusal(w, loop):
                return fault
            pc += 1
            chunks = range(-(-self.vl // 16))
            if w.op in ALU_OPS:
                words = [w]
                while len(words) < STAGES[self.mode]:
                    words.append(decode_word(program[pc % IMEM_WORDS]))
                    pc += 1
                    if words[-1].op not in ALU_OPS:
                        return Fault.F_OPCODE
                    if 0 in (words[-1].sa, words[-1].sb, words[-1].sc):
                        return Fault.F_VSRC
                for chunk in chunks:
                    self.lanes(words, chunk)
            elif w.op == Opcode.VHALT:
                self.waited()
                return 0
            elif w.op == Opcode.VSETI:
                value = program[pc % IMEM_WORDS] & 0xFFFFFF
                pc += 1
                if w.sa == 3:
                    self.k[3] = value
                else:
                    self.s[w.vd] = value
            elif w.op == Opcode.VSETVL:
                if not 1 <= self.s[w.va] <= 128:
                    return Fault.F_VL
                self.vl = self.s[w.va]
            elif w.op == Opcode.VSETMODE:
                self.mode = w.mode
            elif w.op == Opcode.VLOOP:
                if w.vb:
                    loop = [pc % IMEM_WORDS, (pc + w.vb) % IMEM_WORDS, self.s[w.va]]
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
                    word = (w.l1 + i) % self.words
                    self.touched(word, write=True, landing=True)
                    self.l1[word] = self.fetch(next(walk) & ADDRESS_MASK)
            elif w.op == Opcode.VDRAIN:
                walk = self.walk(w.ad, self.base[w.ad])
                words = [(w.l1 + i) % self.words for i in range(self.length(w.ad))]
                for word in words:
                    self.touched(word)
                    if not w.peer:
                        self.store(next(walk) & ADDRESS_MASK, self.l1[word])
                if w.peer:
                    self.transmit(w, [self.l1[word] for word in words])
            else:
                self.waited()  # VBAR

    def refusal(self, w, loop):
        """The fault that the first word of an instruction raises, but F_VL; None for none."""
        if w.op in ALU_OPS:
            if self.mode not in STAGES:
                return Fault.F_OPCODE
            return Fault.F_CHAIN if 2 in (w.sa, w.sb, w.sc) else None
        if w.op in (Opcode.VLD, Opcode.VST, Opcode.VCVT):
            return None if w.dtype in (1, 2) else Fault.F_DTYPE
        if w.op == Opcode.VRED and w.kind < 6:
            return Fault.F_REDVL if self.vl % 16 else Fault.F_OPCODE if self.mode in STAGES else None
        if w.op in (Opcode.VFILL, Opcode.VDRAIN):
            return Fault.F_LEN if self.length(w.ad) > WALK_LIMIT else None
        return Fault.F_LOOP if w.op == Opcode.VLOOP and loop else None

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
                word = next(walk) % self.words
                self.touched(word, write=w.op == Opcode.VST)
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
