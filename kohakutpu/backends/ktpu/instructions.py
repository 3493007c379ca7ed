"""A workgroup's vector program in the making: straight-line instructions on virtual registers, words named by place.

An operand is ("v", register) or ("c", E8M15 word). A `Load` or `Store` names a word of 32 bytes (two for float32) of a
memory, which `layout` later finds a place for in L1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kohakutpu.isa.vector import OPERANDS, Opcode

WORD, LANES = 32, 16  # bytes of a word of memory, lanes of a wave
Operand = tuple[str, int]
Mask = tuple[bool, ...]  # of 16 lanes


@dataclass
class Instruction:
    """`op` on `sources`, into virtual register `to`; under `mask` only in its lanes, `to` keeping the others.

    VLD and VST: `word` is (memory, word number), `wide` for float32. VSHUF: `amount`. VCVT rounds through float16.
    """

    op: Opcode
    to: int | None = None
    sources: tuple[Operand, ...] = ()
    mask: Mask | None = None
    word: tuple[int, int] | None = None
    wide: bool = False
    amount: int = 0
    predicate: tuple[Opcode, Operand, Operand] | None = None  # where this comparison holds

    @property
    def reads(self) -> tuple[int, ...]:
        """The virtual registers that it needs, its own earlier value included."""
        more = self.predicate[1:] if self.predicate else ()
        found = [number for kind, number in (*self.sources, *more) if kind == "v"]
        keeps = self.to is not None and (self.mask is not None or self.predicate is not None)
        return tuple(found + ([self.to] if keeps else []))


@dataclass
class Code:
    """Instructions in order, and how each register came to be: its only instruction, or None after a second."""

    instructions: list[Instruction] = field(default_factory=list)
    made: list[Instruction | None] = field(default_factory=list)

    def fresh(self) -> int:
        """A new virtual register."""
        self.made.append(None)
        return len(self.made) - 1

    def put(self, op: Opcode, *sources: Operand, **more) -> Operand:
        """An instruction into a new register."""
        to = self.fresh()
        instruction = Instruction(op, to, sources, **more)
        self.instructions.append(instruction)
        self.made[to] = instruction
        return ("v", to)

    def again(self, value: Operand, into: int, mask: Mask) -> bool:
        """Compute a value once more, in some lanes of another register. False if it is no single ALU operation.

        No instruction moves a word under a mask as it is: VMOV makes -0 a +0.
        """
        made = self.made[value[1]] if value[0] == "v" else None
        if value[0] == "c":
            return False
        if made is None or made.op not in OPERANDS or made.mask is not None or made.predicate is not None:
            return False
        self.instructions.append(Instruction(made.op, into, made.sources, mask))
        self.made[into] = None
        return True

    def copy(self, value: Operand) -> Operand:
        """The same words in a register of their own: a rotation by nothing."""
        if value[0] == "c":
            return self.put(Opcode.VBCAST, value)
        return self.put(Opcode.VSHUF, value, amount=0)

    def select(self, mask: Mask, new: Operand, old: Operand) -> Operand | None:
        """New in the lanes of the mask, old in the others; None if new cannot be computed again."""
        kept = self.copy(old)
        if new[0] == "c" and new[1]:
            # A constant that is not zero is moved as it is.
            self.instructions.append(Instruction(Opcode.VMOV, kept[1], (new,), mask))
            self.made[kept[1]] = None
            return kept
        return kept if self.again(new, kept[1], mask) else None

    def needed(self) -> list[Instruction]:
        """Without what nobody reads."""
        alive: set[int] = set()
        kept = []
        for instruction in reversed(self.instructions):
            if instruction.to is not None and instruction.to not in alive:
                continue
            alive.update(instruction.reads)
            keeps = instruction.mask is not None or instruction.predicate is not None
            if instruction.to is not None and not keeps:
                alive.discard(instruction.to)
            kept.append(instruction)
        return kept[::-1]


def ordered(instructions: list[Instruction]) -> list[Instruction]:
    """The same instructions, each store right behind what only it needs: waves one after another, few values alive."""
    after = _dependencies(instructions)
    done: set[int] = set()
    found: list[Instruction] = []
    for sink, instruction in enumerate(instructions):
        if instruction.op is not Opcode.VST:
            continue
        stack = [(sink, iter(sorted(after[sink], reverse=True)))]
        while stack:
            number, rest = stack[-1]
            step = next((n for n in rest if n not in done), None)
            if step is not None:
                stack.append((step, iter(sorted(after[step], reverse=True))))  # the longest chain first
                continue
            stack.pop()
            if number not in done:
                done.add(number)
                found.append(instructions[number])
    return found


def _dependencies(instructions: list[Instruction]) -> list[set[int]]:
    """What must come before each instruction: writers of what it reads, and readers of what it changes."""
    writer: dict[object, int] = {}
    readers: dict[object, list[int]] = {}
    after: list[set[int]] = []
    for number, instruction in enumerate(instructions):
        reads: list[object] = list(instruction.reads)
        writes: list[object] = [] if instruction.to is None else [instruction.to]
        if instruction.word is not None:
            memory, word = instruction.word
            places = [(memory, word + more) for more in range(2 if instruction.wide else 1)]
            (writes if instruction.op is Opcode.VST else reads).extend(places)
        found = {writer[what] for what in (*reads, *writes) if what in writer}
        for what in writes:
            found.update(readers.pop(what, []))
            writer[what] = number
        for what in reads:
            readers.setdefault(what, []).append(number)
        after.append(found - {number})
    return after
