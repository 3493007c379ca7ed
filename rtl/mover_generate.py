"""Mode GENERATE of the memory mover: Philox-4x32 with ten rounds, one 256-bit word a cycle.

Timing: docs/microarchitecture/memory-agent.md, memory mover.
"""

from __future__ import annotations

from amaranth import Cat, Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .emit import shared
from .memory_issue import INDEX_BITS, WORD_BITS
from .parameters import known_fault

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # of the first and of the third counter word
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
PIPELINE = 2 * ROUNDS - 1  # registers between a start and its word: whoever stores the word is the last
HALF_BITS = WORD_BITS // 2

FAULTS = {
    "generate-nine-rounds": "the key of the last round is that of the round before",
    "generate-halves": "both halves of a word are the first one",
    "generate-high-address": "address bits above the low 37 are not in the counter",
}


class Philox(wiring.Component):
    """One block of 128 bits a cycle.

    Members: `start` with `counter` (the low two words; the others are 0) in, `result` `PIPELINE` cycles later; `keys`,
    the rounds' keys, which stay as they are meanwhile.
    """

    def __init__(self):
        super().__init__({"start": In(1), "counter": In(64), "keys": In(64 * ROUNDS), "result": Out(HALF_BITS)})

    def elaborate(self, platform):
        m = Module()
        words = [self.counter[:32], self.counter[32:], Const(0, 32), Const(0, 32)]
        valid = self.start
        for number in range(ROUNDS):
            # The products of halves, then their sums; a stage that is passed by nothing keeps still.
            products = [self._multiply(m, valid, words[2 * k], MULTIPLIERS[k], f"{number}_{k}") for k in range(2)]
            b, d = Signal(32, name=f"b_{number}"), Signal(32, name=f"d_{number}")
            with m.If(valid):
                m.d.sync += [b.eq(words[1]), d.eq(words[3])]
            valid = self._later(m, valid, f"multiplied_{number}")
            low, high = products
            key = self.keys.word_select(number, 64)
            mixed = [high[32:] ^ b ^ key[:32], high[:32], low[32:] ^ d ^ key[32:], low[:32]]
            if number == ROUNDS - 1:
                m.d.comb += self.result.eq(Cat(*mixed))
                break
            words = [Signal(32, name=f"{name}_mixed_{number}") for name in "abcd"]
            with m.If(valid):
                m.d.sync += [word.eq(value) for word, value in zip(words, mixed)]
            valid = self._later(m, valid, f"mixed_{number}")
        return m

    @staticmethod
    def _later(m: Module, valid, name: str) -> Signal:
        later = Signal(name=name)
        m.d.sync += later.eq(valid)
        return later

    @staticmethod
    def _multiply(m: Module, valid, value, factor: int, name: str) -> Signal:
        """The 64-bit product, one cycle later."""
        parts = []
        for i in range(2):
            for k in range(2):
                part = Signal(32, name=f"part_{name}_{i}{k}")
                with m.If(valid):
                    m.d.sync += part.eq(value[16 * i : 16 * i + 16] * (factor >> 16 * k & 0xFFFF))
                parts.append(part << 16 * (i + k))
        product = Signal(64, name=f"product_{name}")
        m.d.comb += product.eq(sum(parts))
        return product


class Generator(wiring.Component):
    """The word of an address and a seed.

    Members: `start` with `index`, the word's number in memory, in; `ready` and `word` `PIPELINE` cycles later; `seed`,
    in force from a cycle before the first start on until the last word.
    """

    def __init__(self, *, fault: str | None = None):
        self.fault = known_fault("Generator", fault, FAULTS)
        super().__init__(
            {"start": In(1), "index": In(INDEX_BITS), "seed": In(64), "ready": Out(1), "word": Out(WORD_BITS)}
        )

    def elaborate(self, platform):
        m = Module()
        keys = Signal(64 * ROUNDS)
        for number in range(ROUNDS):
            bumps = number - 1 if self.fault == "generate-nine-rounds" and number == ROUNDS - 1 else number
            for half, step in enumerate(KEY_STEPS):
                key = self.seed.word_select(half, 32) + Const(bumps * step & 0xFFFFFFFF, 32)
                m.d.sync += keys.word_select(2 * number + half, 32).eq(key[:32])
        above = 0 if self.fault == "generate-high-address" else self.index[32:]
        for half in range(2):
            m.submodules[f"half_{half}"] = philox = shared(Philox)
            second = 0 if self.fault == "generate-halves" else half
            m.d.comb += [
                philox.start.eq(self.start),
                philox.counter.eq(Cat(self.index[:32], Const(second, 1), above)),
                philox.keys.eq(keys),
                self.word.word_select(half, HALF_BITS).eq(philox.result),
            ]
        valid = Signal(PIPELINE)
        m.d.sync += valid.eq(Cat(self.start, valid[:-1]))
        m.d.comb += self.ready.eq(valid[-1])
        return m
