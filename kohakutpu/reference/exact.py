"""A kernel in float64, and how far machine arithmetic is from it.

Only the operands are FP16; sums, products and functions are float64's, constants are what is written. A comparison of
`where` may fall the other way here than in machine arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from kohakutpu.lang.extents import KBLOCK, Extents
from kohakutpu.lang.trace import Constant, Contract, ElementOp, Expression, Op, Reduce, RowOp, Statement, Trace
from kohakutpu.wording import counted

from .interpreter import Image
from .walk import Walk, check_operands

FUNCTIONS = {
    ElementOp.NEG: lambda a: -a,
    ElementOp.ABS: np.abs,
    ElementOp.ADD: lambda a, b: a + b,
    ElementOp.SUB: lambda a, b: a - b,
    ElementOp.MUL: lambda a, b: a * b,
    ElementOp.MAX: lambda a, b: np.where(a < b, b, a),
    ElementOp.MIN: lambda a, b: np.where(a > b, b, a),
    ElementOp.EXP2: np.exp2,
    ElementOp.LOG2: np.log2,
    ElementOp.RECIP: lambda a: 1 / a,
    ElementOp.RSQRT: lambda a: 1 / np.sqrt(a),
    ElementOp.FMA: lambda a, b, c: a * b + c,
    ElementOp.WHERE_LESS: lambda a, b, c, d: np.where(a < b, c, d),
    ElementOp.WHERE_GREATER: lambda a, b, c, d: np.where(a > b, c, d),
    ElementOp.WHERE_EQUAL: lambda a, b, c, d: np.where(a == b, c, d),
}
ROWS = {RowOp.SUM: np.sum, RowOp.MAX: np.max, RowOp.MIN: np.min}


class _Exact(Walk):
    def table(self, patterns: np.ndarray) -> np.ndarray:
        return patterns.view(np.float16).astype(np.float64)

    def zeros(self, rows: int, columns: int) -> np.ndarray:
        return np.zeros((rows, columns))

    def contract(self, statement: Contract, known: dict[str, int]) -> None:
        tile = self.tiles[statement.accumulator]
        depth = KBLOCK * statement.a.axes[1].per
        sides = [
            self.padded(part, rows, depth, known, statement.source)
            for part, rows in zip((statement.a, statement.b), tile.shape, strict=True)
        ]
        self.tiles[statement.accumulator] = tile + sides[0] @ sides[1].T

    def tile(self, name: str) -> np.ndarray:
        return self.tiles[name]

    def evaluate(self, expression: Expression, shape, tiles, known: dict[str, int], statement: Statement) -> np.ndarray:
        done: list[np.ndarray] = []
        for node in expression.nodes:
            if isinstance(node, Constant):
                done.append(np.full(shape, node.number(known)))
            elif isinstance(node, Reduce):
                total = ROWS[node.op](done[node.operands[0]], axis=-1, keepdims=True)
                done.append(np.broadcast_to(total, shape))
            elif isinstance(node, Op):
                done.append(FUNCTIONS[node.op](*(done[i] for i in node.operands)))
            else:
                done.append(self.leaf(node, shape, tiles, known, statement.source))
        return done[-1]


def evaluate(trace: Trace, extents: Extents, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a kernel in float64, by port. Operands as `interpret` takes them; raises InterpreterError
    likewise."""
    operands = {n: d.view(np.float16).astype(np.float64) for n, d in check_operands(trace, extents, inputs).items()}
    with np.errstate(all="ignore"):
        whole, _ = _Exact(trace, extents).run(operands, np.float64)
    return {port.name: whole[port.name] for port in trace.outputs}


@dataclass(frozen=True)
class Precision:
    """How far one output is from float64.

    Errors are relative to the exact value, or to `floor` where that is smaller (a hundredth of the output's root mean
    square), so that a sum that cancels does not count as infinitely wrong. `worst` is where the error is `greatest`;
    `above` is the share of elements that are wrong by more than a tenth. `unequal` counts elements of which one side is
    NaN or infinite and the other is not so; they are in no other number.
    """

    output: str
    elements: int
    p50: float
    p90: float
    p99: float
    greatest: float
    worst: tuple[int, ...]
    above: float
    unequal: int
    floor: float

    def to_dict(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.worst))}]"
        text = (
            f"{self.output}: error p50 {self.p50:.2e}, p90 {self.p90:.2e}, p99 {self.p99:.2e}, max {self.greatest:.2e} "
            f"at {place}, {self.above:.2%} above 10 %"
        )
        return text + (f"; {self.unequal} of {counted(self.elements, 'element')} not finite on one side" if self.unequal else "")


def compare(found: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray]) -> list[Precision]:
    """The precision of each output; `found` are FP16 patterns, `exact` is float64 of the same shapes."""
    rows = []
    for name, wanted in exact.items():
        got = found[name].view(np.float16).astype(np.float64)
        both = np.isfinite(got) & np.isfinite(wanted)
        alike = both | (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        if not both.any():
            rows.append(Precision(name, got.size, 0, 0, 0, 0, (), 0, int((~alike).sum()), 0))
            continue
        floor = 0.01 * float(np.sqrt(np.mean(np.square(wanted[both]))))
        error = np.zeros(got.shape)
        scale = np.maximum(np.abs(wanted[both]), floor)
        error[both] = np.divide(np.abs(got[both] - wanted[both]), scale, out=np.zeros(scale.shape), where=scale > 0)
        p50, p90, p99 = (float(p) for p in np.percentile(error[both], (50, 90, 99)))
        worst = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
        above = float((error[both] > 0.1).mean())
        rows.append(
            Precision(name, got.size, p50, p90, p99, float(error.max()), worst, above, int((~alike).sum()), floor)
        )
    return rows


def saturations(trace: Trace, image: Image) -> list[str]:
    """A line for every statement that saturated elements, with its place in the source."""
    return [
        f"{counted(held.elements, 'element')} saturated at 65504, the first at {held.buffer}[{', '.join(map(str, held.first))}]: "
        f"{trace.statements[number].source.short} {trace.statements[number].source.text}"
        for number, held in sorted(image.saturated.items())
    ]
