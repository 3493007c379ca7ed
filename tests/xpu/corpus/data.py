"""What the kernels of the corpus run on, and one launch of one of them.

A file of the corpus declares kernels and, for each, a function `on_<name>(data)` that gives a launch:

    dict(grid=, block=, arguments=[...], expect={parameter: array}, close={parameter: rtol})

Arrays become buffers of the parameter's type. `expect` is an oracle of numpy's that knows nothing of kernels: equal to
the bit unless `close` gives a tolerance, of the element and of the scale, or a pair of both; left out where the data of
the run have no independent answer.
"""

from __future__ import annotations

import sys
from zlib import crc32

import numpy as np

from kohakutpu.xpu import KernelBuffer, bf16
from kohakutpu.xpu.types import BOOL, Scalar

KINDS = ("random", "ragged", "adversarial")
SPECIAL = "special"


def store(kind: Scalar, values) -> np.ndarray:
    """Numbers in a type's memory dtype; rounding to bfloat16 is to nearest even."""
    if kind is not bf16:
        with np.errstate(all="ignore"):
            return np.asarray(values).astype(kind.dtype)
    single = np.asarray(values, np.float32)
    bits = single.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return (np.where(np.isnan(single), bits | np.uint32(0x0040_0000), rounded) >> np.uint32(16)).astype(np.uint16)


def held(kind: Scalar, memory: np.ndarray) -> np.ndarray:
    """The numbers that memory holds: bfloat16 as float32, everything else as it is."""
    return (memory.astype(np.uint32) << 16).view(np.float32) if kind is bf16 else memory


class Data:
    """Inputs of one kind: "random"; "ragged", whose sizes divide by nothing; "adversarial", ragged and extreme.

    "special" is adversarial where an oracle asks for finite floats, too: no oracle holds then. `tame` says whether any
    were asked for. The same name and kind give the same data.
    """

    def __init__(self, kind: str, name: str):
        self.kind, self.random = kind, np.random.default_rng(crc32(f"{kind} {name}".encode()))
        self.tame = False

    @property
    def adversarial(self) -> bool:
        """True where inputs hold NaNs, infinities, subnormal numbers and the ends of integers."""
        return self.kind in ("adversarial", SPECIAL)

    def size(self, count: int) -> int:
        """`count`, or some odd number a little below."""
        return count if self.kind == "random" else max(1, (count - count // 7 - 2) | 1)

    def floats(self, kind: Scalar, count: int) -> np.ndarray:
        """Normal variates; adversarial: every special value of the format among them."""
        values = store(kind, self.random.standard_normal(count) * 3)
        if self.adversarial:
            mantissa = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}[kind.name]
            infinity = (1 << kind.bits - 1) - (1 << mantissa)
            sign = 1 << kind.bits - 1
            bits = [0, 1, (1 << mantissa) - 1, 1 << mantissa, infinity - 1, infinity, infinity + (1 << mantissa - 1)]
            special = np.array([b | s for b in bits for s in (0, sign)], f"uint{kind.bits}").view(values.dtype)
            places = self.random.permutation(count)[: max(1, count // 2)]
            values[places] = self.random.choice(special, len(places))
        return values

    def finite(self, kind: Scalar, count: int, scale: float = 1.0) -> np.ndarray:
        """Floats without NaN, infinity or overflow; adversarial: zeros of both signs and tiny numbers among them."""
        self.tame = True
        if self.kind == SPECIAL:
            return self.floats(kind, count)
        values = self.random.standard_normal(count) * scale
        if self.adversarial:
            values[self.random.random(count) < 0.3] = 0.0
            values[self.random.random(count) < 0.1] = -0.0
            values[self.random.random(count) < 0.2] *= 1e-6
        return store(kind, values)

    def integers(self, kind: Scalar, count: int, low: int | None = None, high: int | None = None) -> np.ndarray:
        """Integers from `low` to `high`, the type's ends by default; adversarial: mostly near the ends and zero."""
        low, high = kind.low if low is None else low, kind.high if high is None else high
        values = self.random.integers(low, high, count, dtype=kind.dtype, endpoint=True)
        if self.adversarial:
            ends = [v for v in (low, low + 1, -1, 0, 1, high - 1, high) if low <= v <= high]
            places = self.random.random(count) < 0.7
            values[places] = self.random.choice(np.array(ends, kind.dtype), int(places.sum()))
        return values

    def of(self, kind: Scalar, count: int) -> np.ndarray:
        """Elements of any primitive."""
        if kind is BOOL:
            return self.random.integers(0, 2, count).astype(np.uint8)
        return self.floats(kind, count) if kind.kind == "float" else self.integers(kind, count)


def made(kernel, kind: str) -> dict | None:
    """A kernel's launch on data of a kind, by the module that declares it; None where special data is not."""
    data = Data(kind, kernel.name)
    with np.errstate(all="ignore"):
        case = vars(sys.modules[kernel.function.__module__])[f"on_{kernel.name}"](data)
    return None if kind == SPECIAL and not data.tame else case


def buffers(kernel, arguments: list) -> list:
    """The arguments with every array as a buffer of its parameter's type."""
    parameters = kernel.program.kernel.parameters
    return [
        KernelBuffer.of(p.type.element, value) if isinstance(value, np.ndarray) else value
        for p, value in zip(parameters, arguments, strict=True)
    ]


def launch(kernel, kind: str, stream, oracle: bool = True) -> None:
    """Launch a kernel on data of a kind, and hold what it wrote against the oracle. Raises AssertionError.

    Special data has no oracle, and is only for kernels whose other data is tame.

    `oracle` is False for a back end with arithmetic of its own, which numpy does not have.
    """
    case = made(kernel, kind)
    if case is None:
        return
    arguments = buffers(kernel, case["arguments"])
    kernel.launch(stream, grid=case["grid"], block=case["block"], shared_bytes=case.get("shared_bytes"))(*arguments)
    names = [parameter.name for parameter in kernel.program.kernel.parameters]
    for name, expected in case.get("expect", {}).items() if oracle and kind != SPECIAL else ():
        buffer, what = arguments[names.index(name)], f"{kernel.name} on {kind} data: {name}"
        found = held(buffer.element, buffer.download())
        expected = np.asarray(expected).ravel()
        assert len(found) == len(expected), f"{what}: {len(found)} elements, {len(expected)} expected"
        rtol = case.get("close", {}).get(name)
        with np.errstate(all="ignore"):
            if rtol is None:
                np.testing.assert_array_equal(found, held(buffer.element, store(buffer.element, expected)), what)
            else:
                rtol, of_scale = rtol if isinstance(rtol, tuple) else (rtol, rtol)
                scale = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
                np.testing.assert_allclose(found.astype(np.float64), expected, rtol, of_scale * scale, err_msg=what)
