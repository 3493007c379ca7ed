"""Decode and control flow of the vector core: one instruction at a time, in program order.

Timing is `docs/microarchitecture/vector-core.md`, sections "Decode" and "Ending a kernel". `step` does what
decode does in one cycle; instructions that go through the issue stage are scheduled at once by the
`Scoreboard`, because nothing outside can delay a beat.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from kohakutpu.isa.vector import (
    ALU_OPS,
    COMPARES,
    IMEM_WORDS,
    IMMEDIATE,
    OPERANDS,
    STAGES,
    VL_MAX,
    WALK_LIMIT,
    DType,
    Fault,
    Mode,
    Opcode,
    RedKind,
    Source,
    Word,
    decode_word,
)
from kohakutpu.model.vector_datapath import HALF, LANES, Datapath, Load, Store
from kohakutpu.model.vector_fetch import Fetch, Loop
from kohakutpu.model.vector_memory import Descriptor, DrainEngine, FillEngine, l1_walk
from kohakutpu.model.vector_receive import Receiver
from kohakutpu.model.vector_timing import Scoreboard
from kohakutpu.noc.engine import NEVER
from kohakutpu.noc.trace_tracks import Decode

WRITABLE_CONSTANT = 3
VOTES = (RedKind.ANY, RedKind.ALL)
MOVES = (Opcode.VLD, Opcode.VST, Opcode.VCVT)
WALKS = (Opcode.VFILL, Opcode.VDRAIN)


class Operands(NamedTuple):
    """What an ALU word computes with: a, b, c as (selector, register), None where the opcode uses none."""

    fields: tuple[tuple[int, int] | None, ...]
    vectors: tuple[int, ...]
    scalars: tuple[int, ...]
    selectors: frozenset[int]  # of all three fields, used or not


@lru_cache(maxsize=1 << 14)
def operands_of(word: Word) -> Operands:
    given = {"a": (word.sa, word.va), "b": (word.sb, word.vb), "c": (word.sc, word.vc)}
    fields = tuple(pair if name in OPERANDS[word.op] else None for name, pair in given.items())
    used = [pair for pair in fields if pair is not None]
    return Operands(
        fields,
        tuple(register for selector, register in used if selector == Source.V),
        tuple(register for selector, register in used if selector == Source.S),
        frozenset(selector for selector, _ in given.values()),
    )


class Sequencer:
    """Runs kernels. `outcome` is (cycle after the last, kernel cycles or fault code, faulted) once one ended."""

    def __init__(
        self, path: Datapath, fill: FillEngine, drain: DrainEngine, receiver: Receiver,
        settle: Callable[[int], None], errata: frozenset[str],
    ):  # fmt: skip
        self.path = path
        self.fill = fill
        self.drain = drain
        self.receiver = receiver
        self.settle = settle
        self.board = Scoreboard()
        self.fetch = Fetch()
        self.loop = Loop()
        self.imem = [0] * IMEM_WORDS
        self.descriptors = [Descriptor() for _ in range(8)]
        self.vl = VL_MAX
        self.mode = Mode.FLAT
        self.pc = 0
        self.running = False
        self.started = 0
        self.ended = -1  # the last cycle of the last kernel
        self.cycles = 0  # of the last kernel
        self.outcome: tuple[int, int, bool] | None = None
        self.waiting = ""  # what decode waits for, for reports
        self.state = Decode.OFF  # what it does in the cycle that was stepped last, and up to the next, for traces
        self._chain: list[tuple] = []  # gathered stages
        self._sources: tuple[int, ...] = ()  # vector registers that the first stage reads
        self._ending: int | None = None  # fault code once a fault was decoded
        self._draining = False  # a VDRAIN is still reading L1
        self._immediate: Word | None = None  # VSETI whose second word is next
        self._last_pm = self._last_pr = 0  # of the last ALU word; of the last ALU or VRED word
        self._last_alu = (0, 0)  # (va, chunk) of the last ALU or VRED beat
        self._fp32_store = "fp32-store" in errata
        self._vcvt_late = "vcvt-late" in errata
        self._vote_register = "vote-register" in errata
        self._expsum_stale = "expsum-stale-predicate" in errata
        self._handlers = self._table()

    def _table(self) -> dict[Opcode, Callable[[Word, int], int]]:
        table = dict.fromkeys(ALU_OPS, self._alu)
        table |= {
            Opcode.VCVT: self._convert, Opcode.VRED: self._reduce, Opcode.VLD: self._load, Opcode.VST: self._store,
            Opcode.VBCAST: self._broadcast, Opcode.VSHUF: self._shuffle, Opcode.VSETVL: self._set_length,
            Opcode.VSETMODE: self._set_mode, Opcode.VSETI: self._set_scalar, Opcode.VLOOP: self._start_loop,
            Opcode.VBAR: self._barrier, Opcode.VFILL: self._start_fill, Opcode.VDRAIN: self._start_drain,
            Opcode.VHALT: self._halt,
        }  # fmt: skip
        return table

    # ---- a kernel ----------------------------------------------------------------------------------------

    def start(self, pc: int, now: int) -> None:
        """RUN accepted in cycle `now`."""
        self.pc = pc
        self.loop.active = False
        self.fetch.redirect(pc, now, self.loop)
        self.running = True
        self.started = now
        self.outcome = None
        self._chain = []
        self._immediate = None

    def counter(self, now: int) -> int:
        """Kernel cycles of the current or last run at the start of cycle `now`."""
        return max(0, now - self.started - 1) if self.running else self.cycles

    def step(self, now: int) -> int:
        """Decode's cycle `now`; returns the next cycle it can act in, `NEVER` when fills or the link decide."""
        if not self.running:
            return NEVER
        self.state = Decode.PIPELINE  # unless what follows says something else
        if self._ending is not None:
            return self._end(now)
        if self._draining:
            self.state = Decode.DRAIN
            return self._finish_drain(now)
        fetch = self.fetch
        if now < fetch.at:
            self.state = Decode.FETCH
            return fetch.at
        if fetch.pc != self.pc:
            self.state = Decode.FETCH
            fetch.redirect(self.pc, now, self.loop)
            return fetch.at
        word = self.imem[self.pc]
        if self._immediate is not None:
            return self._take_immediate(word, now)
        decoded = decode_word(word)
        fault = self._refusal(decoded)
        if fault is not None:
            return self._fault(fault, now)
        # a handler that has to wait changes nothing: it is called again
        return self._handlers[decoded.op](decoded, now)

    def _refusal(self, word: Word) -> Fault | None:
        """The fault that a word raises in any cycle it spends in decode, registers aside."""
        if self._chain:
            if word.op not in ALU_OPS:
                return Fault.F_OPCODE
            return Fault.F_VSRC if Source.V in operands_of(word).selectors else None
        if self.receiver.fault:
            self.receiver.fault = False
            return Fault.F_CUDATA
        if word.op in ALU_OPS:
            if self.mode == Mode.TREE:
                return Fault.F_OPCODE
            return Fault.F_CHAIN if Source.C in operands_of(word).selectors else None
        if word.op in MOVES:
            return None if word.dtype in (DType.FP16, DType.FP32) else Fault.F_DTYPE
        if word.op == Opcode.VRED and word.kind not in VOTES:
            if self.vl % LANES:
                return Fault.F_REDVL
            return None if self.mode == Mode.TREE else Fault.F_OPCODE
        if word.op in WALKS and self.descriptors[word.ad].words > WALK_LIMIT:
            return Fault.F_LEN
        if word.op == Opcode.VLOOP and self.loop.active:
            return Fault.F_LOOP
        return None

    # ---- leaving decode, waiting in it, ending ------------------------------------------------------------

    def _more(self, now: int) -> int:
        """The word leaves decode in cycle `now` and its instruction goes on."""
        self.waiting, self.state = "", Decode.WORD
        self.fetch.consume()
        self.pc = (self.pc + 1) % IMEM_WORDS
        return now + 1

    def _done(self, now: int) -> int:
        """The last word of an instruction leaves decode in cycle `now`."""
        self.waiting, self.state = "", Decode.WORD
        self.fetch.consume()
        self.pc = self.loop.next(self.pc + 1)
        return now + 1

    def _event(self, state: Decode, what: str) -> int:
        self.waiting, self.state = what, state
        return NEVER

    def _fault(self, fault: Fault, now: int) -> int:
        self._ending, self.state = fault, Decode.WORD
        return now + 1

    def _end(self, now: int) -> int:
        """After a fault: the kernel ends when the pipelines are empty and the last drain has left."""
        if now < self.board.idle:
            return self.board.idle
        if not self.drain.idle:
            return self._event(Decode.DRAIN, "the last drain to leave")
        return self._finish(now, self._ending, True)

    def _finish(self, now: int, result: int, faulted: bool) -> int:
        self.settle(now)
        self.running = False
        self.ended = now
        self.waiting, self.state = "", Decode.WORD
        self._ending = None
        self.cycles = now - self.started
        self.outcome = (now + 1, result, faulted)
        return NEVER

    # ---- control, executed in decode -----------------------------------------------------------------------

    def _set_length(self, word: Word, now: int) -> int:
        if self.board.scalar_ready[word.va] > now:
            return self.board.scalar_ready[word.va]
        value = self.path.scalar(word.va, now)
        if not 1 <= value <= VL_MAX:
            return self._fault(Fault.F_VL, now)
        self.vl = value
        return self._done(now)

    def _set_mode(self, word: Word, now: int) -> int:
        self.mode = Mode(word.mode)
        return self._done(now)

    def _set_scalar(self, word: Word, now: int) -> int:
        if word.sa != Source.K and self.board.scalar_ready[word.vd] > now:
            return self.board.scalar_ready[word.vd]
        self._immediate = word
        return self._more(now)

    def _take_immediate(self, value: int, now: int) -> int:
        word, self._immediate = self._immediate, None
        value = IMMEDIATE.get(value, "value")
        if word.sa == Source.K:
            self.path.k[WRITABLE_CONSTANT] = value
        else:
            self.path.set_scalar(word.vd, value, now)
        return self._done(now)

    def _start_loop(self, word: Word, now: int) -> int:
        if self.board.scalar_ready[word.va] > now:
            return self.board.scalar_ready[word.va]
        loop = self.loop
        loop.top = (self.pc + 1) % IMEM_WORDS
        loop.end = (loop.top + word.vb) % IMEM_WORDS
        loop.count = self.path.scalar(word.va, now)
        loop.active = word.vb > 0
        self.pc = loop.top
        self.waiting, self.state = "", Decode.WORD
        self.fetch.redirect(self.pc, now, loop)
        return now + 1

    def _barrier(self, word: Word, now: int) -> int:
        if self.fill.open:
            return self._event(Decode.FILL, "every fill to land")
        return self._done(now)

    def _halt(self, word: Word, now: int) -> int:
        if self.board.idle > now:
            return self.board.idle
        if self.fill.open:
            return self._event(Decode.FILL, "every fill to land")
        if not self.drain.idle:
            return self._event(Decode.DRAIN, "the last drain to leave")
        return self._finish(now, now - self.started, False)

    def _start_fill(self, word: Word, now: int) -> int:
        if self.board.queue_empty > now:
            return self.board.queue_empty
        if self.fill.generating:
            return self._event(Decode.FILL, "the requests of the fill before")
        self.fill.launch(now, self.descriptors[word.ad], word.l1)
        return self._done(now)

    def _start_drain(self, word: Word, now: int) -> int:
        board = self.board
        clear = max(board.queue_empty, board.l1_last)
        if clear > now:
            return clear
        if not self.fill.newest_only:
            return self._event(Decode.FILL, "the fill before the newest to land")
        if not self.drain.idle:
            return self._event(Decode.DRAIN, "the drain before to leave")
        self.settle(now)
        descriptor = self.descriptors[word.ad]
        if word.peer:
            self.drain.to_peer(now, descriptor, word.l1, word.x, word.y, word.buf, word.signal)
        else:
            self.drain.to_memory(now, descriptor, word.l1)
        self._draining, self.state = True, Decode.WORD
        return now + 1

    def _finish_drain(self, now: int) -> int:
        """A VDRAIN stays in decode up to the cycle of its last L1 read."""
        if self.drain.reading:
            return self._event(Decode.DRAIN, "room for the words of a drain")
        if now < self.drain.last_read:
            return self.drain.last_read
        self._draining = False
        return self._done(now)

    # ---- through the issue stage ---------------------------------------------------------------------------

    @property
    def chunks(self) -> int:
        return -(-self.vl // LANES)

    def _alu(self, word: Word, now: int) -> int:
        board, path = self.board, self.path
        depth = STAGES[self.mode]
        chain = self._chain
        final = len(chain) + 1 == depth
        wait = board.queue_free if final else 0
        fields, vectors, scalars, _ = operands_of(word)
        for register in scalars:
            if board.scalar_ready[register] > wait:
                wait = board.scalar_ready[register]
        if wait > now:
            return wait
        if not chain:
            self._sources = vectors
            self._last_alu = (word.va, self.chunks - 1)
        self._last_pm, self._last_pr = word.pm, word.pr
        chain.append((word.op, [pair and self._operand(*pair, now) for pair in fields]))
        if not final:
            return self._more(now)
        compare = word.op in COMPARES
        board.lanes(now, self._sources, word.vd, self.vl, depth, word.pr if compare else None)
        path.later(path.lanes, chain, word.vd, self.vl, word.pm, word.pr, compare)
        self._chain = []
        return self._done(now)

    def _operand(self, selector: int, register: int, now: int) -> tuple[int, int]:
        """What decode hands on: a vector register's number, or the value of a scalar or constant."""
        if selector == Source.S:
            return selector, self.path.scalar(register, now)
        if selector == Source.K:
            return selector, self.path.k[register % len(self.path.k)]
        return selector, register

    def _reduce(self, word: Word, now: int) -> int:
        board, path = self.board, self.path
        wait = max(board.queue_free, board.scalar_ready[word.vd])
        if wait > now:
            return wait
        kind = word.kind
        if kind in VOTES:
            register = self._last_pr if self._vote_register else word.pr
            board.vote(now, register, word.vd)
            path.later(path.vote, kind, register, word.vd, self.vl)
        else:
            paired = kind in (RedKind.SUM, RedKind.MAX, RedKind.MIN)
            sources = (word.va, word.vb) if kind in (RedKind.SUMSQ, RedKind.DOT) else (word.va,)
            leaves = word.vb if kind == RedKind.EXPSUM else None
            mask = (self._last_pm, word.pr) if self._expsum_stale and self._last_pm else None
            board.reduction(now, sources, self.vl, paired, word.vd, leaves)
            path.later(path.reduction, kind, word.va, word.vb, word.vd, self.vl, mask)
            self._last_alu = (word.va, self.chunks - 1)
        path.late_scalars.add(word.vd)
        self._last_pr = word.pr
        return self._done(now)

    def _walk(self, word: Word, steps: int):
        descriptor = self.descriptors[word.ad]
        words = len(self.path.l1)
        return l1_walk((descriptor.base + word.offset) % words, descriptor.dims, steps, words)

    def _load(self, word: Word, now: int) -> int:
        if self.board.queue_free > now:
            return self.board.queue_free
        if not self.fill.newest_only:
            return self._event(Decode.FILL, "the fill before the newest to land")
        phases = LANES // HALF if word.dtype == DType.FP32 else 1
        access = self.board.load(now, word.vd, self.chunks, phases)
        walk = self._walk(word, len(access))
        self.path.pending.append(Load(self.path, access, walk, word.vd, word.dtype))
        return self._done(now)

    def _store(self, word: Word, now: int) -> int:
        if self.board.queue_free > now:
            return self.board.queue_free
        if not self.fill.newest_only:
            return self._event(Decode.FILL, "the fill before the newest to land")
        phases = LANES // HALF if word.dtype == DType.FP32 else 1
        access = self.board.store(now, word.vd, self.chunks, phases)
        walk = self._walk(word, len(access))
        if phases > 1 and self._fp32_store:
            walk = walk[0::2].repeat(2)
        self.path.pending.append(Store(self.path, access, walk, word.vd, word.dtype))
        return self._done(now)

    def _broadcast(self, word: Word, now: int) -> int:
        board, path = self.board, self.path
        scalar = word.va if word.sa == Source.S else word.vd
        wait = max(board.queue_free, board.scalar_ready[scalar])
        if wait > now:
            return wait
        if word.sa == Source.S:
            board.short(now, None, word.vd, self.chunks)
            path.later(path.broadcast, path.scalar(word.va, now), word.vd, self.chunks * LANES)
        else:
            board.to_scalar(now, word.va, word.vd)
            path.later(path.to_scalar, word.va, word.vd)
            path.late_scalars.add(word.vd)
        return self._done(now)

    def _shuffle(self, word: Word, now: int) -> int:
        board, path = self.board, self.path
        wait = max(board.queue_free, board.scalar_ready[word.vb])
        if wait > now:
            return wait
        rotation = path.scalar(word.vb, now) % LANES
        board.short(now, word.va, word.vd, self.chunks)
        path.later(path.shuffle, word.va, word.vd, rotation, self.chunks * LANES)
        return self._done(now)

    def _convert(self, word: Word, now: int) -> int:
        board, path = self.board, self.path
        if board.queue_free > now:
            return board.queue_free
        board.short(now, word.va, word.vd, self.chunks)
        elements = self.chunks * LANES
        if word.dtype == DType.FP32:
            path.later(path.copy, word.va, word.vd, elements)
        elif self._vcvt_late:
            path.later(path.round_trip_late, word.va, word.vd, elements, self._last_alu)
        else:
            path.later(path.round_trip, word.va, word.vd, elements)
        return self._done(now)

    def describe(self) -> str:
        if not self.running:
            return f"last kernel ran {self.cycles} cycles"
        waiting = f", waiting for {self.waiting}" if self.waiting else ""
        return f"kernel running since cycle {self.started}, pc {self.pc}{waiting}"
