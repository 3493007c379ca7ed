"""Cooperative matrices on the clusters: each wave's product, with its epilogue, is an instance of one tile kernel.

Operands are gathered into the order that the clusters read when a launch is lowered: where a tile lies is a number. An
accumulator may be filled by products, changed element by element in one way, and stored; all else is refused by name.
Vector work may stand beside: where barriers keep the two apart, each is a phase with a program of its own (`phases`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from kohakutpu import lang
from kohakutpu.compiler import compile_kernel
from kohakutpu.compiler.artifact import Artifact
from kohakutpu.formats import e8m15, fp32
from kohakutpu.isa.vector import Opcode
from kohakutpu.lang import dims, kernel, loop, units
from kohakutpu.lang.source import KernelError
from kohakutpu.machine import Machine
from kohakutpu.xpu import tree
from kohakutpu.xpu.types import TileType, Use, f16

from .instructions import LANES, Code, Operand
from .memory import Buffer
from .numbers import Floats
from .phases import Phase
from .target import KtpuTarget

BLOCK = 32
M, K, N = dims("M, K, N")
SPELLED = {
    Opcode.VADD: lambda a, c: a + c, Opcode.VSUB: lambda a, c: a - c, Opcode.VMUL: lambda a, b: a * b,
    Opcode.VNEG: lambda a: -a, Opcode.VABS: lang.absolute, Opcode.VMAX: lang.maximum, Opcode.VMIN: lang.minimum,
    Opcode.VFMA: lang.fma, Opcode.VEXP2: lang.exp2, Opcode.VLOG2: lang.log2, Opcode.VINV: lang.recip,
    Opcode.VRSQRT: lang.rsqrt,
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A tile in memory: element (r, c) at offset + r*line + c*step of the buffer. An operand's was read at `since`."""

    buffer: Buffer
    offset: int
    line: int
    step: int
    since: int = 0

    def indices(self, rows: int, cols: int) -> np.ndarray:
        """The buffer's elements of a tile, int64[rows, cols]."""
        return self.offset + self.line * np.arange(rows)[:, None] + self.step * np.arange(cols)[None, :]

    def halves(self, rows: int, cols: int) -> list[tuple[int, int]]:
        """The (memory, float16) that a tile covers."""
        found = self.indices(rows, cols).ravel() + self.buffer.start // 2
        return [(self.buffer.memory, half) for half in found.tolist()]


@dataclass(frozen=True)
class Held:
    """What a wave's tile holds: a place it was loaded from, products in order, an epilogue and its elements."""

    place: Place | None = None
    products: tuple[tuple[Place, Place, int], ...] = ()
    epilogue: tuple | None = None
    changed: frozenset[int] = frozenset()


@dataclass(eq=False)
class Tile:
    """A tile of every wave."""

    kind: TileType
    waves: list[Held] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """One wave's product: rows x cols elements, their products and epilogue, and where they go."""

    rows: int
    cols: int
    products: tuple[tuple[Place, Place, int], ...]
    epilogue: tuple | None
    to: Place

    def operands(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """For each operand when it was loaded, and the (memory, float16) that it covers."""
        found = []
        for a, b, depth in self.products:
            found += [(a.since, a.halves(self.rows, depth)), (b.since, b.halves(depth, self.cols))]
        return found

    @property
    def shape(self) -> tuple:
        """What the instances of one kernel share."""
        return self.rows, self.cols, tuple(depth for _, _, depth in self.products), self.epilogue


class TileTarget(KtpuTarget):
    """A workgroup's tiles and the vector work between them, in `phases`.

    `written` has when each (memory, float16) was last stored, `fetched` those that products read.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.phases: list[Phase] = []
        self.parted = True  # a barrier came after the last access
        self.clock = 0
        self.written: dict[tuple[int, int], int] = {}
        self.fetched: set[tuple[int, int]] = set()
        self.inputs: dict[int, int] = {}  # virtual register -> the element that it stands for

    def run(self) -> Code:
        """The kernel's body; nothing of an element is left but in epilogues."""
        code = super().run()
        for instruction in code.needed():
            if self.inputs.keys() & set(instruction.reads):
                self.refuse("a write of single elements beside a tile's product", self.program.kernel.at)
        return code

    def phase(self, node, tiles: bool) -> Phase:
        """The phase of an access. Clusters and vector cores change places at a barrier only."""
        if not self.phases or self.phases[-1].tiles != tiles:
            if not self.parted:
                self.refuse("tiles and single elements of memory with no barrier.workgroup between them", node.at)
            new = Phase(tiles, len(self.code.instructions))
            self.phases.append(new)
            self.stored, self.loaded, self.stores = new.stored, new.loaded, new.stores
        self.parted = False
        return self.phases[-1]

    def note(self, halves) -> None:
        """A store, later than what was read before."""
        self.clock += 1
        self.written.update(dict.fromkeys(halves, self.clock))

    def collective(self, node, family: str, word: str, arguments: list):
        found = super().collective(node, family, word, arguments)
        self.parted |= node.verb == "barrier.workgroup"
        return found

    def declare(self, variable: tree.Variable, value) -> None:
        if isinstance(variable.type, TileType):
            waves = list(value.waves) if value is not None else [Held() for _ in range(self.waves)]
            self.frame.values[variable] = Tile(variable.type, waves)
        else:
            super().declare(variable, value)

    def assign(self, variable: tree.Variable, value) -> None:
        if not isinstance(variable.type, TileType):
            super().assign(variable, value)

    def load(self, node, memory, index):
        self.phase(node, tiles=False)
        return super().load(node, memory, index)

    def store(self, node):
        phase = self.phase(node, tiles=False)
        before = len(phase.stores)
        super().store(node)
        for memory, byte, size in phase.stores[before:]:
            self.note((memory, half) for half in range(byte // 2, (byte + size) // 2))

    def present(self, node) -> list[int]:
        """The waves that reach a tile's verb, each with all its lanes."""
        found = []
        for wave in range(self.waves):
            lanes, live = self.lanes(self.mask, wave), self.lanes(self.live, wave)
            if any(lanes):
                if lanes != live:
                    self.refuse(f"{node.verb} that some lanes of a wave miss", node.at)
                found.append(wave)
        return found

    def one(self, node, value, wave: int, what: str) -> int:
        """A number that a wave's lanes share."""
        lanes = self.number(value, node, what)[wave * LANES : (wave + 1) * LANES]
        numbers = np.unique(lanes[list(self.lanes(self.mask, wave))])
        if len(numbers) != 1:
            self.refuse(f"{node.verb}: {what} differs between the lanes of a wave", node.at)
        return int(numbers[0])

    def tile(self, node, word: str, arguments: list, kinds: list):
        tile, *rest = arguments
        waves = self.present(node)
        act = {"splat": self.splat, "load": self.load_tile, "store": self.store_tile, "mma": self.multiply,
               "get": self.get, "set": self.set, "elements": self.elements}.get(word)  # fmt: skip
        if act is None:
            self.refuse(f"{node.verb}: the cluster's epilogue sees an element's value, not where it is", node.at)
        return act(node, waves, tile, *rest)

    def splat(self, node, waves, tile: Tile, value) -> Tile:
        """Zero, where an accumulator begins."""
        for wave in waves:
            zero = isinstance(value, Floats) and value.waves[wave] == ("c", 0)
            if tile.kind.use != Use.ACCUMULATOR or not zero:
                self.refuse("tile.splat: only an accumulator begins so, at zero", node.at)
            tile.waves[wave] = Held()
        return tile

    def place(self, node, wave: int, kind: TileType, memory, offset, layout, stride) -> Place:
        """Where a tile lies, all of it in the buffer."""
        if not isinstance(memory, Buffer) or memory.element is not f16:
            self.refuse(f"{node.verb}: clusters read and write float16 buffers", node.at)
        offset, layout, stride = (self.one(node, v, wave, w) for v, w in
                                  ((offset, "the offset"), (layout, "the layout"), (stride, "the stride")))  # fmt: skip
        if layout not in (0, 1):
            self.undefined(node, self.mask, f"a tile layout of {layout}; 0 is row by row, 1 column by column")
        found = Place(memory, offset, *((stride, 1) if layout == 0 else (1, stride)))
        touched = found.indices(kind.rows, kind.cols)
        if touched.min() < 0 or touched.max() >= memory.count:
            bad = int(touched.max() if touched.max() >= memory.count else touched.min())
            self.undefined(node, self.mask, f"{node.verb} of {memory.name}[{bad}], which has {memory.count} elements")
        return found

    def load_tile(self, node, waves, tile: Tile, *where) -> Tile:
        """An operand."""
        if tile.kind.use == Use.ACCUMULATOR:
            self.refuse("tile.load of an accumulator: on the machine it starts at zero", node.at)
        self.phase(node, tiles=True)
        for wave in waves:
            tile.waves[wave] = Held(replace(self.place(node, wave, tile.kind, *where), since=self.clock))
        return tile

    def multiply(self, node, waves, total: Tile, left: Tile, right: Tile) -> Tile:
        """One more product."""
        for wave in waves:
            held, a, b = total.waves[wave], left.waves[wave].place, right.waves[wave].place
            if held.changed:
                self.refuse("mma of a tile whose elements were changed: it left the cluster", node.at)
            if a is None or b is None:
                self.refuse("mma of an operand that nothing loaded", node.at)
            total.waves[wave] = replace(held, products=(*held.products, (a, b, left.kind.cols)))
        return total

    def elements(self, node, waves, tile: Tile) -> np.ndarray:
        """How many elements each lane owns."""
        size = tile.kind.rows * tile.kind.cols
        if size % LANES:
            self.refuse(f"{tile.kind}: its elements do not come out even over {LANES} lanes", node.at)
        return self.whole(size // LANES, node.type)

    def get(self, node, waves, tile: Tile, index) -> Floats:
        """A stand-in for an element, whose epilogue is read off when it is set."""
        found: list[Operand] = [("c", 0)] * self.waves
        for wave in waves:
            number = self.one(node, index, wave, "an element")
            if number in tile.waves[wave].changed:
                self.refuse("an element that was changed and is read again", node.at)
            register = self.code.fresh()
            self.inputs[register] = number
            found[wave] = ("v", register)
        return Floats(tuple(found))

    def set(self, node, waves, tile: Tile, index, value: Floats) -> Tile:
        """An element's epilogue, the same for all."""
        for wave in waves:
            number, held = self.one(node, index, wave, "an element"), tile.waves[wave]
            operand = value.waves[wave]
            made = self.code.made[operand[1]] if operand[0] == "v" else None
            if made is not None and made.op is Opcode.VCVT:  # the result leaves as float16 all the same
                operand = made.sources[0]
            found = self.expression(node, operand, number)
            if held.epilogue not in (None, found):
                self.refuse("elements of one tile that are changed in different ways", node.at)
            tile.waves[wave] = replace(held, epilogue=found, changed=held.changed | {number})
        return tile

    def expression(self, node, operand: Operand, element: int) -> tuple:
        """What an operand computes from the element, as nested tuples: ("element",), ("c", word), (opcode, ...)."""
        kind, value = operand
        if kind == "c":
            return operand
        if value in self.inputs:
            if self.inputs[value] != element:
                self.refuse("an element computed from another", node.at)
            return ("element",)
        made = self.code.made[value]
        if made is not None and made.op is Opcode.VLD:
            self.refuse("a read of memory beside a tile's product: the clusters and their epilogues read tiles only",
                        node.at)  # fmt: skip
        if made is None or made.op not in SPELLED or made.mask is not None or made.predicate is not None:
            self.refuse("an epilogue with a choice or a conversion: it is elementwise arithmetic", node.at)
        return (made.op, *(self.expression(node, source, element) for source in made.sources))

    def store_tile(self, node, waves, tile: Tile, *where) -> None:
        """A result."""
        kind, phase = tile.kind, self.phase(node, tiles=True)
        for wave in waves:
            held = tile.waves[wave]
            if not held.products:
                self.refuse("tile.store of a tile that no product filled", node.at)
            if held.changed and len(held.changed) * LANES != kind.rows * kind.cols:
                self.refuse("tile.store of a tile of which some elements were changed and others not", node.at)
            to = self.place(node, wave, kind, *where)
            job = Job(kind.rows, kind.cols, held.products, held.epilogue, to)
            for since, halves in job.operands():
                if any(self.written.get(half, 0) > since for half in halves):
                    self.refuse("tiles that are read where others are stored", node.at)
                self.fetched.update(halves)
            phase.jobs.append(job)
        for job in phase.jobs[-len(waves) :]:
            self.note(job.to.halves(kind.rows, kind.cols))


def spelled(expression: tuple, acc):
    """An epilogue in the tile language."""
    if expression == ("element",):
        return acc
    if expression[0] == "c":
        return float(fp32.to_float(e8m15.to_fp32(np.array([expression[1]], np.uint32)))[0])
    op, *parts = expression
    return SPELLED[op](*(spelled(part, acc) for part in parts))


def tile_kernel(epilogue: tuple | None):
    """The tile kernel of a product of `...` instances."""

    @kernel
    def product(x=lang.In(..., M, K), w=lang.In(..., N, K), y=lang.Out(..., M, N), *, gm=4, gn=4, nk=1):  # noqa: B008
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            acc = lang.tile(gm, gn, nk)
            for k in loop(x.chunks32(nk)):
                acc += x[i, k] @ w[j, k]
            if epilogue is None:
                y[i, j] <<= acc
            else:
                y[i, j] <<= spelled(epilogue, acc)

    return product


@dataclass
class Product:
    """Jobs of one shape, compiled together: `artifact`, and how memory becomes its operands and its result memory."""

    jobs: list[Job]
    artifact: Artifact

    def operands(self, memories: list[np.ndarray]) -> dict[str, np.ndarray]:
        """x and w as FP16 patterns [jobs, lines, depth], each product padded with zeros to blocks of 32."""
        found: dict[str, list] = {"x": [], "w": []}
        for job in self.jobs:
            for name, side, lines in (("x", 0, job.rows), ("w", 1, job.cols)):
                parts = []
                for product in job.products:
                    place, depth = product[side], product[2]
                    shape = (lines, depth) if side == 0 else (depth, lines)
                    values = elements_of(place.buffer, memories)[place.indices(*shape)]
                    values = values if side == 0 else values.T
                    parts.append(np.pad(values, ((0, 0), (0, -depth % BLOCK))))
                found[name].append(np.concatenate(parts, axis=1))
        return {name: np.stack(values) for name, values in found.items()}

    def bring(self, memories: list[np.ndarray], outputs) -> None:
        """The result into memory."""
        for job, values in zip(self.jobs, outputs["y"], strict=True):
            elements_of(job.to.buffer, memories)[job.to.indices(job.rows, job.cols)] = values


def elements_of(buffer: Buffer, memories: list[np.ndarray]) -> np.ndarray:
    """A buffer's FP16 patterns."""
    size = buffer.count * 2
    return memories[buffer.memory][buffer.start : buffer.start + size].view(np.uint16)


def compiled(jobs: list[Job], machine: Machine) -> Product:
    """Jobs of one shape as an artifact. Raises KernelError where the machine cannot hold them."""
    first = jobs[0]
    depth = sum(-(-depth // BLOCK) * BLOCK for _, _, depth in first.products)
    shapes = {"x": (len(jobs), first.rows, depth), "w": (len(jobs), first.cols, depth)}
    knobs = {"gm": -(-first.rows // 4), "gn": -(-first.cols // 4), "nk": 1}
    declared = tile_kernel(first.epilogue)
    try:
        artifact = compile_kernel(declared, machine, shapes, knobs)
    except KernelError:
        if first.epilogue is None:
            raise
        artifact = compile_kernel(declared, machine, shapes, knobs | {"fuse": False})  # through memory: the same values
    return Product(jobs, artifact)
