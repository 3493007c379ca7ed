"""Kernel and machine to artifact."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np

from kohakutpu.formats import e8m15
from kohakutpu.isa.cluster import Side
from kohakutpu.lang.extents import Extents
from kohakutpu.lang.kernel import Kernel
from kohakutpu.lang.source import located
from kohakutpu.lang.trace import Constant, Contract, Open, Store, Trace
from kohakutpu.lang.values import positive
from kohakutpu.machine import Machine, to_yaml

from . import bands, cluster, cluster_published, elementwise, fusion, ksplit, padding, payloads, relayout, rows, tiles
from .artifact import Artifact, BufferImage, Round, Stage, StatementRecord, Writer
from .assign import assign
from .core import CoreState
from .deal import deal, deal_runs
from .events import accumulators
from .expressions import memory_constant, register_constant
from .layouts import KBLOCK, Flat, Tile
from .options import Options
from .placement import Access, Life, Reach, guard, place
from .predict import predict
from .programs import l1_room
from .refusals import PAGE, CompileError, check_fill, check_tile
from .rounds import Item, by_node, schedule, schedule_published
from .stages import (
    ClusterStage, Drain, ElementwiseStage, EpilogueStage, Key, Program, RelayoutStage, RowStage, accessed,
)  # fmt: skip
from .tiles import AUTO
from .unrolling import build
from .writers import writers_of

SPLIT_GAIN = 1.05  # how much faster K in parts must be to be chosen: it changes values, and predictions are that far off


def compile_kernel(
    kernel: Kernel,
    machine: Machine,
    shapes: Mapping[str, tuple[int, ...]],
    knobs: Mapping[str, object] | None = None,
    options: Options = Options(),  # noqa: B008 - frozen
) -> Artifact:
    """Compile a kernel for operands of these shapes.

    Knobs `gm`, `gn`, `nk` and `ksplit` may be "auto" (`settle`). Raises KernelError (CompileError, CannotFuse) with
    the offending line for everything that cannot be run; what is returned fits the machine.
    """
    return prepare(kernel, machine, shapes, knobs, options).artifact()


def prepare(
    kernel: Kernel,
    machine: Machine,
    shapes: Mapping[str, tuple[int, ...]],
    knobs: Mapping[str, object] | None = None,
    options: Options = Options(),  # noqa: B008 - frozen
    dirt: padding.Dirt | None = None,
    quiet: Collection[str] = (),
) -> Compilation:
    """All of compiling but addresses: for callers that place the buffers of several kernels in one memory.

    `dirt` is that of the operands, which is none where the host packs them; `quiet` are those that hold no NaN but the one
    that arithmetic makes. Raises as `compile_kernel` does, but for
    buffers that do not fit together.
    """
    trace = kernel.trace(**settle(kernel, machine, shapes, knobs or {}, options))
    return Compilation(trace, kernel.solve(shapes), machine, options, dirt or padding.Dirt(), quiet)


def settle(
    kernel: Kernel,
    machine: Machine,
    shapes: Mapping[str, tuple[int, ...]],
    knobs: Mapping[str, object],
    options: Options = Options(),  # noqa: B008 - frozen
) -> dict[str, object]:
    """The knobs with a number for each "auto": of the tiles that `tiles` thinks best, the one with the least predicted
    cycles; K in parts only where it is a twentieth faster. Raises CompileError when none fits, and where `ksplit` is one
    number as a knob and another as an option.
    """
    knobs = _with_ksplit(kernel, knobs, options)
    few = tiles.shortlist(kernel, machine, shapes, knobs, options.preq)
    if len(few) == 1:
        return few[0]
    best: tuple[float, dict[str, object]] | None = None
    refused: CompileError | None = None
    for full in few:
        try:
            cycles = predict(compile_kernel(kernel, machine, shapes, full, options), machine).cycles
        except CompileError as error:
            refused = refused or error
            continue
        if knobs.get("ksplit") == AUTO and full["ksplit"] > 1:
            cycles *= SPLIT_GAIN
        if best is None or cycles < best[0]:
            best = cycles, full
    if best is None:
        raise refused
    return best[1]


def _with_ksplit(kernel: Kernel, knobs: Mapping[str, object], options: Options) -> Mapping[str, object]:
    """The knobs with `Options.ksplit` among them; "auto" does not touch a number that is given."""
    given = knobs.get("ksplit", AUTO)
    if given != AUTO:
        positive(given, f"{kernel.name}: knob ksplit", kernel.source)
    if options.ksplit is None or (options.ksplit == AUTO and given != AUTO):
        return knobs
    if given not in (AUTO, options.ksplit):
        raise CompileError(f"ksplit={given} as a knob and ksplit={options.ksplit} as an option; give one", kernel.source)
    return {**knobs, "ksplit": options.ksplit}


class Compilation:
    """A kernel with the byte orders of its buffers, before it has addresses.

    `images` are the buffers, constants included; `accesses` what each stage reads and writes; `lives` those of temps that
    may share memory; `reach` how far beyond a buffer instructions touch memory. `copies_clean` keeps padding rows zero.
    `carriers` (`payloads`) are the buffers that may hold any NaN.
    """

    def __init__(self, trace: Trace, extents: Extents, machine: Machine, options: Options, dirt: padding.Dirt,
                 quiet: Collection[str] = ()):  # fmt: skip
        self.trace = trace
        self.extents = extents
        self.machine = machine
        self.options = options
        self.published = options.lowering == "published"
        self._check_sizes()
        self.program: Program = build(trace, extents)
        self.sources = {statement.id: statement.source for statement in trace.statements}
        self.units = {"cluster": {unit.node: unit for unit in machine.clusters},
                      "vector": {unit.node: unit for unit in machine.vectors}}  # fmt: skip
        self._check()
        self.cuts: dict[str, relayout.Shape] = {}  # by the copy's name
        self.given = dirt
        self.copies_clean = False
        self.carriers = payloads.carriers(self.program, quiet)
        self.layouts, copies = assign(
            self.program, trace, extents, options.preq, options.layouts, not self.published, self.carriers
        )
        payloads.check(self.program, self.layouts, self.carriers, copies if options.relayout == "machine" else ())
        if copies:
            self._relayouts(copies)
        self.plans: dict[int, elementwise.Plan] = {}
        self.row_plans: dict[int, rows.RowPlan] = {}
        if not self.published and self.units["vector"]:
            self._join()
        self.reach: dict[str, Reach] = {}
        self.images = self._images()
        self.accesses = [accessed(stage) for stage in self.program.stages]
        self.lives = {} if self.published else self._lives(self.accesses)

    # ---- what must hold before anything is laid out ----

    def _check_sizes(self) -> None:
        """Refuse buffers that cannot fit before their tiles are counted out one by one; padding comes on top."""
        memory = self.machine.memory.bytes
        buffers = sorted(self.trace.buffers.values(), key=lambda buffer: buffer.role == "temp")
        sizes = [2 * math.prod(b.element_shape(self.extents)) * b.copies(self.extents) for b in buffers]
        for buffer, size, end in zip(buffers, sizes, itertools.accumulate(sizes), strict=True):
            if size > memory or (end > memory and not self.options.allow_overlap):
                pages = sum(-(-size // PAGE) * PAGE for size in sizes)
                raise CompileError(
                    f"{buffer.name} ({size} bytes) does not fit: without padding, the kernel's buffers take {pages} "
                    f"bytes of pages and the memory has {memory}",
                    buffer.source,
                )

    def _check(self) -> None:
        known = self.extents.dims
        for stage in self.program.stages:
            unit = "cluster" if isinstance(stage, ClusterStage) else "vector"
            if isinstance(stage, EpilogueStage):
                if self.options.constants == "arrays":
                    self._check_fused_constants(stage)
                fusion.check(stage, self.machine, known, published=self.published)
            if not self.units[unit]:
                what = "cluster" if unit == "cluster" else "vector core"
                statement = stage.statements[0] if isinstance(stage, ClusterStage) else stage.statement.id
                raise CompileError(
                    f"machine {self.machine.name} has no {what}, and this needs one", self.sources[statement]
                )
            if isinstance(stage, ClusterStage):
                ksplit.check(stage, self.trace.ksplit, self.machine, self.sources, self.published)
        if self.trace.ksplit > 1 and not any(isinstance(stage, ClusterStage) for stage in self.program.stages):
            raise CompileError(f"ksplit={self.trace.ksplit}: there is no product here whose K could be cut", self.trace.source)
        mantissas = {unit.mantissa for unit in self.machine.clusters}
        if len(mantissas) > 1:
            raise CompileError(
                f"the clusters of {self.machine.name} have accumulators of {sorted(mantissas)} mantissa bits; the "
                "result would depend on which cluster runs what"
            )
        self._check_tiles()

    def _check_tiles(self) -> None:
        """Refuse tiles that the largest cluster does not hold, before byte orders with groups of their size are weighed."""
        largest = max(self.machine.clusters, key=lambda unit: unit.tiles, default=None)
        opened = {s.accumulator: s for s in self.trace.statements if isinstance(s, Open)}
        for statement in self.trace.statements:
            if isinstance(statement, Contract) and largest is not None:
                tile, source = opened[statement.accumulator], statement.source
                check_tile(tile.gm, tile.gn, largest, source)
                for side, operand, groups in ((Side.A, statement.a, tile.gm), (Side.B, statement.b, tile.gn)):
                    check_fill(operand.buffer, groups, tile.nk, side, source)

    def _check_fused_constants(self, stage: EpilogueStage) -> None:
        """A fused epilogue keeps constants in registers, so under 'arrays' they must be the same there."""
        source = stage.statement.source
        for leaf in stage.statement.expression.leaves:
            if isinstance(leaf, Constant):
                value = leaf.number(self.extents.dims)
                held = int(e8m15.from_fp16(np.array([memory_constant(value, source)], np.uint16))[0])
                if held != register_constant(value, source):
                    raise CompileError(
                        f"constants='arrays' rounds {value!r} to FP16, and a fused epilogue holds constants in "
                        "registers; use fuse=False or constants='registers'",
                        source,
                    )

    def _relayouts(self, copies: Sequence[relayout.Need]) -> None:
        """Let vector cores, or the host, copy temps into the order in which products read them."""
        by_host = self.options.relayout == "host"
        if self.published and not by_host:
            raise CompileError(
                f"lowering='published' has no copies in another byte order, and {copies[0].buffer} needs one here; the "
                "published runtime sends it through the host, as relayout='host' does",
                copies[0].source,
            )
        if not self.units["vector"] and not by_host:
            raise CompileError(
                f"machine {self.machine.name} has no vector core, and {copies[0].buffer} must be copied into another "
                "byte order here; relayout='host' lets the host do it",
                copies[0].source,
            )
        relayout.insert(self.program, copies)
        for need in copies:
            self.layouts[need.name] = need.layout
        if by_host:
            return
        # Zeros in padding rows cost runs; only what is copied with padding columns can come to depend on them.
        clean = any(isinstance(self.layouts[n.buffer], Tile) and n.layout.columns % KBLOCK for n in copies)
        self.copies_clean = clean
        for need in copies:
            source = self.layouts[need.buffer]
            self.cuts[need.name] = relayout.shape(
                source, need.layout, self.program.buffers[need.buffer].copies(self.extents),
                self.dirt.columns.get(need.buffer), need.buffer, need.source, l1_room(self.machine),
                len(self.machine.vectors), clean and relayout.keeps_zeros(source, need.layout, need.buffer in self.dirt.rows),
            )  # fmt: skip

    # ---- memory ----

    @cached_property
    def dirt(self) -> padding.Dirt:
        """Buffers whose padding may be other than zero."""
        return padding.dirt(self.program, self.layouts, self.given, self.copies_clean)

    def _unplaced(self) -> dict[str, BufferImage]:
        """Every buffer, without an address."""
        images = {}
        for name, buffer in self.program.buffers.items():
            layout = self.layouts[name]
            shape = buffer.logical_shape(self.extents)
            stride = -(-layout.bytes // PAGE) * PAGE
            if buffer.role == "table":
                data = layout.pack(buffer.values(self.extents))
                images[name] = BufferImage(name, "constant", shape, layout, 1, stride, 0, data=data)
            else:
                images[name] = BufferImage(name, buffer.role, shape, layout, buffer.copies(self.extents), stride, 0)
        return images

    def _join(self) -> None:
        """Let neighbouring statements over whole buffers share a program, and those that take more than one have two."""
        arrays = self.options.constants == "arrays"
        nodes = list(self.units["vector"])
        known, room, placed = self.extents.dims, l1_room(self.machine), self.options.addresses
        images = self._unplaced()
        if self.options.bands:
            bands.Joiner(self.program, images, nodes, known, arrays, room, placed).join()
        self.program.stages[:] = [
            step for stage in self.program.stages
            for step in (rows.in_steps(stage, images, nodes, known, arrays, room) if isinstance(stage, RowStage) else [stage])
        ]  # fmt: skip

    def _images(self) -> dict[str, BufferImage]:
        images = self._unplaced()
        constants: dict[str, BufferImage] = {}
        reach = self.reach
        for number, stage in enumerate(self.program.stages):
            if isinstance(stage, RowStage):
                if self.published:
                    raise CompileError(
                        "lowering='published' has no row reductions and no operands that repeat; use lowering='default'",
                        stage.statement.source,
                    )
                self.row_plans[number] = rows.plan(stage, images)
            elif isinstance(stage, ElementwiseStage):
                target = self.program.buffers[stage.target]
                plan = elementwise.plan(
                    stage, images, self.extents.dims, published=self.published,
                    arrays=self.options.constants == "arrays",
                    elements=int(np.prod(target.element_shape(self.extents))),
                )  # fmt: skip
                self.plans[number] = plan
                for name, far in plan.reach().items() if self.published else ():
                    held = reach.get(name, Reach())
                    reach[name] = Reach(max(held.read, far.read), max(held.written, far.written))
                for name, pattern in plan.constants.items():
                    size = max(plan.stride * 16, constants[name].layout.halves if name in constants else 0)
                    layout = Flat((size,))
                    constants[name] = BufferImage(name, "constant", (size,), layout, 1, layout.bytes, 0, fill=pattern)
            elif isinstance(stage, RelayoutStage) and self.options.relayout == "machine":
                source, target = images[stage.source], images[stage.target]
                far = relayout.read_bytes(source, target.layout, self.cuts[stage.target])
                held = reach.get(stage.source, Reach())
                reach[stage.source] = Reach(max(held.read, far), held.written)
        order = {"in": 0, "out": 0, "constant": 0, "temp": 1}
        ordered = dict(sorted(images.items(), key=lambda item: order[item[1].role]))
        return ordered | constants

    def placed(self) -> dict[str, BufferImage]:
        """The buffers with addresses in a memory of their own. Raises CompileError where they do not fit."""
        with located(self.trace.source):
            placed = place(
                self.images, self.machine.memory.bytes, self.options.addresses, self.options.allow_overlap, self.reach, self.lives
            )
        if not self.options.allow_overlap:
            guard(placed, self.accesses)
        return placed

    def _lives(self, accesses: Sequence[Access]) -> dict[str, Life]:
        """The lives of temps, but of those that are not written as a whole: they keep the zeros that the host wrote."""
        lives: dict[str, Life] = {}
        for number, access in enumerate(accesses):
            for name in (*access.reads, *access.writes):
                if self.program.buffers[name].role == "temp":
                    first = lives[name].first if name in lives else number
                    lives[name] = Life(first, number)
        for stage in self.program.stages:
            if isinstance(stage, RelayoutStage) and self.options.relayout == "machine":
                source, target = self.layouts[stage.source], self.layouts[stage.target]
                if not relayout.covers(source, target, self.cuts[stage.target]):
                    lives.pop(stage.target, None)
        return lives

    # ---- instructions ----

    def artifact(self, images: Mapping[str, BufferImage] | None = None) -> Artifact:
        """The instructions, for buffers as `placed` has them, or for these: `images` with addresses."""
        self.images = self.placed() if images is None else dict(images)
        stages: list[Stage] = []
        rounds: list[Round] = []
        writers: list[Writer] = []
        states = {node: CoreState() for node in self.units["vector"]}
        room = l1_room(self.machine)
        program = self.program.stages
        for number, stage in enumerate(program):
            if isinstance(stage, ClusterStage):
                record, streams, phases = self._cluster(stage, program[number + 1] if stage.sends else None)
            elif isinstance(stage, EpilogueStage):
                nodes = deal(stage.instances, list(self.units["vector"]))
                words = len(stage.instances) * stage.gm * stage.gn
                record = Stage("vector", stage.grid, nodes, {}, (stage.statement.id,), words)
                streams = fusion.lower(stage, nodes, self.images, states, self.extents.dims, self.published, room)
            elif isinstance(stage, RowStage):
                plan = self.row_plans[number]
                nodes = deal(plan.spans, list(self.units["vector"]))
                record = Stage("vector", plan.grid, nodes, {}, _statements(stage), plan.words, cut=f"{_cut(stage)} {plan.finest}".strip())
                arrays = self.options.constants == "arrays"
                streams = rows.lower(plan, nodes, self.images, states, self.extents.dims, arrays, room)
            elif isinstance(stage, RelayoutStage) and self.options.relayout == "host":
                stages.append(Stage("host", (), {}, {}, (), 0, (stage.source, stage.target)))
                continue
            elif isinstance(stage, RelayoutStage):
                streams, nodes, words = relayout.lower(
                    self.cuts[stage.target], self.images[stage.source], self.images[stage.target],
                    list(self.units["vector"]), states,
                )  # fmt: skip
                record = Stage("vector", (len(nodes),), nodes, {}, (), words, (stage.source, stage.target))
            else:
                plan = self.plans[number]
                nodes = deal(plan.spans, list(self.units["vector"]))
                record = Stage("vector", plan.grid, nodes, {}, _statements(stage), plan.drained(self.published), cut=_cut(stage))
                streams = elementwise.lower(plan, nodes, self.images, states, self.extents.dims, self.published, room)
            stages.append(record)
            writers += writers_of(stage, self.images)
            credit, staging = self.machine.credit_limit, self.machine.staging_flits
            if self.published:
                rounds += schedule_published(number, record.unit, streams, record.nodes, credit, staging)
            else:
                if record.unit == "vector":
                    phases = [by_node(streams, record.nodes)]
                for place, queues in enumerate(phases, 1):
                    rounds += schedule(number, record.unit, queues, credit, staging, ends=place == len(phases))
        trace = self.trace
        reaches = ((name, max(far.read, far.written)) for name, far in self.reach.items() if name in self.images)
        return Artifact(
            kernel=trace.name,
            reference=trace.source.short,
            knobs={name: _plain(value) for name, value in trace.knobs.items()},
            extents=dict(self.extents.dims),
            lead=self.extents.lead,
            options={"lowering": self.options.lowering, "constants": self.options.constants}
            | ({"preq": sorted(self.options.preq)} if self.options.preq else {})
            | ({"relayout": "host"} if self.options.relayout == "host" else {})
            | ({"layouts": {n: held.key for n, held in sorted(self.options.layouts.items())}} if self.options.layouts else {})
            | ({} if self.options.bands else {"bands": False}),
            machine=self.machine.name,
            machine_digest=machine_digest(self.machine),
            mantissa=self.machine.clusters[0].mantissa if self.machine.clusters else 0,
            buffers=tuple(self.images.values()),
            stages=tuple(stages),
            rounds=tuple(rounds),
            statements=tuple(StatementRecord(s.id, s.source.short, s.source.text) for s in trace.statements),
            writers=tuple(writers),
            reaches={name: end for name, end in reaches if end > self.images[name].bytes},
        )

    def _spread(self) -> list[int]:
        """The clusters in an order in which the first few have memory ports of their own."""
        ports = Counter()
        ranks = {}
        for unit in self.machine.clusters:
            port = self.machine.port_of(unit).node
            ranks[unit.node] = ports[port]
            ports[port] += 1
        return sorted(ranks, key=ranks.get)

    def _cluster(self, stage: ClusterStage, epilogue: EpilogueStage | None):
        """The stage's record, its payloads by instance (as published), and by phase and node (by default)."""
        units = self.units["cluster"]
        receivers: dict = {}
        span = 0
        acks: dict = {}
        if epilogue is not None:
            receivers = deal(stage.programs, list(self.units["vector"]))
            span = fusion.span_words(epilogue.gm, epilogue.gn)
            counts = fusion.acknowledgements(stage)
            acks = {key: (receivers[key], counts[key]) for key in sorted(counts) if counts[key]}
        streams: dict[Key, list[int]] = {}
        phases: list[dict[int, list[Item]]] = []
        helpers: dict[Key, tuple[int, ...]] = {}
        parts = ksplit.parts_of(stage, self.trace.ksplit, self.sources)
        places = cluster.Places(self.images, receivers, self.machine.agent.node, span)
        if self.published:
            nodes = deal(stage.programs, list(units))
            streams = cluster_published.lower(
                stage, nodes, units, self.images, receivers, self.machine.agent.node, span, self.sources
            )
        elif parts > 1:
            teams = ksplit.teams(len(stage.programs), self._spread(), parts)
            dealt = deal_runs(cluster.arrange(stage, units), range(len(teams)))
            work = [(teams[number], keys) for number, keys in dealt.items()]
            nodes = {key: team[0] for team, keys in work for key in keys}
            helpers = {key: team[1:] for team, keys in work for key in keys}
            phases = cluster.lower_phases(ksplit.divide(stage, work, self.sources), units, places, self.sources)
        else:
            order = deal_runs(cluster.arrange(stage, units), self._spread()[: len(stage.programs)])
            nodes = {key: node for node, keys in order.items() for key in keys}
            phases = [cluster.lower(stage, order, units, places, self.sources)]
        drains = (op for program in stage.programs.values() for op in program if isinstance(op, Drain))
        words = sum(self.images[op.buffer].layout.words for op in drains)
        record = Stage("cluster", stage.grid, nodes, acks, tuple(stage.statements), words, helpers=helpers)
        return record, streams, phases


def machine_digest(machine: Machine) -> str:
    """sha256 of a machine's description."""
    return hashlib.sha256(to_yaml(machine).encode()).hexdigest()


def _statements(stage: ElementwiseStage | RowStage) -> tuple[int, ...]:
    return (*(result.statement.id for result in stage.kept), stage.statement.id)


def _cut(stage: ElementwiseStage | RowStage) -> str:
    """What sets the size of an instance (`Stage.cut`): a store whose accumulator lies in memory is a statement over whole buffers."""
    store = isinstance(stage.statement, Store) and not accumulators(stage.statement)
    return "slice" if store or getattr(stage, "spans", ()) else "part"


def _plain(value: object) -> object:
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)
