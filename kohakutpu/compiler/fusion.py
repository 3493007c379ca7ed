"""The fused epilogue: tiles that clusters sent into a core's L1, through an expression, to memory.

Spec: the seed "The fused epilogue", and the compiler page's section of that name.

L1 of a core: slot r at word r*span, the result after the slots, the per-channel words after the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kohakutpu.isa import vector as isa
from kohakutpu.isa.vector import Opcode
from kohakutpu.lang.trace import SliceLeaf, TileLeaf
from kohakutpu.machine import Machine
from kohakutpu.wording import counted

from .artifact import BufferImage
from .core import CoreState, CoreWriter
from .expressions import (
    REGISTERS, Constants, collect_constants, generate, generate_published, registers_needed, undemonstrated, words_of,
)  # fmt: skip
from .layouts import WORD
from .programs import (
    CHUNK,
    DEPENDENT_CYCLES,
    FLIT_CYCLES,
    RUN_CYCLES,
    WORD_CYCLES,
    in_step,
    interleave,
    l1_room,
    prologue,
    require_fit,
)
from .refusals import WBURST, CannotFuse, CompileError
from .stages import ClusterStage, EpilogueStage, Key, Send

MAX_TILES = 7  # v0..v6
BIAS_REGISTER = 9


def span_words(gm: int, gn: int) -> int:
    """L1 words of one slot: the tile rounded up to whole chunks."""
    return math.ceil(gm * gn / CHUNK) * CHUNK


def acknowledgements(stage: ClusterStage) -> dict[Key, int]:
    """DATA_RECEIVED that each instance's drains into a core cause: one a burst."""
    return {
        key: sum(math.ceil(op.gm * op.gn / WBURST) for op in program if isinstance(op, Send))
        for key, program in stage.programs.items()
    }  # fmt: skip


@dataclass(frozen=True)
class _Shape:
    """What a fused store asks of a core."""

    tiles: tuple[int, ...]  # expression nodes that are accumulators
    bias: int | None  # expression node that is per channel
    slots: int
    words: int
    span: int
    gm: int
    gn: int

    @property
    def out(self) -> int:
        return self.slots * self.span

    @property
    def side(self) -> int:
        """First L1 word of the per-channel operand."""
        return (self.slots + 1) * self.span

    @property
    def chunks(self) -> int:
        return self.span // CHUNK

    @property
    def loaded(self) -> list[int]:
        """Expression nodes that are loaded from L1."""
        return [*self.tiles, *([] if self.bias is None else [self.bias])]


@dataclass(frozen=True)
class _Place:
    """One instance: the L1 slot of each tile, the address of its result and of its per-channel words."""

    slots: tuple[int, ...]
    address: int
    side: int | None


def check(stage: EpilogueStage, machine: Machine, known: Mapping[str, int], *, published: bool) -> None:
    """Raise CannotFuse, listing every condition of the seed that fails."""
    source = stage.statement.source
    expression = stage.statement.expression
    broken: list[str] = []
    if not machine.vectors:
        raise CompileError(f"machine {machine.name} has no vector core: no elementwise work can run on it", source)
    if len(stage.instances) > len(machine.vectors):
        broken.append(
            f"{counted(len(stage.instances), 'instance')} on {counted(len(machine.vectors), 'vector core')}: each core can take one open "
            "stream"
        )
    words, span = stage.gm * stage.gn, span_words(stage.gm, stage.gn)
    extra = [leaf for leaf in expression.leaves if isinstance(leaf, SliceLeaf)]
    bias = [leaf for leaf in extra if len(leaf.slice.indices) == 1]
    limit = l1_room(machine)
    footprint = (stage.slots + 1) * span + (stage.gn if bias else 0)
    if footprint > limit:
        parts = f"{stage.slots + 1} * {span} words (gm*gn = {words})" + (
            f" + {stage.gn} per-channel words" if bias else ""
        )
        broken.append(f"its footprint in L1 is {parts} = {footprint}, above the {limit} that are safe (L1_SAFE)")
    if words > isa.WALK_LIMIT:
        broken.append(f"gm*gn = {words} is above {isa.WALK_LIMIT}: F_LEN faults a VDRAIN that walks further")
    by_tiles = len(broken)  # what other tiles may mend
    if machine.agent is None or machine.agent.xy == (0, 0):
        broken.append(
            "the machine names no agent to acknowledge to, and (0,0) would answer the sending cluster, which drops it"
        )  # fmt: skip
    for leaf in extra:
        if leaf not in bias:
            broken.append(
                f"{leaf.slice.buffer} is neither the accumulator nor a constant; it would need a fill of its own"
            )
    if len(bias) > 1:
        broken.append(f"{counted(len(bias), 'per-channel operand')} ({', '.join(b.slice.buffer for b in bias)}); a core fills one")
    if len(stage.tiles) > MAX_TILES:
        broken.append(f"{counted(len(stage.tiles), 'accumulator')}; {MAX_TILES} fit the registers")
    if published:
        broken += undemonstrated(expression, known, source)
    if broken:
        most = _staged_operands(bool(bias), published and not bias)
        raise CannotFuse(
            broken, source, retile=len(broken) == by_tiles, repeats=published and bool(bias),
            most=most if len(stage.tiles) + len(extra) > most else None,
        )  # fmt: skip


def _staged_operands(repeats: bool, published: bool) -> int:
    """How many operands have descriptors in a stage of their own, beside its windows and its drain: as published, each has
    two; rows of tiles, with an operand that `repeats`, need two more windows."""
    if published:
        return (isa.DESCRIPTORS - 2) // 2
    return isa.DESCRIPTORS - (4 if repeats else 2)


def lower(
    stage: EpilogueStage,
    nodes: Mapping[Key, int],
    images: Mapping[str, BufferImage],
    states: Mapping[int, CoreState],
    known: Mapping[str, int],
    published: bool,
    room: int,
) -> dict[Key, list[int]]:
    """The payloads of each instance; `room` is the L1 words of a program."""
    expression = stage.statement.expression
    tiles = tuple(n for n, leaf in enumerate(expression.nodes) if isinstance(leaf, TileLeaf))
    bias = next((n for n, leaf in enumerate(expression.nodes) if isinstance(leaf, SliceLeaf)), None)
    shape = _Shape(
        tiles, bias, stage.slots, stage.gm * stage.gn, span_words(stage.gm, stage.gn), stage.gm, stage.gn
    )  # fmt: skip
    plan = None if published else _choose(stage, shape, known, room)
    out = {}
    for key in sorted(stage.instances):
        instance = stage.instances[key]
        target = images[stage.statement.target.buffer]
        address = target.address + instance.copy * target.stride + target.layout.offset(instance.i, instance.j)
        side = None
        if bias is not None:
            image = images[expression.nodes[bias].slice.buffer]
            side = image.address + image.layout.offset(instance.j)
        place = _Place(instance.slots, address, side)
        if published:
            out[key] = _published(stage, shape, place, states[nodes[key]], known)
        else:
            out[key] = _default(stage, shape, place, states[nodes[key]], known, plan)
    return out


# ---- the published program ----------------------------------------------------------------------------


def _published(stage: EpilogueStage, shape: _Shape, place: _Place, state: CoreState, known) -> list[int]:
    """Fully unrolled, a descriptor for each tile (spec: vector side of the fused epilogue)."""
    source = stage.statement.source
    side = place.side
    expression = stage.statement.expression
    n = len(shape.tiles)
    ad_out, ad_drain, ad_fill, ad_read = n, n + 1, n + 2, n + 3
    last = ad_drain if side is None else ad_read
    if last >= isa.DESCRIPTORS:
        raise CompileError(f"{n} accumulators need {last + 1} descriptors of {isa.DESCRIPTORS} as published", source)
    if side is not None and shape.gn % CHUNK and CHUNK % shape.gn:
        raise CompileError(
            f"lowering='published' reads a per-channel operand wrong for gn = {shape.gn}, which neither divides "
            f"{CHUNK} nor is a multiple of it; use lowering='default'",
            source,
        )
    constants = collect_constants(expression, known, source)
    slots = sorted(place.slots)  # tiles go by the order in which they were made
    registers = {node: slots.index(slot) for node, slot in zip(shape.tiles, place.slots, strict=True)}
    if side is not None:
        registers[shape.bias] = BIAS_REGISTER
    code = generate_published(expression, registers, constants)
    image = prologue(constants)
    if side is not None:
        image.put(Opcode.VFILL, ad=ad_fill, l1=shape.side)
        image.put(Opcode.VBAR)
    for off in range(0, shape.span, CHUNK):
        for position in range(n):
            image.put(Opcode.VLD, ad=position, vd=position, offset=off)
        if side is not None:
            image.put(Opcode.VLD, ad=ad_read, vd=BIAS_REGISTER, offset=off % shape.gn)
        for opcode, fields in code.operations:
            image.put(opcode, **fields)
        image.put(Opcode.VST, ad=ad_out, vd=code.result, offset=off)
    image.put(Opcode.VDRAIN, ad=ad_drain, l1=shape.out)
    image.put(Opcode.VHALT)
    require_fit(image, source)
    core = CoreWriter(state, reuse=False)
    core.image(image.words)
    for position, slot in enumerate(slots):
        core.base(position, slot * shape.span)
        core.line(position, 1, CHUNK)
    core.base(ad_out, shape.out)
    core.line(ad_out, 1, CHUNK)
    core.line(ad_drain, WORD, shape.words)
    if side is not None:
        core.line(ad_fill, WORD, shape.gn)
        core.base(ad_read, shape.side)
        core.dim(ad_read, 0, 1, shape.gn)
        core.dim(ad_read, 1, 0, shape.gm)
        core.base(ad_fill, side)
    core.base(ad_drain, place.address)
    core.run()
    return core.payloads


# ---- the default program ------------------------------------------------------------------------------

AD_WINDOW, AD_DRAIN, AD_FILL, AD_READ = range(4)


@dataclass(frozen=True)
class _Plan:
    """How a tile is cut into runs: from the chunks `starts`, `per` each, `width` of them in step.

    `need` vector registers serve one chunk; the per-channel words stand `repeat` times in a row.
    """

    starts: tuple[int, ...]
    per: int
    width: int
    need: int
    repeat: int


def _choose(stage: EpilogueStage, shape: _Shape, known, room: int) -> _Plan:
    """The plan of the least estimated time, dispatch and work together."""
    source = stage.statement.source
    expression = stage.statement.expression
    constants = collect_constants(expression, known, source)
    need = registers_needed(expression, shape.loaded, constants)
    if need > REGISTERS:
        raise CompileError(
            f"this expression needs {need} vector registers of {REGISTERS}; split it over a temp", source
        )
    chunk_words = len(shape.loaded) + words_of(expression) + 1
    biased = shape.bias is not None

    def image_words(per: int) -> int:
        return 4 + 2 * len(constants.scalars) + 2 * biased + per * chunk_words + (per < shape.chunks) + 2

    if image_words(1) > isa.IMEM_WORDS:
        raise CompileError(f"the vector program of one chunk is above {isa.IMEM_WORDS} words; split it over a temp", source)
    plans = []
    for per in range(1, shape.chunks + 1):
        # The last run is moved back so that it ends with the tile.
        starts = tuple(min(first, shape.chunks - per) for first in range(0, shape.chunks, per))
        repeat = _bias_repeats(shape, starts, per)
        # Within the room a fill of them is also within WALK_LIMIT: they take at most 3 spans, and stand after 2.
        if repeat and shape.side + repeat * shape.gn > room:
            continue
        runs, words = len(starts), image_words(per)
        if words > isa.IMEM_WORDS:
            continue
        width = in_step(per, REGISTERS // need)
        flits = words + 3 + biased * (3 + 2 * (repeat > 1)) + runs * (2 + biased) + (runs > 1)
        work = runs * (RUN_CYCLES + per * chunk_words * (WORD_CYCLES if width > 1 else DEPENDENT_CYCLES))
        plans.append((FLIT_CYCLES * flits * len(stage.instances) + work, _Plan(starts, per, width, need, repeat)))
    if not plans:
        raise CannotFuse(
            [f"the per-channel operand, repeated to whole chunks for gn = {shape.gn}, does not fit {room} words of L1"],
            source,
        )
    return min(plans, key=lambda plan: plan[0])[1]


def _bias_repeats(shape: _Shape, starts: tuple[int, ...], per: int) -> int:
    """How often the per-channel words must stand in a row for a read of whole chunks never to run past them."""
    if shape.bias is None:
        return 0
    if len(starts) == 1:
        furthest = max((CHUNK * chunk) % shape.gn for chunk in range(per)) + CHUNK
    else:
        furthest = max((CHUNK * start) % shape.gn for start in starts) + CHUNK * per
    return math.ceil(furthest / shape.gn)


def _default(stage: EpilogueStage, shape: _Shape, place: _Place, state: CoreState, known, plan: _Plan) -> list[int]:
    """One image of a few chunks, run along the tile by moving one L1 window, and a run that drains."""
    expression = stage.statement.expression
    constants = collect_constants(expression, known, stage.statement.source)
    image = prologue(constants)
    if place.side is not None:
        image.put(Opcode.VFILL, ad=AD_FILL, l1=shape.side)
        image.put(Opcode.VBAR)
    again = len(image)
    chunks = [_chunk(expression, shape, place, constants, plan, chunk) for chunk in range(plan.per)]
    for opcode, fields in interleave(chunks, plan.width):
        image.put(opcode, **fields)
    several = len(plan.starts) > 1
    if several:
        image.put(Opcode.VHALT)
    tail = len(image)
    image.put(Opcode.VDRAIN, ad=AD_DRAIN, l1=shape.out)
    image.put(Opcode.VHALT)
    core = CoreWriter(state, reuse=True)
    core.image(image.words)
    core.line(AD_WINDOW, 1, CHUNK)
    core.line(AD_DRAIN, WORD, shape.words)
    core.base(AD_DRAIN, place.address)
    if place.side is not None:
        core.dim(AD_FILL, 0, WORD, shape.gn)
        if plan.repeat > 1:
            core.dim(AD_FILL, 1, 0, plan.repeat)
        core.base(AD_FILL, place.side)
        core.line(AD_READ, 1, CHUNK)
    for start in plan.starts:
        core.base(AD_WINDOW, CHUNK * start)
        if place.side is not None:
            core.base(AD_READ, shape.side + (CHUNK * start) % shape.gn)
        core.run(again if start else 0)
    if several:
        core.run(tail)
    core.restore(AD_FILL)
    return core.payloads


def _chunk(expression, shape: _Shape, place: _Place, constants: Constants, plan: _Plan, chunk: int) -> list:
    """(opcode, fields) of one chunk: its loads, its operations, its store."""
    off = CHUNK * chunk
    first = chunk % plan.width * plan.need
    registers = {node: first + position for position, node in enumerate(shape.loaded)}
    code = generate(expression, registers, constants, lambda n: first + len(shape.loaded) + n, chunk % plan.width)
    words = [
        (Opcode.VLD, {"ad": AD_WINDOW, "vd": registers[node], "offset": slot * shape.span + off})
        for node, slot in zip(shape.tiles, place.slots, strict=True)
    ]
    if shape.bias is not None:
        phase = off % shape.gn if len(plan.starts) == 1 else off
        words.append((Opcode.VLD, {"ad": AD_READ, "vd": registers[shape.bias], "offset": phase}))
    words += code.operations
    words.append((Opcode.VST, {"ad": AD_WINDOW, "vd": code.result, "offset": shape.out + off}))
    return words
