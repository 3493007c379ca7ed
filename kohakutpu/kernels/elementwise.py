"""One operation a kernel, over arrays of any shape."""

from __future__ import annotations

from kohakutpu import lang as L
from kohakutpu.lang import kernel


@kernel
def negative(x=L.In(...), y=L.Out(...), *, part=8192):
    """-x"""
    y <<= -x


@kernel
def absolute(x=L.In(...), y=L.Out(...), *, part=8192):
    """|x|"""
    y <<= abs(x)


@kernel
def exp2(x=L.In(...), y=L.Out(...), *, part=8192):
    """2^x"""
    y <<= L.exp2(x)


@kernel
def log2(x=L.In(...), y=L.Out(...), *, part=8192):
    """log2 x"""
    y <<= L.log2(x)


@kernel
def recip(x=L.In(...), y=L.Out(...), *, part=8192):
    """1 / x"""
    y <<= L.recip(x)


@kernel
def rsqrt(x=L.In(...), y=L.Out(...), *, part=8192):
    """1 / sqrt x"""
    y <<= L.rsqrt(x)


@kernel
def sqrt(x=L.In(...), y=L.Out(...), *, part=8192):
    """sqrt x, as the reciprocal of rsqrt x"""
    y <<= L.sqrt_approx(x)


@kernel
def sigmoid(x=L.In(...), y=L.Out(...), *, part=8192):
    """1 / (1 + exp(-x))"""
    y <<= L.sigmoid(x)


@kernel
def silu(x=L.In(...), y=L.Out(...), *, part=8192):
    """x * sigmoid(x)"""
    y <<= L.silu(x)


@kernel
def relu(x=L.In(...), y=L.Out(...), *, part=8192):
    """max(x, 0)"""
    y <<= L.relu(x)


@kernel
def gelu(x=L.In(...), y=L.Out(...), *, part=8192):
    """gelu, the tanh form"""
    y <<= L.gelu(x)


@kernel
def scale(x=L.In(...), y=L.Out(...), *, s=1.0, part=8192):
    """s * x"""
    y <<= x * s


@kernel
def add(a=L.In(...), b=L.In(...), y=L.Out(...), *, part=8192):
    """a + b"""
    y <<= a + b


@kernel
def sub(a=L.In(...), b=L.In(...), y=L.Out(...), *, part=8192):
    """a - b"""
    y <<= a - b


@kernel
def mul(a=L.In(...), b=L.In(...), y=L.Out(...), *, part=8192):
    """a * b"""
    y <<= a * b


@kernel
def div(a=L.In(...), b=L.In(...), y=L.Out(...), *, part=8192):
    """a / b, as a * (1 / b)"""
    y <<= a / b


@kernel
def maximum(a=L.In(...), b=L.In(...), y=L.Out(...), *, part=8192):
    """b where a < b, else a"""
    y <<= L.maximum(a, b)


@kernel
def minimum(a=L.In(...), b=L.In(...), y=L.Out(...), *, part=8192):
    """b where a > b, else a"""
    y <<= L.minimum(a, b)


@kernel
def fma(a=L.In(...), b=L.In(...), c=L.In(...), y=L.Out(...), *, part=8192):
    """a * b + c, rounded once"""
    y <<= L.fma(a, b, c)


@kernel
def where(c=L.In(...), a=L.In(...), b=L.In(...), y=L.Out(...), *, part=8192):
    """a where c is not zero, else b"""
    y <<= L.where(L.equal(c, 0), b, a)
