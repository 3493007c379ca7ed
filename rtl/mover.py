"""The memory mover: registers, what is issued and when, and the words on their way to memory.

Timing: docs/microarchitecture/memory-agent.md, memory mover. Its parts: `mover_walk`, `mover_gather`, `mover_generate`.
"""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa import registers as reg
from kohakutpu.isa.registers import ElementWidth, MoverFault, MoverMode

from .axi import Burst, Response
from .emit import shared
from .fifo import Fifo
from .link import view
from .memory_issue import ADDRESS_BITS, AXI_SIZE, INDEX_BITS, OFFSET_BITS, WORD_BITS, WORD_BYTES
from .memory_port import MEMORY_AXI
from .mover_gather import FAULTS as GATHER_FAULTS
from .mover_gather import LANE_BITS, MAX_INDICES, ROW_BITS, Gather
from .mover_generate import FAULTS as GENERATE_FAULTS
from .mover_generate import Generator
from .mover_walk import DIMS, Walker
from .mover_walk import FAULTS as WALKER_FAULTS
from .parameters import known_fault, positive

OUTSTANDING = 64  # elements issued and not yet written
OWED_BITS = 16
ELEMENTS_OWED = 1 << (OWED_BITS - 1)  # written and not yet answered: more than any memory of a machine leaves
AUX_INDEX_BITS = (reg.AUX_CFG.count - 1).bit_length()
FAULT_BITS = reg.AUX_STAT.layout.fields["fault"].width
MOVES_BITS = reg.AUX_STAT.layout.fields["moves"].width
MODES = (MoverMode.COPY, MoverMode.GATHER, MoverMode.GENERATE, MoverMode.FILL)
# What is to be issued: a read of word `source`, a write of word `target`, or a fault.
ISSUE = data.StructLayout(
    {
        "source": INDEX_BITS, "target": INDEX_BITS, "reads": 1, "writes": 1, "generates": 1, "indices": 1,
        "fault": FAULT_BITS,
    }
)  # fmt: skip
TARGET = data.StructLayout({"index": INDEX_BITS, "pattern": 1})

FAULTS = {
    **WALKER_FAULTS,
    **GATHER_FAULTS,
    **GENERATE_FAULTS,
    "mover-skips-word": "the second word of a move is not written",
    "mover-lost-response": "a response that comes in the cycle of an issue is not counted",
    "mover-overbooked": "as many elements are under way as there is room for, and one more",
    "mover-listens-while-busy": "registers take what is written while a move runs",
    "mover-withdraws": "a read that is not taken at once is withdrawn for a cycle",
    "mover-error-ignored": "error responses of the memory are taken for words",
    "mover-impatient": "a move ends with its last write, whether it was answered or not",
}


class MoverSignature(wiring.Signature):
    """The orchestrator's view: `write` loads register `index` of AUX_CFG with `data`; the rest is AUX_STAT's."""

    def __init__(self):
        super().__init__(
            {
                "write": Out(1),
                "index": Out(AUX_INDEX_BITS),
                "data": Out(64),
                "busy": In(1),
                "moves": In(MOVES_BITS),
                "fault": In(FAULT_BITS),
            }
        )

    def __eq__(self, other):
        return isinstance(other, MoverSignature)


class MemoryMover(wiring.Component):
    """The mover of `memory_bytes` of memory.

    Members: `control`, where writes that the mover has no register for are ignored; `axi`, an AXI4 master: bursts of
    one word, whose responses are always taken.
    """

    def __init__(self, *, memory_bytes: int, fault: str | None = None):
        positive("MemoryMover", memory_bytes=memory_bytes)
        if memory_bytes % WORD_BYTES:
            raise TypeError(f"MemoryMover memory_bytes must be a multiple of {WORD_BYTES}, not {memory_bytes}")
        self.fault = known_fault("MemoryMover", fault, FAULTS)
        self.words = memory_bytes // WORD_BYTES
        super().__init__({"control": In(MoverSignature()), "axi": Out(MEMORY_AXI)})

    def elaborate(self, platform):
        m = Module()

        def planted(table):
            return self.fault if self.fault in table else None

        walker_fault = planted(WALKER_FAULTS)
        m.submodules.source = self.source = shared(Walker, fault=walker_fault)
        m.submodules.target = self.target = shared(Walker, fault=walker_fault)
        m.submodules.gather = self.gather = Gather(fault=planted(GATHER_FAULTS))
        m.submodules.generator = self.generator = Generator(fault=planted(GENERATE_FAULTS))
        self.start = Signal()  # GO is taken in this cycle
        self.finishing = Signal()  # the last cycle of a move
        self.walking = Signal()  # elements are to come
        self.loading = Signal()  # words of the index vector are to be asked for
        self.stop = Signal()  # nothing more may be issued
        self.indices_owed = Signal(ROW_BITS)  # words of the index vector on their way
        self.level = Signal(range(OUTSTANDING + 2))  # elements issued and not written
        self.owed = Signal(OWED_BITS)  # elements issued and not answered
        self.issue = Signal(ISSUE)
        self.issue_valid = Signal()
        self.issued = Signal()
        self._registers(m)
        self._elements(m)
        self._issue(m)
        self._write(m)
        self._state(m)
        return m

    # ---- registers -----------------------------------------------------------------------------------------------

    def _registers(self, m: Module) -> None:
        """What is kept of each register, and which walker takes it."""
        self.written = written = {}
        listens = ~self.control.busy | self.finishing | (self.fault == "mover-listens-while-busy")
        for offset, layout in reg.MOVER.items():
            written[layout.name] = here = Signal(name=f"writes_{layout.name}")
            m.d.comb += here.eq(self.control.write & listens & (self.control.index == offset // reg.REGISTER_BYTES))
        self.kept = {}
        for layout in (reg.MV_DIM, reg.MV_INDEX, reg.MV_SEED, reg.MV_VALUE, reg.MV_GATHER):
            self.kept[layout.name] = kept = Signal(view(layout), name=layout.name)
            with m.If(written[layout.name]):
                m.d.sync += kept.eq(self.control.data)
        latched = self.kept["MV_DIM"]
        header, bounds = (data.View(view(layout), self.control.data) for layout in (reg.MV_WALKER, reg.MV_BOUNDS))
        for walker, number in ((self.source, reg.Walker.SOURCE), (self.target, reg.Walker.DESTINATION)):
            m.d.comb += [
                walker.header.eq(written["MV_WALKER"] & (header.walker == number)),
                walker.header_data.eq(header),
                walker.dimension.eq(written["MV_AXIS"] & (latched.walker == number)),
                walker.dim_data.eq(latched),
                walker.axis_data.eq(self.control.data),
                walker.bounds.eq(written["MV_BOUNDS"] & (bounds.walker == number)),
                walker.bounds_data.eq(bounds),
                walker.start.eq(self.start),
            ]
        self.go = go = data.View(view(reg.MV_CONTROL), self.control.data)
        m.d.comb += self.start.eq(written["MV_CONTROL"] & go.go)
        self.mode, width = Signal(MoverMode), Signal(ElementWidth)
        with m.If(self.start):
            m.d.sync += [self.mode.eq(go.mode), width.eq(go.width)]
        value = self.kept["MV_VALUE"].value
        self.pattern = Signal(WORD_BITS)
        with m.Switch(width):
            for item, bits in ((ElementWidth.BITS_8, 8), (ElementWidth.BITS_16, 16), (ElementWidth.BITS_32, 32)):
                with m.Case(item):
                    m.d.comb += self.pattern.eq(value[:bits].replicate(WORD_BITS // bits))

        # What is wrong with the registers themselves.
        vector = self.kept["MV_INDEX"]
        self.refusal = Signal(MoverFault)
        with m.If(~go.mode.matches(*MODES)):
            m.d.comb += self.refusal.eq(MoverFault.MODE)
        with m.Elif(go.width == ElementWidth.FAULTS):
            m.d.comb += self.refusal.eq(MoverFault.ELEMENT_WIDTH)
        with m.Elif((self.source.dims > DIMS) | (self.target.dims > DIMS)):
            m.d.comb += self.refusal.eq(MoverFault.RANGE)
        with m.Elif(go.mode == MoverMode.GATHER):
            with m.If((vector.count == 0) | (vector.count > MAX_INDICES)):
                m.d.comb += self.refusal.eq(MoverFault.INDEX_LENGTH)
            with m.Elif(vector.addr[:OFFSET_BITS] != 0):
                m.d.comb += self.refusal.eq(MoverFault.ALIGNMENT)

    # ---- what comes next -----------------------------------------------------------------------------------------

    def _elements(self, m: Module) -> None:
        """What is to be issued next: a word of the index vector, or else the element at which the walkers stand."""
        source, target, gather = self.source, self.target, self.gather
        vector = self.kept["MV_INDEX"]
        index_word, index_left = Signal(INDEX_BITS), Signal(ROW_BITS)
        gathers = self.mode == MoverMode.GATHER
        self.following, self.following_valid, self.take = Signal(ISSUE), Signal(), Signal()
        following = self.following
        address = Signal(ADDRESS_BITS)
        plain = (self.mode == MoverMode.FILL) | ((self.mode == MoverMode.COPY) & ~source.inside)
        misaligned, outside = address[:OFFSET_BITS] != 0, address[OFFSET_BITS:] >= self.words
        m.d.comb += [
            address.eq(Mux(gathers, gather.source, source.address)),
            following.source.eq(address[OFFSET_BITS:]),
            following.target.eq(target.address[OFFSET_BITS:]),
            self.following_valid.eq(self.loading | (self.walking & (~gathers | gather.valid))),
        ]
        with m.If(self.loading):
            m.d.comb += [
                following.source.eq(index_word), following.indices.eq(1), following.reads.eq(1),
            ]  # fmt: skip
            with m.If(index_word >= self.words):
                m.d.comb += [following.fault.eq(MoverFault.AXI), following.reads.eq(0)]
        with m.Elif(~target.inside):
            pass
        with m.Elif(target.address[:OFFSET_BITS] != 0):
            m.d.comb += following.fault.eq(MoverFault.ALIGNMENT)
        with m.Elif(target.address[OFFSET_BITS:] >= self.words):
            m.d.comb += following.fault.eq(MoverFault.AXI)
        with m.Elif(plain | (self.mode == MoverMode.GENERATE)):
            m.d.comb += [following.writes.eq(1), following.generates.eq(~plain)]
        with m.Elif(gathers & gather.exhausted):
            m.d.comb += following.fault.eq(MoverFault.INDEX_LENGTH)
        with m.Elif(misaligned):
            m.d.comb += following.fault.eq(MoverFault.ALIGNMENT)
        with m.Elif(outside):
            m.d.comb += following.fault.eq(MoverFault.AXI)
        with m.Else():
            m.d.comb += [following.writes.eq(1), following.reads.eq(1)]

        steps = self.take & ~self.loading
        m.d.comb += [
            self.take.eq(self.following_valid & ~self.stop & (~self.issue_valid | self.issued)),
            source.step.eq(steps), target.step.eq(steps),
            gather.take.eq(steps & gathers), gather.start.eq(self.start),
            gather.base.eq(source.base), gather.count.eq(vector.count), gather.settings.eq(self.kept["MV_GATHER"]),
        ]  # fmt: skip
        with m.If(steps & target.final):
            m.d.sync += self.walking.eq(0)
        with m.If(self.take & self.loading):
            m.d.sync += [index_word.eq(index_word + 1), index_left.eq(index_left - 1)]
            with m.If(index_left == 0):
                m.d.sync += self.loading.eq(0)
        with m.If(self.stop):
            m.d.sync += [self.walking.eq(0), self.loading.eq(0)]
        with m.If(self.start):
            fine = self.refusal == MoverFault.NONE
            m.d.sync += [
                self.walking.eq(fine), self.loading.eq(fine & (self.go.mode == MoverMode.GATHER)),
                index_word.eq(vector.addr[OFFSET_BITS:]), index_left.eq((vector.count - 1)[LANE_BITS:]),
            ]  # fmt: skip

    def _issue(self, m: Module) -> None:
        """The element that is offered: its read waits for the memory, and everything for room."""
        issue, axi = self.issue, self.axi
        full = self.level >= OUTSTANDING + (self.fault == "mover-overbooked")
        may = self.issue_valid & (issue.indices | (~full & (self.owed < ELEMENTS_OWED)))
        offered = Signal()
        m.d.comb += [
            offered.eq(may & issue.reads),
            axi.arvalid.eq(offered), axi.araddr[OFFSET_BITS:].eq(issue.source),
            self.issued.eq(may & (~issue.reads | (axi.arvalid & axi.arready))),
            self.generator.start.eq(self.issued & issue.generates),
            self.generator.index.eq(issue.target), self.generator.seed.eq(self.kept["MV_SEED"].seed),
        ]  # fmt: skip
        if self.fault == "mover-withdraws":
            withdrawn = Signal()
            m.d.sync += withdrawn.eq(axi.arvalid & ~axi.arready)
            m.d.comb += axi.arvalid.eq(offered & ~withdrawn)
        with m.If(self.take):
            m.d.sync += [issue.eq(self.following), self.issue_valid.eq(1)]
        with m.Elif(self.issued):
            m.d.sync += self.issue_valid.eq(0)

    # ---- words on their way --------------------------------------------------------------------------------------

    def _write(self, m: Module) -> None:
        """Targets in order, the words for those that are no pattern beside them."""
        issue, axi = self.issue, self.axi
        m.submodules.targets = targets = shared(Fifo, width=TARGET.size, depth=OUTSTANDING)
        m.submodules.arrived = arrived = shared(Fifo, width=WORD_BITS + 1, depth=OUTSTANDING)
        for_indices = self.indices_owed != 0
        read_error = axi.rvalid & (axi.rresp != Response.OKAY)
        target = Signal(TARGET)
        writes = Signal()  # an element that is to be written was issued
        m.d.comb += [
            writes.eq(self.issued & issue.writes),
            targets.push.eq(writes),
            targets.push_data.eq(Cat(issue.target, ~issue.reads & ~issue.generates)),
            arrived.push.eq((axi.rvalid & ~for_indices) | self.generator.ready),
            arrived.push_data.eq(Mux(self.generator.ready, self.generator.word, Cat(axi.rdata, read_error))),
            self.gather.put.eq(axi.rvalid & for_indices),
            self.gather.put_data.eq(axi.rdata),
            target.eq(targets.head),
        ]
        asks = self.issued & issue.indices & issue.reads
        pending = self.loading | (self.issue_valid & issue.indices)
        m.d.sync += self.indices_owed.eq(self.indices_owed + asks - self.gather.put)
        m.d.comb += self.gather.ready.eq(self.gather.put & (self.indices_owed == 1) & ~pending)

        # A word that was read with an error is not written.
        bad = ~target.pattern & arrived.head[-1] & (self.fault != "mover-error-ignored")
        there = targets.valid & (target.pattern | arrived.valid)
        address_taken, word_taken = Signal(), Signal()
        done, dropped = Signal(), Signal()
        m.d.comb += [
            axi.awvalid.eq(there & ~bad & ~address_taken), axi.awaddr[OFFSET_BITS:].eq(target.index),
            axi.wvalid.eq(there & ~bad & ~word_taken), axi.wlast.eq(1),
            axi.wdata.eq(Mux(target.pattern, self.pattern, arrived.head[:WORD_BITS])), axi.wstrb.eq(~0),
            axi.awsize.eq(AXI_SIZE), axi.arsize.eq(AXI_SIZE),
            axi.awburst.eq(Burst.INCR), axi.arburst.eq(Burst.INCR),
            axi.bready.eq(1), axi.rready.eq(1),
            dropped.eq(there & bad),
            done.eq(there & ~bad & (address_taken | axi.awready) & (word_taken | axi.wready)),
            targets.pop.eq(done | dropped),
            arrived.pop.eq(targets.pop & ~target.pattern),
        ]  # fmt: skip
        m.d.sync += [
            address_taken.eq(there & (address_taken | axi.awready) & ~targets.pop),
            word_taken.eq(there & (word_taken | axi.wready) & ~targets.pop),
        ]
        answered = axi.bvalid & ~(writes if self.fault == "mover-lost-response" else 0)
        m.d.sync += [
            self.level.eq(self.level + writes - targets.pop),
            self.owed.eq(self.owed + writes - answered - dropped),
        ]
        if self.fault == "mover-skips-word":
            number = Signal(2)
            with m.If(done & (number != 2)):
                m.d.sync += number.eq(number + 1)
            with m.If(self.start):
                m.d.sync += number.eq(0)
            with m.If(number == 1):
                m.d.comb += axi.wstrb.eq(0)

        errors = read_error | (axi.bvalid & (axi.bresp != Response.OKAY))
        self.errors = Signal()
        m.d.comb += self.errors.eq(errors & (self.fault != "mover-error-ignored"))

    def _state(self, m: Module) -> None:
        control = self.control
        begun = Signal()  # the first cycle of a move
        sound = control.fault == MoverFault.NONE
        refused = self.issued & (self.issue.fault != MoverFault.NONE)
        nothing_owed = (self.level if self.fault == "mover-impatient" else self.owed) == 0
        m.d.comb += [
            self.stop.eq(refused | self.errors),
            self.finishing.eq(
                control.busy & ~begun & ~self.walking & ~self.loading & ~self.issue_valid & nothing_owed
                & (self.indices_owed == 0)
            ),
        ]  # fmt: skip
        m.d.sync += begun.eq(self.start)
        with m.If(sound & refused):
            m.d.sync += control.fault.eq(self.issue.fault)
        with m.Elif(sound & self.errors):
            m.d.sync += control.fault.eq(MoverFault.AXI)
        with m.If(self.finishing):
            m.d.sync += [control.busy.eq(0), control.moves.eq(control.moves + sound)]
        with m.If(self.start):
            m.d.sync += [control.busy.eq(1), control.fault.eq(self.refusal)]
