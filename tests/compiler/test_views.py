"""Views of rows: the interpreter's bytes against numpy's, the compiled program's against the interpreter's, and refusals."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, compile_kernel
from kohakutpu.compiler import rowplan
from kohakutpu.formats import alu, e8m15
from kohakutpu.lang import KernelError, dims, kernel, loop, units
from kohakutpu.lang.trace import Assign
from kohakutpu.machine import load
from kohakutpu.reference import evaluate, interpret

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
from running import equal_bytes, operands_of  # noqa: E402

M, N, K = dims("M, N, K")


def made(value, target=None, shape=(M, N)):
    """y <<= value(x, w), or the view of y that `target` gives."""

    def body(x=L.In(..., M, N), w=L.In(3, N), y=L.Out(..., *shape), *, part=8192):
        place = target(y) if target else y
        place <<= value(x, w)

    return kernel(body)


# ---- what they mean -----------------------------------------------------------------------------------

MEANING = [
    (lambda x, w: x.rows_from(2), (M - 2, N), lambda x, w: x[2:]),
    (lambda x, w: x.rows_from(2, 3), (3, N), lambda x, w: x[2:5]),
    (lambda x, w: x.rows_from(1).rows_from(1, 3), (3, N), lambda x, w: x[2:5]),
    (lambda x, w: x.per_group(4), (M, N), lambda x, w: x[np.arange(len(x)) // 4 * 4]),
    (lambda x, w: x.as_rows(16), (M * N // 16, 16), lambda x, w: x.reshape(-1, 16)),
    (lambda x, w: x.as_rows(16).rows_from(1, 6).per_group(2), (6, 16), lambda x, w: x.reshape(-1, 16)[[1, 1, 3, 3, 5, 5]]),
    (lambda x, w: x * 0 + w.repeated(), (M, N), lambda x, w: np.tile(w, (3, 1)) + 0.0),
    (lambda x, w: x.rows_from(0, 6) * 0 + w.rows_from(1).repeated(), (6, N), lambda x, w: np.tile(w[1:], (3, 1))),
]


@pytest.mark.parametrize("value, shape, wanted", MEANING)
def test_meaning(value, shape, wanted):
    built = made(value, shape=shape)
    given_ = operands_of({"x": (9, 32), "w": (3, 32)}, seed=1)
    extents = built.solve({"x": (9, 32), "w": (3, 32)})
    found = interpret(built.trace(), extents, given_).outputs["y"].view(np.float16)
    x, w = (given_[name].view(np.float16) for name in "xw")
    assert np.array_equal(found, wanted(x, w))
    assert np.array_equal(evaluate(built.trace(), extents, given_)["y"], wanted(x, w).astype(np.float64))


def test_a_view_that_is_written():
    """Two halves of a result, and a result folded into narrower rows, each element by its own statement."""

    def body(x=L.In(M, N), y=L.Out(M, N), z=L.Out(M, N)):
        head, tail, folded = y.rows_from(0, 2), y.rows_from(2), z.as_rows(16)
        head <<= x.rows_from(0, 2) * 0.5
        tail <<= -x.rows_from(2)
        folded <<= x.as_rows(16) - L.row_max(x.as_rows(16))

    built = kernel(body)
    artifact, run = equal_bytes(built, {"x": (5, 32)}, "quad")
    x = operands_of({"x": (5, 32)})["x"].view(np.float16)
    assert np.array_equal(run.run.outputs["y"].view(np.float16), np.concatenate([x[:2] * np.float16(0.5), -x[2:]]))
    assert [artifact.writer_of("y", (row, 31))[0].text for row in (1, 2)] == [
        "head <<= x.rows_from(0, 2) * 0.5", "tail <<= -x.rows_from(2)",
    ]  # fmt: skip
    assert built.trace().pretty().splitlines()[-1].strip() == "z.as_rows(16) <<= sub(x.as_rows(16), row_max(x.as_rows(16)))"


def test_the_tree_of_a_group():
    """The sum of every 4 rows by halves, as adders would make it, handed to all rows of the group."""

    def body(x=L.In(M, 128), y=L.Out(M, 128)):
        a, b = L.temp(M, 128), L.temp(M, 128)
        a <<= x
        for half in (2, 1):
            last = b.rows_from(M - half)
            last <<= a.rows_from(M - half)
            most = b.rows_from(0, M - half)
            most <<= a.rows_from(0, M - half) + a.rows_from(half)
            a, b = b, a
        y <<= a.per_group(4)

    _, run = equal_bytes(kernel(body), {"x": (12, 128)}, "quad")
    words = operands_of({"x": (12, 128)})["x"]

    def add(a, b):
        a, b = (e8m15.from_fp16(np.ascontiguousarray(v).reshape(-1)) for v in (a, b))
        return e8m15.to_fp16(alu.add(a, b)).reshape(-1, 128)

    once = add(words[:-2], words[2:])
    twice = add(once[:-1], once[1:])[::4]
    assert np.array_equal(run.run.outputs["y"].view(np.uint16), np.repeat(twice, 4, axis=0))


def test_rows_that_a_loop_chooses():
    def body(x=L.In(M, N), y=L.Out(M // 2, N)):
        for b in loop(M // 2):
            row = y.rows_from(b, 1)
            row <<= x.rows_from(2 * b, 1) + x.rows_from(2 * b + 1, 1)

    built = kernel(body)
    artifact, _ = equal_bytes(built, {"x": (8, 20)}, "mm_mesh")
    assert len(artifact.stages) == 4 and artifact.writer_of("y", (2, 5))[0].text.startswith("row <<=")


# ---- any view -----------------------------------------------------------------------------------------


@st.composite
def operands(draw, count, width):
    """(shape, function of the port) of something that meets `count` rows of `width`."""
    kind = draw(st.sampled_from(["whole", "from", "group", "repeat", "fold", "row", "number"]))
    more = draw(st.integers(0, 5))
    if kind == "whole":
        return (count, width), lambda p: p
    if kind == "from":
        return (count + more, width), lambda p: p.rows_from(more, count)
    if kind == "group":
        group = draw(st.sampled_from([1, 2, 3, 4, 8, 50]))
        return (count + more, width), lambda p: p.rows_from(more).per_group(group)
    if kind == "repeat":
        period = draw(st.sampled_from([p for p in range(1, count + 1) if count % p == 0]))
        return (period + more, width), lambda p: p.rows_from(more).repeated()
    if kind == "fold" and width % 16 == 0:
        return (count * width // 16 + more * width // 16, 16), lambda p: p.as_rows(width).rows_from(more)
    if kind == "number":
        return (count + more, 1), lambda p: p.rows_from(more)
    return (width,), lambda p: p


@st.composite
def statements(draw):
    count = draw(st.integers(1, 40))
    width = draw(st.one_of(st.integers(1, 70), st.sampled_from([16, 32, 128, 144, 2720])))
    count = min(count, 20_000 // width)
    chosen = [draw(operands(count, width)) for _ in "abc"]
    target = draw(st.sampled_from(["whole", "fold", "from"]))
    if target == "fold" and width % 16:
        target = "whole"
    return count, width, chosen, target, draw(st.booleans()), draw(st.sampled_from([16, 200, 8192]))


def check_any(case, lead, machine):
    count, width, chosen, target, reduces, part = case
    more = 3 if target == "from" else 0
    shape = (count * width // 16, 16) if target == "fold" else (count + more, width)
    names = "abc"

    def body(a=L.In(..., *chosen[0][0]), b=L.In(*chosen[1][0]), c=L.In(*chosen[2][0]), x=L.In(..., count, width),
             y=L.Out(..., *shape), *, part=8192):  # fmt: skip
        a, b, c = (view(port) for (_, view), port in zip(chosen, (a, b, c), strict=True))
        if target == "from":
            rest = y.rows_from(count)
            rest <<= 0.25
        place = {"fold": lambda: y.as_rows(width), "from": lambda: y.rows_from(0, count), "whole": lambda: y}[target]()
        place <<= L.fma(a, b, c) + (x - L.row_max(x) if reduces else x)

    shapes = {n: chosen[i][0] for i, n in enumerate(names)} | {"x": (count, width)}
    shapes = {n: (*lead, *s) if n in "ax" else s for n, s in shapes.items()}
    try:
        equal_bytes(kernel(body), shapes, machine, {"part": part}, specials=0.02)
    except CompileError as error:
        assert error.source is not None and "^" in str(error)
        return False
    return True


def examples(number):
    ran = []

    @settings(max_examples=number, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(statements(), st.sampled_from([(), (2,)]), st.sampled_from(["mm_mesh", "quad", "ship_3x2"]))
    def check(case, lead, machine):
        ran.append(check_any(case, lead, machine))

    check()
    assert sum(ran) > 0.8 * len(ran) > 0, f"{sum(ran)} of {len(ran)} compiled"


def test_any_view():
    examples(20)


@pytest.mark.slow
def test_many_views():
    examples(300)


# ---- planted faults -----------------------------------------------------------------------------------


def starts_at_the_first_row(monkeypatch):
    walk = rowplan._walk
    monkeypatch.setattr(rowplan, "_walk", lambda *given: walk(*given) | {"first": 0})


def takes_neighbours_for_groups(monkeypatch):
    walk = rowplan._walk
    monkeypatch.setattr(rowplan, "_walk", lambda *given: walk(*given) | {"step": 1})


def never_begins_again(monkeypatch):
    monkeypatch.setattr(rowplan.Leaf, "row", lambda self, i: self.first + self.step * (i // self.group))


def writes_to_the_first_row(monkeypatch):
    monkeypatch.setattr(rowplan.RowPlan, "target_row", 0)


@pytest.mark.parametrize(
    "fault, value, target, part",
    [
        (starts_at_the_first_row, lambda x, w: x * 0 + w.rows_from(1, 1), None, 8192),
        (takes_neighbours_for_groups, lambda x, w: x.per_group(4), None, 8192),
        (never_begins_again, lambda x, w: x + w.repeated(), None, 64),
        (writes_to_the_first_row, lambda x, w: x.rows_from(0, 4) + w.rows_from(0, 1), lambda y: y.rows_from(8), 8192),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_seen(fault, value, target, part, monkeypatch):
    def body(x=L.In(M, N), w=L.In(3, N), y=L.Out(M, N), *, part=8192):
        y <<= x + w.repeated() * 0
        place = target(y) if target else y
        place <<= value(x, w)

    shapes = {"x": (12, 32), "w": (3, 32)}
    equal_bytes(kernel(body), shapes, "mm_mesh", {"part": part})
    fault(monkeypatch)
    with pytest.raises(AssertionError, match="elements of y differ"):
        equal_bytes(kernel(body), shapes, "mm_mesh", {"part": part})


# ---- refusals -----------------------------------------------------------------------------------------


def at_trace(statement):
    def body(x=L.In(M, N), v=L.In(M, K, N), w=L.In(N), y=L.Out(M, N)):
        statement(x, v, w, y)

    return kernel(body).trace


def store(place, value):
    place <<= value


def inside(x, y):
    with units(x.parts(16)):
        store(y.rows_from(0), x)


@pytest.mark.parametrize(
    "statement, message",
    [
        (lambda x, v, w, y: store(y.per_group(2), x), r"y.per_group\(2\) names a row more than once"),
        (lambda x, v, w, y: store(y.rows_from(1).repeated(), x), r"y.rows_from\(1\).repeated\(\) names a row more than once"),
        (lambda x, v, w, y: x.rows_from(2)[0, 1], r"x.rows_from\(2\) is a view of rows.* not indexed"),
        (lambda x, v, w, y: x.repeated()[0], "is not indexed"),
        (lambda x, v, w, y: x.rows_from(2).__setitem__(0, 1), "is not indexed"),
        (lambda x, v, w, y: x.per_group(2).rows_from(1), "rows_from comes before per_group and repeated"),
        (lambda x, v, w, y: x.repeated().per_group(2), "per_group comes before per_group and repeated"),
        (lambda x, v, w, y: x.rows_from(1).as_rows(16), "as_rows folds a whole buffer, so it comes first"),
        (lambda x, v, w, y: v.rows_from(1), r"v\(M, K, N\): rows are those of 2 axes apart from `...`; fold it"),
        (lambda x, v, w, y: w.per_group(2), r"w\(N\): rows are those of 2 axes"),
        (lambda x, v, w, y: x.as_rows(0), "as_rows: width: expected an extent or an integer of at least 1, got 0"),
        (lambda x, v, w, y: x.rows_from(-1), "rows_from: first: expected an extent or an integer of at least 0, got -1"),
        (lambda x, v, w, y: x.rows_from(0, 1.5), "rows_from: count: expected"),
        (lambda x, v, w, y: x.per_group(True), "per_group: rows: expected"),
        (lambda x, v, w, y: inside(x, y), "writes a whole buffer, so it stands outside units"),
        (lambda x, v, w, y: x.rows_from(1) @ x, "@ contracts two operand slices"),
        (lambda x, v, w, y: store(w.repeated(), x), "names a row more than once"),
        (lambda x, v, w, y: store(x.rows_from(1), x), "x is an input port and cannot be written"),
    ],
)
def test_refused_while_traced(statement, message):
    with pytest.raises(KernelError, match=message) as caught:
        at_trace(statement)()
    assert caught.value.source.file.endswith("test_views.py") and "^" in str(caught.value)


def body_of(statement):
    def body(x=L.In(M, N), y=L.Out(M, N), z=L.Out(M, N)):
        if not statement(x, y, z):
            z <<= x

    return kernel(body)


def first_rows(y, x):
    part = y.rows_from(0, 3)
    part <<= x.rows_from(0, 3)


def in_tiles(x, y, z):
    t = L.temp(M, M)
    with units(x.tiles(1), x.tiles(1)) as (i, j):
        acc = L.tile(1, 1, 1)
        for k in loop(x.chunks32(1)):
            acc += x[i, k] @ x[j, k]
        t[i, j] <<= acc
    store(y, x)
    store(L.temp(1, M), t.rows_from(1, 1) * 2)


@pytest.mark.parametrize(
    "statement, message",
    [
        (lambda x, y, z: store(y, x.rows_from(9)), r"x.rows_from\(9\): -1 rows from row 9 on, of a buffer of 8 rows"),
        (lambda x, y, z: store(y, x.rows_from(4, 5)), r"5 rows from row 4 on, of a buffer of 8 rows of 32"),
        (lambda x, y, z: store(y, x.as_rows(48)), r"x.as_rows\(48\): \[8, 32\] are no whole rows of 48"),
        (lambda x, y, z: store(y.as_rows(8), x.as_rows(8)), "rows begin on words of memory, 16 elements each, and 8 elements"),
        (lambda x, y, z: store(y, x.per_group(M - 8)), "groups of 0 rows"),
        (lambda x, y, z: store(y, x.rows_from(2)), r"these do not make one shape: y \[8, 32\], x.rows_from\(2\) \[6, 32\]"),
        (lambda x, y, z: store(y, x + x.as_rows(16)), r"do not make one shape"),
        (lambda x, y, z: store(y, x.rows_from(0, 3).repeated()), "8 rows are not 3 rows some times over"),
        (lambda x, y, z: store(y, y_then(x, y).per_group(2)), r"y.*per_group\(2\) is read and y written, which have elements in common"),
        (lambda x, y, z: (first_rows(y, x), store(z, y), True), r"an operand y is incomplete: nothing has written its element \[3, 0\]"),
        (lambda x, y, z: (first_rows(y, x), store(z, x), True), r"the result y is incomplete: nothing has written its element \[3, 0\]"),
        (in_tiles, "t1 would need two byte orders: tile:.* and (flat|rows)"),
    ],
)
def test_refused_at_plan(statement, message):
    with pytest.raises(KernelError, match=message) as caught:
        compile_kernel(body_of(statement), load("quad"), {"x": (8, 32)})
    assert caught.value.source.file.endswith("test_views.py") and "^" in str(caught.value)


def y_then(x, y):
    y <<= x
    return y


def test_what_is_apart_may_be_read_and_written():
    def body(x=L.In(M, N), y=L.Out(M, N)):
        y <<= x
        head = y.rows_from(0, 4)
        head <<= head + y.rows_from(4, 4) * 2

    equal_bytes(kernel(body), {"x": (8, 32)}, "quad")


def test_all_rows_of_a_buffer_are_the_buffer():
    """Named twice, the elements are the same ones in the same order: read and written in place."""

    def body(x=L.In(..., M, N), y=L.Out(..., M, N)):
        y <<= x
        rows = y.rows_from(0)
        rows <<= y - L.row_max(y)
        y <<= y.rows_from(0, M) * 2 + y.as_rows(N)

    equal_bytes(kernel(body), {"x": (2, 8, 32)}, "quad")
    with pytest.raises(CompileError, match=r"y.per_group\(2\) is read and y written, .* at other rows"):
        compile_kernel(body_of(lambda x, y, z: (store(y, x), store(y, y.per_group(2)), store(z, x), True)), load("quad"), {"x": (8, 32)})


def test_unwritten_rows_are_seen_by_the_interpreter():
    built = body_of(lambda x, y, z: (first_rows(y, x), store(z, x + y.rows_from(2, 1)), True))
    with pytest.raises(KernelError, match=r"y.rows_from\(3, 1\) is read where nothing"):
        late = body_of(lambda x, y, z: (first_rows(y, x), store(z, x + y.rows_from(3, 1)), True))
        interpret(late.trace(), late.solve({"x": (8, 32)}), operands_of({"x": (8, 32)}))
    with pytest.raises(KernelError, match="leaves 160 elements of y unwritten"):
        interpret(built.trace(), built.solve({"x": (8, 32)}), operands_of({"x": (8, 32)}))


def test_an_axis_between_others_does_not_repeat():
    A, B, C = dims("A, B, C")

    def body(x=L.In(A, B, C, N), w=L.In(A, 1, C, N), y=L.Out(A, B, C, N)):
        y <<= x - L.row_max(x) * w

    with pytest.raises(CompileError, match=r"w \[2, 1, 2, 16\] repeats along an axis between others") as caught:
        compile_kernel(kernel(body), load("quad"), {"x": (2, 3, 2, 16), "w": (2, 1, 2, 16)})
    assert "^" in str(caught.value)


def test_operands_that_repeat_along_other_axes():
    A, B = dims("A, B")

    def body(x=L.In(A, B, N), w=L.In(B, N), v=L.In(A, 1, N), s=L.In(A, 1, 1), y=L.Out(A, B, N), *, part=8192):
        y <<= (x - L.row_max(x)) * w + v * s

    for a, b, n, part in ((4, 3, 20, 8192), (40, 7, 20, 100), (1, 5, 33, 64), (6, 1, 140, 512), (2, 2, 2720, 8192)):
        shapes = {"x": (a, b, n), "w": (b, n), "v": (a, 1, n), "s": (a, 1, 1)}
        equal_bytes(kernel(body), shapes, "quad", {"part": part})


def test_a_view_of_a_whole_array():
    def body(x=L.In(...), y=L.Out(...)):
        place = y.as_rows(64)
        place <<= x.as_rows(64) / L.row_sum(x.as_rows(64))

    equal_bytes(kernel(body), {"x": (3, 2, 96)}, "quad")


def test_views_are_recorded_as_written():
    trace = made(lambda x, w: x.as_rows(16).rows_from(1, 4).per_group(2) + w.repeated(), shape=(4, 16)).trace()
    (assign,) = trace.statements
    assert isinstance(assign, Assign) and assign.expression.text() == "add(x.as_rows(16).rows_from(1, 4).per_group(2), w.repeated())"
