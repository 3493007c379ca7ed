"""Cocotb side of the benches of a cluster's parts: streams of vectors against the formats."""

import os
import random
from collections.abc import Iterable

import cocotb
import numpy as np
from cluster_parts import LANE_LATENCY, LANES
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

from kohakutpu.formats import mxfp7, words
from kohakutpu.formats.accumulator import AccumulatorFormat
from kohakutpu.model.cluster_tiles import TileStore
from rtl.cluster_accumulator import FROM_ARRAY, OPENS, WRITES, Command
from rtl.cluster_array import LATENCY

MANTISSA = int(os.environ.get("MANTISSA", "14"))
VECTORS = int(os.environ.get("VECTORS", "32000"))
FORMAT = AccumulatorFormat(MANTISSA)

# spec: accumulator vectors. (S, fa, fb, anchor, word)
CONVERSIONS = [
    (0, 0xA0, 0xA0, 40, 0x000000), (1, 0xA0, 0xA0, 40, 0x0FC000), (-1, 0xA0, 0xA0, 40, 0x2FC000),
    (131072, 0xA0, 0xA0, 40, 0x140000), (-129024, 0xA0, 0xA0, 40, 0x33FE00), (32767, 0xA0, 0xA0, 40, 0x137FFF),
    (32769, 0xA0, 0xA0, 40, 0x138000), (32771, 0xA0, 0xA0, 40, 0x138002), (65535, 0xA0, 0xA0, 40, 0x13C000),
    (127008, 0xFF, 0xFF, 40, 0x19ED03), (131072, 0xFF, 0xFF, 40, 0x19F080), (1, 0x00, 0x00, 40, 0x05C000),
    (-127008, 0x07, 0x07, 40, 0x2A6D03), (12345, 0xA3, 0x9D, 40, 0x132BBF), (-77777, 0xB5, 0x8E, 40, 0x33EBFF),
    (99999, 0xA7, 0xA7, 40, 0x1455D4), (1, 0xA0, 0xA0, 48, 0x0DC000), (1, 0xA0, 0xA0, 102, 0x004000),
    (1, 0xA0, 0xA0, 103, 0x000000), (1, 0xA0, 0xA0, 104, 0x1FC000), (1, 0xF8, 0xF8, 0, 0x1F4000),
    (131072, 0xFF, 0xFF, 0, 0x03F080),
]  # fmt: skip
ADDITIONS = [  # (a, b, a + b)
    (0x0FC000, 0x0FC000, 0x100000), (0x0FC000, 0x2FC000, 0x000000), (0x0FC001, 0x2FC000, 0x0C4000),
    (0x004001, 0x204000, 0x000000),
    (0x1FBFFF, 0x1FBFFF, 0x1FFFFF), (0x3F8000, 0x3F8000, 0x3FFFFF), (0x203FFF, 0x000005, 0x000000),
    (0x0FC000, 0x0C0000, 0x0FC000),
    (0x0FC001, 0x0C0000, 0x0FC002), (0x0FC000, 0x0C0001, 0x0FC001), (0x0FFFFF, 0x0C0000, 0x100000),
    (0x0FC000, 0x2A3FFF, 0x0FC000),
    (0x0FC000, 0x2C5001, 0x0FBFFE), (0x0FC000, 0x2C5000, 0x0FBFFE), (0x0FC005, 0x2C0001, 0x0FC005),
    (0x0FC004, 0x2C0001, 0x0FC004),
    (0x1FFFFF, 0x3F8000, 0x1FFFFF),
]  # fmt: skip
HALVES = [  # (word, FP16)
    (0x000000, 0x0000), (0x0FC000, 0x3C00), (0x2FC000, 0xBC00), (0x0FC008, 0x3C00), (0x0FC018, 0x3C02),
    (0x0FC009, 0x3C01),
    (0x0FFFF8, 0x4000), (0x0C4000, 0x0400), (0x0C3FF8, 0x0400), (0x0C3FF7, 0x0000), (0x2C0000, 0x8000),
    (0x13BFF0, 0x7BFF),
    (0x13BFF8, 0x7BFF), (0x13C000, 0x7BFF), (0x3FFFFF, 0xFBFF),
]  # fmt: skip


async def start(dut, *inputs: str) -> None:
    for name in inputs:
        getattr(dut, name).value = 0
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, 4, "ns").start())
    for _ in range(3):
        await FallingEdge(dut.clk)
    dut.rst.value = 0


async def stream(dut, rows: Iterable[dict[str, int]], outputs: tuple[str, ...], tail: int) -> list[tuple[int, ...]]:
    """What the outputs are in each cycle, row i of inputs being applied in cycle i, and for `tail` cycles after."""
    rows = [*rows, *[{}] * tail]
    seen = []
    for row in rows:
        seen.append(tuple(int(getattr(dut, name).value) for name in outputs))
        for name, value in row.items():
            getattr(dut, name).value = value
        await FallingEdge(dut.clk)
    return seen


def packed(values: np.ndarray, width: int) -> list[int]:
    """Rows of an integer array as one number each, value i at bit width * i."""
    mask = (1 << width) - 1
    return [sum((int(value) & mask) << (width * i) for i, value in enumerate(row)) for row in values]


def unpacked(number: int, width: int) -> list[int]:
    return [number >> (width * i) & ((1 << width) - 1) for i in range(LANES)]


def differences(name: str, inputs: tuple[np.ndarray, ...], got: np.ndarray, want: np.ndarray) -> None:
    wrong = np.flatnonzero(got != want)
    if len(wrong):
        at = wrong[0]
        given = ", ".join(f"{int(values[at]) & 0xFFFFFFFF:#x}" for values in inputs)
        raise AssertionError(
            f"{name}: {len(wrong)} of {len(want)} differ; ({given}) gave {int(got[at]):#x}, not {int(want[at]):#x}"
        )


async def through_lanes(
    dut, *, sums=0, scales_a=0, scales_b=0, anchors=0, tiles=0, peers=0, from_array=0, from_peer=0, keep=0
):
    """(words, FP16) of vectors, arrays of one length or numbers."""
    width = MANTISSA + 8
    fields = {
        "sums": (sums, 19), "scales_a": (scales_a, 8), "scales_b": (scales_b, 8), "anchors": (anchors, 8),
        "tiles": (tiles, width),
        "peers": (peers, width), "from_array": (from_array, 1), "from_peer": (from_peer, 1), "keep": (keep, 1),
    }  # fmt: skip
    count = max(np.size(values) for values, _ in fields.values())
    cycles = -(-count // LANES)
    columns = {}
    for name, (values, bits) in fields.items():
        rows = np.zeros(cycles * LANES, dtype=np.int64)
        rows[:count] = values
        columns[name] = packed(rows.reshape(cycles, LANES), bits)
    rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
    seen = (await stream(dut, rows, ("words", "halves"), LANE_LATENCY))[LANE_LATENCY:]
    words_out = np.array([unpacked(row[0], width) for row in seen]).ravel()[:count]
    halves_out = np.array([unpacked(row[1], 16) for row in seen]).ravel()[:count]
    return words_out, halves_out


INPUTS = ("sums", "scales_a", "scales_b", "anchors", "tiles", "peers", "from_array", "from_peer", "keep")


@cocotb.test()
async def lane_vectors_of_the_spec(dut):
    """Both tables of the spec's accumulator, and FP16."""
    assert MANTISSA == 14
    await start(dut, *INPUTS)
    s, fa, fb, anchor, want = (np.array(column) for column in zip(*CONVERSIONS))
    got, _ = await through_lanes(dut, sums=s, scales_a=fa, scales_b=fb, anchors=anchor, from_array=1)
    differences("conversion", (s, fa, fb, anchor), got, want)
    a, b, want = (np.array(column) for column in zip(*ADDITIONS))
    got, _ = await through_lanes(dut, tiles=a, peers=b, from_peer=1, keep=1)
    differences("addition", (a, b), got, want)
    word, want = (np.array(column) for column in zip(*HALVES))
    # added to zero a word passes as it is, but one without an exponent becomes zero
    _, got = await through_lanes(dut, tiles=word, keep=1)
    differences("FP16", (word,), got, want)


def hostile_words(rng: np.random.Generator, count: int) -> np.ndarray:
    """Accumulator words: any bits, few bits set, ends of the exponent's range, junk without an exponent."""
    mw = MANTISSA
    any_word = rng.integers(0, 1 << (mw + 8), count)
    sparse = (
        rng.integers(0, 1 << (mw + 8), count)
        & rng.integers(0, 1 << (mw + 8), count)
        & rng.integers(0, 1 << (mw + 8), count)
    )
    exponent = rng.choice([0, 1, 2, 40, 46, 47, 48, 49, 63, 78, 79, 80, 125, 126, 127], count)
    fraction = rng.choice([0, 1, 2, (1 << mw) - 1, (1 << mw) - 2, 1 << (mw - 1), (1 << (mw - 1)) - 1], count)
    ends = rng.integers(0, 2, count) << (mw + 7) | exponent << mw | fraction
    return np.choose(rng.integers(0, 3, count), [any_word, sparse, ends])


@cocotb.test()
async def lane_additions(dut):
    """Random and adversarial pairs: close exponents, cancellations, ties, residues that subtract; and their FP16."""
    await start(dut, *INPUTS)
    rng = np.random.default_rng(random.getrandbits(32))
    mw = MANTISSA
    a = hostile_words(rng, VECTORS)
    near = (a ^ rng.integers(0, 2, VECTORS) << (mw + 7)) + (rng.integers(-(mw + 12), mw + 12, VECTORS) << mw)
    near ^= rng.integers(0, 1 << mw, VECTORS) & rng.integers(0, 1 << mw, VECTORS)
    close = (a ^ 1 << (mw + 7)) + rng.integers(-3, 4, VECTORS)
    b = np.choose(rng.integers(0, 4, VECTORS), [hostile_words(rng, VECTORS), near, near, close]) & ((1 << (mw + 8)) - 1)
    got, halves = await through_lanes(dut, tiles=a, peers=b, from_peer=1, keep=1)
    want = FORMAT.add(a.astype(np.uint32), b.astype(np.uint32))
    differences("addition", (a, b), got, want)
    differences("FP16", (a, b, want), halves, FORMAT.to_fp16(want))
    dut._log.warning(f"{VECTORS} additions of {mw} fraction bits")


@cocotb.test()
async def lane_conversions(dut):
    """Block sums under any scales and anchors, alone and added to a tile."""
    await start(dut, *INPUTS)
    rng = np.random.default_rng(random.getrandbits(32))
    count = VECTORS // 2
    small, large = rng.integers(-40, 41, count), rng.integers(-129024, 131073, count)
    power = (1 << rng.integers(0, 18, count)) + rng.integers(-1, 2, count)
    s = np.choose(rng.integers(0, 3, count), [small, large, power])
    fa, fb = rng.integers(0, 256, count), rng.integers(0, 256, count)
    anchor = np.where(rng.random(count) < 0.6, 40, rng.integers(0, 256, count))
    tile = hostile_words(rng, count)
    keep = rng.integers(0, 2, count)
    got, halves = await through_lanes(
        dut, sums=s, scales_a=fa, scales_b=fb, anchors=anchor, tiles=tile, peers=~tile, from_array=1,
        from_peer=rng.integers(0, 2, count),
        keep=keep,
    )  # fmt: skip
    block = np.empty(count, dtype=np.uint32)
    for value in np.unique(anchor):
        chosen = anchor == value
        block[chosen] = FORMAT.from_block(s[chosen], fa[chosen], fb[chosen], int(value))
    want = FORMAT.add(np.where(keep, tile, 0).astype(np.uint32), block)
    differences("conversion", (s, fa, fb, anchor, tile * keep), got, want)
    differences("FP16", (want,), halves, FORMAT.to_fp16(want))


@cocotb.test()
async def lane_halves(dut):
    """FP16 of every word there is, or of every one around FP16's range and ends."""
    await start(dut, *INPUTS)
    mw = MANTISSA
    step = 1 if mw <= 11 else 3
    word = np.concatenate(
        [np.arange(sign << (mw + 7) | 45 << mw, sign << (mw + 7) | 82 << mw, step) for sign in (0, 1)]
    )
    word = np.concatenate(
        [word[: VECTORS // 2], word[-(VECTORS // 2) :], hostile_words(np.random.default_rng(1), 4096)]
    )
    got, halves = await through_lanes(dut, tiles=word, keep=1)
    want = FORMAT.add(word.astype(np.uint32), np.zeros(len(word), dtype=np.uint32))
    differences("a word added to zero", (word,), got, want)
    differences("FP16", (want,), halves, FORMAT.to_fp16(want))


@cocotb.test()
async def array_sums(dut):
    """Every significand in range, extremes in whole entries, against exact integers."""
    await start(dut, "a", "b")
    rng = np.random.default_rng(random.getrandbits(32))
    count = VECTORS // 100

    def entries():
        q = rng.integers(-64, 64, (count, 4, 32))
        extreme = rng.random((count, 4, 1)) < 0.3
        q = np.where(extreme, rng.choice([-64, 63, 0, -1], (count, 4, 1)), q)
        q[:2] = [[[-64] * 32] * 4, [[63] * 32] * 4]
        return q

    a, b = entries(), entries()
    rows = [{"a": x, "b": y} for x, y in zip(packed(a.reshape(count, -1), 7), packed(b.reshape(count, -1), 7))]
    seen = (await stream(dut, rows, ("sums",), LATENCY))[LATENCY:]
    got = np.array([unpacked(row[0], 19) for row in seen]).reshape(count, 4, 4)
    got -= (got >> 18) << 19
    want = np.einsum("nik,njk->nij", a, b)
    assert want.max() == 131072 and want.min() < -100_000
    differences("sum", (np.arange(want.size) // 16,), got.ravel(), want.ravel())


@cocotb.test()
async def operands_in_both_layouts(dut):
    """Entries written word by word in any order with word 3 last, read back two cycles after they are asked for; a read
    in the cycle of the write still shows the old entry."""
    await start(dut, "put", "word", "number", "to_b", "at", "entry_a", "entry_b")
    chance = random.Random(random.getrandbits(32))
    stores = {"a": [[0] * 4 for _ in range(16)], "b": [[0] * 4 for _ in range(16)]}
    rows, expected = [], []
    assembly = [0] * 4
    pending = None  # what the write port does in this cycle
    order = []
    at, to_b = 0, 0
    for _ in range(1500):
        if not order:
            order = [*chance.sample(range(3), chance.choice([2, 3, 3])), 3]
            at, to_b = chance.randrange(1 << 9), chance.randrange(2)
        row = {
            "put": int(chance.random() < 0.8), "word": chance.getrandbits(256), "number": order[0], "at": at,
            "to_b": to_b,
        }  # fmt: skip
        # read what is being written half of the time
        recent = pending[1] if pending else at
        reads = {f"entry_{side}": (recent if chance.random() < 0.5 else chance.randrange(1 << 9)) for side in "ab"}
        rows.append(row | reads)
        # the read port samples at the end of this cycle, before this cycle's write
        expected.append({side: list(stores[side][reads[f"entry_{side}"] % 16]) for side in "ab"})
        if pending:
            stores[pending[0]][pending[1] % 16] = pending[2]
            pending = None
        if row["put"]:
            assembly[order.pop(0)] = row["word"]
            if row["number"] == 3:
                pending = ("ab"[to_b], at, list(assembly))
    seen = (await stream(dut, rows, ("operand_a", "scales_a", "operand_b", "scales_b"), 2))[2:]
    for cycle, (outputs, entry) in enumerate(zip(seen, expected, strict=True)):
        for index, side in enumerate("ab"):
            q, scale = mxfp7.unpack(words.from_ints(entry[side]).reshape(1, 4, 8), side.upper())
            operand = packed(q.reshape(1, -1), 7)[0]
            assert outputs[2 * index] == operand, f"side {side}, cycle {cycle}: significands"
            assert outputs[2 * index + 1] == packed(scale, 8)[0], f"side {side}, cycle {cycle}: scales"


@cocotb.test()
async def accumulator_commands(dut):
    """Random commands, one a cycle, to addresses that recur after 5 cycles or more, against the model's tile store."""
    inputs = ("sums", "scales_a", "scales_b", "anchor", "command", "address", "peer")
    await start(dut, *inputs)
    rng = np.random.default_rng(random.getrandbits(32))
    tiles, count = 8, VECTORS // 20
    store = TileStore(tiles, MANTISSA)
    rows = [dict.fromkeys(inputs, 0) for _ in range(count + 2)]
    pushed: dict[int, int] = {}
    recent = [-9] * tiles
    kinds = [*Command, Command.EMIT, Command.ADD_EMIT]
    for cycle in range(count):
        free = [address for address in range(tiles) if cycle - recent[address] >= 5]
        address, command = int(rng.choice(free)), kinds[rng.integers(len(kinds))]
        sends = command == Command.SEND
        if pushed.keys() & ({cycle + 7, cycle + 8} if sends else {cycle + 8}):
            continue  # the queue takes one granule a cycle
        recent[address] = cycle
        rows[cycle + 2] |= {"command": int(command), "address": address}
        sums, scales = rng.integers(-129024, 131073, 16), rng.integers(0x80, 0xC0, (2, 4))
        anchor = int(rng.choice([40, 40, 36, 100]))
        rows[cycle] |= {  # the operands come two cycles ahead
            "sums": packed(sums.reshape(1, 16), 19)[0], "scales_a": packed(scales[:1], 8)[0],
            "scales_b": packed(scales[1:], 8)[0],
            "anchor": anchor,
        }  # fmt: skip
        peer = hostile_words(rng, 16).astype(np.uint32).reshape(1, 16)
        granules = words.to_ints(FORMAT.pack_granules(peer))
        rows[cycle + 2]["peer"] = granules[0] | granules[1] << 256
        if command in WRITES:
            value = peer
            if command in FROM_ARRAY:
                value = FORMAT.from_block(sums.reshape(4, 4), scales[0][:, None], scales[1][None, :], anchor).reshape(
                    1, 16
                )
            store.add(address, value, load=command in OPENS)
        if sends:
            pushed[cycle + 7], pushed[cycle + 8] = store.send(address, 1)
        elif command in (Command.EMIT, Command.ADD_EMIT, Command.LOAD_EMIT):
            (pushed[cycle + 8],) = store.emit(address, 1)
    seen = (await stream(dut, rows, ("push", "granule"), 10))[2:]
    for cycle, (push, granule) in enumerate(seen):
        want = pushed.get(cycle)
        assert (granule if push else None) == want, f"cycle {cycle}: {granule if push else 0:x}, not {want or 0:x}"
    assert len(pushed) > count // 4
