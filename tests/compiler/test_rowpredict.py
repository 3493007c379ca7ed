"""Predicted cycles of vector words against the unit model of the vector core."""

import random

import pytest

from kohakutpu.compiler import rowpredict
from kohakutpu.compiler.rowpredict import Lanes
from kohakutpu.conformance.vector import VectorBench
from kohakutpu.isa import vector
from kohakutpu.isa.vector import Mode, Opcode, RedKind, Source


def program(seed: int) -> list[int]:
    """Loads, operations, reductions, broadcasts and stores with what depends on them near by, at one VL."""
    draw = random.Random(seed)
    words = [vector.encode(Opcode.VSETI, vd=0), draw.choice((16, 32, 80, 128)), vector.encode(Opcode.VSETVL, va=0)]
    mode = None

    def put(op, **fields):
        nonlocal mode
        wanted = Mode.TREE if op == Opcode.VRED else Mode.FLAT if op in vector.ALU_OPS else mode
        if wanted != mode:
            mode = wanted
            words.append(vector.encode(Opcode.VSETMODE, mode=mode))
        words.append(vector.encode(op, **fields))

    for _ in range(draw.randint(5, 60)):
        a, b, d = (draw.randrange(5) for _ in range(3))
        s = draw.randrange(1, 4)
        match draw.randrange(7):
            case 0:
                put(Opcode.VLD, ad=0, vd=d, offset=8 * draw.randrange(8))
            case 1:
                put(Opcode.VST, ad=0, vd=a, offset=8 * draw.randrange(8, 16))
            case 2:
                put(Opcode.VRED, va=a, vb=d, vd=s, kind=draw.choice((RedKind.SUM, RedKind.MAX, RedKind.DOT, RedKind.EXPSUM)))
            case 3:
                put(Opcode.VBCAST, sa=Source.S, va=s, vd=d)
            case 4:
                put(Opcode.VBCAST, sa=Source.V, va=a, vd=s)
            case _:
                put(draw.choice((Opcode.VMUL, Opcode.VMAX)), va=a, sb=draw.choice((Source.V, Source.S)), vb=s if a else b, vd=d)
    return [*words, vector.encode(Opcode.VHALT)]


def predicted(words: list[int]) -> float:
    """Kernel cycles, by the words' issue."""
    lanes, now, chunks, at = Lanes(0), 0.0, 8, 0
    scalars = {}
    while True:
        i = vector.decode_word(words[at])
        at += 1
        if i.op == Opcode.VHALT:
            return max(now, lanes.written, lanes.issued) + 2
        if i.op == Opcode.VSETI:
            scalars[i.vd] = words[at]
            at, now = at + 1, now + 2
        elif i.op == Opcode.VSETVL:
            chunks = -(-scalars[i.va] // 16)
            now += 1
        elif i.op == Opcode.VSETMODE:
            now += 1
        else:
            now = lanes.put(i, now, chunks)


def errors(count: int) -> list[float]:
    """Predicted to measured, less 1, of random programs; three cycles are no error."""
    found = []
    for seed in range(count):
        words = program(seed)
        done = VectorBench().run(words, [(0, 1, 1 << 16 | 8)])
        assert done.code == 0
        off = predicted(words) - done.arg
        found.append(0.0 if abs(off) <= 3 else off / done.arg)
    return found


def test_random_programs():
    found = errors(60)
    assert max(map(abs, found)) < 0.03
    assert abs(sum(found)) / len(found) < 0.005


@pytest.mark.parametrize("name, value", [("TREE", 30), ("GAP", 0), ("LANE", 12), ("SHORT_WORDS", ())])
def test_a_wrong_figure_is_seen(name, value, monkeypatch):
    monkeypatch.setattr(rowpredict, name, value)
    assert max(map(abs, errors(60))) > 0.03
