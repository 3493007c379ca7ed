"""Whole-buffer statements: how they are cut, their programs under both lowerings, constants, limits."""

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, Options, compile_kernel
from kohakutpu.isa import vector
from kohakutpu.isa.vector import Opcode
from kohakutpu.kernels.linear import linear_silu_staged
from kohakutpu.lang import dims, kernel

from .conftest import build_machine
from .kernels import constants, flat, temps, whole
from .test_fusion import programs

M, N = dims("M, N")


def compiled(value, machine, shape=(32, 64), options=Options(), **knobs):
    names = {"x": shape, "r": shape}

    def made(x=L.In(..., M, N), y=L.Out(..., M, N), *, part=8192):
        y <<= value(x)

    return compile_kernel(kernel(made), machine, {"x": names["x"]}, knobs, options)


def run_core(instructions):
    """What one core's decoded stream moves, in order: (opcode, first L1 word, memory addresses or L1 words)."""
    image, fields, moves = {}, {}, []
    for i in instructions:
        if i.op == vector.Envelope.IMEM:
            image[i.addr] = i.word
        elif i.op == vector.Envelope.DESC:
            fields[i.ad, i.field] = i.value if i.field == 0 else (i.stride, i.bound)
        else:
            pc = i.pc
            while (word := vector.decode_word(image[pc])).op != Opcode.VHALT:
                if word.op in (Opcode.VFILL, Opcode.VDRAIN):
                    stride, bound = fields[word.ad, 1]
                    base = fields[word.ad, 0]
                    outer = fields.get((word.ad, 2), (0, 1))[1]
                    moves.append((word.op.name, word.l1, [base + stride * n for n in range(bound)] * outer))
                elif word.op in (Opcode.VLD, Opcode.VST):
                    first = fields[word.ad, 0] + word.offset
                    moves.append((word.op.name, first, list(range(first, first + 8))))
                pc += 2 if word.op == Opcode.VSETI else 1
    return moves


@pytest.mark.parametrize("lowering", ["default", "published"])
@pytest.mark.parametrize("shape, part", [((32, 64), 8192), ((3, 33, 50), 1024), ((1, 5), 1024), ((100, 100), 2048)])
def test_every_word_is_filled_and_drained_once(bench, lowering, shape, part):
    artifact = compiled(L.silu, bench, shape, Options(lowering), part=part)
    x, y = artifact.buffer("x"), artifact.buffer("y")
    drained, filled = [], []
    for instructions in programs(artifact, 0).values():
        for kind, l1, addresses in run_core(instructions):
            assert l1 + len(addresses) <= 320
            if kind in ("VFILL", "VDRAIN"):
                (filled if kind == "VFILL" else drained).extend(addresses)
    reach = {a - y.address for a in drained}
    assert [a - x.address for a in filled] == [a - y.address for a in drained] and len(reach) == len(drained)
    assert artifact.stages[0].words == len(drained)
    spans = {at for copy in range(y.copies) for at in range(copy * y.stride, copy * y.stride + y.layout.bytes, 32)}
    assert spans <= reach
    # The published program writes whole runs: at most a page beyond.
    assert lowering == "published" or max(reach) < y.bytes
    assert max(reach) < -(-y.bytes // 2048) * 2048


def test_an_image_is_sent_once_to_a_core():
    machine = build_machine(vectors=1)
    artifact = compiled(L.gelu, machine, (100, 100), part=1024)
    assert len(artifact.stages[0].nodes) == 10
    first, *others = programs(artifact, 0).values()
    assert any(i.op == vector.Envelope.IMEM for i in first)
    assert not any(i.op == vector.Envelope.IMEM for program in others for i in program)
    published = compiled(L.silu, machine, (100, 100), Options("published"), part=1024)
    assert all(any(i.op == vector.Envelope.IMEM for i in program) for program in programs(published, 0).values())


def words_of(artifact, stage=0):
    """The program of a stage's first instance; a core keeps the words that an earlier stage sent it."""
    image = {}
    for earlier in range(stage + 1):
        (program, *_) = programs(artifact, earlier).values()
        image |= {i.addr: i.word for i in program if i.op == vector.Envelope.IMEM}
    found, at = [vector.decode_word(image[0])], 0
    while found[-1].op != Opcode.VHALT:
        at += 2 if found[-1].op == Opcode.VSETI else 1
        found.append(vector.decode_word(image[at]))
    return found


def test_chunks_are_worked_on_in_step(bench):
    """Neighbouring operations belong to different chunks, so none waits for the one before it."""
    alu = [w for w in words_of(compiled(L.silu, bench)) if w.op in vector.ALU_OPS]
    assert alu[0].op == alu[1].op == Opcode.VMUL and alu[0].vd != alu[1].vd


def test_constants_in_registers(bench):
    words = words_of(compiled(lambda v: (0.5 + v) / 3 * 1.0 - 0.5, bench))
    assert [w.vd for w in words if w.op == Opcode.VSETI] == [0, 4, 5]
    assert not [w for w in words if w.op == Opcode.VBCAST]
    (add, *_) = [w for w in words if w.op == Opcode.VADD]
    assert (add.sa, add.va, add.sc) == (vector.Source.S, 4, vector.Source.V)
    mul = [w for w in words if w.op == Opcode.VMUL]
    assert any((w.sb, w.vb) == (vector.Source.K, 1) for w in mul)


def test_constants_as_arrays(bench):
    artifact = compiled(lambda v: v * 0.1 + 2, bench, options=Options(constants="arrays"))
    arrays = [image for image in artifact.buffers if image.role == "constant"]
    assert [(image.name, image.fill) for image in arrays] == [
        ("const0.1", int(np.float16(0.1).view(np.uint16))), ("const2.0", 0x4000)
    ]  # fmt: skip
    assert all(image.bytes == 128 * 32 for image in arrays)
    assert not [w for w in words_of(artifact) if w.op == Opcode.VSETI and w.vd]


def test_a_constant_array_is_shared_by_statements(bench):
    def made(x=L.In(M, N), y=L.Out(M, N), z=L.Out(M, N)):
        y <<= x * 0.1
        z <<= y * 0.1

    artifact = compile_kernel(kernel(made), bench, {"x": (8, 8)}, {}, Options(constants="arrays"))
    assert [image.name for image in artifact.buffers] == ["x", "y", "z", "const0.1"]


@pytest.mark.parametrize("first", [256, 8])
def test_a_shared_constant_array_is_as_long_as_its_longest_reader_needs(bench, first):
    def made(x=L.In(M, 256), r=L.In(N, 256), y=L.Out(M, 256), z=L.Out(N, 256)):
        y <<= x * 0.1
        z <<= r * 0.1

    shapes = {"x": (first, 256), "r": (264 - first, 256)}
    artifact = compile_kernel(kernel(made), bench, shapes, {}, Options(constants="arrays"))
    (array,) = [image for image in artifact.buffers if image.role == "constant"]
    assert array.bytes == 8192 * 2


def test_scalar_registers_hold_twelve_constants(bench):
    def value(count):
        def scaled(v):
            for number in range(count):
                v = v * (1.5 + number)
            return v

        return scaled

    words = words_of(compiled(value(12), bench))
    assert [w.vd for w in words if w.op == Opcode.VSETI] == [0, *range(4, 16)]
    with pytest.raises(CompileError, match="13 constants other than 0, 1 and -1 in one statement; a core has 12 registers for them: split"):
        compiled(value(13), bench)


@pytest.mark.parametrize(
    "value, options, reason",
    [
        (lambda v: v * 1e39, Options(), "outside the range of E8M15"),
        (lambda v: v * 1e-40, Options(), "too small: E8M15 has nothing below"),
        (lambda v: v * 1e5, Options(constants="arrays"), "outside the range of FP16"),
        (lambda v: v * 1e-6, Options(constants="arrays"), "no normal FP16 number"),
        (
            lambda v: L.gelu(v),
            Options("published", "arrays"),
            "fills 4 operands, constants included, with 10 descriptors of 8",
        ),
        (
            lambda v: L.silu(v) + L.exp2(v),
            Options("published"),
            "has one running result, and this expression keeps two",
        ),
        (lambda v: v, Options("published"), "stores no bare copy and no constant"),
        (lambda v: sum((v * float(n) for n in range(2, 16)), v), Options(), "14 constants other than 0, 1 and -1"),
        (lambda v: sum((v * float(n) for n in range(2, 16)), v) * 0.0, Options("published"), "holds 15 constants in vector registers, of which 1"),
    ],
)
def test_refusals(bench, value, options, reason):
    with pytest.raises(CompileError, match=reason) as caught:
        compiled(value, bench, options=options)
    assert "y <<=" in caught.value.source.text


def test_published_parts_are_whole_runs(bench):
    with pytest.raises(CompileError, match="part to be a multiple of 1024, not 1000"):
        compiled(L.silu, bench, options=Options("published"), part=1000)


def wide(count):
    """An expression that keeps `count` values alive."""

    def value(v):
        kept = [v]
        for _ in range(count - 1):
            kept.append(L.exp2(kept[-1]))
        total = kept[-1]
        for part in kept:
            total = total * part
        return total

    return value


def test_registers_run_out(bench):
    compiled(wide(15), bench)
    with pytest.raises(CompileError, match="this statement needs 17 vector registers of 16"):
        compiled(wide(16), bench)


def test_operands_run_out(bench):
    six = ", ".join(f"a{n}=_In" for n in range(7))
    space = {"_In": L.In(M), "_Out": L.Out(M)}
    exec(f"def made({six}, y=_Out):\n    y <<= a0 + a1 + a2 + a3 + a4 + a5 + a6", space)  # as many ports as wanted
    with pytest.raises(CompileError, match="7 operands, constants in memory included, need 9 descriptors of 8"):
        compile_kernel(kernel(space["made"]), bench, {f"a{n}": (64,) for n in range(7)})


def test_a_long_program_is_refused(bench):
    def value(v):
        for n in range(600):
            v = v * v if n % 2 else L.exp2(v)
        return v

    with pytest.raises(CompileError, match="the vector program of one chunk is above 512 words"):
        compiled(value, bench)
    with pytest.raises(CompileError, match="the vector program is .* words and a core holds 512"):
        compiled(lambda v: _power(v, 100), bench, options=Options("published"))


def _power(v, times):
    for _ in range(times):
        v = L.exp2(v)
    return v


def test_published_registers_skip_the_running_result(bench):
    """spec: seeded constants take ascending free registers, v7 and v8 apart."""
    words = words_of(compiled(lambda v: v * 2 + 3 - 4, bench, options=Options("published")))
    assert [(w.op.name, w.vd) for w in words if w.op == Opcode.VBCAST] == [("VBCAST", 1), ("VBCAST", 2), ("VBCAST", 3)]
    assert {w.vd for w in words if w.op in vector.ALU_OPS} == {7}


def test_shared_operands_of_a_batch(bench):
    artifact = compile_kernel(temps, bench, {"x": (3, 20, 30), "b": (20, 30)}, {}, Options(bands=False))
    assert artifact.buffer("b").copies == 1 and artifact.buffer("t1").copies == 3
    assert artifact.stages[0].grid == (3, 1) and artifact.stages[2].grid == (1,)


def test_whole_arrays_of_any_rank(bench):
    artifact = compile_kernel(flat, bench, {"x": (2, 3, 5, 7)})
    assert artifact.buffer("y").shape == (2, 3, 5, 7) and artifact.buffer("y").layout.shape == (210,)


def test_a_number_needs_no_fill(bench):
    artifact = compile_kernel(constants, bench, {"x": (8, 8)}, {}, Options(bands=False))
    assert not [w for w in words_of(artifact, 1) if w.op in (Opcode.VFILL, Opcode.VBAR, Opcode.VLD)]


def test_two_operands(bench):
    artifact = compile_kernel(whole(lambda x, r: x * r - x), bench, {"x": (8, 32), "r": (8, 32)})
    loads = [(w.vd, w.offset) for w in words_of(artifact) if w.op == Opcode.VLD]
    assert loads == [(0, 0), (3, 8), (1, 16), (4, 24)]


def test_the_staged_form_leaves_out_what_the_published_one_sends(bench):
    shapes = {"x": (64, 64), "w": (64, 64)}
    counts = [
        compile_kernel(linear_silu_staged, bench, shapes, {}, options).flit_count
        for options in (Options(), Options("published"), Options("published", "arrays"))
    ]
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.parametrize("shape, length", [((1, 5), 16), ((3, 20), 64), ((32, 64), 128)])
def test_what_is_shorter_than_a_register_sets_its_length(bench, shape, length):
    artifact = compiled(L.silu, bench, shape)
    (program, *_) = programs(artifact, 0).values()
    image = {i.addr: i.word for i in program if i.op == vector.Envelope.IMEM}
    assert vector.decode_word(image[0]).op == Opcode.VSETI and image[1] == length


@pytest.mark.parametrize("length", [16, 32, 128])
@pytest.mark.parametrize("chunks", [1, 3])
def test_chains_do_not_pay(length, chunks):
    """Why no program chains: a sigmoid as one chain of depth 4 issues as many beats, its result comes 62 cycles after its
    first beat instead of 4 * 17, and then a multiplication waits for the deeper stages. It gains 3 cycles on one chunk
    of 16 elements, and loses on everything longer."""
    from kohakutpu.conformance.vector import VectorBench

    def cycles(chain: bool) -> int:
        words = [vector.encode(Opcode.VSETI, vd=0), length, vector.encode(Opcode.VSETI, vd=4), 0xBFB8AA]
        words += [vector.encode(Opcode.VSETVL, va=0)]
        words += [vector.encode(Opcode.VSETMODE, mode=vector.Mode.D4 if chain else vector.Mode.FLAT)]
        words += [vector.encode(Opcode.VLD, ad=0, vd=c, offset=8 * c) for c in range(chunks)]
        steps = [(Opcode.VMUL, {"sb": 1, "vb": 4}), (Opcode.VEXP2, {}), (Opcode.VADD, {"sc": 3, "vc": 1}), (Opcode.VINV, {})]
        sigmoid = [
            (c, step, vector.encode(op, **({"sa": 2 if step and chain else 0, "sb": 3, "sc": 3} | fields),
                                    va=8 + c if step else c, vd=8 + c))
            for step, (op, fields) in enumerate(steps) for c in range(chunks)
        ]  # fmt: skip
        words += [word for *_, word in (sorted(sigmoid) if chain else sigmoid)]
        words += [vector.encode(Opcode.VSETMODE, mode=vector.Mode.FLAT)] * chain
        words += [vector.encode(Opcode.VMUL, va=c, vb=8 + c, vd=8 + c) for c in range(chunks)]
        words += [vector.encode(Opcode.VST, ad=0, vd=8 + c, offset=64 + 8 * c) for c in range(chunks)]
        done = VectorBench().run([*words, vector.encode(Opcode.VHALT)], [(0, 1, 1 << 16 | 8)])
        assert done.code == 0
        return done.arg

    assert cycles(True) - cycles(False) >= (-3 if length * chunks == 16 else 0)
