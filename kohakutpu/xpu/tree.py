"""The typed syntax tree: all that the reference interpreter and the lowerings share.

Every node has its source. Every conversion is a node of its own, so that an operator's operands have one type: which
type is decided once, by `conversions`, from the rules of spec/xpu.md 2.3. Nodes compare by identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import Refusal, Source


@dataclass(frozen=True, eq=False)
class Variable:
    """A parameter, a local or a loop's counter. `kind` is "parameter", "local", "shared" or "loop"."""

    name: str
    type: Any
    at: Source
    kind: str = "local"


@dataclass(frozen=True, eq=False)
class Loop:
    """What break and continue name: one per loop."""

    label: str | None


@dataclass(frozen=True, eq=False)
class Node:
    """Anything in a body."""

    at: Source


@dataclass(frozen=True, eq=False)
class Expression(Node):
    """Anything with a value of `type`."""

    type: Any


@dataclass(frozen=True, eq=False)
class Literal(Expression):
    """A constant: int, float or bool. A `bare` one adopts the type of the operand beside it."""

    value: int | float | bool
    bare: bool = False


@dataclass(frozen=True, eq=False)
class Read(Expression):
    """The value of a variable; of memory, the memory itself."""

    variable: Variable


@dataclass(frozen=True, eq=False)
class Convert(Expression):
    """A scalar, or each lane of a vector, as another primitive: rule 9."""

    value: Expression


@dataclass(frozen=True, eq=False)
class Splat(Expression):
    """A scalar in every lane of a vector."""

    value: Expression


@dataclass(frozen=True, eq=False)
class Unary(Expression):
    """`op`: neg, invert, not."""

    op: str
    value: Expression
    bare: bool = False


@dataclass(frozen=True, eq=False)
class Binary(Expression):
    """`op`: add sub mul div rem and or xor shl shr lshr, both operands of the result's type."""

    op: str
    left: Expression
    right: Expression
    bare: bool = False


@dataclass(frozen=True, eq=False)
class Compare(Expression):
    """`op`: eq ne lt le gt ge. The operands have one type; the result is bool, or a vector of it."""

    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True, eq=False)
class Logical(Expression):
    """`op`: and, or. The right side runs only if the left has not decided."""

    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True, eq=False)
class Select(Expression):
    """The ternary: exactly one arm runs."""

    condition: Expression
    then: Expression
    otherwise: Expression


@dataclass(frozen=True, eq=False)
class Assigned(Expression):
    """An assignment used as a value: the value as stored."""

    variable: Variable
    value: Expression


@dataclass(frozen=True, eq=False)
class Load(Expression):
    """One element of a buffer or of Shared memory."""

    memory: Expression
    index: Expression


@dataclass(frozen=True, eq=False)
class LoadVector(Expression):
    """`memory.vload[N](index)`; `align` is the author's promise in bytes (0: none), `proven` the compiler's."""

    memory: Expression
    index: Expression
    align: int
    proven: int


@dataclass(frozen=True, eq=False)
class Lane(Expression):
    """One lane of a vector."""

    vector: Expression
    index: Expression


@dataclass(frozen=True, eq=False)
class MakeVector(Expression):
    """A vector from its lanes."""

    lanes: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Slice(Expression):
    """`memory.at(offset)`."""

    memory: Expression
    offset: Expression


@dataclass(frozen=True, eq=False)
class MakeWaveVector(Expression):
    """`form`: slice (memory, base, stride), broadcast (value) or lane (value)."""

    form: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Call(Expression):
    """A helper's value. Memory passes by reference, everything else by value."""

    helper: Function
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class CallTag(Expression):
    """The member that `tag` (uint32) selects; none and zero when out of range."""

    tag: Expression
    members: tuple[Function, ...]
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Invoke(Expression):
    """A built-in by its `verb` (of `verbs.VERBS`). `target` is the tile that takes the value, if the verb changes one.

    `options` are what the source states as constants: an Op, a MemoryOrder.
    """

    verb: str
    arguments: tuple[Expression, ...]
    target: Variable | None = None
    options: tuple = ()


@dataclass(frozen=True, eq=False)
class Statement(Node):
    """Anything that runs."""


@dataclass(frozen=True, eq=False)
class Declare(Statement):
    """A local's start; without a value it is zero."""

    variable: Variable
    value: Expression | None


@dataclass(frozen=True, eq=False)
class DeclareShared(Statement):
    """One array per workgroup, of `count` elements; `dynamic` when the count is not a constant."""

    variable: Variable
    count: Expression
    dynamic: bool


@dataclass(frozen=True, eq=False)
class Assign(Statement):
    """A new value of a local, of its type."""

    variable: Variable
    value: Expression


@dataclass(frozen=True, eq=False)
class AssignLane(Statement):
    """A new value of one lane of a local vector."""

    variable: Variable
    index: Expression
    value: Expression


@dataclass(frozen=True, eq=False)
class Store(Statement):
    """One element of memory. The value is computed before the index."""

    memory: Expression
    index: Expression
    value: Expression


@dataclass(frozen=True, eq=False)
class StoreVector(Statement):
    """`memory.vstore(index, value)`; see LoadVector."""

    memory: Expression
    index: Expression
    value: Expression
    align: int
    proven: int


@dataclass(frozen=True, eq=False)
class Evaluate(Statement):
    """An expression for its effect."""

    value: Expression


@dataclass(frozen=True, eq=False)
class If(Statement):
    """`condition` is bool."""

    condition: Expression
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True, eq=False)
class While(Statement):
    """A loop; `test_last` runs the body once before the first test."""

    loop: Loop
    condition: Expression
    body: tuple[Statement, ...]
    test_last: bool


@dataclass(frozen=True, eq=False)
class ForRange(Statement):
    """`variable` takes start, start + step, ... before `stop`, all read once; the count of turns never wraps."""

    loop: Loop
    variable: Variable
    start: Expression
    stop: Expression
    step: int
    body: tuple[Statement, ...]


@dataclass(frozen=True, eq=False)
class ForStripe(Statement):
    """`variable` takes lane, lane + W, ... below `count`."""

    loop: Loop
    variable: Variable
    count: Expression
    body: tuple[Statement, ...]


@dataclass(frozen=True, eq=False)
class ForBuffer(Statement):
    """The grid-stride walk: `index` from global x in steps of grid x times block x; `element` copies memory[index]."""

    loop: Loop
    index: Variable
    element: Variable
    memory: Expression
    count: Expression
    body: tuple[Statement, ...]


@dataclass(frozen=True, eq=False)
class Break(Statement):
    """Leaves `loop`."""

    loop: Loop


@dataclass(frozen=True, eq=False)
class Continue(Statement):
    """Begins the next turn of `loop`."""

    loop: Loop


@dataclass(frozen=True, eq=False)
class Return(Statement):
    """Ends the function."""

    value: Expression | None


@dataclass(frozen=True, eq=False)
class Function(Node):
    """A kernel or a helper. A helper with back-end arms and no body of its own has `portable` False."""

    name: str
    parameters: tuple[Variable, ...]
    result: Any
    body: tuple[Statement, ...]
    portable: bool = True


@dataclass(frozen=True, eq=False)
class Program:
    """A kernel with all it reaches.

    `refusals` are what the front end could not give a meaning; with any, `kernel` is incomplete and must not run.
    `width` is the declared wave width or None. `uses` holds the properties of every verb reached: "wave" (the answer
    depends on the width), "wave rendezvous", "workgroup rendezvous", "atomic", "fragment" (a tile is changed lane by
    lane, so that whole-tile verbs gather it first). `arms` names the back ends for which a helper has a body.
    """

    name: str
    kernel: Function
    helpers: tuple[Function, ...]
    refusals: tuple[Refusal, ...]
    width: int | None
    uses: frozenset[str]
    annotations: tuple = field(default=())
    arms: frozenset[str] = frozenset()

    @property
    def functions(self) -> tuple[Function, ...]:
        """The kernel and every helper that it reaches."""
        return (self.kernel, *self.helpers)


def children(node: Node) -> Iterator[Node]:
    """The nodes directly inside a node; a helper is not inside its call."""
    for entry in fields(node):
        value = getattr(node, entry.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Node) and not isinstance(part, Function):
                yield part


def walk(node: Node) -> Iterator[Node]:
    """A node and everything inside it, outermost first."""
    yield node
    for part in children(node):
        yield from walk(part)
