"""Bands: neighbouring statements in one program. The interpreter's bytes, what is joined and what is not, fewer flits."""

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, Options, bands, compile_kernel, expressions
from kohakutpu.compiler.rowwords import Stream
from kohakutpu.isa.vector import Opcode
from kohakutpu.kernels.linear import product
from kohakutpu.lang import dims, kernel, units
from kohakutpu.machine import load

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
from running import equal_bytes, flits  # noqa: E402

M, N, K = dims("M, N, K")
APART = Options(bands=False)


@kernel
def rownorm(x=L.In(..., M, N), y=L.Out(..., M, N), *, part=8192):
    t, s, i = L.temp(M, N), L.temp(M, N), L.temp(M, N)
    t <<= L.row_sum(x / N * x)
    s <<= t + 1e-5
    i <<= L.rsqrt(s)
    y <<= x * i


@kernel
def chained(x=L.In(..., M, N), y=L.Out(..., M, N), *, part=8192):
    a, b, c, d = (L.temp(M, N) for _ in range(4))
    a <<= L.row_sum(x)
    b <<= x * L.rsqrt(a + 1e-5)
    c <<= L.row_sum(b)
    d <<= b * L.rsqrt(c + 1e-5)
    y <<= d + x


@kernel
def staged_norm(x=L.In(..., M, N), w=L.In(N), b=L.In(N), y=L.Out(..., M, N), *, part=8192):
    total, mean, dev, square, var, inv, scaled = (L.temp(M, N) for _ in range(7))
    total <<= L.row_sum(x)
    mean <<= total / N
    dev <<= x - mean
    square <<= (dev / N) * dev
    var <<= L.row_sum(square)
    inv <<= L.rsqrt(var + 1e-5)
    scaled <<= dev * inv
    y <<= scaled * w + b


@kernel
def elementwise(x=L.In(...), y=L.Out(...), z=L.Out(...), *, part=8192):
    y <<= L.silu(x)
    z <<= y * 0.5 + x


def shapes_of(made, shape):
    return {port.name: shape[-1:] if port.name in "wb" else shape for port in made.inputs}


KERNELS = [rownorm, chained, staged_norm, elementwise]


@pytest.mark.parametrize("made", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("machine", ["mm_mesh", "quad"])
def test_one_program(made, machine):
    for shape in ((64, 64), (5, 77), (2, 9, 50), (3, 300)):
        shapes = shapes_of(made, shape)
        artifact, run = equal_bytes(made, shapes, machine, {"part": 1024}, specials=0.02)
        _, apart = equal_bytes(made, shapes, machine, {"part": 1024}, APART, specials=0.02)
        assert len(artifact.stages) == 1 and run.cycles < apart.cycles
        assert [image.name for image in artifact.buffers if image.role == "temp"] == []


@pytest.mark.parametrize("made, published", [(rownorm, 522), (chained, 466), (staged_norm, 850)], ids=lambda v: getattr(v, "name", v))
def test_flits_at_most_the_published_ones(made, published):
    """spec: witness digests count their words, at 64x64; here without and with bands."""
    shapes = shapes_of(made, (64, 64))
    counts = [flits(compile_kernel(made, load("quad"), shapes, {}, options)) for options in (Options(), APART)]
    assert counts[0] < counts[1] and counts[0] <= published


def test_what_is_read_later_is_written_and_what_is_not_is_not():
    def body(x=L.In(M, N), y=L.Out(M, N), z=L.Out(M, K), w=L.In(K, N)):
        t, u = L.temp(M, N), L.temp(M, N)
        t <<= x * 2
        u <<= t + 1
        y <<= u * t
        with units(t.tiles(2), w.tiles(2)) as (i, j):
            z[i, j] <<= product(t, w, i, j, 2, 2, 1)

    built = kernel(body)
    artifact, _ = equal_bytes(built, {"x": (16, 64), "w": (16, 64)}, "quad")
    assert [stage.statements for stage in artifact.stages][0] == (0, 1, 2)
    assert {image.name for image in artifact.buffers} == {"x", "y", "z", "w", "t1"}
    assert artifact.writer_of("y", (0, 0))[0].text == "y <<= u * t"


def test_a_temp_with_an_address_is_written():
    options = Options(addresses={"t1": 0x8000})
    artifact, _ = equal_bytes(rownorm, {"x": (8, 32)}, "quad", options=options)
    assert len(artifact.stages) == 1 and artifact.buffer("t1").address == 0x8000


def test_writers_of_a_band():
    artifact = compile_kernel(elementwise, load("quad"), {"x": (4, 32)})
    assert [artifact.writer_of(name, (3, 31))[0].text for name in "yz"] == ["y <<= L.silu(x)", "z <<= y * 0.5 + x"]


def stages_of(statement, shapes, options=Options()):  # noqa: B008
    def body(x=L.In(M, N), w=L.In(N), y=L.Out(M, N), z=L.Out(M, N), *, part=8192):
        statement(x, w, y, z)

    artifact, _ = equal_bytes(kernel(body), shapes, "quad", options=options, specials=0.02)
    return len(artifact.stages)


def assign(target, value):
    target <<= value


@pytest.mark.parametrize(
    "statement, shape, count",
    [
        (lambda x, w, y, z: (assign(y, x * 2), assign(z, y + x)), (8, 32), 1),
        (lambda x, w, y, z: (assign(y, x * 2), assign(z, y.per_group(2))), (8, 32), 2),  # other rows
        (lambda x, w, y, z: (assign(z, x), assign(y, x * 2), assign(z, y.rows_from(1, 1))), (8, 32), 2),
        (lambda x, w, y, z: (assign(y, x * 2), assign(y, y + x), assign(z, y)), (8, 32), 2),  # the last one is y's value
        (lambda x, w, y, z: (assign(y, x * 2), assign(y, y + w), assign(z, y * y)), (8, 32), 1),
        (lambda x, w, y, z: (assign(y, x + L.row_max(x)), assign(z, y + x)), (2, 2900), 2),  # no room in L1
        (lambda x, w, y, z: (assign(y, 0.5), assign(z, y + x)), (8, 32), 2),  # a number has no register to be stored from
        (lambda x, w, y, z: (assign(y, w + 0.5), assign(z, L.row_sum(y) + x)), (8, 32), 1),
    ],
)
def test_what_is_joined(statement, shape, count):
    shapes = {"x": shape, "w": shape[-1:]}

    def with_w(x, w, y, z):
        statement(x, w, y, z)
        assign(z, z + w)

    assert stages_of(with_w, shapes) <= count + 1
    assert stages_of(with_w, shapes, APART) >= 3


def test_tiles_are_joined_as_they_lie():
    def body(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), z=L.Out(M, N), *, part=8192):
        t, g = L.temp(M, N), L.temp(M, N)
        with units(x.tiles(2), w.tiles(2)) as (i, j):
            t[i, j] <<= product(x, w, i, j, 2, 2, 1)
        g <<= L.silu(t)
        y <<= g * t
        z <<= y - g

    artifact, _ = equal_bytes(kernel(body), {"x": (20, 40), "w": (24, 40)}, "quad")
    assert len(artifact.stages) == 2 and artifact.buffer("y").layout.key.startswith("tile:")


# ---- any band -----------------------------------------------------------------------------------------


@st.composite
def sequences(draw):
    """Steps of (target, operation, operands): targets and operands by number."""
    count = draw(st.integers(2, 6))
    return [tuple(draw(st.integers(0, 30)) for _ in range(5)) for _ in range(count)]


def check_any(steps, rows, columns, lead, machine, part, constants):
    def body(x=L.In(..., M, N), v=L.In(..., M, 1), w=L.In(N), y=L.Out(..., M, N), z=L.Out(..., M, N), r=L.Out(..., M, 1),
             *, part=8192):  # fmt: skip
        full, numbers = [x, w], [v]
        t, u, n = L.temp(M, N), L.temp(M, N), L.temp(M, 1)
        for where, what, i, j, k in steps:
            a, b = (pick[p % len(pick)] for pick, p in ((full, i), (full + numbers, j)))
            c = numbers[k % len(numbers)]
            if where % 3 == 0:
                target = (n, r)[k % 2]
                target <<= [L.row_max(a + b), L.row_sum(a * 0.5), L.fma(c, c, 0.25), L.exp2(c)][what % 4]
                numbers = [m for m in numbers if m is not target] + [target]
            else:
                target = (t, u, y, z)[k % 4]
                value = [a + b, a * b - c, L.where(L.less(a, b), a, c), L.exp2(a), L.row_sum(a * a) + b, a][what % 6]
                target <<= value
                full = [m for m in full if m is not target] + [target]
        y <<= full[-1] * 0.5 + x
        z <<= full[-1] + w * v
        r <<= numbers[-1] + v
        for temp, value in ((t, x), (u, x), (n, v)):
            if not any(temp is held for held in full + numbers):
                temp <<= value

    made = kernel(body)
    shapes = {"x": (*lead, rows, columns), "v": (*lead, rows, 1), "w": (columns,)}
    try:
        artifact, _ = equal_bytes(made, shapes, machine, {"part": part}, Options(constants=constants), specials=0.02)
    except CompileError as error:
        assert error.source is not None
        return None
    return len(steps) + 3, len(artifact.stages)


def examples(number):
    ran = []

    @settings(max_examples=number, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(sequences(), st.integers(1, 40), st.one_of(st.integers(1, 130), st.integers(100, 700)),
           st.sampled_from([(), (2,)]), st.sampled_from(["mm_mesh", "quad"]), st.sampled_from([64, 1024, 8192]),
           st.sampled_from(["registers", "arrays"]))  # fmt: skip
    def check(steps, rows, columns, lead, machine, part, constants):
        rows = min(rows, max(1, 6000 // columns))
        ran.append(check_any(steps, rows, columns, lead, machine, part, constants))

    check()
    sizes = [found for found in ran if found]
    assert len(sizes) > 0.9 * len(ran) and sum(after < before for before, after in sizes) > 0.8 * len(sizes)


def test_any_band():
    examples(12)


@pytest.mark.slow
def test_many_bands():
    examples(300)


# ---- planted faults -----------------------------------------------------------------------------------


def reads_what_was_not_rounded(monkeypatch):
    def keep(self, position, node):
        self.store(node.operands[0], position)
        self.where[position] = self.where[node.operands[0]]

    monkeypatch.setattr(Stream, "_keep", keep)


def writes_no_results_but_the_last(monkeypatch):
    monkeypatch.setattr(bands, "_live", lambda *_: False)


def lets_every_statement_share(monkeypatch):
    monkeypatch.setattr(bands, "_ordered", lambda band: True)


def loads_before_it_stores(monkeypatch):
    generate = expressions.generate

    def swapped(*given_, **named):
        code = generate(*given_, **named)
        words = code.operations
        for place, (op, fields) in enumerate(words[:-1]):
            if op == Opcode.VST and words[place + 1][0] == Opcode.VLD:
                words[place], words[place + 1] = words[place + 1], (op, fields)
        return code

    monkeypatch.setattr("kohakutpu.compiler.elementwise.generate", swapped)


@kernel
def other_rows(x=L.In(M, N), y=L.Out(M, N), *, part=8192):
    t = L.temp(M, N)
    t <<= x * 2
    y <<= t.per_group(4) + x


@pytest.mark.parametrize(
    "fault, made, names",
    [
        (reads_what_was_not_rounded, chained, "y"), (writes_no_results_but_the_last, elementwise, "y"),
        (lets_every_statement_share, other_rows, "y"), (loads_before_it_stores, elementwise, "y"),
    ],
    ids=lambda value: getattr(value, "__name__", getattr(value, "name", value)),
)  # fmt: skip
def test_seen(fault, made, names, monkeypatch):
    shapes = shapes_of(made, (40, 40))
    equal_bytes(made, shapes, "mm_mesh", {"part": 256})
    fault(monkeypatch)
    with pytest.raises(AssertionError, match=f"elements of {names} differ"):
        equal_bytes(made, shapes, "mm_mesh", {"part": 256})
