"""Vector methods, bits and reinterpretation (spec/xpu.md 1.9), lane by lane of each vector."""

from __future__ import annotations

from kohakutpu.xpu.types import Scalar, VectorType, f32, i8, i32

from .emit import DOUBLE, FLOAT, I32, I64, Value
from .waves import Waves


class Vectors(Waves):
    """What needs no memory and nobody else."""

    def vector_method(self, node, word: str, arguments: list, kinds: list):
        if word == "mac":
            total, left, right = arguments
            return self.dot_sum(kinds[1].element, left, kinds[2].element, right, total)
        own, gives = kinds[0], node.type
        lanes, *rest = arguments
        if word in ("as_unsigned", "as_signed"):
            return lanes
        if word.startswith("to_"):
            return tuple(self.convert_lane(node, lane, own.element, gives.element) for lane in lanes)
        if word in ("widen_lo", "widen_hi"):
            half = lanes[: gives.count] if word == "widen_lo" else lanes[gives.count :]
            return tuple(self.convert_lane(node, lane, own.element, gives.element) for lane in half)
        if word == "narrow":
            return tuple(self.cut(lane, gives.element.bits) for lane in (*lanes, *rest[0]))
        if word in ("bitcast_f32", "bitcast_i32"):
            return tuple(self.recast(lane, gives.element) for lane in lanes)
        if word == "as_words":
            return tuple(self.word(lanes[at : at + 4]) for at in range(0, len(lanes), 4))
        if word == "as_bytes":
            return tuple(self.byte(lane, part) for lane in lanes for part in range(4))
        if word == "lut4":
            return self.lut4(node, lanes, own.element, rest[0], kinds[1].element)
        if word == "dot_sum":
            return self.dot_sum(own.element, lanes, kinds[1].element, rest[0], rest[1])
        if word == "dot_accum":
            products = [self.product(own.element, w, i8, a) for w, a in zip(lanes, rest[0], strict=True)]
            return tuple(self.total(products[4 * j : 4 * j + 4], held) for j, held in enumerate(rest[1]))
        return self.dot(own, gives, lanes, *rest)

    def convert_lane(self, node, value: Value, source: Scalar, target: Scalar) -> Value:
        """A lane as another primitive."""
        if source is target:
            return value
        if source.kind == "float" and target.kind == "int":
            self.check_range(node, value, source, target)
        signed = source.signed or self.fault == "vector-lane-sign"
        return self.apply(lambda held: self.converted(held, source, target, signed), value)

    def cut(self, value: Value, bits: int, signed: bool = False) -> Value:
        """An integer in another width."""
        return self.apply(lambda held: self.widen(held, bits, signed), value)

    def recast(self, value: Value, target: Scalar) -> Value:
        """The same 32 bits as another type."""
        there = FLOAT if target is f32 else I32
        if value.stride not in (0, None) and there == I32:
            return value
        return self.apply(lambda held: self.builder.bitcast(held, self.shaped(there, held)), value)

    def word(self, four: tuple) -> Value:
        """Four bytes as a word, the first lowest."""
        b = self.builder

        def join(*parts):
            wide = [self.widen(part, 32) for part in parts]
            moved = [b.shl(part, self.like(part, 8 * place)) for place, part in enumerate(wide)]
            return b.or_(b.or_(moved[0], moved[1]), b.or_(moved[2], moved[3]))

        return self.apply(join, *four)

    def byte(self, value: Value, part: int) -> Value:
        """A byte of a word."""
        b = self.builder
        return self.apply(lambda held: self.widen(b.lshr(held, self.like(held, 8 * part)), 8), value)

    def lut4(self, node, lanes: tuple, kind: Scalar, table: tuple, of: Scalar) -> tuple:
        """Each lane's low four bits name an entry: a tree of choices over the bits."""
        entries = [self.convert_lane(node, entry, of, kind) for entry in table]
        return tuple(self.chosen(entries, lane) for lane in lanes)

    def chosen(self, entries: list, lane: Value) -> Value:
        """entries[lane & 15]."""
        b, held = self.builder, entries
        for bit in range(4):
            test = self.apply(lambda at, n=bit: b.icmp_unsigned("!=", b.and_(at, self.like(at, 1 << n)),
                                                                self.like(at, 0)), lane)  # fmt: skip
            held = [self.apply(b.select, test, held[i + 1], held[i]) for i in range(0, len(held), 2)]
        return held[0]

    # Dot products.
    def product(self, kind: Scalar, left: Value, other: Scalar, right: Value) -> Value:
        """Bytes multiplied as int32, each extended by a sign of its own."""
        b = self.builder
        right_signed = other.signed
        if self.fault == "dot-activation-sign":
            right_signed = kind.signed
        return self.apply(
            lambda x, y: b.mul(self.widen(x, 32, kind.signed), self.widen(y, 32, right_signed)), left, right
        )

    def total(self, products: list, start: Value) -> Value:
        """A sum that wraps."""
        for product in products:
            start = self.apply(self.builder.add, start, product)
        return start

    def dot_sum(self, kind: Scalar, left: tuple, other: Scalar, right: tuple, start: Value) -> Value:
        """start + sum of left[i] * right[i]; the receiver by its own sign, activations always as signed."""
        products = [self.product(kind, x, i8, y) for x, y in zip(left, right, strict=True)]
        return self.total(products, start)

    def dot(self, own: VectorType, gives: Scalar, left: tuple, right: tuple, start: Value | None = None) -> Value:
        """Integers both by the receiver's sign; floats in lane order, rounded to the type once."""
        if own.element.kind == "int":
            products = [self.product(own.element, x, own.element, y) for x, y in zip(left, right, strict=True)]
            return self.total(products, start or self.zero(i32))
        b, kind = self.builder, own.element

        def computed(*parts):
            total, *lanes = parts
            total = self.lift(gives, total)
            half = len(lanes) // 2
            for x, y in zip(lanes[:half], lanes[half:], strict=True):
                total = b.fadd(total, b.fmul(self.lift(kind, x), self.lift(kind, y), flags=self.flags),
                               flags=self.flags)  # fmt: skip
            return self.settle(gives, total)

        return self.apply(computed, start or self.zero(gives), *left, *right)

    # Bits.
    def bit_verb(self, node, word: str, arguments: list) -> Value:
        b, values = self.builder, arguments
        simple = {"count": "ctpop", "reverse": "bitreverse"}
        if word in simple:
            return self.apply(lambda held: self.pure(simple[word], held), *values)
        if word in ("rotate_left", "rotate_right"):
            name = "fshl" if word == "rotate_left" else "fshr"
            return self.apply(lambda x, n: self.pure(name, x, x, n), *values)
        if word == "permute":
            return self.apply(self.permuted_bytes, *values)
        there = {"bits_to_f32": FLOAT, "bits_to_f64": DOUBLE, "f32_to_bits": I32, "f64_to_bits": I64}[word]
        return self.apply(lambda held: b.bitcast(held, self.shaped(there, held)), *values)

    def permuted_bytes(self, low, high, selector):
        """Byte i of the result is the byte of {low, high} that the low three bits of selector nibble i name."""
        b = self.builder
        pair = b.or_(self.widen(low, 64), b.shl(self.widen(high, 64), self.like(self.widen(high, 64), 32)))
        wide, found = self.widen(selector, 64), None
        for place in range(4):
            which = b.and_(b.lshr(wide, self.like(wide, 4 * place)), self.like(wide, 7))
            byte = b.and_(b.lshr(pair, b.shl(which, self.like(which, 3))), self.like(pair, 255))
            moved = b.shl(byte, self.like(byte, 8 * place))
            found = moved if found is None else b.or_(found, moved)
        return self.widen(found, 32)
