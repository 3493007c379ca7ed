"""Workgroups of one shape as one program of a vector core: spans of words in L1, registers, descriptors.

Workgroups that do the same at places an even step apart run side by side: each takes 16 of the core's 128 elements, so
that a program for up to eight of them has the vector length 16 times their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kohakutpu.compiler.core import CoreState, CoreWriter, Image
from kohakutpu.isa import vector as isa
from kohakutpu.isa.vector import OPERANDS, DType, Opcode, Source

from .instructions import LANES, WORD, Code, Instruction, Mask, ordered

SIDE_BY_SIDE = isa.VL_MAX // LANES
REGISTERS, PREDICATES = 16, 4
SCALARS = range(1, 16)  # S0 holds the vector length
K_REGISTERS = {0x000000: 0, 0x3F8000: 1, 0xBF8000: 2}
HALF_ONE = 0x3C00


class DoesNotFit(Exception):
    """A workgroup that a core cannot hold."""


@dataclass(frozen=True)
class Shape:
    """What workgroups must share to run side by side.

    `spans` are (memory, words, written); an instruction's word is (span, word inside it).
    """

    instructions: tuple
    spans: tuple[tuple[int, int, bool], ...]


@dataclass
class Group:
    """One workgroup: its shape, and the byte in its memory at which each span begins."""

    number: int
    shape: Shape
    starts: tuple[int, ...]
    instructions: list[Instruction] = field(default_factory=list)


def shaped(number: int, code: Code) -> Group:
    """A workgroup's code in the order that a core's registers hold: store by store, or else as it was written."""
    kept = code.needed()
    group = arranged(number, ordered(kept))
    try:
        registers(group.shape.instructions)
    except DoesNotFit:
        return arranged(number, kept)
    return group


def arranged(number: int, kept: list[Instruction]) -> Group:
    """Code in order, with its words as spans of neighbours, read-only ones apart from those that are stored."""
    touched: dict[tuple[int, int], bool] = {}
    for instruction in kept:
        if instruction.word is not None:
            memory, word = instruction.word
            for more in range(2 if instruction.wide else 1):
                place = (memory, word + more)
                touched[place] = touched.get(place, False) or instruction.op is Opcode.VST
    spans: list[list] = []
    at: dict[tuple[int, int], tuple[int, int]] = {}
    for (memory, word), written in sorted(touched.items()):
        last = spans[-1] if spans else None
        if last is None or (last[0], last[1] + last[2], last[3]) != (memory, word, written):
            spans.append([memory, word, 0, written])
        at[memory, word] = (len(spans) - 1, spans[-1][2])
        spans[-1][2] += 1
    signature = []
    for i in kept:
        place = at[i.word] if i.word is not None else None
        signature.append((i.op, i.to, i.sources, i.mask, place, i.wide, i.amount, i.predicate))
    shape = Shape(tuple(signature), tuple((memory, count, written) for memory, _, count, written in spans))
    return Group(number, shape, tuple(word * WORD for _, word, _, _ in spans), kept)


def packs(groups: Sequence[Group], room: int) -> list[list[Group]]:
    """Runs of workgroups of one shape, at even steps, as many as L1 holds side by side."""
    found: list[list[Group]] = []
    for group in groups:
        last = found[-1] if found else None
        if last is not None and joins(last, group, room):
            last.append(group)
        else:
            if words_of([group]) > room:
                raise DoesNotFit(f"a workgroup touches {words_of([group])} words of L1, which has {room}")
            found.append([group])
    return found


def joins(pack: list[Group], group: Group, room: int) -> bool:
    """True if a workgroup can run beside others."""
    if len(pack) == SIDE_BY_SIDE or group.shape != pack[0].shape or words_of([*pack, group]) > room:
        return False
    steps = [b - a for a, b in zip(pack[-1].starts, group.starts, strict=True)]
    return len(pack) == 1 or steps == steps_of(pack)


def steps_of(pack: Sequence[Group]) -> list[int]:
    """Bytes from one workgroup's span to the next one's."""
    if len(pack) == 1:
        return [0] * len(pack[0].starts)
    return [b - a for a, b in zip(pack[0].starts, pack[1].starts, strict=True)]


def masks_of(shape: Shape) -> list[Mask]:
    """The masks that a shape's instructions run under."""
    return list(dict.fromkeys(entry[3] for entry in shape.instructions if entry[3] is not None))


def words_of(pack: Sequence[Group]) -> int:
    """Words of L1 that a pack needs: a span that all share is there once."""
    spans = pack[0].shape.spans
    steps = steps_of(pack)
    several = [count * (len(pack) if step or len(pack) == 1 else 1) for (_, count, _), step in
               zip(spans, steps, strict=True)]  # fmt: skip
    return sum(several) + len(masks_of(pack[0].shape))


def mask_words(masks: Sequence[Mask]) -> bytes:
    """Masks as words of float16: 1 in their lanes."""
    return b"".join((HALF_ONE * lane).to_bytes(2, "little") for mask in masks for lane in mask)


def registers(instructions: Sequence[tuple]) -> dict[int, int]:
    """A vector register for each virtual one, by a scan over their lives. Raises DoesNotFit."""
    last: dict[int, int] = {}
    for number, (_, to, sources, _, _, _, _, predicate) in enumerate(instructions):
        for kind, register in (*sources, *(predicate[1:] if predicate else ())):
            if kind == "v":
                last[register] = number
        if to is not None:
            last[to] = number
    free, found, held = list(range(REGISTERS - 1))[::-1], {}, {}
    for number, (_, to, *_) in enumerate(instructions):
        for register in [r for r, end in held.items() if end < number]:
            free.append(found[register])
            del held[register]
        if to is not None and to not in found:
            if not free:
                most = f"a core has {REGISTERS} registers, one of them for masks"
                raise DoesNotFit(f"more than {REGISTERS - 1} values are alive at once, and {most}")
            found[to] = free.pop()
            held[to] = last[to]
    return found


class Writer:
    """The words of one program."""

    def __init__(self, pack: Sequence[Group], masks_at: int):
        self.pack, self.shape = pack, pack[0].shape
        self.count, self.steps = len(pack), steps_of(pack)
        self.masks = masks_of(self.shape)
        self.masks_at = masks_at
        self.image = Image()
        self.scalars: dict[int, int] = {}
        self.turn = 0
        self.predicates: list[Mask | None] = [None] * PREDICATES
        self.next_predicate = 0
        self.l1: list[int] = []
        cursor = len(self.masks)
        for (_, words, _), step in zip(self.shape.spans, self.steps, strict=True):
            self.l1.append(cursor)
            cursor += words * (self.count if step or self.count == 1 else 1)
        self.walks: dict[tuple[int, bool], int] = {}  # (words from a workgroup to the next, wide) -> descriptor
        self.fills = len(self.shape.spans) + bool(self.masks)

    def scalar(self, value: int) -> int:
        """A scalar register with a word; the oldest gives way."""
        if value not in self.scalars:
            register = SCALARS[self.turn % len(SCALARS)]
            self.turn += 1
            self.scalars = {word: held for word, held in self.scalars.items() if held != register}
            self.image.set_scalar(register, value)
            self.scalars[value] = register
        return self.scalars[value]

    def walk(self, words: int, wide: bool) -> int:
        """The descriptor that reads one element of each workgroup, `words` apart."""
        key = (words, wide)
        if key not in self.walks:
            self.walks[key] = self.fills + len(self.walks)
            if self.walks[key] >= isa.DESCRIPTORS:
                raise DoesNotFit(f"{self.fills} spans of memory and {len(self.walks)} ways to walk them need more than "
                                 f"{isa.DESCRIPTORS} descriptors")  # fmt: skip
        return self.walks[key]

    def predicate(self, mask: Mask) -> int:
        """A predicate register with a mask."""
        if mask not in self.predicates:
            register = self.next_predicate % (PREDICATES - 1)
            self.next_predicate += 1
            ad = self.walk(0, False)
            self.image.put(Opcode.VLD, ad=ad, vd=REGISTERS - 1, offset=self.masks.index(mask), dtype=DType.FP16)
            self.image.put(Opcode.VCMPGT, sa=Source.V, va=REGISTERS - 1, sb=Source.K, vb=K_REGISTERS[0], pr=register)
            self.predicates[register] = mask
        return self.predicates.index(mask)

    def operands(self, op: Opcode, sources, where: dict[int, int]) -> dict[str, int]:
        """The fields of an ALU word's operands."""
        fields = {}
        for letter, (kind, value) in zip(OPERANDS[op], sources, strict=True):
            if kind == "v":
                fields |= {f"s{letter}": Source.V, f"v{letter}": where[value]}
            elif value in K_REGISTERS:
                fields |= {f"s{letter}": Source.K, f"v{letter}": K_REGISTERS[value]}
            else:
                fields |= {f"s{letter}": Source.S, f"v{letter}": self.scalar(value)}
        return fields

    def build(self) -> list[int]:
        """Fill, compute, drain."""
        where = registers(self.shape.instructions)
        image = self.image
        image.set_scalar(0, LANES * self.count)
        image.put(Opcode.VSETVL, va=0)
        image.put(Opcode.VSETMODE, mode=isa.Mode.FLAT)
        if self.masks:
            image.put(Opcode.VFILL, ad=len(self.shape.spans), l1=0)
        for span in range(len(self.shape.spans)):
            image.put(Opcode.VFILL, ad=span, l1=self.l1[span])
        image.put(Opcode.VBAR)
        for entry in self.shape.instructions:
            self.word(entry, where)
        for span, (_, _, written) in enumerate(self.shape.spans):
            if written:
                image.put(Opcode.VDRAIN, ad=span, l1=self.l1[span])
        image.put(Opcode.VHALT)
        if len(image) > isa.IMEM_WORDS:
            raise DoesNotFit(f"a program of {len(image)} words, loops unrolled, where a core holds {isa.IMEM_WORDS}")
        return image.words

    def word(self, entry: tuple, where: dict[int, int]) -> None:
        """One instruction."""
        op, to, sources, mask, place, wide, amount, predicate = entry
        image = self.image
        if op in (Opcode.VLD, Opcode.VST):
            span, inside = place
            words = self.shape.spans[span][1] if self.steps[span] else 0
            register = where[to] if op is Opcode.VLD else where[sources[0][1]]
            ad = self.walk(words, wide)
            image.put(op, ad=ad, vd=register, offset=self.l1[span] + inside, dtype=DType.FP32 if wide else DType.FP16)
        elif op is Opcode.VBCAST:
            image.put(op, sa=Source.S, vd=where[to], va=self.scalar(sources[0][1]))
        elif op is Opcode.VSHUF:
            image.put(op, vd=where[to], va=where[sources[0][1]], vb=self.scalar(amount))
        elif op is Opcode.VCVT:
            image.put(op, dtype=DType.FP16, vd=where[to], va=where[sources[0][1]])
        else:
            fields = self.operands(op, sources, where)
            if mask is not None:
                fields |= {"pr": self.predicate(mask), "pm": isa.Mask.WHERE}
            if predicate is not None:
                test, left, right = predicate
                more = self.operands(test, (left, right), where)
                image.put(test, **more, pr=PREDICATES - 1)
                fields |= {"pr": PREDICATES - 1, "pm": isa.Mask.WHERE}
            image.put(op, vd=where[to], **fields)

    def describe(self, core: CoreWriter, base_of: dict[int, int]) -> None:
        """The descriptors: spans in memory, then the masks, then how words are read from L1."""
        for span, ((memory, words, _), step) in enumerate(zip(self.shape.spans, self.steps, strict=True)):
            core.base(span, base_of[memory] + self.pack[0].starts[span])
            self.dimensions(core, span, (WORD, words), (step, self.count) if step else (0, 1))
        if self.masks:
            core.base(len(self.shape.spans), self.masks_at)
            self.dimensions(core, len(self.shape.spans), (WORD, len(self.masks)))
        for (words, wide), ad in self.walks.items():
            core.base(ad, 0)
            if wide:
                self.dimensions(core, ad, (1, 2), (words, self.count))
            else:
                self.dimensions(core, ad, (words, self.count))

    @staticmethod
    def dimensions(core: CoreWriter, ad: int, *walked: tuple[int, int]) -> None:
        """All four dimensions."""
        for number in range(isa.DIMS):
            core.dim(ad, number, *(walked[number] if number < len(walked) else (0, 1)))

    @property
    def drained(self) -> int:
        """Words that go to memory."""
        several = [self.count if step or self.count == 1 else 1 for step in self.steps]
        return sum(n * words for n, (_, words, written) in zip(several, self.shape.spans, strict=True) if written)


def payloads(pack: Sequence[Group], state: CoreState, base_of: dict[int, int], masks_at: int) -> tuple[list[int], int]:
    """(what reaches the core for a pack, the words that it writes to memory)."""
    writer = Writer(pack, masks_at)
    words = writer.build()
    core = CoreWriter(state, reuse=True)
    core.image(words)
    writer.describe(core, base_of)
    core.run()
    return core.payloads, writer.drained
