"""The vector core: fetch, decode, issue, lanes, L1 and its engines on the endpoint base.

Timing: docs/microarchitecture/vector-core.md, cycle for cycle; behaviour: spec, vector core.
"""

from __future__ import annotations

from collections.abc import Collection

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import FlitType
from kohakutpu.isa.signals import CU_VERSION, VECTOR_DEBUG, UnitType
from kohakutpu.isa.vector import DESC, DESC_DIM, IMEM, RUN, Envelope

from .emit import shared
from .endpoint import EndpointBase
from .link import LinkSignature, view
from .parameters import OFF, known_fault, power_of_two
from .vector_decode import Decode
from .vector_fetch import Fetch
from .vector_formats import FromFp16, FromFp32, ToFp16, to_fp32
from .vector_issue import BEAT, ENTRY, Issue, Kind, Short
from .vector_lanes import LANES, Lanes
from .vector_memory import L1, DrainEngine, FillEngine
from .vector_receive import Receiver
from .vector_registers import CHUNK_BITS, WRITE, Registers
from .vector_tree import ReductionTree
from .vector_walk import Descriptors, StepWalker

BUFFERS = 1
BUFFERS_PUBLISHED = 2
ERRATA = frozenset({"exp2-wrap", "reject-silent", "caps-buffers"})  # what a core can reproduce
WORD = 24
HALF = 8  # FP32 elements of a word
LOAD_STAGES = 3  # from the L1 read to the register write

# name: (meaning, block, the block's parameter)
PLANTED = {
    "vector-any-tag": ("an older write ends the wait for a newer one", "issue", "any_tag"),
    "vector-deep-overtaken": ("a beat does not wait for deeper ones before it", "issue", "deep_overtaken"),
    "vector-no-gap": ("reductions follow each other without a gap in the tree", "issue", "no_gap"),
    "vector-port-shared": ("short writes take a register file port that is reserved", "issue", "port_shared"),
    "vector-early-stage": ("the second word of a chain acts on beats of the chain before", "lanes", "early_stage"),
    "vector-tail-off": ("one element past VL is written", "lanes", "tail_off"),
    "vector-unless-ignored": ("pm 3 writes where pm 1 does", "registers", "unless_ignored"),
    "vector-tail-compare": ("compares write predicates past VL", "registers", "tail_ignored"),
    "vector-minus-zero": ("a reduction may end in -0 where the identity makes it +0", "tree", "keep_minus"),
    "vector-halves": ("FP32 stores put the upper half of a chunk first", "store", "halves"),
    "vector-scalar-early": ("decode does not wait for an S register", "decode", "scalars_early"),
    "vector-drain-overtakes": (
        "a VDRAIN takes the route of the one before it while words wait",
        "decode",
        "drain_overtakes",
    ),
    "vector-loop-short": ("loops end a pass early", "decode", "loop_short"),
    "vector-length-unchecked": ("F_LEN is never raised", "decode", "length_unchecked"),
    "vector-fetch-loop": ("fetch's copy of the loop counts a pass too many", "fetch", "loop_once_more"),
    "vector-page-crossed": ("read bursts cross the end of a page", "fill", "page_crossed"),
    "vector-unlimited": ("more than 32 requests are outstanding", "fill", "unlimited"),
    "vector-long-bursts": ("write bursts of nine beats", "drain", "long_bursts"),
    "vector-l1-order": ("a store wins over a flit that arrives at its word in the same cycle", "l1", "a_wins"),
    "vector-refused-silent": ("refused bursts are not acknowledged", "receiver", "refused_silent"),
    "vector-last-ignored": ("`last` before the end does not close a burst", "receiver", "last_ignored"),
}
FAULTS = {name: meaning for name, (meaning, _, _) in PLANTED.items()}


class VectorCore(wiring.Component):
    """A vector core at (`x`, `y`) bound to the memory port at `port`; sizes as `machine.VectorUnit` has them.

    `errata` names those of `ERRATA` that it reproduces (`kohakutpu.errata`). `fault` is a name of `FAULTS`, or a signal
    that chooses one while the core runs: 0 for none, else its position from 1 on. `l1` is the kind of its L1. Members:
    `in_link`, `out_link`.
    """

    def __init__(self, *, x: int, y: int, port: tuple[int, int], l1_words: int, inst_depth: int, recv_depth: int,
                 errata: Collection[str] = (), fault: str | Value | None = None, l1: type[L1] = L1):  # fmt: skip
        power_of_two("VectorCore", 64, 512, l1_words=l1_words)
        if unknown := set(errata) - ERRATA:
            raise TypeError(
                f"VectorCore has no errata {', '.join(sorted(unknown))}; there are: {', '.join(sorted(ERRATA))}"
            )
        self.planted = self._numbered(fault)
        self.at = {"x": x, "y": y}
        self.port = port
        self.l1_words = l1_words
        self.l1_kind = l1
        self.depths = {"inst_depth": inst_depth, "recv_depth": recv_depth}
        self.errata = frozenset(errata)
        super().__init__({"in_link": In(LinkSignature()), "out_link": Out(LinkSignature())})

    @staticmethod
    def _numbered(fault: str | Value | None) -> Value | None:
        """The position in `FAULTS`, from 1 on, of the fault to plant."""
        if fault is None or isinstance(fault, Value):
            return fault
        return Const(list(FAULTS).index(known_fault("VectorCore", fault, FAULTS)) + 1)

    def _bug(self, block: str) -> dict[str, Value]:
        """The parameters of `block` that plant faults, high for the one chosen; none at all in a sound core."""
        if self.planted is None:
            return {}
        entries = enumerate(PLANTED.values(), start=1)
        return {parameter: self.planted == number for number, (_, owner, parameter) in entries if owner == block}

    def elaborate(self, platform):
        m = Module()
        sizes = {**self.at, "l1_words": self.l1_words}
        buffers = BUFFERS_PUBLISHED if "caps-buffers" in self.errata else BUFFERS
        m.submodules.base = base = EndpointBase(
            **self.at, unit_type=UnitType.VECTOR, version=CU_VERSION, buffers=buffers, **self.depths
        )
        m.submodules.fetch = fetch = Fetch(**self._bug("fetch"))
        m.submodules.decode = decode = Decode(**self._bug("decode"))
        m.submodules.descriptors = descriptors = Descriptors()
        m.submodules.issue = issue = Issue(**self._bug("issue"))
        m.submodules.lanes = lanes = Lanes(exp2_wrap="exp2-wrap" in self.errata, **self._bug("lanes"))
        m.submodules.registers = registers = Registers(**self._bug("registers"))
        m.submodules.tree = tree = ReductionTree(**self._bug("tree"))
        m.submodules.l1 = l1 = self.l1_kind(words=self.l1_words, **self._bug("l1"))
        m.submodules.fill = fill = FillEngine(**sizes, port=self.port, **self._bug("fill"))
        m.submodules.drain = drain = DrainEngine(**sizes, port=self.port, **self._bug("drain"))
        m.submodules.receiver = receiver = Receiver(
            **sizes, reject_silent="reject-silent" in self.errata, **self._bug("receiver")
        )
        wiring.connect(m, wiring.flipped(self.in_link), base.in_link)
        wiring.connect(m, wiring.flipped(self.out_link), base.out_link)

        # ---- instructions from the endpoint --------------------------------------------------------------------
        payload = base.inst.payload
        imem, desc, dim, run = (data.View(view(layout), payload) for layout in (IMEM, DESC, DESC_DIM, RUN))
        runs = imem.op == Envelope.RUN
        at_once = Signal()  # an instruction that ends in the cycle after it was taken
        debug = Signal(view(VECTOR_DEBUG))
        m.d.comb += [
            base.inst_take.eq(base.inst_valid),
            fetch.write.eq(base.inst_take & (imem.op == Envelope.IMEM)),
            fetch.write_at.eq(imem.addr),
            fetch.write_word.eq(imem.word),
            descriptors.write.eq(base.inst_take & (imem.op == Envelope.DESC)),
            descriptors.ad.eq(desc.ad),
            descriptors.part.eq(desc.field),
            descriptors.base.eq(Cat(desc.value_0, desc.value_1)),
            descriptors.dim.stride.eq(dim.stride),
            descriptors.dim.bound.eq(dim.bound),
            decode.run.eq(base.inst_take & runs),
            decode.run_pc.eq(run.pc),
            base.done.eq(at_once | decode.ended),
            base.fault.eq(decode.ended & decode.faulted),
            base.result.eq(Mux(decode.ended, Mux(decode.faulted, decode.fault_code, decode.cycles), 0)),
            debug.kernel_cycles.eq(decode.cycles),
            base.debug.eq(debug),
        ]
        m.d.sync += at_once.eq(base.inst_take & ~runs)

        # ---- words to beats ----------------------------------------------------------------------------------------
        m.d.comb += [
            decode.valid.eq(fetch.valid),
            decode.word.eq(fetch.word),
            decode.at.eq(fetch.at),
            fetch.take.eq(decode.take),
            fetch.redirect.eq(decode.redirect),
            fetch.target.eq(decode.target),
            fetch.loop.eq(decode.loop),
            descriptors.index.eq(decode.ad),
            decode.descriptor.eq(descriptors.descriptor),
            decode.length.eq(descriptors.length),
            issue.push.eq(decode.push),
            issue.pushed.eq(decode.pushed),
            decode.full.eq(issue.full),
            decode.empty.eq(issue.empty),
            decode.idle.eq(issue.idle),
            lanes.beat.eq(issue.beat),
            lanes.head.eq(issue.head),
            issue.settled.eq(lanes.settled),
        ]

        # ---- the cycle after the issue: registers and walk -----------------------------------------------------------
        beat, entry = Signal(BEAT), Signal(ENTRY)
        m.d.sync += [beat.eq(issue.beat), entry.eq(issue.head)]
        for name in "abc":
            at = getattr(registers, f"at_{name}")
            m.d.comb += [
                at.register.eq(entry[f"v{name}"]),
                at.chunk.eq(beat.chunk),
                getattr(lanes, name).eq(getattr(registers, name)),
            ]
        stage1 = self._stage(m, beat, entry)
        m.submodules.walker = walker = StepWalker(bits=(self.l1_words - 1).bit_length())
        m.d.comb += [
            descriptors.walk_index.eq(entry.ad),
            walker.step.eq(stage1.load | stage1.store),
            walker.first.eq(beat.first),
            walker.start.eq(entry.start),
            walker.dims.eq(descriptors.walk.dims),
            registers.vote_pr.eq(entry.pr),
            registers.vote_length.eq(entry.length),
            registers.vote_all.eq(entry.all),
        ]

        # ---- two cycles after: conversion to memory formats, shuffle, scalars ---------------------------------------
        stage2, word2, at2 = Signal(STEP), Signal(WORD), Signal(len(walker.at))
        source = Signal(CHUNK_BITS, reset_less=True)
        m.d.sync += [stage2.eq(stage1), word2.eq(entry.stages[0].a.value), at2.eq(walker.at), source.eq(registers.a)]
        elements = [source[WORD * i : WORD * (i + 1)] for i in range(LANES)]
        halves = []
        for i, element in enumerate(elements):
            m.submodules[f"to_fp16_{i}"] = convert = shared(ToFp16)
            m.d.comb += convert.word.eq(element)
            halves.append(convert.half)
        upper = stage2.phase ^ self._bug("store").get("halves", OFF)
        singles = [Mux(upper, elements[HALF + i], elements[i]) for i in range(HALF)]
        stored = Signal(256)
        m.d.comb += stored.eq(Mux(stage2.single, Cat(to_fp32(word) for word in singles), Cat(halves)))
        shifted = Signal(CHUNK_BITS)
        rotation = word2[:4]
        m.d.comb += [
            shifted.eq((Cat(source, source) >> (rotation * WORD))[:CHUNK_BITS]),
            decode.short.valid.eq(stage2.scalar | stage2.vote),
            decode.short.index.eq(stage2.target),
            decode.short.value.eq(Mux(stage2.vote, registers.vote, elements[0])),
            decode.vote.eq(stage2.vote),
            decode.l1_busy.eq(stage1.load | stage1.store | stage2.load | stage2.store),
        ]

        # ---- three cycles after: L1, short writes ------------------------------------------------------------------
        stage3, at3 = Signal(STEP), Signal(len(walker.at))
        stored3, moved3 = Signal(256, reset_less=True), Signal(CHUNK_BITS, reset_less=True)
        m.d.sync += [
            stage3.eq(stage2), at3.eq(at2), stored3.eq(stored),
            moved3.eq(Array([source, source, shifted, word2.replicate(LANES)])[stage2.how]),
        ]  # fmt: skip
        m.d.comb += [
            l1.a_at.eq(Mux(drain.read, drain.at, at3)),
            l1.a_write.eq(stage3.store),
            l1.a_word.eq(stored3),
            drain.data.eq(l1.a_data),
            registers.short.valid.eq(stage3.short),
            registers.short.at.eq(stage3.at),
            registers.short.data.eq(Mux(stage3.how == Short.ROUND, self._widen(m, stored3, "rounded"), moved3)),
        ]

        # ---- loads -------------------------------------------------------------------------------------------------
        loads = [stage3]
        for step in range(LOAD_STAGES):
            later = Signal(STEP, name=f"load{step}")
            m.d.sync += later.eq(loads[-1])
            loads.append(later)
        read = Signal(256, reset_less=True)
        m.d.sync += read.eq(l1.a_data)
        narrow = []
        for i in range(HALF):
            m.submodules[f"from_fp32_{i}"] = convert = shared(FromFp32)
            m.d.comb += convert.single.eq(read[32 * i : 32 * (i + 1)])
            narrow.append(convert.word)
        loaded = Signal(WRITE)
        converted = loads[2]
        m.d.sync += [
            loaded.valid.eq(converted.load),
            loaded.at.eq(converted.at),
            loaded.halves.eq(Mux(converted.single, Cat(~converted.phase, converted.phase), 3)),
            loaded.data.eq(Mux(converted.single, Cat(*narrow, *narrow), self._widen(m, read, "loaded"))),
        ]
        m.d.comb += registers.load.eq(loaded)

        # ---- results of the lanes ------------------------------------------------------------------------------------
        result = lanes.result
        m.d.comb += [
            registers.done.eq(lanes.done),
            registers.result.eq(result),
            registers.values.eq(lanes.values),
            registers.predicates.eq(lanes.predicates),
            tree.leaf.valid.eq(lanes.done & result.reduces),
            tree.leaf.node.eq(result.node),
            tree.leaf.beat.eq(result.beat),
            tree.leaf.last.eq(result.last),
            tree.leaf.scalar.eq(result.scalar),
            tree.leaves.eq(Cat(lanes.values[2 * WORD * j : 2 * WORD * j + WORD] for j in range(LANES // 2))),
            decode.reduced.valid.eq(tree.done),
            decode.reduced.index.eq(tree.scalar),
            decode.reduced.value.eq(tree.value),
        ]

        # ---- engines and what arrives --------------------------------------------------------------------------------
        flit = base.recv
        takes = Signal()
        m.d.comb += [
            fill.start.eq(decode.fill),
            fill.descriptor.eq(descriptors.descriptor),
            fill.l1.eq(data.View(drain.word.shape(), fetch.word).l1),
            decode.generating.eq(fill.generating),
            decode.fills.eq(fill.open),
            drain.start.eq(decode.drain),
            drain.word.eq(fetch.word),
            drain.descriptor.eq(descriptors.descriptor),
            drain.length.eq(descriptors.length),
            decode.drain_idle.eq(drain.idle),
            decode.drain_read_last.eq(drain.read_last),
            takes.eq(base.recv_valid & ~receiver.full),
            base.recv_pop.eq(takes),
            fill.response.eq(takes & (flit.type == FlitType.MEM_RD_RESP)),
            fill.txn.eq(flit.txn),
            receiver.take.eq(takes & (flit.type == FlitType.CU_DATA)),
            receiver.flit.eq(flit),
            decode.cudata.eq(receiver.raised),
            l1.b_write.eq(fill.write | receiver.write),
            l1.b_at.eq(Mux(fill.response, fill.at, receiver.at)),
            l1.b_word.eq(flit.payload),
        ]

        # ---- output register: acknowledgement, read request, drain ----------------------------------------------
        asks = ~receiver.ack_valid & fill.request_valid
        m.d.comb += [
            base.send_valid.eq(receiver.ack_valid | fill.request_valid | drain.send_valid),
            receiver.ack_sent.eq(base.send_ready & receiver.ack_valid),
            fill.request_sent.eq(base.send_ready & asks),
            drain.send_ready.eq(base.send_ready & ~receiver.ack_valid & ~fill.request_valid),
            base.send.eq(
                Mux(
                    receiver.ack_valid,
                    receiver.ack.as_value(),
                    Mux(asks, fill.request.as_value(), drain.send.as_value()),
                )
            ),
        ]
        return m

    @staticmethod
    def _stage(m: Module, beat, entry):
        """What a beat that does not use the lanes is, one cycle after its issue."""
        stage = Signal(STEP, name="stage1")
        kinds = (
            ("short", Kind.SHORT),
            ("scalar", Kind.SCALAR),
            ("vote", Kind.VOTE),
            ("load", Kind.LOAD),
            ("store", Kind.STORE),
        )
        m.d.comb += [stage[name].eq(beat.valid & (entry.kind == kind)) for name, kind in kinds]
        m.d.comb += [
            stage.how.eq(entry.short), stage.single.eq(entry.single), stage.phase.eq(beat.phase[0]),
            stage.at.register.eq(entry.vd), stage.at.chunk.eq(beat.chunk), stage.target.eq(entry.scalar),
        ]  # fmt: skip
        return stage

    @staticmethod
    def _widen(m: Module, word, name: str):
        """The 16 FP16 values of a word as a chunk."""
        wide = []
        for i in range(LANES):
            m.submodules[f"{name}_{i}"] = convert = shared(FromFp16)
            m.d.comb += convert.half.eq(word[16 * i : 16 * (i + 1)])
            wide.append(convert.word)
        return Cat(wide)


STEP = data.StructLayout(
    {
        "short": 1, "scalar": 1, "vote": 1, "load": 1, "store": 1, "how": 2, "single": 1, "phase": 1,
        "at": WRITE.members["at"], "target": 4,
    }
)  # fmt: skip
