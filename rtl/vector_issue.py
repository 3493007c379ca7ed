"""Issue: a queue of two decoded instructions, one beat a cycle, scoreboard (docs/microarchitecture/vector-core.md)."""

from __future__ import annotations

from enum import IntEnum

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from .parameters import OFF

ALU_STAGES = 15
LANE_WRITE = tuple(ALU_STAGES * depth + 2 for depth in (1, 2, 4))  # by code of the depth
SHORT_WRITE = 3
LOAD_WRITE = 6
TREE_GAP = 21
REDUCED_SHORT, REDUCED_LONG = 55, 62  # from the last leaf beat until nothing of a reduction is under way
VOTE_WRITE = 4
SCALAR_WRITE = 3
STORE_WRITE = 3


class Kind(IntEnum):
    LANES = 0  # ALU words and chains
    REDUCE = 1
    VOTE = 2
    SHORT = 3  # VCVT, VSHUF, VBCAST to V
    SCALAR = 4  # VBCAST to S
    LOAD = 5
    STORE = 6


class Short(IntEnum):
    COPY = 0
    ROUND = 1
    SHUFFLE = 2
    FILL = 3


class Route(IntEnum):
    """Which elements of a chunk the ALUs of a beat work on."""

    WHOLE = 0
    HALVES = 1
    QUARTERS = 2
    PAIRS = 3


OPERAND = data.StructLayout({"source": 2, "value": 24})  # `isa.vector.Source`; the value of an S or K
STAGE = data.StructLayout({"op": 5, "a": OPERAND, "b": OPERAND, "c": OPERAND})
# A decoded instruction. `split` is the binary logarithm of its beats a chunk, `depth` that of its chain.
ENTRY = data.StructLayout(
    {
        "kind": Kind,
        "beats": 5,  # - 1
        "split": 2,
        "depth": 2,
        "route": 2,
        "reads_a": 1, "reads_b": 1, "reads_c": 1,
        "va": 4, "vb": 4, "vc": 4,
        "writes": 1,  # a vector register
        "vd": 4,
        "scalar": 4,  # S register written
        "compare": 1,
        "pm": 2,
        "pr": 2,
        "length": 7,  # VL - 1
        "node": 2,  # reductions
        "leaves": 1,  # EXPSUM
        "all": 1,  # ALL, not ANY
        "short": 2,
        "single": 1,  # FP32
        "ad": 3,
        "start": 9,  # L1 word
        "stages": data.ArrayLayout(STAGE, 4),
    }
)  # fmt: skip
CHUNK = data.StructLayout({"chunk": 3, "register": 4})  # an address of the register file
TAG = 6
SETTLED = data.StructLayout({"valid": 1, "at": CHUNK, "tag": TAG})
# A beat as it leaves the issue stage.
BEAT = data.StructLayout(
    {"valid": 1, "first": 1, "last": 1, "beat": 5, "chunk": 3, "phase": 2, "tail": 4, "mark": 1, "tag": TAG}
)


class Issue(wiring.Component):
    """Members: `push`, `pushed` in; `full`, `empty`; `beat` and `head`, the instruction it belongs to, in the cycle of
    the issue; `settled` in: a lane write to a register that comes in the next cycle; `idle`: every pipeline is empty.

    Deliberate bugs, while high: `any_tag` lets every write end a chunk's wait, `deep_overtaken` drops the order of lane
    beats, `no_gap` that of reductions, `port_shared` lets short writes take a reserved port.
    """

    def __init__(
        self, *, any_tag: Value = OFF, deep_overtaken: Value = OFF, no_gap: Value = OFF, port_shared: Value = OFF
    ):
        self.any_tag = any_tag
        self.deep_overtaken = deep_overtaken
        self.no_gap = no_gap
        self.port_shared = port_shared
        super().__init__(
            {
                "push": In(1),
                "pushed": In(ENTRY),
                "full": Out(1),
                "empty": Out(1),
                "beat": Out(BEAT),
                "head": Out(ENTRY),
                "settled": In(SETTLED),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        head, second = self.head, Signal(ENTRY)
        held = Signal(2)
        beat = Signal(5)
        now = Signal(TAG)
        going = Signal()
        leaving = Signal()  # the head's last beat
        m.d.sync += now.eq(now + 1)

        # ---- queue -----------------------------------------------------------------------------------------
        m.d.comb += [self.full.eq(held[1]), self.empty.eq(held == 0)]
        m.d.sync += held.eq(held + self.push - leaving)
        with m.If(leaving):
            m.d.sync += head.eq(second)
        with m.If(self.push):
            with m.If(held == leaving):
                m.d.sync += head.eq(self.pushed)
            with m.Else():
                m.d.sync += second.eq(self.pushed)

        # ---- the next beat -------------------------------------------------------------------------------
        lanes = (head.kind == Kind.LANES) | (head.kind == Kind.REDUCE)
        reduces = head.kind == Kind.REDUCE
        short, load = head.kind == Kind.SHORT, head.kind == Kind.LOAD
        chunk, phase = Signal(3), Signal(2)
        m.d.comb += [
            chunk.eq(Array([beat, beat >> 1, beat >> 2])[head.split]),
            phase.eq(Array([beat & 0, beat & 1, beat & 3])[head.split]),
        ]
        last = beat == head.beats
        whole = phase == Array([0, 1, 3])[head.split]  # the last part of its chunk
        mark = going & head.writes & (whole | last)
        m.d.comb += [
            leaving.eq(going & last),
            self.beat.valid.eq(going),
            self.beat.first.eq(beat == 0),
            self.beat.last.eq(last),
            self.beat.beat.eq(beat),
            self.beat.chunk.eq(chunk),
            self.beat.phase.eq(phase),
            self.beat.tail.eq(Mux(chunk == head.length[4:], head.length[:4], 15)),
            self.beat.mark.eq(mark),
            self.beat.tag.eq(now),
        ]
        with m.If(going):
            m.d.sync += beat.eq(Mux(last, 0, beat + 1))

        # ---- pending chunks: a bit each, by bank, and the tag of the newest writer ------------------------------
        pending = [Signal(64, name=f"pending{bank}") for bank in range(2)]

        def waits(register):
            index = Cat(chunk[1:], register)
            return Mux(chunk[0], pending[1].bit_select(index, 1), pending[0].bit_select(index, 1))

        target = Signal(CHUNK)
        m.d.comb += [target.register.eq(head.vd), target.chunk.eq(chunk)]
        m.submodules.tags = tags = memory.Memory(shape=TAG, depth=128, init=[])
        write = tags.write_port()
        m.d.comb += [write.addr.eq(target), write.data.eq(now), write.en.eq(mark)]
        entering = Signal(SETTLED)
        m.d.comb += [entering.at.eq(target), entering.tag.eq(now)]
        ends = [self.settled]
        for name, condition, wait in (("short", short, SHORT_WRITE), ("load", load, LOAD_WRITE)):
            line = entering
            for step in range(1, wait):
                later = Signal(SETTLED, name=f"{name}_settles{step}")
                m.d.sync += later.eq(line)
                if step == 1:
                    m.d.sync += later.valid.eq(mark & condition)
                line = later
            ends.append(line)
        cleared = []
        for end in ends:
            read = tags.read_port(domain="comb")
            m.d.comb += read.addr.eq(end.at)
            match = self.any_tag | (read.data == end.tag)
            cleared.append((end.valid & match, end.at))
        for bank, bits in enumerate(pending):
            gone = 0
            for valid, at in cleared:
                place = Signal(64, name=f"gone{bank}")
                m.d.comb += place.eq(
                    Mux(valid & (at.chunk[0] == bank), Const(1, 1) << Cat(at.chunk[1:], at.register), 0)
                )
                gone = gone | place
            set_ = Signal(64, name=f"set{bank}")
            m.d.comb += set_.eq(Mux(mark & (chunk[0] == bank), Const(1, 1) << Cat(chunk[1:], head.vd), 0))
            m.d.sync += bits.eq((bits & ~gone) | set_)

        # ---- register file ports: bit k is a write k cycles from now ---------------------------------------------
        span = LANE_WRITE[-1] + 1
        ports = [Signal(span, name=f"port{bank}") for bank in range(2)]
        taken_short = Mux(chunk[0], ports[1][SHORT_WRITE], ports[0][SHORT_WRITE])
        taken_load = Mux(chunk[0], ports[1][LOAD_WRITE], ports[0][LOAD_WRITE])
        reserved = Signal(span)
        with m.If(going & head.writes):
            with m.If(short):
                m.d.comb += reserved[SHORT_WRITE].eq(1)
            with m.Elif(load):
                m.d.comb += reserved[LOAD_WRITE].eq(1)
            with m.Else():
                for code, wait in enumerate(LANE_WRITE):
                    with m.If(head.depth == code):
                        m.d.comb += reserved[wait].eq(1)
        for bank, bits in enumerate(ports):
            m.d.sync += bits.eq((bits | Mux(chunk[0] == bank, reserved, 0)) >> 1)

        # ---- countdowns ------------------------------------------------------------------------------------
        depth_cycles = Array([ALU_STAGES * depth for depth in (1, 2, 4)])[head.depth]
        in_lanes = Signal(6)  # cycles until the latest lane beat is past the last stage
        gap = Signal(range(TREE_GAP))
        compares = [Signal(6, name=f"compare{p}") for p in range(4)]
        busy = Signal(6)  # cycles until every pipeline is empty
        for counter in (in_lanes, gap, busy, *compares):
            with m.If(counter != 0):
                m.d.sync += counter.eq(counter - 1)
        with m.If(going & lanes):
            m.d.sync += in_lanes.eq(depth_cycles - 1)
        with m.If(leaving & reduces):
            m.d.sync += gap.eq(TREE_GAP - 1)
        for p, counter in enumerate(compares):
            with m.If(leaving & head.compare & (head.pr == p)):
                m.d.sync += counter.eq(Array([wait - 1 for wait in LANE_WRITE])[head.depth])
        span_of = {
            Kind.VOTE: VOTE_WRITE, Kind.SHORT: SHORT_WRITE + 1, Kind.SCALAR: SCALAR_WRITE, Kind.LOAD: LOAD_WRITE + 1,
            Kind.STORE: STORE_WRITE + 1,
        }  # fmt: skip
        until = Signal(6)
        with m.Switch(head.kind):
            with m.Case(Kind.LANES):
                m.d.comb += until.eq(Array([wait + 1 for wait in LANE_WRITE])[head.depth])
            with m.Case(Kind.REDUCE):
                m.d.comb += until.eq(Mux(head.beats >= 8, REDUCED_LONG, REDUCED_SHORT))
            for kind, cycles in span_of.items():
                with m.Case(kind):
                    m.d.comb += until.eq(cycles)
        with m.If(going & (until > busy)):
            m.d.sync += busy.eq(until - 1)
        m.d.comb += self.idle.eq(self.empty & (busy == 0))

        # ---- may it issue? ---------------------------------------------------------------------------------
        blocked = Signal(6)
        m.d.comb += [
            blocked[0].eq(
                (head.reads_a & waits(head.va)) | (head.reads_b & waits(head.vb)) | (head.reads_c & waits(head.vc))
            ),
            blocked[1].eq((short | load) & waits(head.vd)),
            blocked[2].eq(~self.port_shared & ((short & taken_short) | (load & taken_load))),
            blocked[3].eq(~self.deep_overtaken & lanes & (in_lanes >= depth_cycles)),
            blocked[4].eq(~self.no_gap & reduces & (beat == 0) & (gap != 0)),
            blocked[5].eq((head.kind == Kind.VOTE) & (Array(compares)[head.pr] != 0)),
            going.eq((held != 0) & ~blocked.any()),
        ]
        return m
