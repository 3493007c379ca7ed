"""Kernels of one's own over planes (`L.plane`): the models leave the interpreter's bytes, the interpreter computes convolutions
within the formats' error, and what comes behind a plane knows that its last tile's window leaves no zeros."""

import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, Options, compile_kernel, settle
from kohakutpu.compiler.layouts import ConvEntry
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.kernels import conv
from kohakutpu.lang import KernelError, ceildiv, dims, kernel, loop, units
from kohakutpu.machine import load
from kohakutpu.reference import evaluate, interpret
from kohakutpu.reference.exact import compare

sys.path.insert(0, str(Path(__file__).parent))
from running import equal_bytes, operands_of  # noqa: E402

F, H, W, C, N = dims("F, H, W, C, N")
BLOCKS = ceildiv(C, 32)
ROWS = L.plane_rows(H, W)


@kernel
def edges(x=L.In(..., H, W, C), w=L.In(N, 288 * BLOCKS), b=L.In(N), y=L.Out(..., ROWS, N), *, gm=4, gn=4):
    """relu(conv(x) + b), fused"""
    x = L.plane(x, gm)
    with units(x.tiles, w.tiles(gn)) as (i, j):
        acc = L.tile(gm, gn, 1)
        for s in loop(x.taps):
            acc += x[i, 0, x.tap(s)] @ w[j, w.chunks32(1).at(s)]
        y[i, j] <<= L.relu(acc + b[j])


@kernel
def channels_first(x=L.In(..., H, W, C), w=L.In(N, 288 * BLOCKS), y=L.Out(..., N, ROWS), *, gm=4, gn=4):
    """conv(x) with a row for each channel: the plane is the second operand"""
    p = L.plane(x, gn)
    with units(w.tiles(gm), p.tiles) as (j, i):
        acc = L.tile(gm, gn, 1)
        for s in loop(w.chunks32(1)):
            acc += w[j, s] @ p[i, 0, p.tap(s)]
        y[j, i] <<= acc


CROSS = (1, 3, 4, 5, 7)


@kernel
def cross(x=L.In(..., H, W, C), w=L.In(N, 160 * BLOCKS), y=L.Out(..., ROWS, N), *, gm=4, gn=4, lanes=False):
    """The five taps of a cross; with `lanes` by the number of the lane that each begins at"""
    p = L.plane(x, gm)
    with units(p.tiles, w.tiles(gn)) as (i, j):
        acc = L.tile(gm, gn, 1)
        for number, tap in enumerate(CROSS):
            for k in loop(p.taps // 9):
                lane = k * (ceildiv((H + 2) * (W + 2), 4) * 4) + tap // 3 * (W + 2) + tap % 3
                at = lane if lanes else p.tap(tap * BLOCKS + k)
                acc += p[i, 0, at] @ w[j, w.chunks32(1).at(number * BLOCKS + k)]
        y[i, j] <<= acc


def im2col(image: np.ndarray, taps: np.ndarray, chosen=range(9)) -> np.ndarray:
    """float64[..., h, w, out] of image [..., h, w, channels] and taps [out, channels, 3, 3]."""
    *lead, h, w, _ = image.shape
    padded = np.pad(image.astype(float), [(0, 0)] * len(lead) + [(1, 1), (1, 1), (0, 0)])
    columns = np.concatenate([padded[..., t // 3 : t // 3 + h, t % 3 : t % 3 + w, :] for t in chosen], axis=-1)
    return columns @ np.concatenate([taps[:, :, t // 3, t % 3] for t in chosen], axis=1).T.astype(float)


def case(made, h, w, channels, out, batch=()):
    """(operands, float64[..., h, w, out])"""
    rng = np.random.default_rng(h * 100 + w * 10 + channels)
    image = rng.normal(0, 1, (*batch, h, w, channels)).astype(np.float16)
    taps = rng.normal(0, 0.2, (out, channels, 3, 3)).astype(np.float16)
    held = conv.weights(taps)
    if made is cross:
        held = held.reshape(out, 9, -1)[:, CROSS, :].reshape(out, -1)
        return {"x": image, "w": held}, im2col(image, taps, CROSS)
    if made is edges:
        bias = rng.normal(0, 1, out).astype(np.float16)
        return {"x": image, "w": held, "b": bias}, np.maximum(im2col(image, taps) + bias.astype(float), 0)
    return {"x": image, "w": held}, im2col(image, taps)


def useful(made, y: np.ndarray, h: int, w: int) -> np.ndarray:
    """[..., h, w, out] of a result."""
    return (y.swapaxes(-1, -2) if made is channels_first else y)[..., conv.positions(h, w), :]


def shapes_of(operands):
    return {name: array.shape for name, array in operands.items()}


@pytest.mark.parametrize("machine", ["mm_mesh", "quad", "ship_3x2"])
@pytest.mark.parametrize("made, sizes, knobs", [
    (edges, (2, 3, 32, 8), {"gm": 2, "gn": 2}),
    (edges, (3, 3, 96, 20), {"gm": 5, "gn": 5}),
    (channels_first, (6, 5, 64, 12), {"gm": 3, "gn": 4}),
    (channels_first, (1, 9, 40, 3), {"gm": 1, "gn": 2}),
    (cross, (5, 7, 64, 24), {"gm": 4, "gn": 3}),
    (cross, (9, 1, 33, 4), {"gm": 16, "gn": 1, "lanes": True}),
    (conv.conv2d, (7, 8, 96, 40), {"gm": 6, "gn": 4}),
    (conv.conv2d, (1, 1, 3, 1), {"gm": 1, "gn": 1}),
])  # fmt: skip
def test_the_models_have_the_interpreters_bytes(made, sizes, knobs, machine):
    operands, _ = case(made, *sizes)
    equal_bytes(made, shapes_of(operands), machine, knobs, specials=0.02)


@pytest.mark.parametrize("options", [Options("published"), Options(ksplit=3), Options(addresses={"x": 0x8020})])
def test_options(options):
    operands, _ = case(conv.conv2d, 4, 5, 64, 12)
    equal_bytes(conv.conv2d, shapes_of(operands), "quad", {"gm": 3, "gn": 3} | ({"ksplit": 3} if options.ksplit else {}), options)


def test_a_batch():
    equal_bytes(edges, {"x": (2, 2, 3, 4, 40), "w": (8, 576), "b": (8,)}, "ship_3x2", {"gm": 2, "gn": 2, "fuse": False})
    equal_bytes(channels_first, {"x": (3, 4, 5, 32), "w": (8, 288)}, "uneven", {"gm": 1, "gn": 3})


@kernel
def of_a_table(w=L.In(N, 288), y=L.Out(L.plane_rows(4, 5), N), *, gm=2, gn=2):
    x = L.plane(L.table(np.random.default_rng(5).integers(-8, 8, (4, 5, 20))), gm)
    with units(x.tiles, w.tiles(gn)) as (i, j):
        acc = L.tile(gm, gn, 1)
        for s in loop(w.chunks32(1)):
            acc += x[i, 0, x.tap(s)] @ w[j, s]
        y[i, j] <<= acc


def test_a_table_as_a_plane():
    artifact, _ = equal_bytes(of_a_table, {"w": (8, 288)}, "mm_mesh")
    assert artifact.buffer("table1").layout == ConvEntry(4, 5, 20, 2)


def test_the_page_has_the_example():
    """docs/kernels.md shows a convolution of one's own as the guide's file has it."""
    root = Path(__file__).parents[2]
    source = (root / "examples/guide/kernels.py").read_text()
    shown = "@kernel\ndef convolution" + source.split("@kernel\ndef convolution")[1]
    assert f"```python\n{shown}```" in (root / "docs/kernels.md").read_text()


def test_auto_tiles_and_a_staged_epilogue():
    operands, _ = case(edges, 4, 5, 64, 12)
    shapes = shapes_of(operands)
    knobs = settle(edges, load("quad"), shapes, {"gm": "auto", "gn": "auto"})
    assert isinstance(knobs["gm"], int)
    equal_bytes(edges, shapes, "quad", knobs | {"fuse": False})


@pytest.mark.parametrize("made, sizes, batch", [
    (edges, (4, 5, 32, 16), ()), (channels_first, (6, 5, 64, 12), (2,)), (cross, (5, 7, 70, 24), ()), (conv.conv2d, (3, 4, 40, 8), (2, 2)),
])  # fmt: skip
def test_the_interpreter_computes_the_convolution(made, sizes, batch):
    """In float64 what im2col computes; in machine arithmetic as far from that as the precision report says."""
    h, w, *_ = sizes
    operands, wanted = case(made, *sizes, batch=batch)
    trace, extents = made.trace(), made.solve(shapes_of(operands))
    exact = useful(made, evaluate(trace, extents, operands)["y"], h, w)
    np.testing.assert_allclose(exact, wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())
    found = np.ascontiguousarray(useful(made, interpret(trace, extents, operands).outputs["y"], h, w))
    (report,) = compare({"y": found}, {"y": wanted})
    assert report.unequal == 0 and 0 < report.p50 < 0.02, str(report)
    assert np.abs(found.view(np.float16) - wanted).max() < 0.03 * np.abs(wanted).max(), str(report)


def test_taps_and_lanes_are_the_same_program():
    """A lane's number says the same as a tap."""
    operands, _ = case(cross, 5, 7, 64, 24)
    artifacts = [compile_kernel(cross, load("quad"), shapes_of(operands), {"lanes": lanes}) for lanes in (False, True)]
    one, other = ([flit.payload for round_ in artifact.rounds for flit in round_.flits] for artifact in artifacts)
    assert one == other and len(one) > 100


def test_an_explicit_region_is_the_same_program():
    @kernel
    def placed(x=L.In(..., H, W, C), w=L.In(N, 288 * BLOCKS), y=L.Out(..., ROWS, N), *, gm=8, gn=8):
        x = L.plane(x, gm)
        with units(x.tiles, w.tiles(gn)) as (i, j):
            acc = L.tile(gm, gn, 1)
            left, right = L.region(gm, 1), L.region(gn, 1)
            for s in loop(w.chunks32(1)):
                left <<= x[i, 0, x.tap(s)]
                right <<= w[j, s]
                acc += left @ right
            y[i, j] <<= acc

    shapes = {"x": (5, 6, 32), "w": (16, 288)}
    one, other = (
        [flit.payload for round_ in compile_kernel(made, load("quad"), shapes).rounds for flit in round_.flits]
        for made in (placed, conv.conv2d)
    )
    assert one == other


# ---- what comes behind a plane ----------------------------------------------------------------------------


@kernel
def summed(x=L.In(H, W, C), w=L.In(N, 288 * BLOCKS), v=L.In(F, ROWS), z=L.Out(N, F), *, gm=2, gn=8):
    """conv(x), channels first, times a matrix over positions"""
    p = L.plane(x, gn)
    t = L.temp(N, ROWS)
    with units(w.tiles(gm), p.tiles) as (j, i):
        acc = L.tile(gm, gn, 1)
        for s in loop(w.chunks32(1)):
            acc += w[j, s] @ p[i, 0, p.tap(s)]
        t[j, i] <<= acc
    with units(t.tiles(gm), v.tiles(2)) as (j, f):
        out = L.tile(gm, 2, 1)
        for k in loop(t.chunks32(1)):
            out += t[j, k] @ v[f, k]
        z[j, f] <<= out


def test_a_copy_of_a_planes_result_knows_that_its_padding_is_not_zero():
    shapes = {"x": (4, 5, 32), "w": (8, 288), "v": (8, L.plane_rows(4, 5))}
    with pytest.raises(CompileError, match="a product with x, whose rows past the last are not zero"):
        compile_kernel(summed, load("quad"), shapes)
    equal_bytes(summed, shapes, "quad", options=Options(relayout="host"))
    assert L.plane_rows(3, 20) == 64
    equal_bytes(summed, {"x": (3, 20, 32), "w": (8, 288), "v": (8, 64)}, "quad")


# ---- any shape --------------------------------------------------------------------------------------------

KERNELS = {made.name: made for made in (edges, channels_first, cross, conv.conv2d)}


@st.composite
def calls(draw):
    """(kernel, machine, shapes, knobs, options)"""
    made = KERNELS[draw(st.sampled_from(sorted(KERNELS)))]
    h, w = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    channels, out = draw(st.one_of(st.sampled_from([32, 64, 96]), st.integers(1, 100))), draw(st.integers(1, 40))
    operands, _ = case(made, h, w, channels, out, tuple(draw(st.lists(st.integers(1, 3), max_size=1))))
    knobs = {name: draw(st.integers(1, 12)) for name in ("gm", "gn")} | {"fuse": draw(st.booleans())}
    knobs |= {"ksplit": draw(st.sampled_from([1, 1, 1, 2]))}
    if made is cross:
        knobs["lanes"] = draw(st.booleans())
    machine = load(draw(st.sampled_from(["mm_mesh", "quad", "ship_3x2", "uneven"])))
    return made, machine, shapes_of(operands), knobs, Options(draw(st.sampled_from(["default", "default", "published"])))


def examine(examples: int) -> Counter:
    ran = Counter()

    @seed(20)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(calls(), st.sampled_from([0.0, 0.03]))
    def each(call, specials):
        made, machine, shapes, knobs, options = call
        try:
            artifact = compile_kernel(made, machine, shapes, knobs, options)
        except KernelError as error:
            ran["refused"] += 1
            assert error.message and not re.match(r"\w+Error: ", error.message), "an error of Python's, not a refusal"
            return
        assert isinstance(artifact.buffer("x").layout, ConvEntry)
        operands = operands_of(shapes, seed=3, specials=specials)
        got = run_model(artifact, machine, operands).run.outputs["y"].view("u2")
        wanted = run_reference(made, knobs, operands, machine).outputs["y"]
        assert not np.count_nonzero(got != wanted), np.argwhere(got != wanted)[0].tolist()
        ran.update(["ran", made.name, machine.name, options.lowering])

    each()
    return ran


def test_some_random_shapes():
    ran = examine(20)
    assert ran["ran"] >= 8, ran


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_shapes():
    ran = examine(300)
    print(f"\n{', '.join(f'{count} {what}' for what, count in sorted(ran.items()))}")
    assert ran["ran"] > 150 and all(ran[name] > 10 for name in KERNELS), ran
