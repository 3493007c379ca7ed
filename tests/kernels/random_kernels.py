"""Random kernels of the language: bodies, shapes, knobs and options drawn together."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np

from kohakutpu import lang as L
from kohakutpu.compiler import Options
from kohakutpu.lang import dims, kernel, loop, units
from kohakutpu.lang.kernel import Kernel

M, K, N = dims("M, K, N")
ROWS = [1, 3, 4, 7, 12, 16, 21, 40]
COLUMNS = [1, 8, 16, 24, 32, 40, 64, 70, 136]
UNARY = [L.exp2, L.log2, L.recip, L.rsqrt, L.absolute, L.sqrt_approx, L.sqrt_newton, L.sigmoid, L.silu, L.relu, L.gelu,
         lambda v: -v]  # fmt: skip
BINARY = [L.maximum, L.minimum, lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b]
COMPARE = [L.less, L.greater, L.equal]
REDUCE = [L.row_sum, L.row_max, L.row_min]
MACHINES = {"mm_mesh": 1, "quad": 4, "ship_3x2": 4, "2x2_4+4": 4}  # and their vector cores
NUMBERS = [0, 1, -1, 0.5, 3, -0.3, 0.7071]


@dataclass(frozen=True)
class Case:
    """A kernel and one way to run it; `kinds` are the statements of its body."""

    kernel: Kernel
    shapes: dict[str, tuple[int, ...]]
    knobs: dict[str, object]
    options: Options
    machine: str
    kinds: tuple[str, ...]


class Body:
    """Writes one body. What it draws depends on nothing but `chance`, so that every trace is the same one."""

    def __init__(self, chance: random.Random, rows: int, columns: int, square: bool, cores: int):
        """`cores` bounds the tiles of a fused end."""
        self.chance = chance
        self.rows, self.columns = rows, columns
        self.square = square
        self.cores = cores
        self.gm, self.gn, self.nk = chance.choice([1, 2, 3, 6]), chance.choice([1, 2, 8]), chance.choice([1, 2])
        self.kinds: list[str] = []

    def __call__(self, x, w, r, b, s, y, z) -> None:
        self.wide, self.channels, self.single = [r], [b], [s]  # (M, N), (N,), (M, 1) buffers that can be read
        self.flat = [r]  # of the wide ones, those that are not made of tiles: views and parts need rows
        self.x, self.w = x, w
        makers = [self.product, self.whole, self.rows_apart, self.turns, self.parts, self.one_a_row, self.folded,
                  self.masked]  # fmt: skip
        self.kinds.append("product")
        self.product(L.temp)
        for _ in range(self.chance.randint(0, 4)):
            self.draw(makers, L.temp)
        self.draw([self.product, self.whole, self.turns, self.parts], lambda *shape: y)
        last = L.temp(M, N)
        last <<= self.wide[-1] * b + s
        z <<= last + r

    def draw(self, makers, made) -> None:
        maker = self.chance.choice(makers)
        self.kinds.append(maker.__name__)
        maker(made)

    # ---- expressions ----

    def leaf(self, leaves):
        kind = self.chance.random()
        if kind < 0.15:
            return self.chance.choice(NUMBERS)
        if kind < 0.2:
            return N
        return self.chance.choice(leaves)

    def value(self, leaves, depth: int, rows: bool = False):
        """An expression over `leaves` that reads at least one of them."""
        if depth == 0:
            return self.chance.choice(leaves)
        kind = self.chance.random()
        inner = self.value(leaves, depth - 1, rows)
        if rows and kind < 0.2:
            return self.chance.choice(BINARY[:5])(inner, self.chance.choice(REDUCE)(inner))
        if kind < 0.35:
            return self.chance.choice(UNARY)(inner)
        if kind < 0.75:
            return self.chance.choice(BINARY)(inner, self.leaf(leaves))
        if kind < 0.87:
            return L.fma(inner, self.leaf(leaves), self.leaf(leaves))
        condition = self.chance.choice(COMPARE)(self.leaf(leaves), inner)
        return L.where(condition, self.leaf(leaves), inner)

    # ---- statements ----

    def product(self, made) -> None:
        """A tiling: its form, its operands and its end."""
        gm, gn, nk = self.gm, self.gn, self.nk
        left, right = self.x, self.w
        if self.square and "product" in self.kinds[:-1] and self.chance.random() < 0.6:
            left = self.wide[-1]
        target = made(M, N)
        forms = ["plain", "view", "walked", "region", *(["moved"] if nk == 1 and left is self.x else [])]
        form = self.chance.choice(forms)
        tiles = -(-self.rows // (4 * gm)) * -(-self.columns // (4 * gn))
        fits = tiles <= self.cores and gm * gn <= 48
        accumulators, fused = self.chance.choice([1, 1, 2]), fits and self.chance.random() < 0.7
        channel = self.chance.random() < 0.4
        accumulators = accumulators if fused else 1
        ends = self.chance.getrandbits(32)
        after = L.temp(M, N) if self.chance.random() < 0.25 else None  # of vector cores, after the tiles in one tiling

        def tile(i, j):
            made = []
            for _ in range(accumulators):
                acc = L.tile(gm, gn, nk)
                if form == "region":
                    p, q = L.region(gm, nk), L.region(gn, nk)
                for k in loop(left.chunks32(nk)):
                    if form == "region":
                        p <<= left[i, k]
                        q <<= right[j, k]
                        acc += p @ q
                    elif form == "moved":
                        acc += left[i, k, 2] @ right[j, k]
                    else:
                        acc += left[i, k] @ right[j, k]
                made.append(acc)
            value = made[-1]
            if fused:
                kept, self.chance = self.chance, random.Random(ends)
                value = self.value(made, 2) * sum(made[1:], made[0])
                if channel:
                    table = L.table(np.linspace(-1, 1, self.columns))
                    value = value + table[table.tiles(gn).at(j)]
                self.chance = kept
            target[i, j] <<= value
            if after is not None:
                kept, self.chance = self.chance, random.Random(ends + 1)
                after[i, j] <<= self.value([target[i, j]], 2) * 0.5
                self.chance = kept

        if form == "view":
            with units(left.tiles(gm)) as i:
                with units(right.tiles(gn)) as j:
                    tile(i, j)
        elif form == "walked":
            with units(right.tiles(gn)) as j:
                for i in loop(left.tiles(gm)):
                    tile(i, j)
        else:
            with units(left.tiles(gm), right.tiles(gn)) as (i, j):
                tile(i, j)
        self.wide += [target] if after is None else [target, after]

    def whole(self, made) -> None:
        target = made(M, N)
        leaves = [*self.wide, *self.channels, *self.single]
        target <<= self.value(leaves, self.chance.randint(1, 3), rows=True) + self.wide[0]
        self.wide.append(target)

    def one_a_row(self, made) -> None:
        target = L.temp(M, 1)
        target <<= self.chance.choice(REDUCE)(self.value(self.wide, 2)) * self.chance.choice(self.single)
        self.single.append(target)

    def masked(self, made) -> None:
        target = made(M, N)
        row = L.row_index(M, self.chance.choice([None, 2, 5]))
        table = L.table(np.linspace(-1, 1, self.columns))
        other = table * self.chance.choice(self.wide)
        target <<= L.where(L.greater(L.column_index(N), row), self.value(self.wide, 1), other)
        self.wide.append(target)

    def rows_apart(self, made) -> None:
        """Two views of a result, each written by its own statement."""
        target, source = made(M, N), self.chance.choice(self.flat)
        cut = self.chance.randint(1, max(self.rows - 1, 1))
        head = target.rows_from(0, cut)
        leaves = [source.rows_from(0, cut), *self.channels]
        head <<= self.value(leaves, 1, rows=True) + source.rows_from(self.rows - cut)
        if cut < self.rows:
            tail = target.rows_from(cut)
            groups = source.rows_from(cut).per_group(self.chance.choice([1, 2]))
            tail <<= groups + source.rows_from(0, 1).repeated()
        self.wide.append(target)
        self.flat.append(target)

    def folded(self, made) -> None:
        target, source = made(M, N), self.chance.choice(self.flat)
        whole = self.rows * self.columns % 16 == 0
        rows = target.as_rows(self.chance.choice([16, self.columns] if whole else [self.columns]))
        width = rows.view.width
        rows <<= self.value([source.as_rows(width)], 2, rows=True)
        self.wide.append(target)
        self.flat.append(target)

    def turns(self, made) -> None:
        """A loop outside."""
        target = made(M, N)
        target <<= self.chance.choice(self.wide) * 0.5
        source = self.chance.choice(self.wide)
        for turn in loop(self.chance.choice([1, 3])):
            target <<= target * 0.25 + self.value([source], 1, rows=True) * (turn + 1)
        self.wide.append(target)

    def parts(self, made) -> None:
        target = made(M, N)
        with units(target.parts(self.chance.choice([16, 64, 100, 1024]))) as e:
            leaves = [buffer[e] for buffer in self.flat[-2:]]
            target[e] <<= self.value(leaves, 2)
        self.wide.append(target)
        self.flat.append(target)


def case(seed: int) -> Case:
    """The random kernel of that number."""
    chance = random.Random(seed)
    square = chance.random() < 0.5
    rows, columns, depth = chance.choice(ROWS), chance.choice(COLUMNS), chance.choice([20, 32, 64, 70, 100])
    lead = chance.choice([(), (), (1,), (2,), (2, 2)])
    machine = chance.choice(list(MACHINES))
    body_seed, fuse = chance.getrandbits(32), chance.random() < 0.6
    kinds: list[str] = []
    deep = N if square else K

    def made(x=L.In(..., M, deep), w=L.In(N, deep), r=L.In(..., M, N), b=L.In(N), s=L.In(..., M, 1),
             y=L.Out(..., M, N), z=L.Out(..., M, N)):  # fmt: skip
        cores = MACHINES[machine] // math.prod(lead) if fuse else 1 << 20
        body = Body(random.Random(body_seed), rows, columns, square, cores)
        body(x, w, r, b, s, y, z)
        kinds[:] = body.kinds

    made.__name__ = f"random_{seed}"
    depth = columns if square else depth
    shapes = {"x": (*lead, rows, depth), "w": (columns, depth), "r": (*lead, rows, columns), "b": (columns,),
              "s": (*lead, rows, 1)}  # fmt: skip
    knobs = {"part": chance.choice([64, 1024, 8192]), "fuse": fuse}
    options = Options(bands=chance.random() < 0.7, constants=chance.choice(["registers", "registers", "arrays"]),
                      relayout=chance.choice(["machine", "machine", "host"]), preq=chance.choice([(), (), (), ("w",)]))  # fmt: skip
    if machine != "mm_mesh":  # one cluster
        knobs["ksplit"] = chance.choice([1, 1, 1, 2])
    return Case(kernel(made), shapes, knobs, options, machine, kinds)
