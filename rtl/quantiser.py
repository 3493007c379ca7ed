"""FP16 to MXFP7, one source word a cycle: the converter of a memory port and of the quantising upload.

Arithmetic: spec, quantiser. Timing: docs/microarchitecture/memory-agent.md, converter.
"""

from __future__ import annotations

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from .emit import shared
from .parameters import known_fault

WORD_BITS = 256
LANES = 4
HALF = 16  # elements of a source word: half a lane
SOURCE_WORDS = 8
WORDS = 4  # operand words of an entry
ENTRIES = 4  # inside the converter and its result memory together
SLICE = 8  # elements of a lane in an operand word
BITS = 7  # of a significand
SCALE_BITS = 32
SLOTS = (WORD_BITS - SCALE_BITS) // BITS
# c = ceil(s / 126) of a peak significand s in 1024..2047 is 9 plus the number of these that s exceeds
STEPS = (1134, 1260, 1386, 1512, 1638, 1764, 1890, 2016)
CARRY = 1890  # above it c is 16 or 17 and the scale takes the next exponent
ZERO_EXPONENT = 20  # the scale of a lane of zeros is 2^0
RECIPROCAL = (4096, 3641, 3277, 2979, 2731, 2520, 2341, 2185)  # of 8..15; the one of 13 is not the nearest integer
TAKE_TO_PEAK = 3  # cycles from a taken word to the one in which its half's maximum meets the other half's
STORE = (3, 4)  # cycles from the one in which a lane's peak is known to the writes of its halves

FAULTS = {
    "quantiser-layout-stuck": "the layout bit is stuck at 0: B entries are packed as A",
    "quantiser-reciprocal": "the reciprocal of 13 is the nearest integer, 2521",
    "quantiser-half-peak": "the peak of a lane ignores its first sixteen elements",
    "quantiser-truncates": "significands are truncated, not rounded",
    "quantiser-subnormals": "subnormal peaks are not normalised",
}


class Significand(wiring.Component):
    """One FP16 element to a 7-bit significand, three cycles later.

    Members: `element`; `exponent` (biased by 20) and `reciprocal` of its lane's scale; `result`.
    """

    def __init__(self, *, truncates: bool = False):
        self.truncates = truncates
        super().__init__({"element": In(16), "exponent": In(5), "reciprocal": In(13), "result": Out(BITS)})

    def elaborate(self, platform):
        m = Module()
        field = self.element[10:15]
        normal = field.any()
        product = Signal(23)
        # The exponent of a scale is at least that of every element less one, so this is never negative.
        shift = Signal(5)
        negative, sign = Signal(), Signal()
        magnitude = Signal(BITS)
        rounded = Signal(8)
        x = Signal(8)
        m.d.sync += [
            product.eq(Cat(self.element[:10], normal) * self.reciprocal),
            shift.eq(self.exponent + 1 - Mux(normal, field, 1)),
            negative.eq(self.element[15]),
        ]
        # Magnitudes stay at or below 63: the scale was chosen so that the peak does.
        m.d.comb += [
            x.eq(Mux(shift[3:].any(), 0, product[15:] >> shift[:3])),
            rounded.eq(x[1:] + (0 if self.truncates else x[0])),
        ]
        m.d.sync += [magnitude.eq(rounded), sign.eq(negative)]
        m.d.comb += self.result.eq(Mux(sign, -magnitude, magnitude))
        return m


class Quantiser(wiring.Component):
    """FP16 entries in, operand words out; entries follow each other every eight cycles.

    Members: `word`, `layout` (1 is B) and `take` (taken in this cycle; only while `accepts`). Of the oldest entry whose
    words are complete: `ready`, `result` (the word at `index`), `free` (forget it). `done`: an entry is `ready` from
    the next cycle on. `empty`: no entry is inside, begun or complete.
    """

    def __init__(self, *, fault: str | None = None):
        self.fault = known_fault("Quantiser", fault, FAULTS)
        super().__init__(
            {
                "word": In(WORD_BITS),
                "layout": In(1),
                "take": In(1),
                "accepts": Out(1),
                "ready": Out(1),
                "index": In(range(WORDS)),
                "result": Out(WORD_BITS),
                "free": In(1),
                "done": Out(1),
                "empty": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # ---- entries: four places in a ring, from the first source word to the last response flit --------------
        number = Signal(range(SOURCE_WORDS))
        inside, complete = Signal(range(ENTRIES + 1)), Signal(range(ENTRIES + 1))
        put, get = Signal(range(ENTRIES)), Signal(range(ENTRIES))
        begins = self.take & (number == 0)
        done = self.done
        m.d.comb += [
            self.accepts.eq((number != 0) | (inside != ENTRIES)),
            self.ready.eq(complete != 0),
            self.empty.eq(inside == 0),
        ]
        m.d.sync += [
            inside.eq(inside + begins - self.free),
            complete.eq(complete + done - self.free),
            get.eq(get + self.free),
        ]
        with m.If(self.take):
            m.d.sync += number.eq(number + 1)
            with m.If(number == SOURCE_WORDS - 1):
                m.d.sync += put.eq(put + 1)

        # ---- source words wait in a memory for their lane's scale; maxima meanwhile -------------------------------
        m.submodules.source = source = memory.Memory(shape=WORD_BITS, depth=SOURCE_WORDS, init=[])
        keep, fetch = source.write_port(), source.read_port()
        m.d.comb += [keep.addr.eq(number), keep.data.eq(self.word), keep.en.eq(self.take), fetch.en.eq(1)]
        peak, peak_at, peaked = self._peaks(m, number, put)

        # ---- scale of a lane (peak + 1) ---------------------------------------------------------------------------
        scale_at = Signal(peak_at.shape())
        scale = Signal(data.StructLayout({"step": 3, "exponent": 5}))
        m.d.sync += scale_at.eq(peak_at)
        self._choose_scale(m, peak, scale)

        # ---- significands: the first half in the cycle after the scale, the second in the next one ------------------
        stages = Signal(STORE[1] + 1)  # bit c: a lane's peak was known c cycles ago
        m.d.comb += stages[0].eq(peaked)
        m.d.sync += stages[1:].eq(stages)
        second = stages[2]
        lane_at = Signal(peak_at.shape())
        lane_scale = Signal(scale.shape())
        with m.If(stages[1]):
            m.d.sync += [lane_at.eq(scale_at), lane_scale.eq(scale)]
        m.d.comb += fetch.addr.eq(Mux(stages[1], Cat(1, scale_at.lane), Cat(0, peak_at.lane)))
        current = Signal(scale.shape())
        m.d.comb += current.eq(Mux(second, lane_scale, scale))
        table = [2521 if self.fault == "quantiser-reciprocal" and value == 2520 else value for value in RECIPROCAL]
        reciprocal = Array([Const(value, 13) for value in table])[current.step]
        significands = []
        for i in range(HALF):
            m.submodules[f"significand_{i}"] = one = shared(Significand, truncates=self.fault == "quantiser-truncates")
            m.d.comb += [
                one.element.eq(fetch.data[16 * i : 16 * i + 16]),
                one.exponent.eq(current.exponent),
                one.reciprocal.eq(reciprocal),
            ]
            significands.append(one.result)

        # ---- result memory: two banks, of the even and of the odd words, written lane by lane -------------------
        store, half = Signal(), Signal()
        at = Signal(peak_at.shape())
        late = Signal(peak_at.shape())
        m.d.sync += late.eq(lane_at)
        m.d.comb += [store.eq(stages[STORE[0]] | half), half.eq(stages[STORE[1]]), at.eq(Mux(half, late, lane_at))]
        m.d.comb += done.eq(half & (at.lane == LANES - 1))
        layout = 0 if self.fault == "quantiser-layout-stuck" else at.layout
        banks = []
        for bank in range(2):
            m.submodules[f"bank_{bank}"] = words = memory.Memory(shape=SLOTS * BITS, depth=2 * ENTRIES, init=[])
            write, read = words.write_port(granularity=BITS), words.read_port(domain="comb")
            own = significands[SLICE * bank : SLICE * (bank + 1)]
            m.d.comb += [write.addr.eq(Cat(half, at.entry)), read.addr.eq(Cat(self.index[1], get))]
            for slot in range(SLOTS):
                place = SLOTS - 1 - slot  # slot 0 is at the top
                in_a, in_b = slot // SLICE, slot % LANES
                m.d.comb += [
                    write.data[BITS * place : BITS * (place + 1)].eq(
                        Mux(layout, own[slot // LANES], own[slot % SLICE])
                    ),
                    write.en[place].eq(store & Mux(layout, at.lane == in_b, at.lane == in_a)),
                ]
            banks.append(read.data)
        m.submodules.scales = scales = memory.Memory(shape=SCALE_BITS, depth=ENTRIES, init=[])
        write, read = scales.write_port(granularity=8), scales.read_port(domain="comb")
        m.d.comb += [write.addr.eq(scale_at.entry), write.data.eq(scale.as_value().replicate(LANES)), read.addr.eq(get)]
        for lane in range(LANES):  # lane 0 is in the top byte
            m.d.comb += write.en[LANES - 1 - lane].eq(stages[1] & (scale_at.lane == lane))
        m.d.comb += self.result.eq(Cat(read.data, Mux(self.index[0], banks[1], banks[0])))
        return m

    def _peaks(self, m: Module, number: Signal, put: Signal):
        """The largest magnitude of a lane, where it belongs, and a pulse; four cycles after its last word was taken."""
        where = data.StructLayout({"lane": 2, "entry": 2, "layout": 1})

        def largest(values: list) -> list[Signal]:
            pairs = zip(values[::2], values[1::2])
            out = [Signal(15, name=f"largest_{len(values)}_{i}") for i in range(len(values) // 2)]
            m.d.comb += [each.eq(Mux(a > b, a, b)) for each, (a, b) in zip(out, pairs)]
            return out

        def register(values: list, name: str) -> list[Signal]:
            out = [Signal(15, name=f"{name}_{i}") for i in range(len(values))]
            m.d.sync += [each.eq(value) for each, value in zip(out, values)]
            return out

        taken = Signal(WORD_BITS)
        m.d.sync += taken.eq(self.word)
        magnitudes = [taken[16 * i : 16 * i + 15] for i in range(HALF)]
        four = register(largest(largest(magnitudes)), "four")
        (one,) = register(largest(largest(four)), "one")
        valid = Signal(TAKE_TO_PEAK)
        halves = Signal(TAKE_TO_PEAK)
        places = [Signal(where, name=f"place_{i}") for i in range(TAKE_TO_PEAK)]
        m.d.sync += [valid.eq(Cat(self.take, valid)), halves.eq(Cat(number[0], halves))]
        m.d.sync += [
            places[0].lane.eq(number[1:]), places[0].entry.eq(put), places[0].layout.eq(self.layout),
            *(places[i].eq(places[i - 1]) for i in range(1, TAKE_TO_PEAK)),
        ]  # fmt: skip
        first, peak = Signal(15), Signal(15)
        peaked = Signal()
        peak_at = Signal(where)
        with m.If(valid[-1] & ~halves[-1]):
            m.d.sync += first.eq(0 if self.fault == "quantiser-half-peak" else one)
        m.d.sync += [peak.eq(Mux(one > first, one, first)), peak_at.eq(places[-1]), peaked.eq(valid[-1] & halves[-1])]
        return peak, peak_at, peaked

    def _choose_scale(self, m: Module, peak: Signal, scale) -> None:
        """The smallest scale that keeps the peak within 63 steps, rounded up (spec: scale choice)."""
        field, fraction = peak[10:], peak[:10]
        normal = field.any()
        significand = Signal(11)
        with m.If(normal):
            m.d.comb += significand.eq(Cat(fraction, 1))
        with m.Else():
            for i in range(10):  # assigned last, the highest one in the fraction decides
                with m.If(fraction[i]):
                    m.d.comb += significand.eq(fraction << (0 if self.fault == "quantiser-subnormals" else 10 - i))
        step = Signal(range(9 + len(STEPS) + 1))
        m.d.comb += step.eq(9)
        for count, above in enumerate(STEPS, 1):
            with m.If(significand > above):
                m.d.comb += step.eq(9 + count)
        m.d.sync += [scale.step.eq(step), scale.exponent.eq(field - 1 + (significand > CARRY))]
        with m.If(~normal):
            # Normalising takes the exponent below the range, whose end it then stays at.
            m.d.sync += scale.exponent.eq(0)
            with m.If(~fraction.any()):
                m.d.sync += [scale.step.eq(0), scale.exponent.eq(ZERO_EXPONENT)]
