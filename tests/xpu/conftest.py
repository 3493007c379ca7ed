"""Kernels from text, and one call that runs an expression."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kohakutpu import xpu
from kohakutpu.conformance.xpu.load import module_of
from kohakutpu.reference.xpu import Launch, refusals, run


def names() -> dict:
    """Everything that a kernel's source may name."""
    return {word: getattr(xpu, word) for word in xpu.__all__} | {"xpu": xpu}


def build(text: str, **more):
    """The kernel `k` that a module's text declares."""
    return xpu.define(text, names() | more)["k"]


def with_body(body: str, parameters: str = "out: KernelBuffer[i32]", **more):
    """A kernel from the lines of its body."""
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    return build(f"@kernel\ndef k({parameters}):\n{lines}\n", **more)


@pytest.fixture(scope="session")
def bench():
    """The kernels of the benchmarks."""
    return module_of(Path(__file__).parents[2] / "benchmarks/xpu_kernels.py")


@pytest.fixture(scope="session")
def saxpy(bench):
    """y = a*x + y, guarded by its count."""
    return bench.saxpy


@pytest.fixture(scope="session")
def kernel_of():
    """`kernel_of(text)`: the kernel k of a module's text."""
    return build


@pytest.fixture(scope="session")
def body_of():
    """`body_of(body, parameters)`: a kernel from its body."""
    return with_body


@pytest.fixture(scope="session")
def reasons():
    """`reasons(kernel)`: the texts of its refusals."""
    return lambda kernel: [str(refusal) for refusal in refusals(kernel)]


def both(kernel, arguments, how: Launch) -> str:
    """Run a kernel by the walker on a copy of its memory, and as it runs by itself: bytes or error must be the same.

    With XPU_TEST_CPU=1 it also runs on the cpu back end, whose integers must be the same and whose floats near.
    """
    allocations = {id(base(a)): base(a).copy() for a in arguments if is_memory(a)}
    error = None
    try:
        run(kernel, arguments, how, walk=True)
    except (xpu.Refused, xpu.Undefined) as raised:
        error = raised
    walked = {key: array.copy() for key, array in ((id(base(a)), base(a)) for a in arguments if is_memory(a))}
    for argument in filter(is_memory, arguments):
        base(argument)[...] = allocations[id(base(argument))]
    if os.environ.get("XPU_TEST_CPU") == "1":
        compare_cpu(kernel, arguments, how, walked, error)
        for argument in filter(is_memory, arguments):
            base(argument)[...] = allocations[id(base(argument))]
    try:
        path = run(kernel, arguments, how)
    except (xpu.Refused, xpu.Undefined) as raised:
        assert error is not None and str(raised) == str(error)
        raise
    assert error is None
    for argument in filter(is_memory, arguments):
        assert base(argument).tobytes() == walked[id(base(argument))].tobytes()
    return path


def compare_cpu(kernel, arguments, how: Launch, walked: dict, error) -> None:
    """The cpu back end against what the walker gave: memory, or an error of undefined behaviour."""
    from kohakutpu.backends.cpu import CPU, execute
    from kohakutpu.xpu.launch import Request

    if isinstance(error, xpu.Refused):
        return
    grid, block = ((*((v,) if isinstance(v, int) else v), 1, 1)[:3] for v in (how.grid, how.block))
    assert CPU.refusal(kernel) is None
    request = Request(kernel, grid, block, 4096 if how.shared_bytes is None else how.shared_bytes, tuple(arguments))
    try:
        execute(CPU, request, how.wave_width or kernel.program.width or 8, True)
    except xpu.Undefined as raised:
        assert error is not None, f"only cpu found this undefined: {raised}"
        return
    assert error is None, f"cpu did not find: {error}"
    for argument in filter(is_memory, arguments):
        assert_near(base(argument), walked[id(base(argument))])


def assert_near(found: np.ndarray, expected: np.ndarray, ulps: int = 4, scale: float = 5e-7) -> None:
    """Integers are the same. Floats are within so many ulps, or so much of the largest: exp has an ulp of its own,
    which shows in sums that nearly cancel. NaN is NaN."""
    if found.dtype.kind != "f":
        assert found.tobytes() == expected.tobytes()
        return
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    order = np.dtype(f"i{found.dtype.itemsize}")
    ranks = [a.view(order).astype(object) for a in (found, expected)]
    signed = [np.where(r < 0, np.iinfo(order).min - r, r) for r in ranks]
    apart = np.where(np.isnan(found), 0, np.abs(signed[0] - signed[1]))
    finite = np.isfinite(expected) & np.isfinite(found)
    wide = [np.where(finite, a, 0).astype(np.float64) for a in (found, expected)]
    near = finite & (np.abs(wide[0] - wide[1]) <= scale * np.abs(wide[1]).max(initial=0))
    assert not ((apart > ulps) & ~near).any(), (found, expected)


def is_memory(value) -> bool:
    return isinstance(value, (np.ndarray, xpu.KernelBuffer))


def base(value) -> np.ndarray:
    """The whole allocation behind an argument."""
    value = value.allocation.bytes if isinstance(value, xpu.KernelBuffer) else value
    return value if value.base is None else value.base


@pytest.fixture(scope="session")
def launch():
    """`launch(kernel, *arguments, grid=, block=, width=, ...)`, by both paths; gives the path that answered."""

    def call(kernel, *arguments, grid=1, block=1, width=None, **more):
        return both(kernel, arguments, Launch(grid, block, width, **more))

    return call


@pytest.fixture(scope="session")
def compute():
    """`compute(expression, type, a=(i32, 5), ...)`: the expression's value, stored as the type."""

    def call(expression: str, kind, **inputs):
        parameters = ", ".join([f"out: KernelBuffer[{kind}]", *(f"{name}: {t}" for name, (t, _) in inputs.items())])
        kernel = with_body(f"out[0] = {expression}", parameters)
        out = np.zeros(1, kind.dtype)
        both(kernel, [out, *(value for _, value in inputs.values())], Launch())
        return out[0]

    return call


@pytest.fixture(scope="session")
def lanes():
    """`lanes(expression, type, width=, block=, lane type and values)`: one expression in every work-item of a block."""

    def call(expression: str, kind, values, of, *, width, block=None, before=""):
        values = np.asarray(values, of.dtype)
        block = block or len(values)
        body = f"t = thread.x()\nv = data[t]\n{before}\nout[t] = {expression}"
        kernel = with_body(body, f"out: KernelBuffer[{kind}], data: KernelBuffer[{of}]")
        out = np.zeros(block, kind.dtype)
        both(kernel, [out, values], Launch(1, block, width))
        return out.tolist()

    return call


@pytest.fixture(scope="session")
def generated():
    """The module of random kernels, generated.py."""
    return module_of(Path(__file__).parent / "generated.py")


@pytest.fixture(scope="session")
def near():
    """`near(found, expected, ulps, scale)`: assert_near."""
    return assert_near
