"""Statements over whole buffers: fill, compute, drain, in runs of a few chunks (spec: band kernel).

All buffers of a statement have one byte order, so that it may be cut anywhere. An instance is `part` elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kohakutpu.isa import vector as isa
from kohakutpu.isa.vector import Opcode
from kohakutpu.lang.trace import BufferLeaf, Constant
from kohakutpu.wording import counted

from .artifact import BufferImage
from .core import CoreState, CoreWriter
from .expressions import (
    REGISTERS, RUNNING, SCRATCH, Constants, collect_constants, generate, generate_published, memory_constant,
    registers_needed, words_of,
)  # fmt: skip
from .layouts import HALVES, WORD
from .placement import Reach
from .programs import (
    CHUNK,
    DEPENDENT_CYCLES,
    FLIT_CYCLES,
    RUN_CYCLES,
    WORD_CYCLES,
    in_step,
    interleave,
    prologue,
    require_fit,
)
from .refusals import UNROLLED, CompileError
from .stages import ElementwiseStage, Key

FILL_CYCLES = 60  # estimated time from a run's fills to their data, which nothing hides
PUBLISHED_GRAIN = 1024  # elements of a published run at its largest: 8 chunks


@dataclass(frozen=True)
class Span:
    """One instance: words from an offset in the target and in each operand (bytes; constants have 0)."""

    target: int
    operands: tuple[int, ...]
    words: int
    kept: tuple[int, ...] = ()  # offsets in what a band drains before its target


@dataclass
class Plan:
    """A whole-buffer statement before anything has an address.

    `loaded` are the expression nodes that are filled operands, `names` their buffers. `stride` is an instance's
    words, which is also how long a constant held in memory is.
    """

    stage: ElementwiseStage
    loaded: tuple[int, ...]
    names: tuple[str, ...]
    constants: Mapping[str, int]  # buffer name -> FP16 pattern
    spans: dict[Key, Span]
    grid: Key
    stride: int

    @property
    def kept(self) -> list[str]:
        """The buffers that a band drains before its target."""
        return [result.written.buffer for result in self.stage.kept if result.drained]

    def drained(self, published: bool) -> int:
        """Words written to memory; the published program writes whole runs."""
        spans = self.spans.values()
        if not published:
            return sum(span.words for span in spans) * (1 + len(self.kept))
        return sum(_published_words(span) for span in spans)

    def reach(self) -> dict[str, Reach]:
        """How far the published program, which moves whole runs, reads and writes from each buffer's address."""
        found: dict[str, Reach] = {}
        for span in self.spans.values():
            size = _published_words(span) * WORD
            for name, offset in zip(self.names, span.operands, strict=True):
                held = found.get(name, Reach())
                found[name] = replace(held, read=max(held.read, offset + size))
            held = found.get(self.stage.target, Reach())
            found[self.stage.target] = replace(held, written=max(held.written, span.target + size))
        return found


def constant_name(value: float) -> str:
    return f"const{value!r}"


def plan(
    stage: ElementwiseStage,
    images: Mapping[str, BufferImage],
    known: Mapping[str, int],
    *,
    published: bool,
    arrays: bool,
    elements: int,
) -> Plan:
    """Cut a statement into instances. `elements` counts one batch element of the target; images need no address yet."""
    source = stage.statement.source
    loaded, names, constants = [], [], {}
    for node, leaf in enumerate(stage.expression.nodes):
        if isinstance(leaf, BufferLeaf):
            loaded.append(node)
            names.append(leaf.buffer)
        elif isinstance(leaf, Constant) and arrays:
            value = leaf.number(known)
            loaded.append(node)
            names.append(constant_name(value))
            constants[constant_name(value)] = memory_constant(value, source)
    target = images[stage.target]
    operands = [images.get(name) for name in names]
    if stage.spans:
        spans = _of_spans(stage, target, operands, published)
        grid = ((target.copies,) if target.copies > 1 else ()) + (len(stage.spans),)
        return Plan(stage, tuple(loaded), tuple(names), constants, spans, grid, max(words for _, words in stage.spans))
    together = not published and all(image is None or image.copies == target.copies for image in operands)
    copies = 1 if together else target.copies
    room = (target.bytes if together else target.layout.bytes) // WORD
    if published:
        stride = _published_stride(stage.part, elements, room, source)
    else:
        part = math.ceil(stage.part / HALVES / CHUNK) * CHUNK
        parts = math.ceil(room / part)
        stride = math.ceil(room / parts / CHUNK) * CHUNK
    parts = math.ceil(room / stride)
    if copies * parts > UNROLLED:
        raise CompileError(
            f"{copies * parts} instances of {stride * HALVES} elements, above {UNROLLED}; use a larger part", source
        )
    spans = {}
    for copy in range(copies):
        for part in range(parts):
            first = part * stride
            key = ((copy,) if copies > 1 else ()) + (part,)
            offsets = [_offset(image, copy) + (first * WORD if image else 0) for image in operands]
            at = copy * target.stride + first * WORD
            kept = tuple(_offset(images[r.written.buffer], copy) + first * WORD for r in stage.kept if r.drained)
            spans[key] = Span(at, tuple(offsets), min(stride, room - first), kept)
    grid = ((copies,) if copies > 1 else ()) + (parts,)
    return Plan(stage, tuple(loaded), tuple(names), constants, spans, grid, stride)


def _of_spans(
    stage: ElementwiseStage, target: BufferImage, operands: Sequence[BufferImage | None], published: bool
) -> dict[Key, Span]:
    """An instance for each of the stage's spans in each batch element."""
    if target.copies * len(stage.spans) > UNROLLED:
        raise CompileError(
            f"{target.copies * len(stage.spans)} instances, above {UNROLLED}; use larger tiles or parts", stage.statement.source
        )
    found = {}
    for copy in range(target.copies):
        for number, (first, words) in enumerate(stage.spans):
            offsets = [_offset(image, copy) + (first * WORD if image else 0) for image in operands]
            span = Span(copy * target.stride + first * WORD, tuple(offsets), words)
            if published and _published_words(span) != words:
                raise CompileError(
                    f"lowering='published' writes whole runs, and {words} words of {stage.target}, of which this tiling does not "
                    "write every part, are none; use lowering='default'",
                    stage.statement.source,
                )
            found[((copy,) if target.copies > 1 else ()) + (number,)] = span
    return found


def _offset(image: BufferImage | None, copy: int) -> int:
    return copy * image.stride if image is not None and image.copies > 1 else 0


def _published_stride(part: int, elements: int, room: int, source) -> int:
    """Words of one instance: `part`, or what spreads a padded image over as many instances as its elements need."""
    if part % PUBLISHED_GRAIN:
        raise CompileError(f"lowering='published' needs part to be a multiple of {PUBLISHED_GRAIN}, not {part}", source)
    parts = math.ceil(elements / part)
    if parts * part < room * HALVES:
        return math.ceil(room * HALVES / parts / PUBLISHED_GRAIN) * PUBLISHED_GRAIN // HALVES
    return part // HALVES


def lower(
    plan: Plan,
    nodes: Mapping[Key, int],
    images: Mapping[str, BufferImage],
    states: Mapping[int, CoreState],
    known: Mapping[str, int],
    published: bool,
    room: int,
) -> dict[Key, list[int]]:
    """The payloads of each instance; `room` is the L1 words of a program."""
    choice = None if published else _choose(plan, nodes, known, room)
    out = {}
    for key, span in sorted(plan.spans.items()):
        state = states[nodes[key]]
        if published:
            out[key] = _published(plan, span, images, state, known, room)
        else:
            out[key] = _default(plan, span, images, state, known, choice)
    return out


# ---- the published program ----------------------------------------------------------------------------


def _published(plan: Plan, span: Span, images, state: CoreState, known, room: int) -> list[int]:
    """Up to 8 chunks a run, unrolled; fill, load, store and drain each with a descriptor of its own."""
    stage = plan.stage
    source = stage.statement.source
    n = len(plan.loaded)
    if n > RUNNING or 2 * n + 2 > isa.DESCRIPTORS:
        raise CompileError(
            f"lowering='published' fills {n} operands, constants included, with {2 * n + 2} descriptors of "
            f"{isa.DESCRIPTORS}; constants='registers' or lowering='default' needs fewer",
            source,
        )
    ad_store, ad_drain = 2 * n, 2 * n + 1
    words = _published_run(span)
    constants = _seeded(plan, known, n)
    code = generate_published(stage.expression, {node: v for v, node in enumerate(plan.loaded)}, constants)
    if (n + 1) * words > room:
        raise CompileError(f"{n} operands and the result span {(n + 1) * words} words of L1, above {room}", source)
    image = prologue(constants)
    constants.broadcast(image)
    for operand in range(n):
        image.put(Opcode.VFILL, ad=operand, l1=operand * words)
    if n:
        image.put(Opcode.VBAR)
    for off in range(0, words, CHUNK):
        for operand in range(n):
            image.put(Opcode.VLD, ad=n + operand, vd=operand, offset=off)
        for opcode, fields in code.operations:
            image.put(opcode, **fields)
        image.put(Opcode.VST, ad=ad_store, vd=code.result, offset=off)
    image.put(Opcode.VDRAIN, ad=ad_drain, l1=n * words)
    image.put(Opcode.VHALT)
    require_fit(image, source)
    core = CoreWriter(state, reuse=False)
    core.image(image.words)
    for operand in range(n):
        core.base(n + operand, operand * words)
        core.line(n + operand, 1, CHUNK)
    core.base(ad_store, n * words)
    core.line(ad_store, 1, CHUNK)
    for operand in range(n):
        core.line(operand, WORD, words)
    core.line(ad_drain, WORD, words)
    for first in range(0, span.words, words):
        for operand, (name, offset) in enumerate(zip(plan.names, span.operands, strict=True)):
            core.base(operand, images[name].address + offset + first * WORD)
        core.base(ad_drain, images[stage.target].address + span.target + first * WORD)
        core.run()
    return core.payloads


def _published_run(span: Span) -> int:
    """Words of one run: the span in whole chunks, up to 8 of them."""
    return min(math.ceil(span.words / CHUNK), PUBLISHED_GRAIN // isa.VL_MAX) * CHUNK


def _published_words(span: Span) -> int:
    """Words that the published program moves for an instance, the last run whole."""
    run = _published_run(span)
    return math.ceil(span.words / run) * run


def _seeded(plan: Plan, known, operands: int) -> Constants:
    """Every constant that is not in memory, in a vector register of its own."""
    constants = Constants(plan.stage.statement.source, known, {}, {}, leaves=plan.stage.expression.leaves)
    free = [v for v in range(operands, REGISTERS) if v not in (RUNNING, SCRATCH)]
    held = [leaf for node, leaf in enumerate(plan.stage.expression.nodes) if isinstance(leaf, Constant) and node not in plan.loaded]
    words = list(dict.fromkeys(constants.word(leaf) for leaf in held))
    if len(words) > len(free):
        raise CompileError(
            f"lowering='published' holds {counted(len(words), 'constant')} in vector registers, of which {counted(operands, 'operand')} "
            f"leave {len(free)}; use lowering='default', or split the statement over a temp",
            constants.line,
        )
    for word, register in zip(words, free, strict=False):
        constants.scalar(word)
        constants.spread[word] = register
    return constants


# ---- the default program ------------------------------------------------------------------------------

AD_WINDOW = 0


@dataclass(frozen=True)
class _Choice:
    """`per` chunks a run, `width` of them in step, `need` vector registers for one; about how many cycles in all."""

    per: int
    width: int
    need: int
    cycles: float


def _constants(plan: Plan, known) -> Constants:
    if plan.constants:
        return Constants(plan.stage.statement.source, known, {}, {})
    return collect_constants(plan.stage.expression, known, plan.stage.statement.source)


def estimate(plan: Plan, nodes: Mapping[Key, int], known, room: int) -> float:
    """About how many cycles the statement takes, dispatch and work together. Raises CompileError where it does not fit."""
    return _choose(plan, nodes, known, room).cycles


def _choose(plan: Plan, nodes: Mapping[Key, int], known, room: int) -> _Choice:
    """The shape of a run with the least estimated time, dispatch and work together."""
    source = plan.stage.statement.source
    expression = plan.stage.expression
    n, k, drains = len(plan.loaded), len(plan.stage.kept), 1 + len(plan.kept)
    if n + 1 + drains > isa.DESCRIPTORS:
        raise CompileError(
            f"{n} operands, constants in memory included, need {n + 1 + drains} descriptors of {isa.DESCRIPTORS}; split the "
            "statement over a temp",
            source,
        )
    constants = _constants(plan, known)
    need = max(registers_needed(expression, plan.loaded, constants), 1)
    if need + len(constants.spread) > REGISTERS:
        raise CompileError(
            f"this statement needs {need + len(constants.spread)} vector registers of {REGISTERS}; split it over a "
            "temp",
            source,
        )
    chunk_words = n + words_of(expression) + 1
    busiest = max(sum(nodes[key] == node for key in plan.spans) for node in set(nodes.values()))
    choices: list[tuple[int, int, _Choice]] = []  # estimated cycles, flits
    longest = max(span.words for span in plan.spans.values())
    for per in range(1, min(room // (n + 1 + k) // CHUNK, math.ceil(longest / CHUNK)) + 1):
        words = 4 + 2 * len(constants.scalars) + len(constants.spread) + n + (n > 0) + per * chunk_words + 1 + drains
        if words > isa.IMEM_WORDS:
            break
        width = in_step(per, (REGISTERS - len(constants.spread)) // need)
        runs = [math.ceil(span.words / (per * CHUNK)) for span in plan.spans.values()]
        ragged = sum(span.words % (per * CHUNK) > 0 for span in plan.spans.values())
        flits = len(set(nodes.values())) * (words + 3 + n) + sum(runs) * (n + 1 + drains) + ragged * (n + drains)
        work = per * chunk_words * (WORD_CYCLES if width > 1 else DEPENDENT_CYCLES)
        cycles = FLIT_CYCLES * flits + busiest * max(runs) * (RUN_CYCLES + FILL_CYCLES + work)
        choices.append((cycles, flits, _Choice(per, width, need, cycles)))
    if not choices:
        raise CompileError(
            f"the vector program of one chunk is above {isa.IMEM_WORDS} words; split it over a temp", source
        )
    # Never more flits than runs of the published size take.
    most = max(flits for _, flits, choice in choices if choice.per == min(PUBLISHED_GRAIN // isa.VL_MAX, len(choices)))
    return min((choice for choice in choices if choice[1] <= most), key=lambda choice: choice[0])[2]


def _default(plan: Plan, span: Span, images, state: CoreState, known, choice: _Choice) -> list[int]:
    """One image, sent once to a core; each run moves its fills and its drain."""
    stage = plan.stage
    n = len(plan.loaded)
    ad_drain = n + 1
    drained = [result.node for result in stage.kept if result.drained]
    room = choice.per * CHUNK
    region = {result.node: (n + 1 + place) * room for place, result in enumerate(stage.kept)}
    constants = _constants(plan, known)
    longest = max(span.words for span in plan.spans.values())
    image = prologue(constants, min(isa.VL_MAX, longest * HALVES))
    constants.broadcast(image)
    again = len(image)
    for operand in range(n):
        image.put(Opcode.VFILL, ad=1 + operand, l1=operand * room)
    if n:
        image.put(Opcode.VBAR)
    chunks = []
    for chunk in range(choice.per):
        off = CHUNK * chunk
        first = len(constants.spread) + chunk % choice.width * choice.need
        registers = {node: first + position for position, node in enumerate(plan.loaded)}
        code = generate(
            stage.expression, registers, constants, lambda number, first=first: first + n + number, chunk % choice.width,
            lambda node, off=off: {"ad": AD_WINDOW, "offset": region[node] + off},
        )
        words = [
            (Opcode.VLD, {"ad": AD_WINDOW, "vd": first + operand, "offset": operand * room + off})
            for operand in range(n)
        ]
        words += [*code.operations, (Opcode.VST, {"ad": AD_WINDOW, "vd": code.result, "offset": n * room + off})]
        chunks.append(words)
    for opcode, fields in interleave(chunks, choice.width):
        image.put(opcode, **fields)
    for place, node in enumerate(drained, 1):
        image.put(Opcode.VDRAIN, ad=ad_drain + place, l1=region[node])
    image.put(Opcode.VDRAIN, ad=ad_drain, l1=n * room)
    image.put(Opcode.VHALT)
    fresh = not state.holds(image.words)
    core = CoreWriter(state, reuse=True)
    core.image(image.words)
    core.base(AD_WINDOW, 0)
    core.line(AD_WINDOW, 1, CHUNK)
    for first in range(0, span.words, room):
        words = min(room, span.words - first)
        for operand, (name, offset) in enumerate(zip(plan.names, span.operands, strict=True)):
            core.line(1 + operand, WORD, words)
            core.base(1 + operand, images[name].address + offset + first * WORD)
        core.line(ad_drain, WORD, words)
        for place, (name, offset) in enumerate(zip(plan.kept, span.kept, strict=True), ad_drain + 1):
            core.line(place, WORD, words)
            core.base(place, images[name].address + offset + first * WORD)
        core.base(ad_drain, images[stage.target].address + span.target + first * WORD)
        core.run(0 if fresh and first == 0 else again)
    return core.payloads
