"""Attention: softmax(q @ k.T * scale) @ v, with v stored [value][key].

The scores of a batch element are in memory once, as the tiles that a product leaves; the row program reads them so.
"""

from __future__ import annotations

from kohakutpu import lang as L
from kohakutpu.lang import KernelError, ceildiv, dims, kernel, loop, units
from kohakutpu.lang.elementwise import LOG2E

from .linear import product

Q, K, D, V = dims("Q, K, D, V")
NEVER = -60000.0  # a score that exp2 takes to zero beside any other


def check_keys(keys) -> None:
    """Refuse a number of keys that leaves none, or is none."""
    if keys is not None and (isinstance(keys, bool) or not isinstance(keys, int) or keys < 1):
        raise KernelError(f"keys={keys!r}: how many of the keys are real, an integer of at least 1")


@kernel
def attention(q=L.In(..., Q, D), k=L.In(..., K, D), v=L.In(..., V, K), o=L.Out(..., Q, V), *, scale=None, causal=False,
              period=None, keys=None, gm=8, gn=8, nk=1, part=8192):  # fmt: skip
    """o = softmax(q @ k.T * scale) @ v.T, each query over the keys it may see.

    `scale` is 1 / sqrt(D) unless given. `causal`: query i sees keys 0 to i. Grouped queries that share keys are rows
    of one q, one head after another; `period` is then how many queries a head has, and i counts within a head.
    `keys`: only the first so many keys are real.

    K is a multiple of 32, up to 16,352, and with `causal` or `keys` up to 2048; `flash_attention` takes any number of keys.
    """
    check_keys(keys)
    s, p = L.temp(Q, K), L.temp(Q, K)
    with units(q.tiles(gm), k.tiles(gn)) as (i, j):
        s[i, j] <<= product(q, k, i, j, gm, gn, nk)
    x = s * (L.rsqrt(D) * LOG2E if scale is None else scale * LOG2E)
    if causal:
        x = L.where(L.greater(L.column_index(K), L.row_index(Q, period)), NEVER, x)
    if keys is not None:
        x = L.where(L.less(L.column_index(K), keys), x, NEVER)
    e = L.exp2(x - L.row_max(x))
    p <<= e / L.row_sum(e)
    with units(p.tiles(gm), v.tiles(gn)) as (i, j):
        o[i, j] <<= product(p, v, i, j, gm, gn, nk)


@kernel
def flash_attention(q=L.In(..., Q, D), k=L.In(..., K, D), v=L.In(..., V, K), o=L.Out(..., Q, V), *, block=64,
                    scale=None, causal=False, period=None, keys=None, gm=8, gn=8, nk=1, part=8192):  # fmt: skip
    """The same in blocks of `block` keys: memory for one block of scores, keys without end.

    Each block corrects what the blocks before it summed, by the ratio of exp2 of the old greatest score to the new one.
    """
    check_keys(keys)
    if isinstance(block, bool) or not isinstance(block, int) or block < 32 or block % 32:
        raise KernelError(f"block={block!r}: keys are taken in blocks of a multiple of 32")
    side, chunk = block // 4, block // 32
    s, p, partial, total = L.temp(Q, block), L.temp(Q, block), L.temp(Q, V), L.temp(Q, V)
    most, seen, sums, ratio = (L.temp(Q, 1) for _ in range(4))
    most <<= NEVER
    sums <<= 0.0
    total <<= 0.0
    for b in loop(ceildiv(K, block)):
        with units(q.tiles(gm)) as i:
            acc = L.tile(gm, side, nk)
            for d in loop(q.chunks32(nk)):
                acc += q[i, d] @ k[k.tiles(side).at(b), d]
            s[i, s.columns(side).at(0)] <<= acc
        x = s * (L.rsqrt(D) * LOG2E if scale is None else scale * LOG2E)
        column = L.column_index(block) + b * block
        if causal:
            x = L.where(L.greater(column, L.row_index(Q, period)), NEVER, x)
        x = L.where(L.less(column, K if keys is None else keys), x, NEVER)
        seen <<= L.maximum(most, L.row_max(x))
        p <<= L.exp2(x - seen)
        ratio <<= L.exp2(most - seen)
        sums <<= L.fma(sums, ratio, L.row_sum(p))
        most <<= seen * 1.0
        with units(p.tiles(gm), v.tiles(gn)) as (i, j):
            acc = L.tile(gm, gn, chunk)
            acc += p[i, p.chunks32(chunk).at(0)] @ v[j, v.chunks32(chunk).at(b)]
            partial[i, j] <<= acc
        total <<= L.fma(total, ratio, partial)
    o <<= total / sums
