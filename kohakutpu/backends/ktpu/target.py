"""XPU kernels on the vector cores: integers and masks are computed here, floats become instructions.

A launch is known when it is lowered, so that every index, trip count and guard is a number for each lane. The walk runs
a workgroup's waves together, loops unrolled; what depends on data is only the floats, as E8M15 words. What needs more
than that (data in an index or a branch, integers in memory, other lanes than a rotation reaches) is refused by name.
"""

from __future__ import annotations

import numpy as np

from kohakutpu.xpu import tree
from kohakutpu.xpu.types import FunctionType, u32

from .instructions import LANES, Code
from .memory import Buffer
from .waves import Waves


class KtpuTarget(Waves):
    """One workgroup. `code` is what it does."""

    def __init__(self, program: tree.Program, arguments: list, grid: tuple, block: tuple, group: tuple):
        super().__init__(program)
        self.grid, self.dims, self.group = grid, block, group
        self.items = block[0] * block[1] * block[2]
        self.waves = -(-self.items // LANES)
        self.linear = np.arange(self.waves * LANES, dtype=np.int64)
        self.live = self.linear < self.items
        self.mask = self.live
        self.code = Code()
        self.stored: dict[tuple[int, int], list] = {}  # (memory, word) -> lanes of halves that hold what was stored
        self.loaded: set[tuple[int, int]] = set()
        self.stores: list[tuple[int, int, int]] = []  # (memory, byte, bytes) that the kernel stores
        for parameter, value in zip(program.kernel.parameters, arguments, strict=True):
            kind = parameter.type
            if not isinstance(value, Buffer):
                kind = u32 if isinstance(kind, FunctionType) else kind
                value = self.literal(kind, value)
            self.frame.values[parameter] = value

    def run(self) -> Code:
        """The kernel's body."""
        self.frame.state["left"] = {}
        self.block(self.program.kernel.body, self.live)
        return self.code

    # Control flow.
    def block(self, body: tuple, mask: np.ndarray) -> np.ndarray:
        """Statements; gives the mask of who goes on."""
        for statement in body:
            if not mask.any():
                break
            self.mask = mask
            mask = self.statement(statement)
        return mask

    def statement(self, node: tree.Statement) -> np.ndarray:
        mask = self.mask
        match node:
            case tree.Declare(variable=variable, value=value):
                self.declare(variable, None if value is None else self.value(value))
            case tree.DeclareShared():
                self.refuse("Shared memory: lanes reach each other by rotations and reductions only", node.at)
            case tree.Assign(variable=variable, value=value):
                self.assign(variable, self.value(value))
            case tree.Store():
                self.store(node)
            case tree.Evaluate(value=value):
                self.value(value)
            case tree.If():
                condition = self.number(self.value(node.condition), node, "a branch")
                then = self.block(node.then, mask & condition)
                return then | self.block(node.otherwise, mask & ~condition)
            case tree.While() | tree.ForRange() | tree.ForStripe() | tree.ForBuffer():
                return self.loop(node, mask)
            case tree.Break(loop=loop) | tree.Continue(loop=loop):
                return self.leave((type(node), loop), mask)
            case tree.Return(value=value):
                if value is not None:
                    given, old = self.value(value), self.frame.state.get("result")
                    place = tree.Variable("a result", self.frame.function.result, node.at)
                    self.frame.state["result"] = given if old is None else self.merged(place, given, old)
                return self.leave("return", mask)
            case _:
                self.refuse(f"{type(node).__name__} has no code on ktpu", node.at)
        return mask

    def leave(self, key, mask: np.ndarray) -> np.ndarray:
        """Those of the mask leave."""
        left = self.frame.state["left"]
        left[key] = left.get(key, False) | mask
        return np.zeros_like(mask)

    def loop(self, node, mask: np.ndarray) -> np.ndarray:
        """Turns until nobody is left; gives those who finished or broke it."""
        out, left = np.zeros_like(mask), self.frame.state["left"]
        active, turns, turn = mask, self.turns(node), 0
        while active.any():
            self.mask = active
            going = turns(turn, active)
            out |= active & ~going
            if not going.any():
                break
            active = self.block(node.body, going) | left.pop((tree.Continue, node.loop), False)
            turn += 1
        return out | left.pop((tree.Break, node.loop), False)

    def turns(self, node):
        """A function from a turn's number and who begins it to who goes on; sets the turn's variables."""
        if isinstance(node, tree.While):

            def test(turn, active):
                if node.test_last and turn == 0:
                    return active
                return active & self.number(self.value(node.condition), node, "a loop's test")

            return test
        if isinstance(node, tree.ForBuffer):
            self.refuse("a walk over a buffer; index it", node.at)
        if isinstance(node, tree.ForRange):
            start, stop = (self.number(self.value(part), node, "a bound") for part in (node.start, node.stop))
            step = node.step
        else:
            start, step = self.linear % LANES, LANES
            stop = self.number(self.value(node.count), node, "a bound")
        start, stop = start.astype(np.int64), stop.astype(np.int64)

        def counted(turn, active):
            at = start + turn * step
            self.frame.values[node.variable] = at.astype(node.variable.type.dtype)
            return active & (at < stop if step > 0 else at > stop)

        return counted

    # Calls.
    def call(self, node, helper: tree.Function, arguments: list):
        mask = self.mask
        self.frames.append(self.frame)
        self.body(helper, arguments, node)
        self.frame.state["left"] = {}
        fell = self.block(helper.body, mask)
        self.mask = mask
        if helper.result is not None and fell.any() and self.frame.state.get("result") is not None:
            self.undefined(node, fell, f"{helper.name} ends without the {helper.result} that it promises")
        found = self.frame.state.get("result")
        self.frame = self.frames.pop()
        return found
