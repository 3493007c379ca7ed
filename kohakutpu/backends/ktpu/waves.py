"""Coordinates and rendezvous of the machine's waves: lanes reach each other by rotations and what they make."""

from __future__ import annotations

import numpy as np

from kohakutpu.backends.lowering import element
from kohakutpu.formats import e8m15
from kohakutpu.isa.vector import Opcode
from kohakutpu.xpu.errors import Undefined
from kohakutpu.xpu.types import Op, u32

from .instructions import LANES, Operand
from .memory import MemoryAccess
from .numbers import Floats

IDENTITY = {Op.ADD: 0, Op.MAX: e8m15.SIGN | e8m15.INFINITY, Op.MIN: e8m15.INFINITY}
COMBINE = {Op.ADD: Opcode.VADD, Op.MAX: Opcode.VMAX, Op.MIN: Opcode.VMIN}


class Waves(MemoryAccess):
    """Verbs that read other lanes. `live` are the workgroup's lanes, returned or not."""

    live: np.ndarray

    def coordinate(self, node, family: str, word: str):
        axis = "xyz".find(word[-1])
        (dx, dy, _), linear = self.dims, self.linear
        local = [linear % dx, linear // dx % dy, linear // (dx * dy)]
        if node.verb == "thread.clock":
            self.refuse("thread.clock", node.at)
        if family == "thread":
            start = self.group[axis] * self.dims[axis] if word.startswith("global") else 0
            return (local[axis] + start).astype(np.uint32)
        if family == "workgroup":
            return self.whole(self.dims[axis] if word.startswith("dim") else self.group[axis], u32)
        if word == "is_first_lane":
            return linear % LANES == 0
        value = {"row_id": self.group[0], "width": LANES}.get(word)
        return (linear % LANES if value is None else self.whole(value, u32)).astype(element(node.type).dtype)

    def collective(self, node, family: str, word: str, arguments: list):
        if family == "workgroup" or node.verb == "barrier.workgroup":
            lanes = np.flatnonzero(self.live & ~self.mask)
            if len(lanes):
                raise Undefined(f"{node.verb}, which a work-item does not reach", node.at, f"workgroup {self.group}")
        elif not np.array_equal(self.mask, self.alive()):
            self.refuse(f"{node.verb} that some lanes of a wave miss", node.at)
        if family == "barrier":
            return None
        if family == "workgroup":
            return self.workgroup(node, word, arguments[0])
        ops = {"reduce_sum_f32": Op.ADD, "reduce_max_f32": Op.MAX, "reduce_min_f32": Op.MIN}
        if family == "group" and word == "reduce":
            return self.reduce(node, node.options[0], arguments[0], LANES)
        if word in ops:
            return self.reduce(node, ops[word], arguments[0], LANES)
        if word.endswith("f32_segmented") or word == "reduce_segmented":
            value, segment = arguments if family == "wave" else arguments[::-1]
            op = node.options[0] if family == "group" else Op.ADD if "sum" in word else Op.MAX
            sizes = np.unique(self.number(segment, node, "a segment")[self.mask])
            if len(sizes) != 1 or sizes[0] < 1 or sizes[0] & (sizes[0] - 1):
                self.undefined(node, self.mask, f"a segment of {sizes.tolist()} lanes, no one power of two")
            return self.reduce(node, op, value, min(int(sizes[0]), LANES))
        if word in ("shuffle_xor_sync_f32",):
            amounts = np.unique(self.number(arguments[1], node, "a distance")[self.mask])
            if len(amounts) == 1 and amounts[0] in (0, 8):
                return self.rotated(arguments[0], int(amounts[0]))
        self.refuse(f"{node.verb}: lanes reach each other by float reductions, and by shuffles that rotate", node.at)

    def alive(self) -> np.ndarray:
        """Who has not returned."""
        gone = (self.frames[0] if self.frames else self.frame).state["left"].get("return")
        return self.live if gone is None else self.live & ~gone

    def rotated(self, value: Floats, amount: int) -> Floats:
        """Lane l's word from lane (l + amount) mod 16."""
        return Floats(tuple(self.code.put(Opcode.VSHUF, self.in_register(w), amount=amount) for w in value.waves))

    def reduce(self, node, op: Op, value: Floats, reach: int) -> Floats:
        """The XOR butterfly: each stage is computed with either neighbour, and lanes take theirs."""
        found = []
        for wave, held in enumerate(value.waves):
            lanes = self.lanes(self.mask, wave)
            if not any(lanes):
                found.append(held)
                continue
            if not all(lanes):
                kept = self.code.select(lanes, held, ("c", IDENTITY[op]))
                if kept is None:
                    self.refuse(f"{node.verb} of a loaded word in a wave that is not full", node.at)
                held = kept
            held = self.in_register(held)
            distance = 1
            while distance < reach:
                held = self.stage(op, held, distance)
                distance *= 2
            found.append(held)
        return Floats(tuple(found))

    def stage(self, op: Op, held: Operand, distance: int) -> Operand:
        """held[l] op held[l ^ distance] in every lane."""
        code = self.code
        behind = code.put(Opcode.VSHUF, held, amount=LANES - distance)
        result = code.put(COMBINE[op], held, behind)
        if distance * 2 == LANES:
            return result
        ahead = code.put(Opcode.VSHUF, held, amount=distance)
        mask = tuple(not lane & distance for lane in range(LANES))
        whole = code.put(COMBINE[op], held, ahead)
        code.again(whole, result[1], mask)
        return result

    def workgroup(self, node, word: str, value) -> Floats:
        """workgroup.reduce of floats: each wave's, then from wave 0 on. Every lane of a sum holds the same word."""
        if word != "reduce" or not isinstance(value, Floats):
            self.refuse(f"{node.verb} of {node.type}: the core has no integers", node.at)
        op = node.options[0]
        parts = self.reduce(node, op, value, LANES).waves
        total = parts[0]
        for part in parts[1:]:
            total = self.code.put(COMBINE[op], total, part)
        return Floats((total,) * self.waves)
