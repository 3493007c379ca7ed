"""Whole waves of the cpu back end: where every lane passes a guard, code without a mask runs, and gives the same."""

import numpy as np
import pytest

from kohakutpu.backends.cpu import CPU, execute
from kohakutpu.reference.xpu import Launch, run
from kohakutpu.xpu import Undefined
from kohakutpu.xpu.launch import Request

WIDTH = 8
SIZES = [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 47, 48]


@pytest.mark.parametrize("checked", [True, False])
def test_a_guard_is_compiled_for_whole_waves_and_for_the_last(saxpy, checked):
    text = CPU.code(saxpy, (256, 1, 1), 16, checked).text
    assert "load <16 x float>" in text and "llvm.masked.load.v16f32" in text
    assert "store <16 x float>" in text and "llvm.masked.store.v16f32" in text


GUARDS = [
    "if i < n:\n    out[i] = a[i] + 1",
    "if i <= n:\n    out[i] = a[i] + 1",
    "if n > i:\n    out[i] = a[i] + 1",
    "if n >= i:\n    out[i] = a[i] + 1",
    "if i >= n:\n    return\nout[i] = a[i] + 1",
    "if i > n:\n    out[i] = 1\nelse:\n    out[i] = a[i]",
    "if i >= n:\n    out[i] = 1\nelse:\n    out[i] = a[i]\nout[i] += 5",
    "if n < i:\n    out[i] = a[i]",
    "if n <= i:\n    out[i] = a[i]",
    "if i == n:\n    out[i] = a[i]",
    "if i != n:\n    out[i] = a[i]",
    "j = i32(i)\nif j < i32(n) - 8:\n    out[j] = a[j + 8]",
    "if i < n and i < 20:\n    out[i] = a[i]",
    "if i < n:\n    if i < 20:\n        out[i] = a[i]\n    else:\n        out[i] = 7\n        if i > 29:\n"
    "            return\n    out[i] += 9",
    "x = 0\nif i < n:\n    x = a[i]\n    if x > 0:\n        x = -x\nout[i] = x",
    "x = a[i] if i < n else 3\nout[i] = x",
    "if u8(i) < u8(n):\n    out[i] = a[i]",
    "if i8(i) < i8(n):\n    out[i] = a[i]",
    "if u16(i + 250 * 256) < 250 * 256 + 30:\n    out[i] = a[i]",
    "for k in range(3):\n    if i + u32(k) * 8 < n:\n        out[i] += a[i]\n        if i > 40:\n            return",
    "if i < n:\n    out[i] = i32(wave.reduce_sum(i))",
    "if i >= n:\n    return\nout[i] = i32(wave.ballot_sync(i % 3 == 0)) + i32(wave.prefix_sum(i))",
]


def agrees(body_of, guard: str, n: int, checked: bool) -> None:
    declared = body_of("i = thread.global_id_x()\n" + guard, "out: KernelBuffer[i32], a: KernelBuffer[i32], n: u32")
    a = np.random.default_rng(n).integers(-9, 9, 48, np.int32)
    expected, found = np.zeros(48, np.int32), np.zeros(48, np.int32)
    run(declared, [expected, a, n], Launch(2, 24, WIDTH))
    execute(CPU, Request(declared, (2, 1, 1), (24, 1, 1), 0, (found, a, n)), WIDTH, checked)
    assert found.tolist() == expected.tolist(), n


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_at_every_edge(body_of, guard, checked):
    for n in SIZES:
        agrees(body_of, guard, n, checked)


def test_more_guards_than_are_compiled_twice(body_of):
    guard = "\n".join(f"if i < n + {k}:\n    out[i] += a[(i + {k}) % 48]" for k in range(24))
    for n in (0, 17, 48):
        agrees(body_of, guard, n, True)


@pytest.mark.parametrize(
    "index",
    ["i", "i + 1", "i * 2", "i - n", "n - i", "i32(i) - i32(n)", "i64(i) + 4294967290", "i64(i) - 1", "u8(i)",
     "i + 4294967290", "i8(i + 120)", "u16(i + 65530)", "i32(i) + 2147483640", "i * 3 + 2", "n"],
)  # fmt: skip
def test_a_bound_is_found_at_the_lane_that_breaks_it(body_of, index):
    """One comparison clears a wave; where it does not, the first lane that is outside is named, as the walker does."""
    body = f"i = thread.global_id_x()\nout[i] = a[{index}]"
    declared = body_of(body, "out: KernelBuffer[i32], a: KernelBuffer[i32], n: u32")
    seen = set()
    for size in (1, 4, 7, 8, 9, 15, 16, 17, 24, 25, 46, 64, 260):
        a = np.arange(size, dtype=np.int32)
        texts, outs = [], []
        for how in (lambda *args: run(declared, args, Launch(1, 16, WIDTH)),
                    lambda *args: execute(CPU, Request(declared, (1, 1, 1), (16, 1, 1), 0, args), WIDTH, True)):
            out = np.zeros(16, np.int32)
            try:
                how(out, a, 5)
                texts.append("")
            except Undefined as raised:
                texts.append(str(raised))
                out[:] = 0  # what was stored before it is not compared
            outs.append(out.tolist())
        assert texts[0] == texts[1] and outs[0] == outs[1], size
        seen.add(bool(texts[0]))
    assert True in seen


