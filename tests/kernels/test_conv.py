"""3x3 convolutions: interpreter against models byte for byte, against float64 within the formats' error, refusals."""

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, Options, compile_kernel
from kohakutpu.compiler.layouts import Shifted
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.kernels import conv, conv2d, conv2d_bias, conv2d_bias_staged
from kohakutpu.lang import KernelError, dims, kernel, units
from kohakutpu.machine import load

P, C, N, M = dims("P, C, N, M")


def case(kernel, height, width, channels, out, batch=()):
    """(operands, float64 result [..., height, width, out])"""
    random = np.random.default_rng(height * 100 + width)
    image = random.normal(0, 1, (*batch, height, width, channels)).astype(np.float16)
    taps = random.normal(0, 0.2, (out, channels, 3, 3)).astype(np.float16)
    bias = random.normal(0, 1, out).astype(np.float16)
    operands = {"x": image, "w": conv.weights(taps)}
    if kernel is conv2d_bias:
        operands["b"] = bias
    elif kernel is conv2d_bias_staged:
        operands["b"] = conv.full_bias(bias, height, width)
    padded = np.pad(image.astype(float), [(0, 0)] * len(batch) + [(1, 1), (1, 1), (0, 0)])
    exact = sum(
        padded[..., dy : dy + height, dx : dx + width, :] @ taps[:, :, dy, dx].T.astype(float)
        for dy in range(3) for dx in range(3)
    )  # fmt: skip
    return operands, exact + (bias.astype(float) if "b" in operands else 0)


@pytest.mark.parametrize("kernel, machine, sizes, tile", [
    (conv2d, "quad", (8, 8, 32, 32), (4, 8)),
    (conv2d, "mm_mesh", (5, 6, 20, 12), (4, 3)),
    (conv2d, "ship_3x2", (7, 8, 40, 24), (8, 8)),
    (conv2d_bias, "quad", (4, 5, 32, 16), (6, 4)),
    (conv2d_bias, "ship_3x2", (4, 4, 32, 16), (5, 4)),
    (conv2d_bias_staged, "ship_3x2", (8, 8, 32, 32), (4, 8)),
    (conv2d_bias_staged, "mm_mesh", (3, 3, 32, 8), (4, 2)),
])  # fmt: skip
def test_a_convolution(kernel, machine, sizes, tile):
    height, width, *_ = sizes
    operands, exact = case(kernel, *sizes)
    knobs = {"gm": tile[0], "gn": tile[1]}
    machine = load(machine)
    artifact = compile_kernel(kernel, machine, {name: array.shape for name, array in operands.items()}, knobs)
    result = run_model(artifact, machine, operands).run.outputs["y"]
    assert (result == run_reference(kernel, knobs, operands, machine).outputs["y"]).all()
    found = result.view(np.float16)[conv.positions(height, width)].astype(float)
    assert np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


def test_a_batch(capsys):
    operands, exact = case(conv2d, 4, 4, 32, 8, batch=(2,))
    machine, knobs = load("quad"), {"gm": 3, "gn": 2}
    artifact = compile_kernel(conv2d, machine, {name: array.shape for name, array in operands.items()}, knobs)
    result = run_model(artifact, machine, operands).run.outputs["y"]
    assert (result == run_reference(conv2d, knobs, operands, machine).outputs["y"]).all()
    found = result.view(np.float16)[:, conv.positions(4, 4)].astype(float)
    assert np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


def test_flits_are_no_more_than_published():
    """spec: conv2d 8x8x32 -> 32 at gm 4, gn 8: 140. The published form has a FILL for every block of weights, even those that L1
    still holds; here are 5 tiles of 9 taps and what one cluster keeps of them."""
    operands, _ = case(conv2d, 8, 8, 32, 32)
    shapes = {name: array.shape for name, array in operands.items()}
    artifact = compile_kernel(conv2d, load("quad"), shapes, {"gm": 4, "gn": 8})
    assert artifact.flit_count <= 140 and artifact.buffer("y").layout.key == "tile:5x1:4x8"
    assert artifact.flit_count == 99
    published = compile_kernel(conv2d, load("quad"), shapes, {"gm": 4, "gn": 8}, Options("published"))
    assert published.flit_count == 140


def test_every_tap_counts():
    """A convolution with one tap moves the image; the interpreter is not what it is compared with."""
    image = np.random.default_rng(0).integers(-8, 8, (4, 5, 32)).astype(np.float16)
    for tap in range(9):
        taps = np.zeros((4, 32, 3, 3), np.float16)
        taps[0, 3, tap // 3, tap % 3] = 1
        operands, knobs = {"x": image, "w": conv.weights(taps)}, {"gm": 2, "gn": 1}
        y = run_reference(conv2d, knobs, operands, load("quad")).outputs["y"].view(np.float16)
        moved = np.pad(image[:, :, 3], 1)[tap // 3 : tap // 3 + 4, tap % 3 : tap % 3 + 5]
        assert np.abs(y[conv.positions(4, 5), 0].astype(float) - moved).max() <= 0.25 and np.abs(moved).max() > 1


def test_a_moved_operand_packs_rows_of_a_block_together():
    layout = Shifted(10, 40, 1, 5)
    assert layout.held == 20 and layout.bytes == 2 * 20 * 64 and layout.key == "shifted:1+5"
    array = np.arange(400, dtype=np.uint16).reshape(10, 40)
    image = layout.pack(array)
    assert (layout.unpack(image) == array).all()
    words = np.frombuffer(image, "<u2").reshape(2, 20, 32)
    assert (words[0, 3] == array[3, :32]).all() and (words[1, 3, :8] == array[3, 32:]).all()
    assert not words[:, 10:].any() and not words[1, :, 8:].any()
    assert layout.offset(1, 1) == 64 * (20 + 4)


# ---- refusals ----------------------------------------------------------------------------------------------


def moved_result(x=L.In(P, C), w=L.In(N, C), y=L.Out(P, N), *, gm=2, gn=2):
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        acc = L.tile(gm, gn, 1)
        for k in L.loop(x.chunks32(1)):
            acc += x[i, k] @ w[j, k]
        y[i, j, 1] <<= acc


def shifted(shift, nk=1, first=None, extra=False):
    if extra:
        def made(x=L.In(P, C), w=L.In(N, C), m=L.In(M), y=L.Out(P, N), z=L.Out(M), *, gm=2, gn=2):
            body(x, w, y, gm, gn)
            z <<= m * 1
    else:
        def made(x=L.In(P, C), w=L.In(N, C), y=L.Out(P, N), *, gm=2, gn=2):
            body(x, w, y, gm, gn)

    def body(x, w, y, gm, gn):
        h = x
        if first is not None:
            h = L.temp(P, C)
            h <<= first(x)
        with units(h.tiles(gm), w.tiles(gn)) as (i, j):
            acc = L.tile(gm, gn, nk)
            for k in L.loop(h.chunks32(nk)):
                acc += h[i, k, shift] @ w[j, k]
            y[i, j] <<= acc

    return kernel(made)


SHAPES = {"x": (16, 64), "w": (16, 64)}


@pytest.mark.parametrize("kernel, options, reason", [
    (shifted(3, nk=2), Options(), "x is read from rows other than a tile's first, which needs nk = 1"),
    (shifted(3), Options(preq=("x",)), "preq: x is read from rows other than a tile's first"),
    (shifted(3, first=L.sigmoid), Options(), "rows around it must stay zero, and this statement computes it"),
])  # fmt: skip
def test_operands_that_cannot_be_moved(kernel, options, reason):
    with pytest.raises(CompileError, match=reason):
        compile_kernel(kernel, load("quad"), SHAPES, {}, options)


def test_moves_that_make_no_sense():
    with pytest.raises(KernelError, match="moved down by rows, and -1 is negative"):
        shifted(-1).trace()
    late = shifted(P - M - 1, extra=True)
    with pytest.raises(KernelError, match=r"x\[i, k2, \(\(P - M\) - 1\)\]: an operand is moved down by rows, and -1 is negative") as caught:
        compile_kernel(late, load("quad"), {**SHAPES, "m": (16,)})
    assert caught.value.source is not None
    with pytest.raises(KernelError, match="the extent M is not known") as caught:
        compile_kernel(shifted(P - M), load("quad"), SHAPES)
    assert caught.value.source is not None and "h[i, k, shift]" in str(caught.value)
    with pytest.raises(KernelError, match=r"w has shape \(8, 279\), expected \(8, 288\)"):
        compile_kernel(conv2d, load("quad"), {"x": (4, 4, 31), "w": (8, 279)}, {"gm": 3, "gn": 2})
    with pytest.raises(KernelError, match="only an operand of a product is moved down by rows"):
        kernel(moved_result).trace()
    with pytest.raises(ValueError, match=r"expected \[out, in, 3, 3\]"):
        conv.weights(np.zeros((4, 32, 5, 5), np.float16))


def test_a_move_past_the_end_reads_zeros():
    random = np.random.default_rng(1)
    operands = {name: random.normal(0, 1, shape).astype(np.float16) for name, shape in SHAPES.items()}
    machine = load("quad")
    for shift in (5, 16, 40):
        made = shifted(shift)
        artifact = compile_kernel(made, machine, SHAPES)
        found = run_model(artifact, machine, operands).run.outputs["y"]
        moved = {"x": np.concatenate([operands["x"][shift:], np.zeros((min(shift, 16), 64), np.float16)]), "w": operands["w"]}
        assert (found == run_reference(shifted(0), {}, moved, machine).outputs["y"]).all()
        assert (found == run_reference(made, {}, operands, machine).outputs["y"]).all()


@kernel
def smoothed(x=L.In(..., P, C), w=L.In(N, 3 * C), y=L.Out(..., P, N), *, gm=2, gn=2, step=1):
    """Each row from those `step` and `2 * step` rows further down: the row of the third index is the index of a loop."""
    chunks = x.chunks32(1)
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        acc = L.tile(gm, gn, 1)
        for tap in L.loop(3):
            for k in L.loop(chunks):
                acc += x[i, k, tap * step] @ w[j, w.chunks32(1).at(tap * chunks.count + k)]
        y[i, j] <<= acc


@pytest.mark.parametrize("step", [1, 5, 9])
@pytest.mark.parametrize("machine", ["mm_mesh", "quad", "ship_3x2"])
def test_a_move_by_an_index(step, machine):
    random = np.random.default_rng(step)
    operands = {"x": random.normal(0, 1, (2, 13, 64)).astype(np.float16), "w": random.normal(0, 0.2, (6, 192)).astype(np.float16)}
    shapes = {name: array.shape for name, array in operands.items()}
    artifact = compile_kernel(smoothed, load(machine), shapes, {"step": step})
    assert artifact.buffer("x").layout.key == f"shifted:2+{2 * step}"
    found = run_model(artifact, load(machine), operands).run.outputs["y"]
    wanted = run_reference(smoothed, {"step": step}, operands, load(machine)).outputs["y"]
    assert not np.count_nonzero(found.view("u2") != wanted)
    behind = np.concatenate([operands["x"].astype(float), np.zeros((2, 2 * step, 64))], axis=1)
    columns = np.concatenate([behind[:, tap * step : tap * step + 13] for tap in range(3)], axis=-1)
    exact = columns @ operands["w"].T.astype(float)
    assert np.abs(wanted.view(np.float16) - exact).max() < 0.05 * np.abs(exact).max()
