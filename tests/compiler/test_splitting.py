"""Tilings split between clusters and vector cores: where they are cut, and what no barrier can make right."""

import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, Options, compile_kernel
from kohakutpu.kernels.linear import product
from kohakutpu.lang import KernelError, dims, kernel, loop, units

M, K, N = dims("M, K, N")
SHAPES = {"x": (16, 64), "w": (32, 64), "v": (32, 32), "r": (16, 32), "b": (32,)}
TILED = {"gm": 2, "gn": 2, "nk": 1}


def made(body):
    """A kernel of one tiling; `body` gets its ports, two temps and the indices."""

    def split(x=L.In(M, K), w=L.In(N, K), v=L.In(N, N), r=L.In(M, N), b=L.In(N), y=L.Out(M, N), z=L.Out(M, N), c=L.Out(M, N)):
        t, u = L.temp(M, N), L.temp(M, N)
        c <<= b + 0.5 * r  # so that all are used whatever the body does
        y <<= 0.0
        z <<= 1.0
        t <<= 2.0
        u <<= 3.0
        with units(x.tiles(2), w.tiles(2)) as (i, j):
            body(x, w, v, r, b, y, z, t, u, i, j)
        with units(x.tiles(2), w.tiles(2)) as (i, j):
            acc = product(x, w, i, j, 2, 2, 1)
            for k in loop(t.chunks32(1)):
                acc += t[i, k] @ v[v.tiles(2).at(j), k]
            u[i, j] <<= acc
        y <<= u + y

    return kernel(split)


def stages(body, bench, options=Options(bands=False, relayout="host"), **knobs):  # noqa: B008 - frozen
    """(unit, how many statements) of the stages of the first tiling."""
    artifact = compile_kernel(made(body), bench, SHAPES, knobs, options)
    return [(stage.unit, stage.statements) for stage in artifact.stages]


def refused(body, bench, reason, line, meant=None, error=CompileError, **knobs):
    """Refused for that reason at that line, of which `meant` is underlined (all of it where None)."""
    with pytest.raises(error, match=reason) as caught:
        compile_kernel(made(body), bench, SHAPES, knobs, Options(relayout="host"))
    source = caught.value.source
    assert source.text == line and source.file.endswith("test_splitting.py")
    first = line.index(meant) if meant else 0
    assert str(caught.value).endswith(f"\n    {line}\n    {' ' * first}{'^' * len(meant or line)}")


def again(t, v, i, j):
    """The product of a row of tiles of `t` with `v`."""
    acc = L.tile(2, 2, 1)
    for k in loop(t.chunks32(1)):
        acc += t[i, k] @ v[v.tiles(2).at(j), k]
    return acc


def test_a_product_of_what_clusters_wrote_in_the_same_run(bench):
    def body(x, w, v, r, b, y, z, t, u, i, j):
        t[i, j] <<= product(x, w, i, j, 2, 2, 1)
        acc = L.tile(2, 2, 1)
        for k in loop(t.chunks32(1)):
            acc += t[i, k] @ v[v.tiles(2).at(j), k]
        y[i, j] <<= acc

    refused(body, bench, r"t1 is read here and written in the same tiling \(.*test_splitting.py:\d+\), with only products in between",
            "acc += t[i, k] @ v[v.tiles(2).at(j), k]")  # fmt: skip


def test_the_same_with_elementwise_work_in_between(bench):
    def body(x, w, v, r, b, y, z, t, u, i, j):
        t[i, j] <<= product(x, w, i, j, 2, 2, 1)
        z[i, j] <<= r[i, j] * 2
        y[i, j] <<= again(t, v, i, j)

    found = [unit for unit, _ in stages(body, bench)]
    assert found[5:9] == ["cluster", "vector", "host", "cluster"]


def test_parts_that_every_instance_writes(bench):
    def body(x, w, v, r, b, y, z, t, u, i, j):
        with units(r.parts(128)) as e:
            u[e] <<= r[e] * 2
        y[i, j] <<= r[i, j] + u[i, j]

    refused(body, bench, r"the part 0 of t2 is written twice in one tiling, by instances \(0, 0\) and \(0, 1\)",
            "u[e] <<= r[e] * 2", "u[e] <<= r[e] * 2")  # fmt: skip


def test_elementwise_work_on_what_another_instance_computes(bench):
    """A per-channel vector of the tiling's own is read by all instances of a column."""

    def channels(x=L.In(M, K), w=L.In(N, K), b=L.In(N), y=L.Out(M, N), d=L.Out(N)):
        with units(w.tiles(2)) as j:
            d[d.parts(8).at(j)] <<= b[b.parts(8).at(j)] * 2
            for i in loop(x.tiles(2)):
                y[i, j] <<= y[i, j] * d[j]

    def begun(x=L.In(M, K), w=L.In(N, K), b=L.In(N), y=L.Out(M, N), d=L.Out(N)):
        y <<= 1.0
        channels(x, w, b, y, d)

    with pytest.raises(CompileError, match=r"d is read here and written in the same tiling \(.*\), with only elementwise work") as caught:
        compile_kernel(kernel(begun), bench, {name: SHAPES[name] for name in "xwb"})
    assert caught.value.source.text == "y[i, j] <<= y[i, j] * d[j]"


def test_a_buffer_written_by_tiles_and_by_parts_in_a_run(bench):
    def body(x, w, v, r, b, y, z, t, u, i, j):
        y[i, j] <<= r[i, j] * 2
        y[y.parts(128).at(i)] <<= r[r.parts(128).at(i)] * 3

    refused(body, bench, r"y is written by parts here and by tiles in the same run of this tiling",
            "y[y.parts(128).at(i)] <<= r[r.parts(128).at(i)] * 3")  # fmt: skip


def test_an_accumulator_on_both_sides_of_a_barrier(bench):
    def body(x, w, v, r, b, y, z, t, u, i, j):
        acc = product(x, w, i, j, 2, 2, 1)
        t[i, j] <<= acc
        z[i, j] <<= t[i, j] * 2
        for k in loop(t.chunks32(1)):
            acc += t[i, k] @ v[v.tiles(2).at(j), k]
        y[i, j] <<= acc

    refused(body, bench, r"acc\d is used here and before \(.*linear.py:\d+\), and in between clusters wait",
            "acc += t[i, k] @ v[v.tiles(2).at(j), k]")  # fmt: skip


def test_a_fused_store_after_elementwise_work_it_would_overtake(bench):
    def body(x, w, v, r, b, y, z, t, u, i, j):
        acc = product(x, w, i, j, 2, 2, 1)
        z[i, j] <<= y[i, j] * 2
        y[i, j] <<= L.silu(acc)

    refused(body, bench, "y is computed here from an accumulator, straight from the cluster, and depends on elementwise work",
            "y[i, j] <<= L.silu(acc)")  # fmt: skip
    assert [unit for unit, _ in stages(body, bench, fuse=False)][5:8] == ["cluster", "vector", "vector"]


def test_a_fused_store_that_depends_on_an_earlier_run_begins_a_segment(bench):
    """Its cluster must not send before the core is done with what it overwrites."""

    def body(x, w, v, r, b, y, z, t, u, i, j):
        for _ in loop(2):
            y[i, j] <<= L.silu(product(x, w, i, j, 2, 2, 1))
            z[i, j] <<= z[i, j] + y[i, j]

    assert [unit for unit, _ in stages(body, bench)][5:11] == ["cluster", "vector", "vector"] * 2


def test_instances_that_begin_with_other_units(bench):
    def body(x, w, v, r, b, y, z, t, u, i, j):
        for _ in loop(i):
            t[i, j] <<= product(x, w, i, j, 2, 2, 1)
        z[i, j] <<= r[i, j] * 2
        for _ in loop(1):
            y[i, j] <<= product(x, w, i, j, 2, 2, 1)

    refused(body, bench, "some instances of this tiling begin with products and others with elementwise work",
            "with units(x.tiles(2), w.tiles(2)) as (i, j):", "units(x.tiles(2), w.tiles(2))")  # fmt: skip


def partly(value, more=None):
    """A kernel that writes one row of tiles of y a tiling."""

    def rows(x=L.In(M, K), w=L.In(N, K), r=L.In(M, N), b=L.In(N), y=L.Out(M, N), d=L.Out(M, N)):
        t = L.temp(M, N)
        d <<= r + b
        if more:
            more(t)
        for s in loop(x.tiles(2)):
            with units(w.tiles(2)) as j:
                if not more:
                    t[s, j] <<= product(x, w, s, j, 2, 2, 1)
                y[s, j] <<= value(t, r, b, s, j)
        with units(x.tiles(2), w.tiles(2)) as (i, j):
            t[i, j] <<= product(x, w, i, j, 2, 2, 1)

    return kernel(rows)


def partly_refused(bench, made, reason, options=Options()):  # noqa: B008 - frozen
    with pytest.raises(KernelError, match=reason) as caught:
        compile_kernel(made, bench, {name: SHAPES[name] for name in "xwrb"}, {}, options)
    assert caught.value.source.text == "y[s, j] <<= value(t, r, b, s, j)"


def test_a_per_channel_vector_beside_some_tiles(bench):
    partly_refused(bench, partly(lambda t, r, b, s, j: t[s, j] + b[j]), "b is read along the columns of y, of which this tiling does not")


def test_a_tile_that_nothing_has_written(bench):
    def first_row(t):
        with units(2) as j:
            t[t.tiles(2).at(0), t.columns(2).at(j)] <<= 1.5

    partly_refused(bench, partly(lambda t, r, b, s, j: t[s, j] * 2, first_row), r"t1 is read in its tile \(0, 2\), which nothing has written")


def test_some_tiles_as_published(bench):
    """Runs of whole chunks would write beyond a tile of four words."""
    published = Options(lowering="published")
    made_ = partly(lambda t, r, b, s, j: t[s, j] * 2)

    def plain(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), *, gn=2):
        t = L.temp(M, N)
        for s in loop(x.tiles(2)):
            with units(w.tiles(gn)) as j:
                t[s, j] <<= product(x, w, s, j, 2, gn, 1)
                y[s, j] <<= t[s, j] * 2

    few = {name: SHAPES[name] for name in "xw"}
    with pytest.raises(CompileError, match="lowering='published' writes whole runs, and 4 words of y, of which this tiling"):
        compile_kernel(kernel(plain), bench, few, {}, published)
    compile_kernel(kernel(plain), bench, few, {"gn": 4}, published)
    compile_kernel(made_, bench, {name: SHAPES[name] for name in "xwrb"})


def test_some_parts_that_begin_inside_a_word(bench):
    def parts(x=L.In(M, N), y=L.Out(M, N), *, p=16):
        for s in loop(x.parts(p)):
            with units(1):
                y[s] <<= x[s] * 2

    compile_kernel(kernel(parts), bench, {"x": (4, 40)})
    with pytest.raises(CompileError, match="parts of 20 elements of y, .*, begin inside words of memory") as caught:
        compile_kernel(kernel(parts), bench, {"x": (4, 40)}, {"p": 20})
    assert caught.value.source.text == "y[s] <<= x[s] * 2"


def test_some_parts_of_what_lies_in_tiles(bench):
    """Parts are words of rows, and cannot be read as tiles lie."""

    def parts(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N)):
        t = L.temp(M, N)
        with units(x.tiles(2), w.tiles(2)) as (i, j):
            t[i, j] <<= product(x, w, i, j, 2, 2, 1)
        for s in loop(t.parts(128)):
            with units(1):
                y[s] <<= t[s] * 2

    with pytest.raises(CompileError, match="y and t1 would need two byte orders: flat .* and tile:2x4:2x2"):
        compile_kernel(kernel(parts), bench, {name: SHAPES[name] for name in "xw"})


def test_a_part_past_the_end(bench):
    def parts(x=L.In(M, N), y=L.Out(M, N)):
        with units(x.parts(16)) as e:
            y[e + 1] <<= x[e + 1] * 2

    with pytest.raises(KernelError, match=r"y\[\(i \+ 1\)\] reaches index 10 of an axis of 160 elements in steps of 16"):
        compile_kernel(kernel(parts), bench, {"x": (4, 40)})


def test_a_result_of_which_some_tiles_are_missing(bench):
    def half(x=L.In(M, N), y=L.Out(M, N)):
        with units(2) as j:
            y[y.tiles(2).at(0), y.columns(2).at(j)] <<= x[x.tiles(2).at(0), x.columns(2).at(j)] * 2

    with pytest.raises(CompileError, match=r"the result y is incomplete: no instance writes its tile \(1, 0\) of 2x2"):
        compile_kernel(kernel(half), bench, {"x": (16, 16)})


@pytest.mark.parametrize("kind, missing", [("tiles", r"nothing has written its tile \(1, 0\)"), ("parts", r"its element \[4, 0\]"), ("rows", r"its element \[12, 0\]")])
def test_a_product_of_what_is_not_all_there(bench, kind, missing):
    """The second row of tiles, or all rows but the first few, or the last ones."""

    def some(x=L.In(M, N), w=L.In(N, N), y=L.Out(M, N), *, all_of_it=False):
        t = L.temp(M, N)
        if kind == "rows":
            head = t.rows_from(0, 16 if all_of_it else 12)
            head <<= x.rows_from(0, 16 if all_of_it else 12) * 2
        else:
            for s in loop(2 if all_of_it else 1):
                if kind == "parts":
                    with units(1):
                        t[t.parts(256 if all_of_it else 128).at(s)] <<= x[x.parts(256 if all_of_it else 128).at(s)] * 2
                else:
                    with units(x.columns(8)) as j:
                        t[t.tiles(2).at(s), j] <<= x[x.tiles(2).at(s), j] * 2
        with units(x.tiles(2), w.tiles(2)) as (i, j):
            y[i, j] <<= product(t, w, i, j, 2, 2, 1)

    few = {"x": (16, 32), "w": (32, 32)}
    compile_kernel(kernel(some), bench, few, {"all_of_it": True})
    with pytest.raises(CompileError, match=rf"an operand t1 is incomplete: .*{missing}") as caught:
        compile_kernel(kernel(some), bench, few)
    assert caught.value.source.text == "acc += x[i, k] @ w[j, k]"


def test_a_tiling_by_tiles_is_the_statement_over_the_whole(bench):
    """The same program, with as many instances as there are tiles."""

    def tiles(x=L.In(M, N), y=L.Out(M, N), *, part=8192):
        with units(x.tiles(2), x.columns(2)) as (i, j):
            y[i, j] <<= x[i, j] * 2

    def whole(x=L.In(M, N), y=L.Out(M, N), *, part=8192):
        y <<= x * 2

    one = compile_kernel(kernel(tiles), bench, {"x": (64, 64)})
    other = compile_kernel(kernel(whole), bench, {"x": (64, 64)}, {"part": 64})
    assert one.rounds == other.rounds and one.stages[0].grid == other.stages[0].grid
