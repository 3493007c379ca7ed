"""Statements over rows: which core computes which rows, L1, and the program (words: `rowwords`).

An instance is some whole rows. A run fills as many of them as L1 and the image hold, computes, and drains; what is
the same for every row is filled once an instance. The result takes the place of an operand of its size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kohakutpu.isa import vector as isa
from kohakutpu.isa.vector import Mode, Opcode
from kohakutpu.lang.trace import BufferLeaf, Expression

from . import rowstream
from .artifact import BufferImage
from .core import CoreState, Image
from .deal import deal
from .elementwise import FILL_CYCLES
from .expressions import REGISTERS, Constants
from .layouts import WORD, Tile
from .programs import FLIT_CYCLES, RUN_CYCLES
from .refusals import CompileError
from .rowcode import NoRegister, assign_registers, emit, estimated_cycles
from .rowplan import RowPlan, RowSpan, address_of, begun, plan
from .rowwords import PIECE, QUAD, RESULT, RowWords, Storage, group_predicates, prologue
from .stages import Key, RowStage

MOST_IN_STEP = 8
CANDIDATES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)


@dataclass(frozen=True)
class _Program:
    """An image for `rows` rows a run: where its loop begins, where operands and result stand in L1."""

    rows: int
    words: list[int]
    again: int
    first: Mapping[int, int]  # L1 word by node
    cycles: int  # of a run, about
    total: float = 0.0  # of the statement


def lower(plan: RowPlan, nodes: Mapping[Key, int], images: Mapping[str, BufferImage], states: Mapping[int, CoreState],
          known: Mapping[str, int], arrays: bool, room: int) -> dict[Key, list[int]]:  # fmt: skip
    """The payloads of each instance; `room` is the L1 words of a program. `arrays`: constants are as memory holds
    them."""
    program = _choose(plan, nodes, known, arrays, room)
    out = {}
    for key, span in sorted(plan.spans.items()):
        made = rowstream.instance if isinstance(program, rowstream.Streamed) else _instance
        out[key] = made(plan, span, images, states[nodes[key]], program)
    return out


def _choose(plan: RowPlan, nodes: Mapping[Key, int], known, arrays: bool, room: int) -> _Program | rowstream.Streamed:
    """The rows of a run with the least estimated time, dispatch and work together."""
    stage = plan.stage
    source = stage.statement.source
    if plan.descriptors > isa.DESCRIPTORS:
        raise CompileError(
            f"{len(plan.leaves)} operands need {plan.descriptors} descriptors of {isa.DESCRIPTORS}; split the statement "
            "over a temp",
            source,
        )
    most = max(span.rows for span in plan.spans.values())
    busiest = max(sum(nodes[key] == node for key in plan.spans) for node in set(nodes.values()))
    cores = len(set(nodes.values()))
    choices: list[tuple[float, _Program]] = []
    refused = ""
    if plan.tiled:
        whole = math.gcd(*(leaf.tile.gm for leaf in plan.leaves if leaf.tile))
        candidates = [QUAD * n for n in range(1, whole + 1) if whole % n == 0]
    else:
        cycle = math.lcm(*(leaf.cycle for leaf in plan.leaves if not leaf.repeated))
        some = {*CANDIDATES, *(n * cycle for n in CANDIDATES), *(n for n in range(1, cycle) if cycle % n == 0), most}
        candidates = sorted(n for n in some if n <= most and _goes(plan, n))
    for rows in candidates:
        walks = [leaf.quad * rows // QUAD if leaf.tile else leaf.words * leaf.held(rows) for leaf in plan.leaves]
        longest = max([plan.result_words * rows, *(kept.words * rows for kept in plan.kept), *walks])
        if longest > isa.WALK_LIMIT:
            refused = refused or f"is walked in {longest} words at a time, above {isa.WALK_LIMIT}"
            break
        program = _program(plan, rows, known, arrays, room)
        if isinstance(program, str):
            refused = program
            break
        runs = [math.ceil(span.rows / rows) for span in plan.spans.values()]
        moves = len(plan.leaves) + len(plan.drained)
        flits = cores * (len(program.words) + 2 * moves + 4) + sum(runs) * (moves + 2)
        cycles = FLIT_CYCLES * flits + busiest * max(runs) * (RUN_CYCLES + FILL_CYCLES + program.cycles)
        choices.append((cycles, program))
    if not choices and not plan.kept:
        rows = max(sum(span.rows for key, span in plan.spans.items() if nodes[key] == node) for node in set(nodes.values()))
        made = rowstream.choose(plan, known, arrays, room, rows, cores)
        if isinstance(made, rowstream.Streamed):
            return made
        refused = made
    if not choices:
        raise CompileError(f"one row of {list(stage.shape)} {refused}", source)
    cycles, program = min(choices, key=lambda choice: choice[0])
    return replace(program, total=cycles)


def estimate(plan: RowPlan, nodes: Mapping[Key, int], known, arrays: bool, room: int) -> float:
    """About how many cycles the statement takes, dispatch and work together. Raises CompileError where it does not fit."""
    return _choose(plan, nodes, known, arrays, room).total


def in_steps(stage: RowStage, images: Mapping[str, BufferImage], nodes: Sequence[int], known, arrays: bool, room: int) -> list[RowStage]:
    """The statement; or, where four of its rows of tiles at a time are too much for a core, these copied into the target's rows
    and the statement on them, in place."""
    written = stage.written
    reads = [leaf for leaf in stage.expression.leaves if isinstance(leaf, BufferLeaf)]
    whole = (leaf for leaf in reads if isinstance(images[leaf.buffer].layout, Tile) and stage.shapes[leaf] == stage.shape)
    leaf = next((leaf for leaf in whole if images[leaf.buffer].copies == images[stage.target].copies), None)
    alone = not stage.kept and written.view is None and all(leaf.buffer != stage.target for leaf in reads)
    if stage.shape[-1] <= PIECE or leaf is None or not alone or stage.shapes[written] != stage.shape:
        return [stage]
    copy = replace(stage, expression=Expression((leaf,)), shapes=dict.fromkeys((written, leaf), stage.shape))
    rest = Expression(tuple(written if node == leaf else node for node in stage.expression.nodes))
    steps = [copy, replace(stage, expression=rest, shapes={held: shape for held, shape in stage.shapes.items() if held != leaf})]

    def fits(one: RowStage) -> bool:
        try:
            made = plan(one, images)
            estimate(made, deal(made.spans, nodes), known, arrays, room)
        except CompileError:
            return False
        return True

    return steps if not fits(stage) and all(map(fits, steps)) else [stage]


def _goes(plan: RowPlan, rows: int) -> bool:
    """Whether instances can be cut into runs of so many rows."""
    plain = all(leaf.plain or leaf.repeated for leaf in plan.leaves)
    starts = plain or len(plan.spans) == 1 or plan.per % rows == 0
    return starts and all(leaf.fits(rows) for leaf in plan.leaves)


def _storage(plan: RowPlan, rows: int) -> tuple[Storage, int]:
    """L1 for `rows` rows: operands that serve all rows, then the others, the result; and its words in all."""
    stage = plan.stage
    first: dict[int, int] = {}
    stride: dict[int, int] = {}
    end = 0
    groups = {}
    for leaf in sorted(plan.leaves, key=lambda leaf: not leaf.kept(rows)):
        first[leaf.node], stride[leaf.node] = end, 0 if leaf.repeated else leaf.words
        end += leaf.quad * rows // QUAD if leaf.tile else leaf.words * leaf.held(rows)
        if not (leaf.plain or leaf.repeated or leaf.tile):
            groups[leaf.node] = leaf.group, leaf.held(rows)
    alike = [leaf for leaf in plan.leaves if leaf.plain and leaf.words == plan.result_words]
    for kept in plan.kept:
        first[kept.node], stride[kept.node] = end, kept.words
        end += kept.words * rows
    stride[RESULT] = plan.result_words
    if alike and not plan.kept:
        first[RESULT] = first[alike[0].node]
    else:
        first[RESULT] = end
        end += plan.result_words * rows
    columns = stage.shape[-1]
    singles = [*plan.single_nodes, *([RESULT] if plan.target_columns == 1 < columns else [])]
    quads = {leaf.node: leaf.quad for leaf in plan.leaves if leaf.tile}
    return Storage(first, stride, frozenset(singles), quads, groups), end + bool(quads)


def _program(plan: RowPlan, rows: int, known, arrays: bool, room: int) -> _Program | str:
    """The image, or why there is none."""
    stage = plan.stage
    source = stage.statement.source
    storage, footprint = _storage(plan, rows)
    if footprint > room:
        return f"takes {footprint} words of L1, operands and result, above {room}; split the statement over a temp"
    constants = Constants(source, known, {}, {}, arrays, stage.expression.leaves)
    code = RowWords(stage.expression, stage.shape[-1], storage.singles, plan.repeated_leaves, constants, source)
    lengths = code.lengths()
    most = min(MOST_IN_STEP, rows if len(code.pieces) == 1 else len(code.pieces))
    ways = [(QUAD, False), (QUAD, True)] if storage.quads else [(width, False) for width in range(most, 0, -1)]
    for width, sparing in ways:
        together = math.ceil(rows / math.ceil(rows / width)) if len(code.pieces) == 1 else width
        words = code.rows(storage, rows, together, sparing)
        scalars = [s for s in range(1, REGISTERS) if s not in constants.scalars.values()]
        try:
            settled = assign_registers(words, scalars)
            break
        except NoRegister:
            continue
    else:
        return f"keeps more values than {REGISTERS} vector and {len(scalars)} scalar registers; split it over a temp"
    if storage.quads:
        lanes = [constants.scalar(count) for count in (4, 8, 12)]
    image = Image()
    prologue(image, code, lengths)
    if storage.quads:
        group_predicates(image, lanes, footprint - 1)
    for place, leaf in enumerate(plan.leaves):
        if leaf.kept(rows):
            image.put(Opcode.VFILL, ad=plan.first_descriptor + place, l1=storage.first[leaf.node])
    again = len(image)
    image.put(Opcode.VSETVL, va=0)
    image.put(Opcode.VSETMODE, mode=Mode.FLAT)
    for place, leaf in enumerate(plan.leaves):
        if not leaf.kept(rows):
            image.put(Opcode.VFILL, ad=plan.first_descriptor + place, l1=storage.first[leaf.node])
    if plan.leaves:
        image.put(Opcode.VBAR)
    emit(image, settled, lengths, code.pieces[0].length)
    for place, kept in enumerate(plan.drained, plan.first_descriptor + len(plan.leaves)):
        image.put(Opcode.VDRAIN, ad=place, l1=storage.first[kept.node])
    image.put(Opcode.VDRAIN, ad=plan.descriptors - 1, l1=storage.first[RESULT])
    image.put(Opcode.VHALT)
    if len(image) > isa.IMEM_WORDS:
        return f"takes {len(image)} words of image of {isa.IMEM_WORDS}; split the statement over a temp"
    return _Program(rows, image.words, again, storage.first, estimated_cycles(words))


def _instance(plan: RowPlan, span: RowSpan, images, state: CoreState, program: _Program) -> list[int]:
    stage = plan.stage
    ad_drain = plan.descriptors - 1
    fresh = not state.holds(program.words)
    core = begun(state, program.words, plan.tiled)
    once = any(leaf.kept(program.rows) for leaf in plan.leaves)
    for turn in range(0, span.rows, program.rows):
        rows = min(program.rows, span.rows - turn)
        for place, leaf in enumerate(plan.leaves):
            at = address_of(images[leaf.name], span.copy)
            ad = plan.first_descriptor + place
            if leaf.tile:
                i, group = divmod((span.first + turn) // QUAD, leaf.tile.gm)
                row = leaf.tile.gn * WORD
                core.dim(ad, 0, WORD, leaf.tile.gn)
                core.dim(ad, 1, leaf.tile.words * WORD, leaf.tile.grid[1])
                core.dim(ad, 2, row, program.rows // QUAD)
                core.base(ad, at + leaf.tile.offset(i, 0) + group * row)
                continue
            held = leaf.held(program.rows)
            if not leaf.kept(program.rows):
                held = min(held, math.ceil(rows / leaf.group))
            if leaf.step == 1 or held == 1:
                core.line(ad, WORD, leaf.words * held)
            else:
                core.dim(ad, 0, WORD, leaf.words)
                core.dim(ad, 1, leaf.step * leaf.words * WORD, held)
            core.base(ad, at + leaf.row(span.first + turn) * leaf.words * WORD)
        for place, kept in enumerate(plan.drained, plan.first_descriptor + len(plan.leaves)):
            core.line(place, WORD, kept.words * rows)
            row = kept.first + span.first + turn
            core.base(place, address_of(images[kept.name], span.copy) + row * kept.words * WORD)
        core.line(ad_drain, WORD, plan.result_words * rows)
        first = (plan.target_row + span.first + turn) * plan.result_words * WORD
        core.base(ad_drain, address_of(images[stage.target], span.copy) + first)
        core.run(0 if turn == 0 and (fresh or once) else program.again)
    for ad in range(plan.first_descriptor, ad_drain):
        core.restore(ad)
    return core.payloads
