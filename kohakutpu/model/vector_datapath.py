"""The vector core's architectural state and what each instruction does to it.

Instructions are carried out in program order but late: `settle(now)` does everything whose L1 accesses lie at
or before `now`, so that an arriving flit and a VLD or VST meet L1 in the order of their cycles. Values come
from `kohakutpu.formats`; this module only moves them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from kohakutpu.formats import alu, e8m15, reduction
from kohakutpu.isa.vector import VL_MAX, DType, RedKind, Source

LANES = 16
HALF = 8  # FP32 elements of a word
ELEMENT_BITS = 24
SIGN = 1 << 23
ANY_TIME = -1


class Transfer:
    """A VLD or VST on its way through L1, one word at a time or all at once."""

    def __init__(self, path: Datapath, access: list[int], words: np.ndarray):
        self.path = path
        self.access = access
        self.words = words
        self.first = access[0]
        self.last = access[-1]
        self.done = 0

    def advance(self, now: int) -> None:
        """Do the words whose L1 cycle is at or before `now`."""
        due = self.done
        while due < len(self.access) and self.access[due] <= now:
            due += 1
        if due > self.done:
            self.move(slice(self.done, due))
            self.done = due

    def move(self, part: slice) -> None:
        raise NotImplementedError


class Load(Transfer):
    def __init__(self, path: Datapath, access: list[int], words: np.ndarray, register: int, dtype: int):
        super().__init__(path, access, words)
        self.register = register
        self.dtype = dtype
        self.data = np.empty((len(words), LANES), dtype=np.uint16)

    def move(self, part: slice) -> None:
        self.data[part] = self.path.l1[self.words[part]]
        if part.stop == len(self.access):
            if self.dtype == DType.FP16:
                values = e8m15.from_fp16(self.data.reshape(-1))
            else:
                values = e8m15.from_fp32(self.data.reshape(-1).view(np.uint32))
            self.path.v[self.register, : len(values)] = values


class Store(Transfer):
    def __init__(self, path: Datapath, access: list[int], words: np.ndarray, register: int, dtype: int):
        super().__init__(path, access, words)
        self.register = register
        self.dtype = dtype
        self.data: np.ndarray | None = None

    def move(self, part: slice) -> None:
        if self.data is None:
            if self.dtype == DType.FP16:
                values = e8m15.to_fp16(self.path.v[self.register, : LANES * len(self.access)])
            else:
                values = e8m15.to_fp32(self.path.v[self.register, : HALF * len(self.access)]).view(np.uint16)
            self.data = values.reshape(len(self.access), LANES)
        # a walk may visit a word twice; numpy keeps the last value, as L1 does
        self.path.l1[self.words[part]] = self.data[part]


class Datapath:
    """V, S, K, P and L1, and the queue of instructions not yet carried out.

    `v` uint32[16, 128], `p` bool[4, 128], `l1` uint16[words, 16] in memory order, `s` and `k` lists of raw
    24-bit words.
    """

    def __init__(self, l1_words: int, *, exp2_wrap: bool, flip_sign: bool = False, stale_predicate: bool = False):
        self.v = np.zeros((16, VL_MAX), dtype=np.uint32)
        self.s = [0] * 16
        self.k = [0x000000, 0x3F8000, 0xBF8000, 0x000000]
        self.p = np.zeros((4, VL_MAX), dtype=bool)
        self.l1 = np.zeros((l1_words, LANES), dtype=np.uint16)
        self.pending: deque[tuple[Callable, tuple] | Transfer] = deque()
        self.late_scalars: set[int] = set()  # S registers that a pending instruction writes
        self._exp2_wrap = exp2_wrap
        self._flip_sign = flip_sign
        self._masks = np.zeros_like(self.p) if stale_predicate else self.p

    def settle(self, now: int) -> None:
        """Carry out, in order, all that happens at or before cycle `now`."""
        pending = self.pending
        while pending:
            head = pending[0]
            if isinstance(head, Transfer):
                head.advance(now)
                if head.last > now:
                    return
            else:
                head[0](*head[1])
            pending.popleft()
        self.late_scalars.clear()

    def later(self, function: Callable, *arguments) -> None:
        """Queue something that touches no L1."""
        self.pending.append((function, arguments))

    def scalar(self, index: int, now: int) -> int:
        """S[index] as decode reads it in cycle `now`."""
        if index in self.late_scalars:
            self.settle(now)
        return self.s[index]

    def set_scalar(self, index: int, value: int, now: int) -> None:
        """VSETI in cycle `now`."""
        if index in self.late_scalars:
            self.settle(now)
        self.s[index] = value

    # ---- instructions ------------------------------------------------------------------------------------

    def lanes(self, stages: list[tuple], vd: int, vl: int, pm: int, pr: int, compare: bool) -> None:
        """An ALU word or a chain. A stage is (opcode, [a, b, c]); an operand is (selector, register or value), or
        None where the opcode uses none."""
        value = None
        for op, operands in stages:
            a, b, c = [operand and self._operand(*operand, vl, value) for operand in operands]
            value, holds = alu.execute(op, a, b, c, exp2_wrap=self._exp2_wrap)
        if compare:
            if self._masks is not self.p:
                self._masks[pr] = self.p[pr]
            self.p[pr, :vl] = holds
            return
        if self._flip_sign and vl > 3:
            value[3] ^= SIGN
        if pm == 0:
            self.v[vd, :vl] = value
        else:
            np.copyto(self.v[vd, :vl], value, where=self.mask(pm, pr)[:vl])

    def _operand(self, selector: int, what: int, vl: int, chain: np.ndarray | None) -> np.ndarray:
        if selector == Source.V:
            return self.v[what, :vl]
        if selector == Source.C:
            return chain
        return np.full(vl, what, dtype=np.uint32)

    def mask(self, pm: int, pr: int) -> np.ndarray:
        """Where a predicated write happens, bool[128]; `pm` is not 0."""
        return self._masks[pr] if pm == 1 else ~self._masks[pr]

    def reduction(self, kind: int, va: int, vb: int, vd: int, vl: int, leaf_mask: tuple[int, int] | None) -> None:
        """VRED of values; `leaf_mask` (pm, pr) predicates EXPSUM's vector write."""
        other = self.v[vb, :vl] if kind in (RedKind.SUMSQ, RedKind.DOT) else None
        value, leaves = reduction.reduce(kind, self.v[va, :vl], other, exp2_wrap=self._exp2_wrap)
        self.s[vd] = value
        if leaves is not None:
            if leaf_mask is None:
                self.v[vb, :vl] = leaves
            else:
                np.copyto(self.v[vb, :vl], leaves, where=self.mask(*leaf_mask)[:vl])

    def vote(self, kind: int, pr: int, vd: int, vl: int) -> None:
        self.s[vd] = reduction.vote(kind, self.p[pr, :vl])

    def to_scalar(self, va: int, vd: int) -> None:
        self.s[vd] = int(self.v[va, 0])

    def broadcast(self, value: int, vd: int, elements: int) -> None:
        self.v[vd, :elements] = value

    def shuffle(self, va: int, vd: int, rotation: int, elements: int) -> None:
        chunks = self.v[va, :elements].reshape(-1, LANES)
        self.v[vd, :elements] = np.roll(chunks, -rotation, axis=1).reshape(-1)

    def copy(self, va: int, vd: int, elements: int) -> None:
        self.v[vd, :elements] = self.v[va, :elements]

    def round_trip(self, va: int, vd: int, elements: int) -> None:
        """VCVT FP16."""
        self.v[vd, :elements] = e8m15.from_fp16(e8m15.to_fp16(self.v[va, :elements]))

    def round_trip_late(self, va: int, vd: int, elements: int, before: tuple[int, int]) -> None:
        """VCVT FP16 under `vcvt-late`: each chunk gets the one before it, the first `before` (register, chunk)."""
        register, chunk = before
        source = np.empty(elements, dtype=np.uint32)
        source[:LANES] = self.v[register, LANES * chunk : LANES * (chunk + 1)]
        source[LANES:] = self.v[va, : elements - LANES]
        self.v[vd, :elements] = e8m15.from_fp16(e8m15.to_fp16(source))
