"""Elementwise expressions to vector words: where constants come from, registers, and the order of the words.

Both lowerings compute exactly the operations of the expression, in its order, so they agree on every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from kohakutpu.formats import alu, e8m15, fp16
from kohakutpu.formats.alu import AluOp
from kohakutpu.isa import vector as isa
from kohakutpu.isa.vector import OPERANDS, Mask, Opcode, Source
from kohakutpu.lang.source import Source as Line
from kohakutpu.lang.trace import Constant, ElementOp, Expression, Leaf, Op
from kohakutpu.wording import counted

from .core import Image
from .refusals import CompileError
from .stages import Kept

OPCODES = {
    ElementOp.NEG: Opcode.VNEG, ElementOp.ABS: Opcode.VABS, ElementOp.ADD: Opcode.VADD, ElementOp.SUB: Opcode.VSUB,
    ElementOp.MUL: Opcode.VMUL, ElementOp.MAX: Opcode.VMAX, ElementOp.MIN: Opcode.VMIN, ElementOp.EXP2: Opcode.VEXP2,
    ElementOp.LOG2: Opcode.VLOG2, ElementOp.RECIP: Opcode.VINV, ElementOp.RSQRT: Opcode.VRSQRT,
    ElementOp.FMA: Opcode.VFMA,
}  # fmt: skip
COMPARES = {
    ElementOp.WHERE_LESS: Opcode.VCMPLT, ElementOp.WHERE_GREATER: Opcode.VCMPGT, ElementOp.WHERE_EQUAL: Opcode.VCMPEQ,
}  # fmt: skip
REGISTERS = 16
FIRST_CONSTANT = 4  # S0 is VL, S1..S3 are reduction results
RUNNING = 7  # the published lowering's one running result
SCRATCH = 8
K_REGISTERS = {0x000000: 0, 0x3F8000: 1, 0xBF8000: 2}  # 0.0, 1.0, -1.0
DEMONSTRATED = {("a", Source.K), ("b", Source.S), ("b", Source.K), ("c", Source.K)}  # spec: demonstrated slots

Operand = tuple[Source, int]  # selector and register


def register_constant(value: float, line: Line) -> int:
    """The E8M15 word of a constant held in a register: the top 24 bits of its float32 pattern."""
    try:
        word = e8m15.constant(value)
    except ValueError as error:
        raise CompileError(str(error), line) from None
    if value and not word >> 15 & 0xFF:
        raise CompileError(f"the constant {value!r} is too small: E8M15 has nothing below 2^-126 but zero", line)
    return word


def memory_constant(value: float, line: Line) -> int:
    """The FP16 pattern of a constant held in memory."""
    word = int(fp16.from_float(value))
    if word & 0x7FFF == 0x7C00:
        raise CompileError(f"the constant {value!r} is outside the range of FP16; constants='registers' holds it", line)
    if value and not word & 0x7C00:
        raise CompileError(f"the constant {value!r} is no normal FP16 number; constants='registers' holds it", line)
    return word


@dataclass
class Constants:
    """Scalar registers for the constants of one program, and the vector registers some are spread over.

    With `rounded` they have the values that FP16 arrays in memory would hold. `leaves` are those of the statement, which a
    refusal counts.
    """

    line: Line
    known: Mapping[str, int]
    scalars: dict[int, int]  # E8M15 word -> S register
    spread: dict[int, int]  # E8M15 word -> V register
    rounded: bool = False
    leaves: Sequence[Leaf] = ()

    def word(self, leaf: Constant) -> int:
        value = leaf.number(self.known)
        if self.rounded:
            return int(e8m15.from_fp16(np.array([memory_constant(value, self.line)], np.uint16))[0])
        return register_constant(value, self.line)

    def scalar(self, word: int) -> int:
        if word not in self.scalars:
            register = FIRST_CONSTANT + len(self.scalars)
            if register >= REGISTERS:
                self._refuse(REGISTERS - FIRST_CONSTANT)
            self.scalars[word] = register
        return self.scalars[word]

    def _refuse(self, most: int) -> NoReturn:
        """Say how many constants there are beside those that every core has."""
        count = len({self.word(leaf) for leaf in self.leaves if isinstance(leaf, Constant)} - K_REGISTERS.keys())
        own = "" if count > most else ", where the program needs some itself (row lengths, rotations)"
        raise CompileError(
            f"{counted(count, 'constant')} other than 0, 1 and -1 in one statement; a core has {most} registers for them{own}: split "
            "the statement over a temp",
            self.line,
        )

    def operand(self, leaf: Constant) -> Operand:
        """Where an operation reads the constant from."""
        return self.at(self.word(leaf))

    def at(self, word: int) -> Operand:
        """Where an operation reads that E8M15 word from."""
        if word in self.spread:
            return Source.V, self.spread[word]
        return (Source.K, K_REGISTERS[word]) if word in K_REGISTERS else (Source.S, self.scalar(word))

    def load(self, image: Image) -> None:
        """VSETI for each."""
        for word, register in self.scalars.items():
            image.set_scalar(register, word)

    def broadcast(self, image: Image) -> None:
        """VBCAST for those that a vector register holds."""
        for word, register in self.spread.items():
            image.put(Opcode.VBCAST, sa=Source.S, vd=register, va=self.scalars[word])


def undemonstrated(expression: Expression, known: Mapping[str, int], line: Line) -> list[str]:
    """The constants that would land in a source slot which the published software does not use (spec: demonstrated
    slots)."""
    found = []
    for node in expression.nodes:
        if not isinstance(node, Op):
            continue
        for opcode, letter, operand in slots(node):
            leaf = expression.nodes[operand]
            if isinstance(leaf, Constant):
                value = leaf.number(known)
                source = Source.K if register_constant(value, line) in K_REGISTERS else Source.S
                if (letter, source) not in DEMONSTRATED:
                    found.append(
                        f"the constant {value:g} would be operand v{letter} of {opcode.name} from an "
                        f"{source.name} register, a source slot that is undemonstrated"
                    )
    return found


def collect_constants(
    expression: Expression, known: Mapping[str, int], line: Line
) -> Constants:
    """Where each constant of an expression is read from, in order of first use: 0, 1 and -1 are K registers, others S.

    A constant that is the value itself is spread over vector register 0.
    """
    constants = Constants(line, known, {}, {}, leaves=expression.leaves)
    for node in expression.nodes:
        for _, _, operand in slots(node) if isinstance(node, Op) else ():
            leaf = expression.nodes[operand]
            if isinstance(leaf, Constant):
                word = constants.word(leaf)
                if word not in K_REGISTERS:
                    constants.scalar(word)
    last = expression.nodes[-1]
    if isinstance(last, Constant):
        word = constants.word(last)
        constants.scalar(word)
        constants.spread[word] = 0
    return constants


@dataclass
class ChunkCode:
    """The words of one VL of elements: (opcode, fields) of its operations, and the register of the result."""

    operations: list[tuple[Opcode, dict[str, int]]]
    result: int


def steps(op: Op) -> list[tuple[Opcode, tuple[int, ...], Mask]]:
    """The words of an operation: opcode, which of its operands each reads, predication. All write the result.

    A choice is a compare into a predicate and two moves by it.
    """
    if op.op in COMPARES:
        compare = (COMPARES[op.op], (0, 1), Mask.ALWAYS)
        return [compare, (Opcode.VMOV, (2,), Mask.WHERE), (Opcode.VMOV, (3,), Mask.UNLESS)]
    return [(OPCODES[op.op], tuple(range(op.op.arity)), Mask.ALWAYS)]


def folded(op: Op, words: Sequence[int]) -> int:
    """What an operation makes of constants: the machine's bits, so that it need not be run."""
    values = [np.array([word], np.uint32) for word in words]

    def run(opcode: Opcode, places: Sequence[int]) -> np.ndarray:
        operands = dict.fromkeys("abc") | dict(zip(OPERANDS[opcode], (values[place] for place in places), strict=True))
        return alu.execute(AluOp[opcode.name], **operands)[0]

    if op.op in COMPARES:
        return int(run(Opcode.VMOV, [2 if run(COMPARES[op.op], (0, 1))[0] else 3])[0])
    return int(run(OPCODES[op.op], range(op.op.arity))[0])


def words_of(expression: Expression) -> int:
    """Vector words that the operations of an expression take, at most: what a band keeps is stored and loaded."""
    kept = sum(isinstance(node, Kept) for node in expression.nodes)
    return 2 * kept + sum(len(steps(node)) for node in expression.nodes if isinstance(node, Op))


def slots(op: Op) -> list[tuple[Opcode, str, int]]:
    """Where an operation reads: opcode, source field, and the operand's node."""
    return [
        (opcode, letter, op.operands[place])
        for opcode, places, _ in steps(op) for letter, place in zip(OPERANDS[opcode], places, strict=True)
    ]  # fmt: skip


def operation(op: Op, operands: Sequence[Operand], vd: int, predicate: int) -> list[tuple[Opcode, dict[str, int]]]:
    """The words of an operation into register `vd`, with a predicate register of its own to use.

    `vd` may be the register of any operand that is not needed later.
    """
    out = []
    for opcode, places, mask in steps(op):
        fields = {"vd": vd, "pm": mask}
        if opcode in isa.COMPARES or mask:
            fields["pr"] = predicate
        for letter, place in zip(OPERANDS[opcode], places, strict=True):
            fields["s" + letter], fields["v" + letter] = operands[place]
        out.append((opcode, fields))
    return out


def generate(
    expression: Expression, leaves: Mapping[int, int], constants: Constants, allocate: Callable[[int], int],
    predicate: int = 0, keep: Callable[[int], dict[str, int]] = lambda node: {},
) -> ChunkCode:
    """One chunk's operations. `leaves` gives the vector register of each leaf that is loaded, by node.

    `allocate(n)` is the n-th vector register that results may use, `predicate` the register that choices use; `keep(node)`
    are the fields of a store and a load of what a band keeps.
    """
    nodes = expression.nodes
    last_use = {
        operand: position for position, node in enumerate(nodes) if isinstance(node, (Op, Kept)) for operand in node.operands
    }
    where: dict[int, Operand] = {node: (Source.V, register) for node, register in leaves.items()}
    busy: dict[int, int] = {}  # register -> the node it holds for a later use
    pool: list[int] = []
    operations = []
    for position, node in enumerate(nodes):
        if isinstance(node, Constant) and position not in leaves:
            where[position] = constants.operand(node)
        elif isinstance(node, (Op, Kept)):
            operands = [where[operand] for operand in node.operands]
            busy = {register: held for register, held in busy.items() if last_use.get(held, position) > position}
            if isinstance(node, Kept):
                operations.append((Opcode.VST, {"vd": operands[0][1], **keep(position)}))
                if position not in last_use:
                    continue
            vd = next((register for register in pool if register not in busy), None)
            if vd is None:
                vd = allocate(len(pool))
                pool.append(vd)
            busy[vd] = position
            where[position] = (Source.V, vd)
            if isinstance(node, Kept):
                operations.append((Opcode.VLD, {"vd": vd, **keep(position)}))
            else:
                operations += operation(node, operands, vd, predicate)
    return ChunkCode(operations, where[len(nodes) - 1][1])


def generate_published(expression: Expression, leaves: Mapping[int, int], constants: Constants) -> ChunkCode:
    """The published form: one running result in v7, and v8 for the reciprocal of a leaf that divides it."""
    nodes = expression.nodes
    uses = dict.fromkeys(range(len(nodes)), 0)
    for node in nodes:
        for operand in node.operands if isinstance(node, Op) else ():
            uses[operand] += 1
    if not isinstance(nodes[-1], Op):
        raise CompileError("lowering='published' stores no bare copy and no constant", constants.line)
    where: dict[int, Operand] = {node: (Source.V, register) for node, register in leaves.items()}
    held: dict[int, int] = {}  # register -> node
    operations = []
    for position, node in enumerate(nodes):
        if isinstance(node, Constant) and position not in leaves:
            where[position] = constants.operand(node)
        elif isinstance(node, Op):
            operands = [where[operand] for operand in node.operands]
            for operand in node.operands:
                if isinstance(nodes[operand], Op):
                    uses[operand] -= 1
                    held = {register: n for register, n in held.items() if uses[n]}
            divides = node.op is ElementOp.RECIP and not isinstance(nodes[node.operands[0]], Op)
            vd = RUNNING if RUNNING not in held else SCRATCH
            if vd in held or (vd == SCRATCH and not divides):
                raise CompileError(
                    "lowering='published' has one running result, and this expression keeps two; use "
                    "lowering='default'",
                    constants.line,
                )
            held[vd] = position
            where[position] = (Source.V, vd)
            operations += operation(node, operands, vd, 0)
    return ChunkCode(operations, where[len(nodes) - 1][1])


def registers_needed(expression: Expression, loaded: Sequence[int], constants: Constants) -> int:
    """Vector registers one chunk needs for its loaded leaves and its results."""
    results: list[int] = []

    def another(number: int) -> int:
        results.append(number)
        return number

    generate(expression, dict.fromkeys(loaded, 0), constants, another)
    return len(loaded) + len(results)
