"""What a cluster program computes, in scalar integers written from the spec and from nothing in the package."""

from operator import mul

MW = 14
SIGN, TOP = 1 << 21, 0x7F << MW
FRACTION = (1 << MW) - 1


def entry(q, scales, layout):
    """Four 256-bit operand words of q[lane][k] in -64..63 and four scale bytes."""
    words = []
    for w in range(4):
        word = 0
        for lane in range(4):
            for kk in range(8):
                slot = 8 * lane + kk if layout == "A" else 4 * kk + lane
                word |= (q[lane][8 * w + kk] & 0x7F) << (249 - 7 * slot)
            word |= scales[lane] << (24 - 8 * lane)
        words.append(word)
    return words


def unpack(words, layout):
    """(q[lane][k], scales) of four operand words; the scales are word 0's."""
    q = [[0] * 32 for _ in range(4)]
    for w, word in enumerate(words):
        for lane in range(4):
            for kk in range(8):
                slot = 8 * lane + kk if layout == "A" else 4 * kk + lane
                bits = (word >> (249 - 7 * slot)) & 0x7F
                q[lane][8 * w + kk] = bits - 128 if bits & 64 else bits
    return q, [(words[0] >> (24 - 8 * lane)) & 0xFF for lane in range(4)]


def convert(s, fa, fb, anchor):
    """Accumulator word of a block sum (spec: chain value to FP22)."""
    magnitude = abs(s) * (8 + (fa & 7)) * (8 + (fb & 7))
    if not magnitude:
        return 0
    msb = magnitude.bit_length() - 1
    exponent = msb + (fa >> 3) + (fb >> 3) - anchor - 6 + 63
    significand, rest, width = magnitude << MW >> msb, 0, 0
    if msb > MW:
        width = msb - MW
        significand, rest = magnitude >> width, magnitude & ((1 << width) - 1)
    else:
        significand = magnitude << (MW - msb)
    half = 1 << width >> 1
    if width and (rest > half or (rest == half and significand & 1)):
        significand += 1
    if significand >> (MW + 1):
        significand, exponent = 1 << MW, exponent + 1
    return (SIGN if s < 0 else 0) | (exponent % 128) << MW | (significand & FRACTION)


def add(a, b):
    """a (tile) + b (incoming) (spec: addition)."""
    zero_a, zero_b = not (a & TOP), not (b & TOP)
    if zero_a and zero_b:
        return 0
    if zero_a or zero_b:
        return b if zero_a else a
    if (b & ~SIGN) > (a & ~SIGN):
        big, small = b, a
    else:
        big, small = a, b
    e_big = (big & TOP) >> MW
    d = min(e_big - ((small & TOP) >> MW), MW + 9)
    wide_big = (1 << MW | big & FRACTION) << 8
    wide_small = (1 << MW | small & FRACTION) << 8
    shifted = wide_small >> d
    lost = shifted << d != wide_small
    total = wide_big - shifted if (a ^ b) & SIGN else wide_big + shifted
    if not total:
        return 0
    p = total.bit_length() - 1
    justified = total << (MW + 9 - p)
    exponent = e_big + p - (MW + 8)
    significand, guard = justified >> 9, (justified >> 8) & 1
    sticky = bool(justified & 0xFF) or lost
    if guard and (sticky or significand & 1):
        significand += 1
        if significand >> (MW + 1):
            exponent += 1
    if exponent <= 0:
        return 0
    if exponent >= 127:
        return (big & SIGN) | TOP | FRACTION
    return (big & SIGN) | exponent << MW | (significand & FRACTION)


def to_fp16(a):
    """FP16 bits of an accumulator word (spec: FP22 to FP16)."""
    sign = 0x8000 if a & SIGN else 0
    exponent, fraction = (a & TOP) >> MW, a & FRACTION
    if not exponent:
        return sign
    kept, guard, sticky = fraction >> 4, (fraction >> 3) & 1, fraction & 7
    e16 = exponent - 48
    if guard and (sticky or kept & 1):
        kept += 1
        if kept >> 10:
            kept, e16 = 0, e16 + 1
    if e16 <= 0:
        return sign
    if e16 >= 31:
        return sign | 0x7BFF
    return sign | e16 << 10 | kept


class Reference:
    """L1 and the resident tile of one cluster, instruction by instruction, no time."""

    def __init__(self, tiles=512, entries=512):
        self.tiles = [[0] * 16 for _ in range(tiles)]
        self.entries = entries
        self.l1 = {"A": {}, "B": {}}

    def fill(self, side, bank, eoff, blocks):
        """`blocks`: four words an entry."""
        for index, words in enumerate(blocks):
            self.l1[side][(bank << 8 | (eoff + index) & 255) % self.entries] = list(words)

    def operand(self, side, bank, offset):
        return unpack(self.l1[side].get((bank << 8 | offset & 255) % self.entries, [0] * 4), side)

    def gemm(self, gm, gn, nk, *, acc=0, anchor=40, aoff=0, boff=0, abank=0, bbank=0):
        """Returns the FP16 words that the last K block would emit."""
        gm, gn, nk = max(gm, 1), max(gn, 1), max(nk, 1)
        emitted = []
        for kb in range(nk):
            columns = [self.operand("B", bbank, boff + h * nk + kb) for h in range(gn)]
            for g in range(gm):
                qa, fa = self.operand("A", abank, aoff + g * nk + kb)
                for h, (qb, fb) in enumerate(columns):
                    tile = self.tiles[(g * gn + h) % len(self.tiles)]
                    for i in range(4):
                        for j in range(4):
                            value = convert(sum(map(mul, qa[i], qb[j])), fa[i], fb[j], anchor)
                            tile[4 * i + j] = add(0 if kb == 0 and not acc else tile[4 * i + j], value)
                    if kb == nk - 1:
                        emitted.append(sum(to_fp16(lane) << 16 * at for at, lane in enumerate(tile)))
        return emitted

    def emit(self, count):
        rows = [self.tiles[t % len(self.tiles)] for t in range(max(count, 1))]
        return [sum(to_fp16(lane) << 16 * g for g, lane in enumerate(row)) for row in rows]

    def send(self, count):
        out = []
        for t in range(max(count, 1)):
            word = sum(lane << 22 * g for g, lane in enumerate(self.tiles[t % len(self.tiles)]))
            out += [word & (1 << 256) - 1, word >> 256]
        return out

    def peer(self, offset, granules):
        for index in range(0, len(granules) - 1, 2):
            tile = self.tiles[(offset + index) // 2]
            word = granules[index] | (granules[index + 1] & (1 << 96) - 1) << 256
            for g in range(16):
                tile[g] = add(tile[g], word >> 22 * g & (1 << 22) - 1)
