"""Decode and control flow of the vector core: one word a cycle, the scalar state, and the life of a kernel.

Timing: docs/microarchitecture/vector-core.md, decode and ending a kernel.
"""

from __future__ import annotations

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.vector import (
    ALU_OPS,
    COMPARES,
    IMMEDIATE,
    LAYOUTS,
    OPERANDS,
    VL_MAX,
    WALK_LIMIT,
    WORD_WIDTH,
    DType,
    Fault,
    Mode,
    Opcode,
    RedKind,
    Source,
)

from .link import view
from .parameters import OFF
from .vector_alu import ONE
from .vector_fetch import LOOP, PC
from .vector_issue import ENTRY, STAGE, Kind, Route, Short
from .vector_tree import Node
from .vector_walk import COUNT, DESCRIPTOR, L1_BITS

WORD = 24
MINUS_ONE = 0xBF8000
SCALAR_WRITE = data.StructLayout({"valid": 1, "index": 4, "value": WORD})
READS = data.StructLayout({f"{what}{name}": width for what, width in (("reads_", 1), ("v", 4)) for name in "abc"})
VIEWS = {op: view(LAYOUTS[op]) for op in Opcode}


class Decode(wiring.Component):
    """Members, kernel: `run`, `run_pc` in; `running`; `ended`, `faulted`, `fault_code` out, in the cycle after the
    last; `cycles`. Fetch: `valid`, `word`, `at` in; `take`, `redirect`, `target`, `loop` out. Descriptors: `ad` out;
    `descriptor`, `length` in. Issue: `push`, `pushed` out; `full`, `empty`, `idle` in. Scalars: `short` and `reduced`
    in (`SCALAR_WRITE`); `vote` in, `short` is a vote's, which may be read a cycle later. Engines: `fill`, `drain` out
    (pulses); `generating`, `fills`, `drain_idle`, `drain_read_last`, `l1_busy` in. `cudata` in, F_CUDATA is raised in
    this cycle.

    Deliberate bugs, while high: `scalars_early` does not wait for an S register, `drain_overtakes` starts a VDRAIN
    while the one before still sends, `loop_short` ends loops a pass early, `length_unchecked` never raises F_LEN.
    """

    def __init__(self, *, scalars_early: Value = OFF, drain_overtakes: Value = OFF, loop_short: Value = OFF,
                 length_unchecked: Value = OFF):  # fmt: skip
        self.scalars_early = scalars_early
        self.drain_overtakes = drain_overtakes
        self.loop_short = loop_short
        self.length_unchecked = length_unchecked
        super().__init__(
            {
                "run": In(1), "run_pc": In(PC),
                "running": Out(1), "ended": Out(1), "faulted": Out(1), "fault_code": Out(4), "cycles": Out(32),
                "valid": In(1), "word": In(WORD_WIDTH), "at": In(PC),
                "take": Out(1), "redirect": Out(1), "target": Out(PC), "loop": Out(LOOP),
                "ad": Out(3), "descriptor": In(DESCRIPTOR), "length": In(COUNT),
                "push": Out(1), "pushed": Out(ENTRY), "full": In(1), "empty": In(1), "idle": In(1),
                "short": In(SCALAR_WRITE), "reduced": In(SCALAR_WRITE), "vote": In(1),
                "fill": Out(1), "drain": Out(1),
                "generating": In(1), "fills": In(6), "drain_idle": In(1), "drain_read_last": In(1), "l1_busy": In(1),
                "cudata": In(1),
            }
        )  # fmt: skip

    def elaborate(self, platform):
        m = Module()
        word = self.word
        fields = {op: data.View(layout, word) for op, layout in VIEWS.items()}
        alu, memory, reduce = fields[Opcode.VMOV], fields[Opcode.VLD], fields[Opcode.VRED]
        op = alu.op

        def among(ops) -> Signal:
            return Const(sum(1 << int(item) for item in ops), 32).bit_select(op, 1)

        # ---- registers -----------------------------------------------------------------------------------------
        pc = Signal(PC)
        length, mode = Signal(8, init=VL_MAX), Signal(2)
        scalars = [Signal(WORD, name=f"s{i}") for i in range(16)]
        waiting = Signal(16)  # S registers that an instruction under way will write
        k3 = Signal(WORD)
        loop = Signal(LOOP)
        gathered = Signal(data.ArrayLayout(STAGE, 3))
        stages = Signal(2)  # words gathered
        first = Signal(READS)  # of the chain's first word
        cudata = Signal()
        ending, draining, immediate = (Signal(name=name) for name in ("ending", "draining", "immediate"))
        target_k, target_s = Signal(), Signal(4)

        # ---- scalar operands -------------------------------------------------------------------------------------
        constants = Array([Const(0, WORD), Const(ONE, WORD), Const(MINUS_ONE, WORD), k3])
        scalar, late = {}, {}
        for name in ("va", "vb", "vc", "vd"):
            scalar[name] = value = Signal(WORD, name=f"scalar_{name}")
            late[name] = pending = Signal(name=f"late_{name}")
            m.d.comb += [
                value.eq(Array(scalars)[alu[name]]),
                pending.eq(~self.scalars_early & waiting.bit_select(alu[name], 1)),
            ]
        is_alu, in_chain = among(ALU_OPS), stages != 0
        stage = Signal(STAGE)
        m.d.comb += stage.op.eq(op)
        alu_late = 0
        for name in "abc":
            selector, operand = alu[f"s{name}"], stage[name]
            m.d.comb += [
                operand.source.eq(selector),
                operand.value.eq(Mux(selector == Source.S, scalar[f"v{name}"], constants[alu[f"v{name}"][:2]])),
            ]
            uses = among(item for item in ALU_OPS if name in OPERANDS[item])
            alu_late = alu_late | (uses & (selector == Source.S) & late[f"v{name}"])
        selectors = (alu.sa, alu.sb, alu.sc)
        depth = Mux(mode == Mode.D2, 1, Mux(mode == Mode.D4, 2, 0))
        final = stages == Array([0, 1, 3])[depth]

        # ---- faults ------------------------------------------------------------------------------------------------
        fault = Signal(4)
        votes = (reduce.kind == RedKind.ANY) | (reduce.kind == RedKind.ALL)
        dtype_known = (memory.dtype == DType.FP16) | (memory.dtype == DType.FP32)
        too_long = ~self.length_unchecked & (self.length > WALK_LIMIT)
        with m.If(in_chain):
            with m.If(~is_alu):
                m.d.comb += fault.eq(Fault.F_OPCODE)
            with m.Elif((selectors[0] == Source.V) | (selectors[1] == Source.V) | (selectors[2] == Source.V)):
                m.d.comb += fault.eq(Fault.F_VSRC)
        with m.Elif(cudata):
            m.d.comb += fault.eq(Fault.F_CUDATA)
        with m.Elif(is_alu):
            with m.If(mode == Mode.TREE):
                m.d.comb += fault.eq(Fault.F_OPCODE)
            with m.Elif((selectors[0] == Source.C) | (selectors[1] == Source.C) | (selectors[2] == Source.C)):
                m.d.comb += fault.eq(Fault.F_CHAIN)
        with m.Else():
            with m.Switch(op):
                with m.Case(Opcode.VLD, Opcode.VST, Opcode.VCVT):
                    m.d.comb += fault.eq(Mux(dtype_known, 0, Fault.F_DTYPE))
                with m.Case(Opcode.VRED):
                    with m.If(~votes & (length[:4] != 0)):
                        m.d.comb += fault.eq(Fault.F_REDVL)
                    with m.Elif(~votes & (mode != Mode.TREE)):
                        m.d.comb += fault.eq(Fault.F_OPCODE)
                with m.Case(Opcode.VFILL, Opcode.VDRAIN):
                    m.d.comb += fault.eq(Mux(too_long, Fault.F_LEN, 0))
                with m.Case(Opcode.VLOOP):
                    m.d.comb += fault.eq(Mux(loop.active, Fault.F_LOOP, 0))
                with m.Case(Opcode.VSETVL):
                    outside = (scalar["va"] == 0) | (scalar["va"] > VL_MAX)
                    m.d.comb += fault.eq(Mux(~late["va"] & outside, Fault.F_VL, 0))

        # ---- what leaves decode in this cycle ------------------------------------------------------------------------
        looking, present = Signal(), Signal()
        more, done, jump = Signal(), Signal(), Signal()  # leaves: goes on; ends an instruction; VLOOP
        halts = Signal()
        raised = Signal()
        m.d.comb += [
            looking.eq(self.running & ~ending & ~draining & self.valid),
            present.eq(looking & (self.at == pc)),
            raised.eq(present & ~immediate & (fault != 0)),
            self.ad.eq(memory.ad),
        ]
        setter = fields[Opcode.VSETI]
        broadcast = fields[Opcode.VBCAST]
        sets_k, from_s = setter.sa == Source.K, broadcast.sa == Source.S
        one_fill = self.fills <= 1
        with m.If(present & immediate):
            m.d.comb += done.eq(1)
        with m.Elif(present & (fault == 0)):
            with m.If(is_alu):
                m.d.comb += [
                    more.eq(~final & ~alu_late),
                    self.push.eq(final & ~alu_late & ~self.full),
                ]
            with m.Else():
                with m.Switch(op):
                    with m.Case(Opcode.VCVT):
                        m.d.comb += self.push.eq(~self.full)
                    with m.Case(Opcode.VBCAST):
                        m.d.comb += self.push.eq(~self.full & ~Mux(from_s, late["va"], late["vd"]))
                    with m.Case(Opcode.VSHUF):
                        m.d.comb += self.push.eq(~self.full & ~late["vb"])
                    with m.Case(Opcode.VRED):
                        m.d.comb += self.push.eq(~self.full & ~late["vd"])
                    with m.Case(Opcode.VLD, Opcode.VST):
                        m.d.comb += self.push.eq(~self.full & one_fill)
                    with m.Case(Opcode.VSETVL):
                        m.d.comb += done.eq(~late["va"])
                    with m.Case(Opcode.VSETMODE):
                        m.d.comb += done.eq(1)
                    with m.Case(Opcode.VSETI):
                        m.d.comb += more.eq(sets_k | ~late["vd"])
                    with m.Case(Opcode.VLOOP):
                        m.d.comb += jump.eq(~late["va"])
                    with m.Case(Opcode.VBAR):
                        m.d.comb += done.eq(self.fills == 0)
                    with m.Case(Opcode.VFILL):
                        m.d.comb += [self.fill.eq(self.empty & ~self.generating), done.eq(self.fill)]
                    with m.Case(Opcode.VDRAIN):
                        idle = self.drain_idle | self.drain_overtakes
                        m.d.comb += self.drain.eq(self.empty & ~self.l1_busy & one_fill & idle)
                    with m.Case(Opcode.VHALT):
                        m.d.comb += halts.eq(self.idle & (self.fills == 0) & self.drain_idle)
        drained = draining & self.drain_read_last
        ends = Signal()  # an instruction ends
        m.d.comb += [
            ends.eq(done | self.push | drained),
            self.take.eq(more | done | self.push | self.drain | jump),
        ]

        # ---- program counter, loop, fetch ----------------------------------------------------------------------------
        after = Signal(PC)
        top = Signal(PC)
        m.d.comb += [after.eq(pc + 1), self.loop.eq(loop), self.target.eq(pc), top.eq(after)]
        with m.If(ends | more):
            m.d.sync += pc.eq(after)
        with m.If(ends & loop.active & (after == loop.end)):
            with m.If(loop.count > Mux(self.loop_short, 2, 1)):
                m.d.sync += [pc.eq(loop.top), loop.count.eq(loop.count - 1)]
            with m.Else():
                m.d.sync += loop.active.eq(0)
        started = fields[Opcode.VLOOP]
        with m.If(jump):
            m.d.comb += [
                self.redirect.eq(1),
                self.target.eq(top),
                self.loop.active.eq(started.vb != 0),
                self.loop.count.eq(scalar["va"]),
                self.loop.top.eq(top),
                self.loop.end.eq(top + started.vb),
            ]
            m.d.sync += [pc.eq(top), loop.eq(self.loop)]
        with m.Elif(looking & ~present):
            m.d.comb += self.redirect.eq(1)
        with m.If(self.run):
            m.d.comb += [self.redirect.eq(1), self.target.eq(self.run_pc), self.loop.active.eq(0)]
            m.d.sync += [pc.eq(self.run_pc), loop.active.eq(0)]

        # ---- scalar state ------------------------------------------------------------------------------------------
        with m.If(more & ~is_alu):
            m.d.sync += [immediate.eq(1), target_k.eq(sets_k), target_s.eq(setter.vd)]
        value = data.View(view(IMMEDIATE), word).value
        set_s = Signal(SCALAR_WRITE)
        m.d.comb += [set_s.index.eq(target_s), set_s.value.eq(value)]
        with m.If(present & immediate):
            m.d.sync += immediate.eq(0)
            m.d.comb += set_s.valid.eq(~target_k)
            with m.If(target_k):
                m.d.sync += k3.eq(value)
        with m.If(done & ~immediate & (op == Opcode.VSETVL)):
            m.d.sync += length.eq(scalar["va"])
        with m.If(done & ~immediate & (op == Opcode.VSETMODE)):
            m.d.sync += mode.eq(fields[Opcode.VSETMODE].mode)
        for i, register in enumerate(scalars):
            for write in (set_s, self.short, self.reduced):
                with m.If(write.valid & (write.index == i)):
                    m.d.sync += register.eq(write.value)
        writes_s = self.push & ((op == Opcode.VRED) | ((op == Opcode.VBCAST) & ~from_s))
        voted, voted_index = Signal(), Signal(4)
        m.d.sync += [voted.eq(self.short.valid & self.vote), voted_index.eq(self.short.index)]
        ends_wait = (
            (self.short.valid & ~self.vote, self.short.index),
            (voted, voted_index),
            (self.reduced.valid, self.reduced.index),
        )
        gone = 0
        for number, (valid, index) in enumerate(ends_wait):
            bits = Signal(16, name=f"gone{number}")
            m.d.comb += bits.eq(Mux(valid, Const(1, 16) << index, 0))
            gone = gone | bits
        m.d.sync += waiting.eq((waiting & ~gone) | Mux(writes_s, (Const(1, 16) << alu.vd)[:16], 0))

        # ---- chains ------------------------------------------------------------------------------------------------
        entry = self.pushed
        with m.If(more & is_alu):
            m.d.sync += stages.eq(stages + 1)
            for place in range(3):
                with m.If(stages == place):
                    m.d.sync += gathered[place].eq(stage)
            with m.If(~in_chain):
                m.d.sync += [first[name].eq(entry[name]) for name, _ in READS]
        with m.Elif(self.push):
            m.d.sync += stages.eq(0)

        # ---- the decoded instruction ---------------------------------------------------------------------------------
        chunks = Signal(3)  # - 1
        single = memory.dtype == DType.FP32
        halves = (reduce.kind == RedKind.SUMSQ) | (reduce.kind == RedKind.DOT) | (reduce.kind == RedKind.EXPSUM)
        m.d.comb += [
            chunks.eq((length - 1)[4:7]),
            entry.length.eq(length - 1),
            entry.beats.eq(chunks),
            entry.va.eq(alu.va), entry.vb.eq(alu.vb), entry.vc.eq(alu.vc), entry.vd.eq(alu.vd),
            entry.scalar.eq(alu.vd),
            entry.pr.eq(alu.pr),
            entry.stages[0].eq(stage),
            entry.ad.eq(memory.ad),
            entry.start.eq(self.descriptor.base[:L1_BITS] + memory.offset.as_unsigned()[:L1_BITS]),
            entry.single.eq(single),
        ]  # fmt: skip
        with m.If(is_alu):
            compare = among(COMPARES)
            m.d.comb += [
                entry.kind.eq(Kind.LANES), entry.split.eq(depth), entry.depth.eq(depth), entry.route.eq(depth),
                entry.beats.eq(((length << depth) - 1) >> 4), entry.writes.eq(~compare), entry.compare.eq(compare),
                entry.pm.eq(alu.pm),
            ]  # fmt: skip
            for name in "abc":
                uses = among(item for item in ALU_OPS if name in OPERANDS[item])
                m.d.comb += entry[f"reads_{name}"].eq(uses & (alu[f"s{name}"] == Source.V))
            with m.If(in_chain):
                for name in "abc":
                    m.d.comb += [
                        entry[f"reads_{name}"].eq(first[f"reads_{name}"]),
                        entry[f"v{name}"].eq(first[f"v{name}"]),
                    ]
                for place in range(3):
                    with m.If(stages > place):
                        m.d.comb += entry.stages[place].eq(gathered[place])
                for place in range(1, 4):
                    with m.If(stages == place):
                        m.d.comb += entry.stages[place].eq(stage)
        with m.Else():
            with m.Switch(op):
                with m.Case(Opcode.VCVT):
                    m.d.comb += [entry.kind.eq(Kind.SHORT), entry.writes.eq(1), entry.reads_a.eq(1)]
                    m.d.comb += entry.short.eq(Mux(single, Short.COPY, Short.ROUND))
                with m.Case(Opcode.VSHUF):
                    m.d.comb += [entry.kind.eq(Kind.SHORT), entry.writes.eq(1), entry.reads_a.eq(1)]
                    m.d.comb += [entry.short.eq(Short.SHUFFLE), entry.stages[0].a.value.eq(scalar["vb"])]
                with m.Case(Opcode.VBCAST):
                    m.d.comb += [entry.kind.eq(Mux(from_s, Kind.SHORT, Kind.SCALAR)), entry.writes.eq(from_s)]
                    m.d.comb += [
                        entry.short.eq(Short.FILL),
                        entry.reads_a.eq(~from_s),
                        entry.stages[0].a.value.eq(scalar["va"]),
                    ]
                    with m.If(~from_s):
                        m.d.comb += entry.beats.eq(0)
                with m.Case(Opcode.VLD):
                    m.d.comb += [entry.kind.eq(Kind.LOAD), entry.writes.eq(1), entry.split.eq(single)]
                    m.d.comb += entry.beats.eq(Mux(single, Cat(Const(1, 1), chunks), chunks))
                with m.Case(Opcode.VST):
                    m.d.comb += [
                        entry.kind.eq(Kind.STORE),
                        entry.reads_a.eq(1),
                        entry.va.eq(alu.vd),
                        entry.split.eq(single),
                    ]
                    m.d.comb += entry.beats.eq(Mux(single, Cat(Const(1, 1), chunks), chunks))
                with m.Case(Opcode.VRED):
                    self._reduction(m, entry, alu, reduce, chunks, votes, halves)
        # ---- the life of a kernel ----------------------------------------------------------------------------------
        finish = Signal()
        m.d.comb += finish.eq(halts | (ending & self.idle & self.drain_idle))
        m.d.sync += self.ended.eq(finish)
        with m.If(self.running):
            m.d.sync += self.cycles.eq(self.cycles + 1)
        with m.If(self.drain):
            m.d.sync += draining.eq(1)
        with m.If(drained):
            m.d.sync += draining.eq(0)
        with m.If(raised):
            m.d.sync += [ending.eq(1), self.fault_code.eq(fault)]
            with m.If(fault == Fault.F_CUDATA):
                m.d.sync += cudata.eq(0)
        with m.If(self.cudata):
            m.d.sync += cudata.eq(1)
        with m.If(finish):
            m.d.sync += [self.running.eq(0), ending.eq(0), self.faulted.eq(ending)]
        with m.If(self.run):
            m.d.sync += [self.running.eq(1), self.cycles.eq(0), stages.eq(0)]
        return m

    @staticmethod
    def _reduction(m: Module, entry, alu, reduce, chunks, votes, halves) -> None:
        """What a VRED issues: leaves through the ALUs of even number, or a vote."""
        stage = entry.stages[0]
        m.d.comb += [
            entry.kind.eq(Kind.REDUCE), entry.reads_a.eq(1), entry.split.eq(halves),
            entry.all.eq(reduce.kind == RedKind.ALL),
            entry.route.eq(Mux(halves, Route.HALVES, Route.PAIRS)), entry.node.eq(Node.ADD),
            stage.a.source.eq(Source.V), stage.b.source.eq(Source.V), stage.c.source.eq(Source.V),
        ]  # fmt: skip
        with m.If(halves):
            m.d.comb += entry.beats.eq(Cat(Const(1, 1), chunks))
        with m.Else():
            m.d.comb += [entry.vb.eq(alu.va), entry.vc.eq(alu.va)]  # the right element of a pair is b and c
        with m.Switch(reduce.kind):
            with m.Case(RedKind.SUM):
                m.d.comb += stage.op.eq(Opcode.VADD)
            with m.Case(RedKind.MAX):
                m.d.comb += [stage.op.eq(Opcode.VMAX), entry.node.eq(Node.MAX)]
            with m.Case(RedKind.MIN):
                m.d.comb += [stage.op.eq(Opcode.VMIN), entry.node.eq(Node.MIN)]
            with m.Case(RedKind.EXPSUM):
                m.d.comb += [stage.op.eq(Opcode.VEXP2), entry.writes.eq(1), entry.leaves.eq(1), entry.vd.eq(alu.vb)]
            with m.Default():
                m.d.comb += [stage.op.eq(Opcode.VMUL), entry.reads_b.eq(1)]
        with m.If(votes):
            m.d.comb += [
                entry.kind.eq(Kind.VOTE),
                entry.reads_a.eq(0),
                entry.beats.eq(0),
                entry.split.eq(0),
                entry.writes.eq(0),
            ]
            m.d.comb += [entry.reads_b.eq(0), entry.vb.eq(alu.vb)]
        return None
