"""Statements, loops, helpers and function values (spec/xpu.md 1.4, 1.5, 1.2)."""

import numpy as np
import pytest

from kohakutpu.xpu import Undefined


@pytest.fixture
def outputs(launch, kernel_of):
    """`outputs(text, *scalars)`: 16 integers after kernel k of a module."""

    def call(text, *scalars, block=1, grid=1, width=None):
        out = np.zeros(16, np.int32)
        launch(kernel_of(text), out, *scalars, block=block, grid=grid, width=width)
        return out.tolist()

    return call


def kernel(body, parameters="n: i32"):
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    return f"@kernel\ndef k(out: KernelBuffer[i32], {parameters}):\n{lines}\n"


@pytest.mark.parametrize(
    "body, n, expected",
    [
        ("for i in range(n):\n    out[i] = i + 1", 3, [1, 2, 3]),
        ("for i in range(1, n):\n    out[i] = i", 3, [0, 1, 2]),
        ("for i in range(n, 0, -1):\n    out[i] = i", 3, [0, 1, 2, 3]),
        ("for i in range(n):\n    out[i] = 1", -3, []),
        ("for i in range(u8(250), u8(n), 4):\n    out[i - 250] = i", 255, [250, 0, 0, 0, 254]),  # never wraps
        ("i = 0\nwhile i < n:\n    out[i] = i + 1\n    i += 1", 3, [1, 2, 3]),
        ("i = 0\nwhile do_while(i < n):\n    out[i] = 7\n    i += 1", 0, [7]),
        (
            "i = 0\nwhile do_while(i < n):\n    i += 1\n    if i == 2:\n        continue\n    out[i] = i",
            4,
            [0, 1, 0, 3, 4],
        ),
        ("for i in range(9):\n    if i == n:\n        break\n    out[i] = 1", 2, [1, 1]),
        ("for i in range(4):\n    if i == n:\n        continue\n    out[i] = 1", 2, [1, 1, 0, 1]),
        (
            "for i in label('a', range(3)):\n    for j in range(3):\n        if j == n:\n            continue_to('a')\n"
            "        out[3 * i + j] = 1",
            1,
            [1, 0, 0, 1, 0, 0, 1],
        ),
        (
            "i = 0\nwhile label('a', i < 3):\n    i += 1\n    for j in range(3):\n        if i == n:\n"
            "            break_to('a')\n        out[3 * i + j] = 1",
            2,
            [0, 0, 0, 1, 1, 1],
        ),
        ("if n == 1:\n    out[0] = 1\nelif n == 2:\n    out[0] = 2\nelse:\n    out[0] = 3", 2, [2]),
        ("out[0] = 1\nif n == 1:\n    return\nout[1] = 1", 1, [1]),
        ("x: i32\ny: f32\nv: Vector[i32, 2]\nout[0] = x + v.y + (1 if y == 0 else 9)", 0, [1]),  # zero at the start
        ("'''a text'''\npass\nout[0] = n", 5, [5]),
        (
            "m = n\nm += 1\nm *= 2\nm -= 1\nm <<= 2\nm >>= 1\nm &= 31\nm |= 32\nm ^= 1\nout[0] = m",
            2,
            [(5 * 2 & 31 | 32) ^ 1],
        ),
    ],
)
def test_a_statement(outputs, body, n, expected):
    found = outputs(kernel(body), n)
    assert found[: len(expected)] == expected and not any(found[len(expected) :])


def test_a_stripe_is_lane_by_lane(outputs):
    text = kernel("for i in group.stripe(n):\n    out[i] = i32(thread.x()) + 1")
    assert outputs(text, 7, block=4, width=4)[:8] == [1, 2, 3, 4, 1, 2, 3, 0]


def test_a_buffer_walk_strides_by_the_grid_and_copies_elements(outputs, launch, kernel_of):
    text = kernel("for i, e in data.range(n):\n    data[i] = 100\n    out[i] = e + i32(workgroup.x())",
                  "data: KernelBuffer[i32], n: i32")  # fmt: skip
    data = np.arange(16, dtype=np.int32)
    assert outputs(text, data, 13, block=2, grid=3) == [0, 1, 3, 4, 6, 7, 6, 7, 9, 10, 12, 13, 12, 0, 0, 0]
    assert data.tolist() == [100] * 13 + [13, 14, 15]


HELPER = """
@device
def clamp(value: i32, top: u8) -> i32:
    if value > top:
        return top
    return value

@device
def fill(memory: KernelBuffer[i32], count: i32, value: i32):
    for i in range(count):
        memory[i] = value
    count = 0

@device
def forget(value: i32) -> i32:
    if value > 0:
        return value
"""


def test_helpers_take_converted_values_and_memory_by_reference(outputs):
    assert outputs(HELPER + kernel("m = 2\nfill(out, m, 9)\nout[m] = clamp(n, 5)\nout[3] = clamp(n, 300)"), 50)[:4] == [
        9, 9, 5, 44,
    ]  # fmt: skip


def test_a_helper_that_ends_without_its_value_is_undefined(outputs):
    assert outputs(HELPER + kernel("out[0] = forget(n)"), 4)[0] == 4
    with pytest.raises(Undefined, match="forget ends without the i32 that it promises"):
        outputs(HELPER + kernel("out[0] = forget(n)"), -4)


def test_shared_memory_and_vectors_pass_to_helpers(outputs):
    text = """
@device
def total(memory: Shared[i32], v: Vector[i32, 2]) -> Vector[i32, 2]:
    memory[1] = v.x + v.y
    return v + memory[0]
""" + kernel("s = Shared[i32](2)\ns[0] = n\nv = total(s, Vector[i32, 2](1, 2))\nout.vstore(0, v)\nout[2] = s[1]")
    assert outputs(text, 10)[:3] == [11, 12, 3]


FUNCTIONS = """
@device
def double(a: i32) -> i32:
    return a * 2
@device
def negate(a: i32) -> i32:
    return -a
@device
def third(a: i32) -> i32:
    return 3
@device
def floaty(a: f32) -> i32:
    return 3
"""


@pytest.mark.parametrize("tag, expected", [(0, 14), (1, -7), (2, 0), (4294967295, 0)])
def test_a_function_value_is_a_tag_and_out_of_range_gives_zero(outputs, tag, expected):
    body = "out[1] = 5\nout[0] = f(7)\ng: Function[double, negate] = negate\ng = double\nout[2] = g(1)\n"
    body += "out[3] = Function[double, negate](n)(1)"
    text = FUNCTIONS + kernel(body, "f: Function[double, negate], n: u32")
    assert outputs(text, tag, 1)[:4] == [expected, 5, 2, -1]


@pytest.mark.parametrize(
    "body, reason",
    [
        ("g: Function[double, negate] = third", "third is not one of Function[double, negate]"),
        ("g: Function[double, floaty] = double\nout[0] = g(n)", "floaty differs from double in its types"),
        ("g: Function[double] = double\nout[0] = g(n, n)", "double takes 1 argument, not 2"),
        ("g = n\nout[0] = g(n)", "i32 cannot be called"),
        ("g: Function[n] = double", "Function[n] is no type of the kernel language"),
    ],
)
def test_a_function_value_that_is_refused(kernel_of, reasons, body, reason):
    assert any(reason in text for text in reasons(kernel_of(FUNCTIONS + kernel(body))))


def test_a_helper_by_its_name_is_an_argument(launch, kernel_of):
    found = kernel_of(FUNCTIONS + "k0 = double\n" + kernel("out[0] = f(n)", "f: Function[double, negate], n: i32"))
    negate = found.function.__globals__["negate"]
    out = np.zeros(1, np.int32)
    launch(found, out, negate, 4)
    assert out[0] == -4


def test_a_refusal_inside_a_function_value_names_the_helper(kernel_of, reasons):
    text = "@device\ndef bad(a: i32) -> i32:\n    return a / 2\n" + kernel("g: Function[bad] = bad\nout[0] = g(n)")
    assert reasons(kernel_of(text))[0].startswith("bad: / of integers")
