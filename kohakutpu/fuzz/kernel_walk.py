"""Which bins the instructions of a vector core hit: a walk along its kernels that follows modes, lengths and faults."""

from __future__ import annotations

from kohakutpu.fuzz.bins import DIRECT, field_bins
from kohakutpu.isa import vector
from kohakutpu.isa.memory import WORD_BYTES
from kohakutpu.isa.vector import (
    ALU_OPS,
    COMPARES,
    IMEM_WORDS,
    OPERANDS,
    STAGES,
    VL_MAX,
    WALK_LIMIT,
    DType,
    Envelope,
    Mask,
    Mode,
    Opcode,
    RedKind,
    Source,
    Word,
)  # fmt: skip

WALKING = (Opcode.VFILL, Opcode.VDRAIN, Opcode.VLD, Opcode.VST)
STEPS = 1024  # words of one kernel that are followed


class KernelWalk:
    """Instruction memory, descriptors and what decode knows of one core."""

    def __init__(self):
        self.imem = [0] * IMEM_WORDS
        self.base = [0] * vector.DESCRIPTORS
        self.dims = [[(0, 1)] * vector.DIMS for _ in range(vector.DESCRIPTORS)]
        self.mode, self.length = Mode.FLAT, VL_MAX
        self.scalars: dict[int, int | None] = dict.fromkeys(range(16), 0)  # None: computed

    def take(self, payload: int) -> list[str]:
        """One CU_INST; the bins that it hits, as `bins.universe` names them."""
        inst = vector.decode(payload)
        if inst.op == Envelope.IMEM:
            self.imem[inst.addr] = inst.word
        elif inst.op == Envelope.DESC and inst.field == 0:
            self.base[inst.ad] = inst.value
        elif inst.op == Envelope.DESC and inst.field <= vector.DIMS:
            self.dims[inst.ad][inst.field - 1] = inst.stride, inst.bound or 1
        elif inst.op == Envelope.RUN:
            return self._kernel(inst.pc)
        return []

    def _kernel(self, pc: int) -> list[str]:
        found: list[str] = []
        loop: int | None = None  # where the loop ends; one pass is followed
        for _ in range(STEPS):
            pc %= IMEM_WORDS
            if pc == loop:
                loop = None
            w = vector.decode_word(self.imem[pc])
            pc += 1
            if w.op in ALU_OPS:
                words = [w] + [
                    vector.decode_word(self.imem[(pc + at) % IMEM_WORDS]) for at in range(STAGES.get(self.mode, 1) - 1)
                ]
                if not self._chain(words, found):
                    return found
                pc += len(words) - 1
                continue
            if self._refused(w, loop):
                return found
            found += self._word(w)
            if w.op == Opcode.VHALT:
                return found
            if w.op == Opcode.VSETI:
                if w.sa != Source.K:
                    self.scalars[w.vd] = vector.IMMEDIATE.get(self.imem[pc % IMEM_WORDS], "value")
                pc += 1
            elif w.op == Opcode.VSETVL:
                self.length = self.scalars[w.va] or self.length
            elif w.op == Opcode.VSETMODE:
                self.mode = Mode(w.mode)
            elif w.op == Opcode.VLOOP and w.vb:
                loop = (pc + w.vb) % IMEM_WORDS
            elif w.op == Opcode.VRED or (w.op == Opcode.VBCAST and w.sa != Source.S):
                self.scalars[w.vd] = None
        return found

    def _refused(self, w: Word, loop: int | None) -> bool:
        if w.op in DIRECT:
            return w.dtype not in (DType.FP16, DType.FP32)
        if w.op == Opcode.VRED and w.kind < RedKind.ANY:
            return bool(self.length % 16) or self.mode != Mode.TREE
        if w.op in (Opcode.VFILL, Opcode.VDRAIN):
            return self._words(w.ad) > WALK_LIMIT
        if w.op == Opcode.VSETVL:
            value = self.scalars[w.va]
            return value is not None and not 1 <= value <= VL_MAX
        return w.op == Opcode.VLOOP and loop is not None

    def _words(self, ad: int) -> int:
        product = 1
        for _, bound in self.dims[ad]:
            product *= bound
        return product

    def _chain(self, words: list[Word], found: list[str]) -> bool:
        """The bins of an ALU word or chain; False for one that faults."""
        if self.mode not in STAGES:
            return False
        for place, w in enumerate(words):
            wrong = Source.V if place else Source.C
            if w.op not in ALU_OPS or wrong in (w.sa, w.sb, w.sc):
                return False
        for place, w in enumerate(words):
            used = {"a": w.sa, "b": w.sb, "c": w.sc}
            where = f"{w.op.name} {self.mode.name} {'later' if place else 'first'}"
            found += [f"{where} {operand}={Source(used[operand]).name}" for operand in OPERANDS[w.op]]
        if words[-1].op not in COMPARES:
            found.append(f"{words[-1].op.name} pm={Mask(words[-1].pm).name}")
        return True

    def _word(self, w: Word) -> list[str]:
        op, mode = w.op, self.mode.name
        if op in DIRECT:
            found = [f"{op.name} {mode} {DType(w.dtype).name}"]
        elif op == Opcode.VRED:
            found = [f"VRED {RedKind(w.kind).name} {mode}"]
        else:
            found = [f"{op.name} {mode}"]
        if op in (Opcode.VBCAST, Opcode.VSETI):
            found.append(f"{op.name} sa={Source(w.sa).name}")
        elif op == Opcode.VLOOP:
            count = self.scalars[w.va]
            found.append(f"loop count {count if count in (0, 1, 2) else 'more'}")
            found += ["loop of no words"] * (not w.vb)
        elif op == Opcode.VSETVL and (length := self.scalars[w.va]) is not None:
            found.append(f"VL {length if length in (1, VL_MAX) else 'a tail' if length % 16 else 'whole chunks'}")
        if op in WALKING:
            found += self._walk(w)
        return found

    def _walk(self, w: Word) -> list[str]:
        """How far and how a descriptor walks."""
        name, dims, words = w.op.name, self.dims[w.ad], self._words(w.ad)
        found = [f"{name} {sum(bound > 1 for _, bound in dims)} dimensions"]
        if w.op in (Opcode.VLD, Opcode.VST):
            return found
        found.append(f"{name} {words if words in (1, WALK_LIMIT) else 'other'} words")
        if w.op == Opcode.VDRAIN and w.peer:
            record = self.base[w.ad]
            found += [
                f"VDRAIN peer {self.mode.name}",
                f"peer buffer {w.buf if w.buf < 3 else 'other'}",
                f"peer signal={w.signal}",
            ]
            return found + list(field_bins(vector.PEER_RECORD, record, "peer"))
        for stride, bound in dims:
            if bound > 1:
                multiple = "multiple of 32" if stride % WORD_BYTES == 0 else "odd"
                found.append(
                    f"{name} stride {'negative' if stride < 0 else stride if stride in (0, WORD_BYTES) else multiple}"
                )
        return found
