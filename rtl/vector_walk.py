"""Descriptors of the vector core and the walkers over them.

Timing: docs/microarchitecture/vector-core.md, instructions from the endpoint, loads and stores, fills.
"""

from __future__ import annotations

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.memory import ADDRESS_WIDTH, WORD_BYTES
from kohakutpu.isa.vector import DESCRIPTORS, DIMS, WALK_LIMIT, DescField

from .parameters import OFF

STRIDE, BOUND = 18, 16
TOO_LONG = WALK_LIMIT + 1
COUNT = TOO_LONG.bit_length()
L1_BITS = 9
DIM = data.StructLayout({"stride": STRIDE, "bound": BOUND})
DESCRIPTOR = data.StructLayout({"base": ADDRESS_WIDTH, "dims": data.ArrayLayout(DIM, DIMS)})
WORD_SHIFT = WORD_BYTES.bit_length() - 1
PAGE_WORDS = 4096 // WORD_BYTES


class Descriptors(wiring.Component):
    """A0 to A7. Members: `write`, `ad`, `part`, `base`, `dim` in, a DESC instruction; `index` in, and in the same cycle
    `descriptor` and `length` out, the product of its bounds or `TOO_LONG`; `walk_index` in and `walk` out, a second
    port.
    """

    def __init__(self):
        super().__init__(
            {
                "write": In(1),
                "ad": In(3),
                "part": In(3),
                "base": In(ADDRESS_WIDTH),
                "dim": In(DIM),
                "index": In(3),
                "descriptor": Out(DESCRIPTOR),
                "length": Out(COUNT),
                "walk_index": In(3),
                "walk": Out(DESCRIPTOR),
            }
        )

    def elaborate(self, platform):
        m = Module()
        unit = {"dims": [{"bound": 1}] * DIMS}
        table = [Signal(DESCRIPTOR, name=f"a{ad}", init=unit) for ad in range(DESCRIPTORS)]
        lengths = [Signal(COUNT, name=f"length{ad}", init=1) for ad in range(DESCRIPTORS)]
        for ad, descriptor in enumerate(table):
            with m.If(self.write & (self.ad == ad)):
                with m.If(self.part == DescField.BASE):
                    m.d.sync += descriptor.base.eq(self.base)
                for d in range(DIMS):
                    with m.If(self.part == DescField.DIM0 + d):
                        m.d.sync += [
                            descriptor.dims[d].stride.eq(self.dim.stride),
                            descriptor.dims[d].bound.eq(Mux(self.dim.bound == 0, 1, self.dim.bound)),
                        ]
        values = [descriptor.as_value() for descriptor in table]
        m.d.comb += [
            self.descriptor.eq(Array(values)[self.index]),
            self.length.eq(Array(lengths)[self.index]),
            self.walk.eq(Array(values)[self.walk_index]),
        ]

        # Two multiplications, a cycle each. Nothing above the limit matters, and no bound is 0.
        changed, second = Signal(), Signal()
        index, index2 = Signal(3), Signal(3)
        bounds = Signal(data.ArrayLayout(BOUND, DIMS))
        pairs = [Signal(COUNT, name=f"pair{i}") for i in range(2)]
        product = Signal(2 * COUNT)

        def clamped(value):
            return Mux(value > WALK_LIMIT, TOO_LONG, value)[:COUNT]

        m.d.comb += [
            bounds.eq(Cat(Array([Cat(dim.bound for dim in (d.dims[i] for i in range(DIMS))) for d in table])[index])),
            product.eq(pairs[0] * pairs[1]),
        ]
        m.d.sync += [
            changed.eq(self.write), index.eq(self.ad), second.eq(changed), index2.eq(index),
            pairs[0].eq(clamped(clamped(bounds[0]) * clamped(bounds[1]))),
            pairs[1].eq(clamped(clamped(bounds[2]) * clamped(bounds[3]))),
        ]  # fmt: skip
        for ad, length in enumerate(lengths):
            with m.If(second & (index2 == ad)):
                m.d.sync += length.eq(clamped(product))
        return m


class StepWalker(wiring.Component):
    """The L1 walk of a VLD or VST, one word a step; past its end the last word repeats.

    Members: `step`, `first` (the step begins a walk) and `start` in, `dims` in, the descriptor's; `at` out, the word of
    this step, modulo 2^`bits`.
    """

    def __init__(self, *, bits: int):
        self.bits = bits
        super().__init__(
            {
                "step": In(1),
                "first": In(1),
                "start": In(bits),
                "dims": In(data.ArrayLayout(DIM, DIMS)),
                "at": Out(bits),
            }
        )

    def elaborate(self, platform):
        m = Module()
        following = Signal(self.bits)
        # word at which the current row of each dimension begins, and how far into that dimension the walk is
        rows = [Signal(self.bits, name=f"row{d}") for d in range(DIMS)]
        indices = [Signal(5, name=f"index{d}") for d in range(DIMS)]  # a walk has at most 16 steps
        row = [Mux(self.first, self.start, value) for value in rows]
        index = [Mux(self.first, 0, value) for value in indices]
        m.d.comb += self.at.eq(Mux(self.first, self.start, following))
        row[0] = self.at
        with m.If(self.step):
            m.d.sync += following.eq(self.at)  # at the end it stays
            m.d.sync += [kept.eq(value) for kept, value in zip(rows, row)]
            m.d.sync += [kept.eq(value) for kept, value in zip(indices, index)]
            done = Const(0, 1)
            for d in range(DIMS):
                dim = self.dims[d]
                more = index[d] + 1 < dim.bound
                advanced = (row[d] + dim.stride)[: self.bits]
                with m.If(~done & more):
                    m.d.sync += following.eq(advanced)
                    m.d.sync += [rows[inner].eq(advanced) for inner in range(d + 1)]
                    m.d.sync += [indices[inner].eq(0) for inner in range(d)]
                    m.d.sync += indices[d].eq(index[d] + 1)
                done = done | more
        return m


class BurstWalker(wiring.Component):
    """The bursts of a VFILL or VDRAIN over memory: words of a row of dim 0 that follow each other, at most `limit`, and
    never over the end of a 4 KB page.

    Members: `load`, `descriptor` in; `valid`, `address`, `count`, `last` out, from the next cycle on; `next` in.
    `page_crossed`, while high, is a deliberate bug: bursts go on over the end of a page.
    """

    def __init__(self, *, limit: int | Value, page_crossed: Value = OFF):
        self.limit = limit
        self.page_crossed = page_crossed
        super().__init__(
            {
                "load": In(1),
                "descriptor": In(DESCRIPTOR),
                "valid": Out(1),
                "address": Out(ADDRESS_WIDTH),
                "count": Out(COUNT),
                "last": Out(1),
                "next": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        strides = [Signal(STRIDE, name=f"stride{d}") for d in range(DIMS)]
        bounds = [Signal(COUNT, name=f"bound{d}") for d in range(DIMS)]
        rows = [
            Signal(ADDRESS_WIDTH, name=f"row{d}") for d in range(1, DIMS)
        ]  # start of the current row of dims 1 to 3
        left = [Signal(COUNT, name=f"left{d}") for d in range(DIMS)]
        page_left = Signal(COUNT)
        joined = Signal()
        m.d.comb += [
            joined.eq((strides[0] == WORD_BYTES) & (self.address[:WORD_SHIFT] == 0)),
            page_left.eq(PAGE_WORDS - self.address[WORD_SHIFT:12]),
            self.count.eq(1),
        ]
        with m.If(joined):
            within = Mux(self.page_crossed, WALK_LIMIT, page_left)
            shorter = Mux(left[0] < within, left[0], within)
            m.d.comb += self.count.eq(Mux(shorter > self.limit, self.limit, shorter))
        row_ends = left[0] == self.count
        more = [left[d] != 1 for d in range(1, DIMS)]
        m.d.comb += self.last.eq(row_ends & ~(more[0] | more[1] | more[2]))

        # One adder: a place to start from, and a step.
        base, step = Signal(ADDRESS_WIDTH), Signal(ADDRESS_WIDTH)
        advanced = Signal(ADDRESS_WIDTH)
        m.d.comb += advanced.eq(base + step)
        with m.If(self.next):
            m.d.sync += self.address.eq(advanced)
        with m.If(~row_ends):
            m.d.comb += [
                base.eq(self.address),
                step.eq(Mux(joined, Cat(Const(0, WORD_SHIFT), self.count), strides[0].as_signed())),
            ]
            with m.If(self.next):
                m.d.sync += left[0].eq(left[0] - self.count)
        for d in range(1, DIMS):
            with m.Elif(more[d - 1]):
                m.d.comb += [base.eq(rows[d - 1]), step.eq(strides[d].as_signed())]
                with m.If(self.next):
                    m.d.sync += left[d].eq(left[d] - 1)
                    m.d.sync += [left[inner].eq(bounds[inner]) for inner in range(d)]
                    m.d.sync += [rows[inner].eq(advanced) for inner in range(d)]
        with m.If(self.next & self.last):
            m.d.sync += self.valid.eq(0)
        with m.If(self.load):
            m.d.sync += [self.valid.eq(1), self.address.eq(self.descriptor.base)]
            m.d.sync += [row.eq(self.descriptor.base) for row in rows]
            for d in range(DIMS):
                dim = self.descriptor.dims[d]
                m.d.sync += [strides[d].eq(dim.stride), bounds[d].eq(dim.bound), left[d].eq(dim.bound)]
        return m
