"""What a traced kernel is: buffers, statements and loops, as data.

A trace says what the source says and nothing of how it is lowered; `docs/kernels.md`, "What a kernel means",
defines what each record computes. Executing one needs this module, `extents` and the number formats:

* `Trace.body` holds `Units`, `Loop` and statements in source order, to be run in that order: `Units` once per
  point of its grid (the last index fastest), `Loop` once per index 0..count-1, both with their indices bound
  in the environment that `extents.resolve` reads. The whole body runs once per batch element: buffers with
  `batched` are then one element of themselves, the others are shared.
* A buffer's value is an FP16 array of its logical shape. An `Open` makes an accumulator zero, `Contract` adds
  to it, `Store` and `Assign` write a buffer.
* `Expression` is a list of nodes, each computed once, in order; the last is the value that is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from .extents import Expr, Extents, Index, resolve
from .slices import Slice
from .source import KernelError, Source, located

READ_ONLY = ("in", "table")  # roles of buffers that a kernel may not write
ELEMENTS = "elements"  # the dim behind a port that is only `...`: its flat element count


class ElementOp(Enum):
    """One elementwise machine operation in E8M15; the operands are in the order of the meaning.

    Each is one operation of the vector core's ALU (`formats.alu`): `VADD` and `VSUB` take their second
    operand in c, the others in b.
    """

    NEG = ("neg", 1, "-a")
    ABS = ("abs", 1, "|a|")
    ADD = ("add", 2, "a + b")
    SUB = ("sub", 2, "a - b")
    MUL = ("mul", 2, "a * b")
    MAX = ("max", 2, "b where a < b, else a")
    MIN = ("min", 2, "b where a > b, else a")
    EXP2 = ("exp2", 1, "2^a, by table")
    LOG2 = ("log2", 1, "log2 a, by table")
    RECIP = ("recip", 1, "1 / a, by table")
    RSQRT = ("rsqrt", 1, "1 / sqrt a, by table")
    FMA = ("fma", 3, "a * b + c, rounded once")
    # A compare and two predicated moves: a NaN comes out quiet and a zero as +0, as from every move.
    WHERE_LESS = ("where_less", 4, "c where a < b, else d")
    WHERE_GREATER = ("where_greater", 4, "c where a > b, else d")
    WHERE_EQUAL = ("where_equal", 4, "c where a = b, else d")

    def __init__(self, label: str, arity: int, meaning: str):
        self.label = label
        self.arity = arity
        self.meaning = meaning


class RowOp(Enum):
    """A reduction of each row of a whole-buffer statement; its value stands in every element of the row.

    A row is cut into pieces of 128 elements, the last extended to a multiple of 16 with the identity; each piece
    goes through the vector core's reduction tree (`formats.reduction`), and the results are combined from the first
    on.
    """

    SUM = "row_sum"
    MAX = "row_max"
    MIN = "row_min"

    @property
    def label(self) -> str:
        return self.value


# ---- buffers ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Buffer:
    """A port or a temporary: row-major FP16 of logical shape `Extents.lead` (when `batched`) + `shape`.

    `role` is 'in', 'out', 'temp' or 'table'; a table has `contents`, which the kernel only reads. `whole` marks a
    port declared as `...` alone: any shape, seen as one row of `elements`; its `shape` is empty and its logical
    shape is `lead`.
    """

    name: str
    role: str
    shape: tuple[Expr | int, ...]
    batched: bool
    whole: bool
    source: Source
    contents: Callable[[tuple[int, ...]], np.ndarray] | None = field(default=None, compare=False)

    def values(self, extents: Extents) -> np.ndarray:
        """A table's elements, FP16 patterns of its shape."""
        return self.contents(self.element_shape(extents))

    def element_shape(self, extents: Extents) -> tuple[int, ...]:
        """The shape of one batch element, or `(elements,)` of a whole-array buffer."""
        if self.whole:
            return (extents.dims[ELEMENTS],)
        with located(self.source):
            shape = tuple(resolve(extent, extents.dims) for extent in self.shape)
        for declared, extent in zip(self.shape, shape, strict=True):
            if extent < 1:
                raise KernelError(f"the axis {declared} of {self.name} has {extent} elements", self.source)
        return shape

    def logical_shape(self, extents: Extents) -> tuple[int, ...]:
        """The shape a caller sees."""
        if self.whole:
            return extents.lead
        return (extents.lead if self.batched else ()) + self.element_shape(extents)

    def copies(self, extents: Extents) -> int:
        """How many batch elements the buffer holds."""
        return extents.batch if self.batched and not self.whole else 1


@dataclass(frozen=True)
class View:
    """A buffer seen as other rows, element for element in row-major order: folded into rows of `width` (the last axis where
    None), `count` of them from row `first` on (all that follow where None). Then row i is the first of its `group` rows,
    or, where it `repeats`, the rows begin again whenever they end.
    """

    width: Expr | int | None = None
    first: Expr | int = 0
    count: Expr | int | None = None
    group: Expr | int = 1
    repeats: bool = False
    spelled: str = field(default="", compare=False)  # as it was written, where the fields are numbers instead

    def text(self, name: str) -> str:
        """As it is written."""
        if self.spelled:
            return self.spelled
        if self.width is not None:
            name += f".as_rows({self.width})"
        if self.count is not None:
            name += f".rows_from({self.first}, {self.count})"
        elif isinstance(self.first, Expr) or self.first:
            name += f".rows_from({self.first})"
        if isinstance(self.group, Expr) or self.group != 1:
            name += f".per_group({self.group})"
        return name + ".repeated()" * self.repeats


# ---- expressions --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TileLeaf:
    """An accumulator's elements, rounded to FP16 on leaving it."""

    accumulator: str


@dataclass(frozen=True)
class BufferLeaf:
    """Every element of a buffer, or the rows that a view has of it."""

    buffer: str
    view: View | None = None

    def text(self) -> str:
        return self.view.text(self.buffer) if self.view else self.buffer


@dataclass(frozen=True)
class SliceLeaf:
    """The elements of a slice."""

    slice: Slice


@dataclass(frozen=True)
class Constant:
    """A number: a float, or an extent that is one once the shapes are known."""

    value: float | Expr

    def number(self, known: Mapping[str, int]) -> float:
        """The value as a float. Raises KernelError for an extent that is none."""
        if isinstance(self.value, float):
            return self.value
        extent = resolve(self.value, known)
        try:
            return float(extent)
        except OverflowError:
            raise KernelError(f"an extent of {extent.bit_length()} bits cannot be a constant") from None


@dataclass(frozen=True)
class Op:
    """One operation on earlier nodes; `operands` index the expression's nodes."""

    op: ElementOp
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Reduce:
    """A reduction over the rows of an earlier node; `operands` holds its place."""

    op: RowOp
    operands: tuple[int]


Leaf = TileLeaf | BufferLeaf | SliceLeaf | Constant


@dataclass(frozen=True)
class Expression:
    """Nodes in the order they are computed; no two are alike, and the last one is the value."""

    nodes: tuple[Leaf | Op | Reduce, ...]

    @property
    def leaves(self) -> list[Leaf]:
        return [node for node in self.nodes if not isinstance(node, (Op, Reduce))]

    @property
    def reductions(self) -> list[Reduce]:
        return [node for node in self.nodes if isinstance(node, Reduce)]

    @property
    def is_copy(self) -> bool:
        """The expression is one leaf."""
        return len(self.nodes) == 1

    def text(self) -> str:
        """The expression in one line, e.g. `mul(acc1, recip(add(exp2(mul(acc1, -1.44)), 1)))`."""
        out: list[str] = []
        for node in self.nodes:
            if isinstance(node, (Op, Reduce)):
                out.append(f"{node.op.label}({', '.join(out[i] for i in node.operands)})")
            elif isinstance(node, TileLeaf):
                out.append(node.accumulator)
            elif isinstance(node, BufferLeaf):
                out.append(node.text())
            elif isinstance(node, SliceLeaf):
                out.append(node.slice.text())
            else:
                out.append(f"{node.value:g}" if isinstance(node.value, float) else f"{node.value}")
        return out[-1]


# ---- statements ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Open:
    """`acc = L.tile(gm, gn, nk)`: an accumulator of 4*gm by 4*gn elements, all zero."""

    id: int
    accumulator: str
    gm: int
    gn: int
    nk: int
    source: Source


@dataclass(frozen=True)
class Contract:
    """`acc += a[i, k] @ b[j, k]`: add the product over the last axes, `nk` blocks of 32 K in ascending order."""

    id: int
    accumulator: str
    a: Slice
    b: Slice
    source: Source


@dataclass(frozen=True)
class Store:
    """`y[i, j] <<= value` (tiles) or `y[e] <<= value` (parts)."""

    id: int
    target: Slice
    expression: Expression
    source: Source


@dataclass(frozen=True)
class Assign:
    """`y <<= value`: every element of a buffer, or of a view of it."""

    id: int
    target: str
    expression: Expression
    source: Source
    view: View | None = None


@dataclass(frozen=True)
class Loop:
    """`for k in loop(count)`: the body for index = 0, 1, .. count-1."""

    index: Index
    count: Expr | int
    body: tuple[Node, ...]
    source: Source


@dataclass(frozen=True)
class Units:
    """`with units(...)`: the body once per point; points are independent of each other."""

    indices: tuple[Index, ...]
    counts: tuple[Expr | int, ...]
    body: tuple[Node, ...]
    source: Source


Statement = Open | Contract | Store | Assign
Node = Statement | Loop | Units


def unit_of(statement: Statement) -> str | None:
    """Whose work a statement of a tiling is: the 'cluster's, which multiply and store accumulators as they are, or the
    'vector' cores', which compute everything else that is stored. None for an `Open`, which is no work."""
    if isinstance(statement, Open):
        return None
    stored = isinstance(statement, Store) and statement.expression.is_copy and isinstance(statement.expression.nodes[0], TileLeaf)
    return "cluster" if stored or isinstance(statement, Contract) else "vector"


@dataclass(frozen=True)
class Trace:
    """One kernel at one setting of its knobs. `fuse`, `part` and `ksplit` are the reserved knobs; only `ksplit`, the parts
    that the contractions of an accumulator are cut into, changes a value (`docs/kernels.md`, "Parts of K")."""

    name: str
    buffers: Mapping[str, Buffer]  # ports in the order of the signature, then temporaries
    body: tuple[Node, ...]
    knobs: Mapping[str, object]
    fuse: bool
    part: int
    ksplit: int
    fresh: int  # names numbered so far; whoever needs more (a landed tile) goes on from here
    source: Source
    statements: tuple[Statement, ...] = field(init=False)  # in source order; `statements[n].id == n`

    def __post_init__(self):
        object.__setattr__(self, "statements", tuple(_statements(self.body)))

    @property
    def inputs(self) -> list[Buffer]:
        return [buffer for buffer in self.buffers.values() if buffer.role == "in"]

    @property
    def outputs(self) -> list[Buffer]:
        return [buffer for buffer in self.buffers.values() if buffer.role == "out"]

    @property
    def temps(self) -> list[Buffer]:
        return [buffer for buffer in self.buffers.values() if buffer.role == "temp"]

    def pretty(self) -> str:
        """The trace as indented text, one statement a line."""
        lines = [f"kernel {self.name}({', '.join(f'{k}={v}' for k, v in self.knobs.items())})"]
        for buffer in self.buffers.values():
            shape = ["..."] * buffer.batched + [str(extent) for extent in buffer.shape]
            lines.append(f"  {buffer.role:4} {buffer.name}({', '.join(shape)})")
        lines += _lines(self.body, 1)
        return "\n".join(lines)


def _statements(body: tuple[Node, ...]) -> Iterator[Statement]:
    for node in body:
        if isinstance(node, (Loop, Units)):
            yield from _statements(node.body)
        else:
            yield node


def _lines(body: tuple[Node, ...], depth: int) -> Iterator[str]:
    pad = "  " * depth
    for node in body:
        if isinstance(node, Units):
            bounds = ", ".join(f"{i} < {n}" for i, n in zip(node.indices, node.counts, strict=True))
            yield f"{pad}units {bounds}"
        elif isinstance(node, Loop):
            yield f"{pad}loop {node.index} < {node.count}"
        elif isinstance(node, Open):
            yield f"{pad}{node.accumulator} = tile({node.gm}, {node.gn}, {node.nk})"
        elif isinstance(node, Contract):
            yield f"{pad}{node.accumulator} += {node.a.text()} @ {node.b.text()}"
        elif isinstance(node, Store):
            yield f"{pad}{node.target.text()} <<= {node.expression.text()}"
        else:
            yield f"{pad}{BufferLeaf(node.target, node.view).text()} <<= {node.expression.text()}"
        if isinstance(node, (Units, Loop)):
            yield from _lines(node.body, depth + 1)
