"""Declaring kernels, binding shapes, finding kernels by name."""

import functools
import sys
from pathlib import Path

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import compile_kernel
from kohakutpu.kernels.linear import linear_bias, linear_silu, matmul
from kohakutpu.lang import KernelError, dims, kernel
from kohakutpu.lang.trace import ELEMENTS
from kohakutpu.machine import load
from kohakutpu.reference import interpret

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
M, K, N = dims("M, K, N")


def declared(**ports):
    """A kernel with these parameters and an empty body."""
    parameters = ", ".join(f"{name}=_{name}" for name in ports)
    space = {f"_{name}": value for name, value in ports.items()}
    exec(f"def made({parameters}): pass", space)  # a signature is what is under test
    return kernel(space["made"])


WHOLE = "def linear_bias(x=L.In(..., M, K), w=L.In(N, K), b=L.In(N), y=L.Out(..., M, N), *, gm=8, gn=8, nk=2):"


def underlined(error: KernelError) -> str:
    """What of the source line an error's text underlines."""
    line, marks = str(error).splitlines()[-2:]
    assert set(marks.strip()) == {"^"}
    return line[marks.index("^") : marks.rindex("^") + 1]


def test_ports_and_knobs_come_from_the_signature():
    assert [port.name for port in linear_silu.inputs] == ["x", "w"]
    assert [port.name for port in linear_silu.outputs] == ["y"]
    assert linear_silu.knobs == {"gm": 8, "gn": 8, "nk": 2, "fuse": True}
    assert linear_silu.ports["x"].batched and not linear_silu.ports["w"].batched


@kernel
def matmul_like(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, K)):
    y <<= x
    y <<= y + w.rows_from(0, M)


@pytest.mark.parametrize(
    "ports, reason",
    [
        ({"y": L.Out(M)}, "no L.In port"),
        ({"x": L.In(M)}, "no L.Out port"),
        ({"x": L.In(), "y": L.Out(M)}, "x: a buffer needs a shape"),
        ({"x": L.In("M"), "y": L.Out(M)}, "x: an axis is a dim"),
        ({"x": L.In(0), "y": L.Out(M)}, "x: an axis of 0 elements"),
        ({"x": L.In(..., M), "z": L.In(...), "y": L.Out(..., M)}, "mixes ports"),
        ({"x": L.In(...), "w": L.In(M), "y": L.Out(...)}, "when one port is `...` alone, all are"),
        ({"x": L.In(M), "y": L.Out(..., M)}, "an output has `...` and no operand fixes it"),
        ({"x": L.In(..., M), "y": L.Out(M)}, "an output without `...` in a batched kernel"),
    ],
)
def test_bad_declarations_are_refused(ports, reason):
    with pytest.raises(KernelError, match=reason) as caught:
        declared(**ports)
    assert caught.value.source is not None


def test_a_parameter_needs_a_default():
    with pytest.raises(KernelError, match="scale needs a default"):
        kernel(lambda x=L.In(M), y=L.Out(M), *, scale: None)
    with pytest.raises(KernelError, match="neither a port nor a knob"):
        kernel(lambda x=L.In(M), y=L.Out(M), *rest: None)


def test_what_does_not_run_when_it_is_called_is_no_kernel():
    def yields(x=L.In(M), y=L.Out(M)):
        y <<= x
        yield

    async def awaits(x=L.In(M), y=L.Out(M)):
        y <<= x

    for function in (yields, awaits):
        with pytest.raises(KernelError, match=f"{function.__name__} is a generator or `async`.* a plain function") as caught:
            kernel(function)
        assert caught.value.source is not None


@pytest.mark.parametrize("given", [3, None, np.add, functools.partial(print), matmul, type])
def test_what_is_no_function_is_no_kernel(given):
    with pytest.raises(KernelError, match=f"kernel: expected a function, got {type(given).__name__}") as caught:
        kernel(given)
    assert caught.value.source is not None


def test_a_kernel_is_not_called():
    with pytest.raises(KernelError, match=r"which is not called: .* kohakutpu.session.call\(matmul, ..\)"):
        matmul(1, 2)


# ---- shapes ----------------------------------------------------------------------------------------------


def test_solving_extents():
    extents = linear_silu.solve({"x": (2, 3, 32, 64), "w": (48, 64)})
    assert extents.dims == {"M": 32, "K": 64, "N": 48} and extents.lead == (2, 3)
    assert linear_silu.ports["y"].logical_shape(extents) == (2, 3, 32, 48)
    assert linear_silu.ports["w"].logical_shape(extents) == (48, 64)
    assert linear_silu.ports["y"].copies(extents) == 6 and linear_silu.ports["w"].copies(extents) == 1


def test_whole_array_ports():
    made = declared(x=L.In(...), y=L.Out(...))
    extents = made.solve({"x": (2, 3, 5)})
    assert extents.dims == {ELEMENTS: 30}
    assert made.ports["y"].logical_shape(extents) == (2, 3, 5) and made.ports["y"].element_shape(extents) == (30,)


@pytest.mark.parametrize(
    "shapes, reason, place",
    [
        ({"x": (4, 64), "w": (4, 64), "v": (1,)}, "no operand 'v'; it has x, w, b", WHOLE),
        ({"x": (4, 64), "w": (4, 64), "b": (4,), "y": (4, 4)}, "y is an output", "L.Out(..., M, N)"),
        ({"x": (4, 64), "b": (4,)}, "no shape for w", "L.In(N, K)"),
        ({"x": (64,), "w": (4, 64), "b": (4,)}, r"x\(\.\.\., M, K\) cannot have shape \(64,\)", "L.In(..., M, K)"),
        ({"x": (4, 64), "w": (1, 4, 64), "b": (4,)}, r"w\(N, K\) cannot have shape", "L.In(N, K)"),
        ({"x": (4, 64), "w": (4, 32), "b": (4,)}, "K is 64 for one operand and 32 for w", "L.In(N, K)"),
        ({"x": (4, 0), "w": (4, 0), "b": (4,)}, "every axis is an integer of at least 1", "L.In(..., M, K)"),
        ({"x": (4, 64), "w": (4, 64), "b": (5,)}, "N is 4 for one operand and 5 for b", "L.In(N)"),
    ],
)
def test_shapes_that_do_not_bind(shapes, reason, place):
    with pytest.raises(KernelError, match=reason) as caught:
        linear_bias.solve(shapes)
    assert underlined(caught.value) == place


def test_batch_axes_must_agree():
    made = declared(x=L.In(..., M), z=L.In(..., M), y=L.Out(..., M))
    with pytest.raises(KernelError, match=r"batch axes of z are \(3,\), others have \(2,\)"):
        made.solve({"x": (2, 8), "z": (3, 8)})


def test_expressions_of_dims():
    made = declared(x=L.In(M), z=L.In(2 * M), y=L.Out(M // 3))
    assert made.ports["y"].logical_shape(made.solve({"x": (6,), "z": (12,)})) == (2,)
    with pytest.raises(KernelError, match=r"z has shape \(11,\), expected \(12,\)"):
        made.solve({"x": (6,), "z": (11,)})
    with pytest.raises(KernelError, match=r"the axis \(M // 3\) of y has 0 elements") as caught:
        made.solve({"x": (2,), "z": (4,)})
    assert underlined(caught.value) == "L.Out(M // 3)"
    with pytest.raises(KernelError, match="no operand fixes N of y"):
        declared(x=L.In(M), y=L.Out(N)).solve({"x": (2,)})


def test_extents_that_the_shapes_make_impossible():
    @kernel
    def empty(x=L.In(M, N), y=L.Out(M, N)):
        t = L.temp(M - 8, N)
        t <<= x.rows_from(8)
        y <<= x

    @kernel
    def divided(x=L.In(M, N), y=L.Out(M, N)):
        y <<= x
        for _ in L.loop(M // (N - 8)):
            y <<= y * 2

    for made, reason, place in (
        (empty, r"the axis \(M - 8\) of t1 has 0 elements", "L.temp(M - 8, N)"),
        (divided, r"\(M // \(N - 8\)\) divides by zero", "L.loop(M // (N - 8))"),
    ):
        extents = made.solve({"x": (8, 8)})
        for run in (lambda: compile_kernel(made, load("quad"), {"x": (8, 8)}),  # noqa: B023
                    lambda: interpret(made.trace(), extents, {"x": np.zeros((8, 8), np.float16)})):  # noqa: B023  # fmt: skip
            with pytest.raises(KernelError, match=reason) as caught:
                run()
            assert underlined(caught.value) == place


@pytest.mark.parametrize(
    "operands, reason, place",
    [
        ({}, "no value for x", "L.In(..., M, K)"),
        ({"x": np.zeros((4, 32), np.float32)}, r"x is float32\[4, 32\], expected float16 or uint16\[4, 32\]", "L.In(..., M, K)"),
        ({"x": np.zeros((4, 32), np.float16), "w": np.zeros((4, 31), np.float16)}, r"w is float16\[4, 31\]", "L.In(N, K)"),
        ({"v": np.zeros(1)}, "has no operand v", WHOLE),
    ],
)
def test_operands_that_are_refused(operands, reason, place):
    extents = linear_bias.solve({"x": (4, 32), "w": (4, 32), "b": (4,)})
    with pytest.raises(KernelError, match=reason) as caught:
        interpret(linear_bias.trace(), extents, operands)
    assert underlined(caught.value) == place


def test_a_kernel_that_does_not_fit_the_memory():
    with pytest.raises(KernelError, match=r"w \(\d+ bytes\) does not fit") as caught:
        compile_kernel(matmul_like, load("quad"), {"x": (8, 1 << 20), "w": (1 << 20, 1 << 20)})
    assert underlined(caught.value) == "L.In(N, K)"


# ---- knobs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "knobs, reason",
    [
        ({"gx": 4}, "no knob 'gx'; it has fuse, part, ksplit, gm, gn, nk"),
        ({"fuse": 1}, "fuse is True or False, not 1"),
        ({"part": 0}, "part: expected an integer of at least 1, got 0"),
        ({"ksplit": 0}, "ksplit: expected an integer of at least 1, got 0"),
        ({"gm": 0}, "tiles: expected an integer of at least 1, got 0"),
        ({"gm": 2.0}, "expected an integer of at least 1, got 2.0"),
        ({"nk": True}, "expected an integer of at least 1, got True"),
    ],
)
def test_knobs_are_checked(knobs, reason):
    with pytest.raises(KernelError, match=reason):
        matmul.trace(**knobs)


def test_one_trace_a_setting():
    assert matmul.trace(gm=4) is matmul.trace(gm=4) and matmul.trace(gm=4) is not matmul.trace(gm=2)
    assert matmul.trace(gm=4).knobs["gm"] == 4 and matmul.trace(fuse=False).fuse is False


# ---- by name ---------------------------------------------------------------------------------------------

SOURCE = """
from kohakutpu import lang as L
from kohakutpu.lang import dims, kernel
M = dims("M")
@kernel
def double(x=L.In(M), y=L.Out(M)):
    y <<= x * 2
number = 3
"""


def test_load_from_a_module_and_a_file(tmp_path):
    assert L.load("kohakutpu.kernels.linear:matmul") is matmul
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    found = L.load(f"{path}:double")
    assert found.name == "double" and found.trace().statements[0].source.line == 7
    assert found.trace().statements[0].source.short == "mine.py:7"
    assert found.trace().statements[0].source.text == "y <<= x * 2"


def test_a_file_finds_the_modules_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_it.py").write_text(SOURCE)
    path = tmp_path / "mine.py"
    path.write_text("from beside_it import double\n")
    try:
        assert L.load(f"{path}:double").name == "double"
    finally:
        sys.modules.pop("beside_it", None)
    assert sys.path[0] != str(tmp_path) and sys.path[-1] == str(tmp_path)
    path.write_text("import nowhere_at_all\n")
    with pytest.raises(KernelError, match="no module nowhere_at_all, and none beside .*mine.py"):
        L.load(f"{path}:double")
    assert not any(getattr(module, "__file__", None) == str(path) for module in sys.modules.values())


@pytest.mark.parametrize(
    "reference, reason",
    [
        ("matmul", "not of the form module:function"),
        (":matmul", "not of the form"),
        ("kohakutpu.kernels.nowhere:matmul", "no module kohakutpu.kernels.nowhere"),
        ("kohakutpu.kernels.linear:nothing", "has no nothing; its kernels are .*geglu, linear_add"),
        ("kohakutpu.kernels.linear:M", "M is a Name, not a kernel"),
        ("kohakutpu.lang.kernel:DEFAULT_PART", "DEFAULT_PART is an int, not a kernel"),
        ("kohakutpu.lang.kernel:Kernel", "Kernel is a type, not a kernel"),
        (f"{EXAMPLES}/saxpy_xpu.py:saxpy", "saxpy is an XPU kernel, not a kernel of tiles"),
        ("nowhere.py:matmul", "no file .*nowhere.py"),
    ],
)
def test_bad_references_are_refused(reference, reason):
    with pytest.raises(KernelError, match=reason):
        L.load(reference)


def test_a_file_that_fails_says_so(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("1 / 0\n")
    with pytest.raises(KernelError, match="failed to load: ZeroDivisionError"):
        L.load(f"{path}:anything")
