"""Kernels the compiler's tests compile."""

from kohakutpu import lang as L
from kohakutpu.kernels.linear import product
from kohakutpu.lang import dims, kernel, loop, units

M, K, N = dims("M, K, N")


def fused(value, name="fused"):
    """A kernel that stores `value(acc, r[i, j], b[j])` over x @ w.T."""

    def made(x=L.In(M, K), w=L.In(N, K), r=L.In(M, N), b=L.In(N), y=L.Out(M, N), *, gm=2, gn=2, nk=1):
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            y[i, j] <<= value(product(x, w, i, j, gm, gn, nk), r[i, j], b[j])

    made.__name__ = name
    return kernel(made)


def whole(value, name="whole"):
    """A kernel that assigns `value(x, r)` for whole buffers."""

    def made(x=L.In(..., M, N), r=L.In(..., M, N), y=L.Out(..., M, N), *, part=8192):
        y <<= value(x, r)

    made.__name__ = name
    return kernel(made)


@kernel
def silu_only(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), *, gm=2, gn=2, nk=1):
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= L.silu(product(x, w, i, j, gm, gn, nk))


@kernel
def bias_only(x=L.In(M, K), w=L.In(N, K), b=L.In(N), y=L.Out(M, N), *, gm=2, gn=2, nk=1):
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= product(x, w, i, j, gm, gn, nk) + b[j]


@kernel
def bias_twice(x=L.In(M, K), w=L.In(N, K), b=L.In(N), c=L.In(N), y=L.Out(M, N), *, gm=2, gn=2, nk=1):
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= (product(x, w, i, j, gm, gn, nk) + b[j]) * c[j]


@kernel
def residual(x=L.In(M, K), w=L.In(N, K), r=L.In(M, N), y=L.Out(M, N), *, gm=2, gn=2, nk=1):
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= product(x, w, i, j, gm, gn, nk) + r[i, j]


@kernel
def two_results(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), z=L.Out(..., M, N), *, gm=2, gn=2, nk=1):
    """Two fused stores of one accumulator, at two stages of it, and a plain one."""
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        acc = L.tile(gm, gn, nk)
        for k in loop(x.chunks32(nk)):
            acc += x[i, k] @ w[j, k]
        y[i, j] <<= acc * 0.5
        for k in loop(x.chunks32(nk)):
            acc += x[i, k] @ w[j, k]
        z[i, j] <<= L.relu(acc) + L.absolute(acc) * 0.25


@kernel
def row_of_tiles(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), *, gm=2, gn=2, nk=1):
    """One instance walks a whole row of tiles: an accumulator opened anew each time round."""
    with units(x.tiles(gm)) as i:
        for j in loop(w.tiles(gn)):
            acc = L.tile(gm, gn, nk)
            for k in loop(x.chunks32(nk)):
                acc += x[i, k] @ w[j, k]
            y[i, j] <<= acc


@kernel
def fused_row(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), *, gm=2, gn=2, nk=1):
    """Fused, and each time round into a slot of its own."""
    with units(x.tiles(gm)) as i:
        for j in loop(w.tiles(gn)):
            y[i, j] <<= L.silu(product(x, w, i, j, gm, gn, nk))


@kernel
def computed_bias(x=L.In(M, K), w=L.In(N, K), b=L.In(N), y=L.Out(M, N), *, gm=2, gn=2, nk=1):
    c = L.temp(N)
    c <<= b * 2 - 0.5
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= product(x, w, i, j, gm, gn, nk) + c[j]


@kernel
def interleaved(x=L.In(M, K), w=L.In(N, K), v=L.In(N, K), y=L.Out(M, N), *, gm=2, gn=2, nk=1):
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        first = L.tile(gm, gn, nk)
        second = L.tile(gm, gn, nk)
        for k in loop(x.chunks32(nk)):
            first += x[i, k] @ w[j, k]
            second += x[i, k] @ v[j, k]
        y[i, j] <<= first * second


@kernel
def several_gates(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), *, count=3, gm=1, gn=1, nk=1):
    """The sum of `count` accumulators of the same product."""
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        accs = [product(x, w, i, j, gm, gn, nk) for _ in range(count)]
        value = accs[0]
        for acc in accs[1:]:
            value = value + acc
        y[i, j] <<= value


@kernel
def bias_then_three(x=L.In(M, K), w=L.In(N, K), b=L.In(N), y=L.Out(M, N), z=L.Out(M, N), *, gm=2, gn=2, nk=1):
    """Two tilings: the second drains through the descriptor that the first may have used for its per-channel words."""
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= product(x, w, i, j, gm, gn, nk) + b[j]
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        first, second, third = (product(x, w, i, j, gm, gn, nk) for _ in range(3))
        z[i, j] <<= L.maximum(first + second, third)


@kernel
def parts(x=L.In(..., M, N), y=L.Out(..., M, N), *, p=1000):
    with units(x.parts(p)) as e:
        y[e] <<= x[e] * x[e]
        y[e] <<= L.rsqrt(y[e] + 1.5)


@kernel
def flat(x=L.In(...), y=L.Out(...), *, part=8192):
    y <<= L.gelu(x)


@kernel
def constants(x=L.In(..., M, N), y=L.Out(..., M, N), z=L.Out(..., M, N)):
    """A copy, and a number everywhere."""
    y <<= x
    z <<= 0.37


@kernel
def temps(x=L.In(..., M, N), b=L.In(M, N), y=L.Out(..., M, N), z=L.Out(..., M, N), *, part=8192):
    t = L.temp(M, N)
    t <<= 3.0 / (x * x + 0.5) - b
    y <<= L.maximum(t, 0.25) * 2 + L.exp2(-x) / (b * b + 1)
    z <<= -abs(t) + N


@kernel
def relayout(x=L.In(M, K), w=L.In(N, K), u=L.In(K, N), y=L.Out(M, K), *, gm=2, gn=2, nk=1):
    h = L.temp(M, N)
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        h[i, j] <<= product(x, w, i, j, gm, gn, nk)
    with units(h.tiles(gm), u.tiles(gn)) as (i, j):
        y[i, j] <<= product(h, u, i, j, gm, gn, nk)


@kernel
def computed_operand(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), *, gm=2, gn=2, nk=1):
    h = L.temp(M, K)
    h <<= L.sigmoid(x)
    with units(h.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= product(h, w, i, j, gm, gn, nk)


@kernel
def relu_and_half(x=L.In(...), y=L.Out(...), z=L.Out(...)):
    y <<= L.relu(x)
    z <<= x * 0.5
