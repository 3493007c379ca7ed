"""The vector core alone against recorded kernels of the published one, through real flits.

`vector_core.npz`: every program, with what it leaves in L1 and memory and how it ended. With
`vector_core_published.npz`: the same on a core with the errata that each recording meets, and the traffic as
well. Recordings whose outcome depends on the published pipeline's timing are left out, by erratum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

import numpy as np

from kohakutpu.errata import PUBLISHED
from kohakutpu.isa import vector as isa
from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.memory import ADDRESS_WIDTH, WORD_BYTES, decode_request
from kohakutpu.isa.signals import CU_DATA, CU_SIGNAL, SIGNAL_ON_COMPLETE, SignalCode
from kohakutpu.machine import VectorUnit
from kohakutpu.model.vector import VectorCore
from kohakutpu.noc.engine import NEVER, Component, Engine, Link

from .arrays import Arrays, GoldenError, open_arrays, replaying
from .report import Tally

BENCH = 0x11  # (1,1), who sends the instructions
PORT = 0x01  # (0,1), the memory port
UNIT = VectorUnit(x=1, y=0)
LATENCY = 20  # cycles from a request to its first response
TXN = 0x40
BUDGET = 100_000
TIMING_ERRATA = ("chain-overlap", "chain-count", "predicate-hazard")
BURST_DATA = 0xABCD  # data word i of a recorded CU_DATA burst is this plus i


@dataclass(frozen=True)
class Signal:
    """A CU_SIGNAL as the bench saw it; `source` sent it in `cycle`, `txn` is the header's."""

    code: int
    arg: int
    txn: int
    dst: int
    cycle: int


class VectorBench(Component):
    """One vector core between a bench and a memory port that answers after `latency` cycles.

    `accepts(cycle)` says whether a flit from the core is taken, `offers(cycle)` whether one may be put on the
    core's link; both default to always. Memory holds what was written, zero elsewhere, in 32-byte words.
    """

    def __init__(
        self, unit: VectorUnit = UNIT, *, errata: frozenset[str] = frozenset(), faults: frozenset[str] = frozenset(),
        latency: int = LATENCY, skip: bool = True, accepts: Callable[[int], bool] | None = None,
        offers: Callable[[int], bool] | None = None,
    ):  # fmt: skip
        super().__init__(Engine(skip=skip), "bench")
        self.core = VectorCore(self.engine, unit, port=PORT, errata=errata, faults=faults)
        self.core.out.sink = self
        self.link = Link(self.engine, "bench.out", self)
        self.link.sink = self.core
        self.core.in_link = self.link
        self.latency = latency
        self.memory: dict[int, int] = {}
        self.sent: list[tuple[int, Flit]] = []  # every flit the core sent, by cycle
        self.answers: list[int] = []  # every word the memory port answered with
        self.signals: list[Signal] = []
        self._accepts = accepts
        self._offers = offers
        self._queue: list[tuple[int, int, Flit]] = []  # (first cycle of the transfer, order, flit)
        self._order = 0
        self._write: list[int] = []  # addresses of the open write burst
        self._answer = 0  # when the port has sent its latest response
        if accepts is not None:
            self.wake(0)

    # ---- from the core -------------------------------------------------------------------------------------

    def accept(self, flit: Flit, now: int) -> bool:
        if self._accepts is not None and not self._accepts(now):
            return False
        self.sent.append((now, flit))
        if flit.type == FlitType.CU_SIGNAL:
            fields = CU_SIGNAL.decode(flit.payload)
            self.signals.append(Signal(fields["code"], fields["arg"], flit.txn, flit.dst, now))
        elif flit.dst == PORT:
            self._memory_port(flit, now)
        return True

    def _memory_port(self, flit: Flit, now: int) -> None:
        if flit.type == FlitType.MEM_WR_DATA:
            self.memory[self._write.pop(0)] = flit.payload
            return
        addresses = burst(flit)
        if flit.type == FlitType.MEM_WR_REQ:
            assert not self._write, "a write burst inside a write burst"
            self._write = addresses
            return
        assert flit.type == FlitType.MEM_RD_REQ, f"the memory port got a {flit}"
        for beat, address in enumerate(addresses):
            self._answer = max(self._answer + 1, now + self.latency)
            last = beat + 1 == len(addresses)
            data = self.memory.get(address, 0)
            self.answers.append(data)
            self.put(Flit(flit.src, PORT, FlitType.MEM_RD_RESP, flit.txn, int(last), 0, data), self._answer)

    # ---- to the core ---------------------------------------------------------------------------------------

    def put(self, flit: Flit, cycle: int | None = None) -> None:
        """Queue a flit for the core; it is on the link from `cycle` on, behind earlier ones of that cycle."""
        self._order += 1
        cycle = self.engine.now + 1 if cycle is None else cycle
        self._queue.append((cycle, self._order, flit))
        self._queue.sort()
        self.wake(cycle - 1)

    def step(self, now: int) -> int:
        following = NEVER
        if self._accepts is not None:
            following = now + 1
            if self._accepts(following):
                self.core.out.retry()
        if not self._queue:
            return following
        first = max(now, self._queue[0][0] - 1)
        if self.link.flit is not None:
            self.link.wanted = True
            return following
        while self._offers is not None and not self._offers(first):
            first += 1
        if first > now:
            return min(first, following)
        self.link.send(self._queue.pop(0)[2])
        return now + 1

    def instruct(self, *payloads: int, txn: int = TXN, last: int = 0) -> None:
        """CU_INST flits, in order."""
        for payload in payloads:
            self.put(Flit(self.core.node, BENCH, FlitType.CU_INST, txn, last, 0, payload))

    def burst(
        self, data: Iterable[int], *, offset: int = 0, buf: int = 0, flags: int = 0, ack: int = 0, source: int = BENCH,
        length: int | None = None,
    ) -> None:  # fmt: skip
        """A CU_DATA burst of 256-bit words; `length` overrides what the descriptor says."""
        data = list(data)
        payload = CU_DATA.encode(
            buf=buf, offset=offset, len=(length or len(data)) - 1, flags=flags, ack_y=ack >> 4, ack_x=ack & 15
        )
        self.put(Flit(self.core.node, source, FlitType.CU_DATA, 0, 0, 0, payload))
        for position, word in enumerate(data):
            last = int(position + 1 == len(data))
            self.put(Flit(self.core.node, source, FlitType.CU_DATA, 0, last, 0, word))

    def load(self, program: Iterable[int], descriptors: Iterable[tuple[int, int, int]] = (), at: int = 0) -> int:
        """Queue the IMEM and DESC instructions of a program; returns how many."""
        payloads = [isa.IMEM.encode(addr=(at + i) % isa.IMEM_WORDS, word=int(w)) for i, w in enumerate(program)]
        payloads += [isa.DESC.encode(ad=int(ad), field=int(part), value=int(value)) for ad, part, value in descriptors]
        self.instruct(*payloads)
        return len(payloads)

    def completions(self) -> list[Signal]:
        """Signals of retired instructions."""
        return [signal for signal in self.signals if signal.code != SignalCode.DATA_RECEIVED]

    def wait(self, completions: int, *, received: int = 0, budget: int = BUDGET) -> None:
        """Advance until that many completions and DATA_RECEIVED have come in all.

        Raises `TimeoutError` with the core's state when `budget` cycles do not suffice.
        """

        def enough() -> bool:
            if len(self.signals) < completions + received:
                return False
            done = len(self.completions())
            return done >= completions and len(self.signals) - done >= received

        if not self.engine.run(enough, budget):
            state = "\n".join(self.core.describe()) or f"{self.core.name}: idle"
            raise TimeoutError(
                f"after {budget} cycles {len(self.completions())} of {completions} completions and "
                f"{len(self.signals) - len(self.completions())} of {received} DATA_RECEIVED had come\n{state}"
            )

    def run(self, program: Iterable[int], descriptors: Iterable[tuple[int, int, int]] = (), *, pc: int = 0,
            budget: int = BUDGET) -> Signal:  # fmt: skip
        """Load a program at `pc`, run it and return the completion of RUN."""
        done = len(self.completions())
        done += self.load(program, descriptors, at=pc)
        self.instruct(isa.RUN.encode(pc=pc))
        self.wait(done + 1, budget=budget)
        return self.completions()[-1]


def burst(flit: Flit) -> list[int]:
    """The word addresses of a memory request."""
    request = decode_request(flit.payload)
    return [(request.addr + WORD_BYTES * beat) % (1 << ADDRESS_WIDTH) for beat in range(request.len + 1)]


class Traffic:
    """What a core did on its link, free of how it cuts words into bursts.

    `reads` and `writes` are in order: word addresses, and (address, data). `node` holds every other flit but the
    signals, `signals` those, a finished RUN without its cycle count.
    """

    def __init__(self, flits: Iterable[Flit]):
        self.reads: list[int] = []
        self.writes: list[tuple[int, int]] = []
        self.node: list[Flit] = []
        self.signals: list[Flit] = []
        targets: list[int] = []
        for flit in flits:
            if flit.type == FlitType.CU_SIGNAL:
                if CU_SIGNAL.get(flit.payload, "code") == SignalCode.INST_COMPLETE:
                    flit = flit._replace(payload=CU_SIGNAL.encode(code=SignalCode.INST_COMPLETE))
                self.signals.append(flit)
            elif flit.type == FlitType.MEM_RD_REQ:
                self.reads += burst(flit)
            elif flit.type == FlitType.MEM_WR_REQ:
                targets = burst(flit)
            elif flit.type == FlitType.MEM_WR_DATA:
                self.writes.append((targets.pop(0), flit.payload))
            else:
                self.node.append(flit)


# ---- the recordings ------------------------------------------------------------------------------------------


class Program:
    """One recorded program, from the arrays `data` of its prefix. Raises `GoldenError` for what does not fit."""

    def __init__(self, data: Arrays):
        self.name = f"{data.prefix[:-1]} {data.text('name')}"
        self.errata = data.errata()
        self.imem = data.array("imem", "uint32", None)
        self.desc = data.array("desc", "int64", None, 3)
        self.cud = data.array("cud", "int64", None, 3)
        if not len(self.imem):
            raise data.error("imem", "holds no word to run")
        if (self.cud[:, 2] < 1).any():
            raise data.error("cud", f"holds a burst of no words: {self.cud.tolist()}")
        self.l1_before = data.array("l1_before", "uint32", isa.L1_WORDS, 8)
        self.l1_after = data.array("l1_after", "uint32", isa.L1_WORDS, 8)
        addresses = data.array("mem_addr", "int64", None)
        preloaded = data.array("mem_data", "uint32", len(addresses), 8)
        self.memory_before = dict(zip(map(int, addresses), map(integer, preloaded), strict=True))
        if len(self.memory_before) < len(addresses) or (addresses < 0).any() or (addresses % WORD_BYTES).any():
            raise data.error("mem_addr", f"holds an address twice, or one that is no multiple of {WORD_BYTES}")
        self.code = data.integer("signal_code", 0)
        self.memory_after = memory_after(data)


def memory_after(data: Arrays) -> dict[int, int]:
    """Recorded memory words after the run, by address."""
    held: dict[int, int] = {}
    part = 0
    while f"memafter{part}" in data or f"memafter{part}_base" in data:
        base = data.integer(f"memafter{part}_base", 0)
        rows = data.array(f"memafter{part}", "uint32", None, 8)
        if base % WORD_BYTES or not len(rows):
            text = f"holds {len(rows)} words at {base:#x}, expected some at a multiple of {WORD_BYTES}"
            raise data.error(f"memafter{part}", text)
        held |= {base + WORD_BYTES * index: integer(row) for index, row in enumerate(rows)}
        part += 1
    return held


class CoreProgram(Program):
    """A program of `vector_core.npz`: the L1 words that bind, and the published core's cycles (-1 unknown)."""

    def __init__(self, data: Arrays):
        super().__init__(data)
        # Only a fault has an argument: a finished RUN's is its cycle count.
        self.arg = 0 if self.code == SignalCode.INST_COMPLETE else data.integer("signal_arg", 0)
        self.mask = data.array("l1_mask", "bool", isa.L1_WORDS)
        if not self.mask.any():
            raise data.error("l1_mask", "holds no word, so nothing would be compared")
        self.cycles = data.integer("published_cycles", -1)
        if self.cycles == 0:
            raise data.error("published_cycles", "is 0, expected -1 or the cycles of a kernel")


# Arrays of `vector_core_published.npz` that are not compared, and why.
NOT_COMPARED = {
    "dbg_fault": "a debug register of the published card",
    "run_to_signal_cycles": "the published core's time; `signal_arg`, its kernel cycles, is reported",
}


class Published(Program):
    """A recording of `vector_core_published.npz`: the flits `sent` by the core and the words it was `answered`."""

    def __init__(self, data: Arrays):
        super().__init__(data)
        data.leave(NOT_COMPARED)
        self.arg = data.integer("signal_arg", 0)
        rows = data.array("flits", "uint32", None, 9)
        direction = data.array("flit_dir", "uint8", len(rows))
        data.array("flit_cycle", "int64", len(rows))  # cycles do not bind
        flits = [[Flit.from_int(integer(row)) for row in rows[direction == which]] for which in range(3)]
        if sum(map(len, flits)) < len(rows):
            raise data.error("flit_dir", f"holds {direction.max()}, expected 0, 1 or 2")
        given, self.sent, answers = flits
        if given != [Flit(node(UNIT.x, UNIT.y), BENCH, FlitType.CU_INST, TXN, 0, 0, isa.RUN.encode(pc=0))]:
            raise data.error("flits", f"has {given} going in, expected one flit, RUN from 0")
        self.answered = [flit.payload for flit in answers]
        signals = [CU_SIGNAL.decode(flit.payload) for flit in self.sent if flit.type == FlitType.CU_SIGNAL]
        if not signals:
            raise data.error("flits", "hold no signal of the core")
        self.end = signals[-1]["code"], signals[-1]["arg"]


AnyProgram = TypeVar("AnyProgram", bound=Program)


def replay(program: Program) -> tuple[VectorBench, list[Flit]]:
    """Run it with its errata; returns the bench and the flits that the core sent from the acceptance of RUN on."""
    bench = VectorBench(errata=program.errata)
    bench.core.load_l1(program.l1_before)
    bench.memory |= program.memory_before
    count = bench.load(program.imem, program.desc)
    for buf, offset, words in program.cud:
        data = [BURST_DATA + i for i in range(words)]
        bench.burst(data, buf=int(buf), offset=int(offset), flags=SIGNAL_ON_COMPLETE)
    bench.wait(count, received=len(program.cud))
    before = len(bench.sent)
    bench.instruct(isa.RUN.encode(pc=0))
    bench.wait(count + 1, received=len(program.cud))
    bench.engine.advance(2 * LATENCY)
    return bench, [flit for _, flit in bench.sent[before:]]


def integer(row: np.ndarray) -> int:
    """A little-endian row of uint32 as one integer."""
    return int.from_bytes(np.ascontiguousarray(row, dtype="<u4").tobytes(), "little")


def programs(path: Path, kind: type[AnyProgram]) -> list[AnyProgram]:
    """Every program of a file, all of its arrays read."""
    data = open_arrays(path)
    found = [kind(data.under(f"p{i:03d}_")) for i in range(data.integer("n_programs", 1))]
    data.close()
    return found


def compare_l1(tally: Tally, name: str, ours: np.ndarray, recorded: np.ndarray, mask: np.ndarray | None = None) -> None:
    """L1 words of one program."""
    rows = np.arange(len(recorded)) if mask is None else np.flatnonzero(mask)
    tally.compared += len(rows)
    wrong = rows[(ours[rows] != recorded[rows]).any(axis=1)]
    if len(wrong):
        row = wrong[0]
        tally.differ(
            len(wrong), f"{name}: L1 word {row}: got {integer(ours[row]):064x}, recorded {integer(recorded[row]):064x}"
        )


def compare_list(tally: Tally, name: str, ours: list, recorded: list) -> None:
    """Two sequences, element for element; what is missing or too much counts as different."""
    tally.compared += max(len(ours), len(recorded))
    for index in range(max(len(ours), len(recorded))):
        got = ours[index] if index < len(ours) else "nothing"
        wanted = recorded[index] if index < len(recorded) else "nothing"
        if got != wanted:
            tally.differ(1, f"{name} [{index}]: got {got}, recorded {wanted}")


def compare_memory(
    tally: Tally, name: str, bench: VectorBench, writes: list[tuple[int, int]], recorded: dict[int, int]
) -> None:
    """Recorded words after the run; a word written where nothing was recorded counts as different."""
    for address, wanted in recorded.items():
        tally.compared += 1
        got = bench.memory.get(address, 0)
        if got != wanted:
            tally.differ(1, f"{name}: memory {address:#x}: got {got:064x}, recorded {wanted:064x}")
    for address in sorted({address for address, _ in writes} - recorded.keys()):
        tally.differ(1, f"{name}: memory {address:#x}: got {bench.memory[address]:064x}, recorded nothing")


def check_vector_core(path: Path) -> list[Tally]:
    """Every program of `vector_core.npz`: how it ended, the L1 words that bind, and memory.

    Only the errata that a program lists are on. Kernel cycles are reported beside the published ones, where
    those were recorded.
    """
    ends = Tally(path.name, "vector programs: how they ended", "programs")
    l1 = Tally(path.name, "vector programs: L1 after", "words")
    memory = Tally(path.name, "vector programs: memory after", "words")
    for program in programs(path, CoreProgram):
        with replaying(path, program.name):
            payload = CU_SIGNAL.encode(code=program.code, arg=program.arg)
            ends.compared += 1
            try:
                bench, flits = replay(program)
            except TimeoutError as error:
                ends.differ(1, f"{program.name}: {error}")
                continue
        ours = Traffic(flits)
        expected = Flit(BENCH, bench.core.node, FlitType.CU_SIGNAL, TXN, 1, 0, payload)
        if ours.signals != [expected]:
            ends.differ(1, f"{program.name}: got {ours.signals}, recorded code {program.code} argument {program.arg}")
        compare_l1(l1, program.name, bench.core.l1_image(), program.l1_after, program.mask)
        compare_memory(memory, program.name, bench, ours.writes, program.memory_after)
        if program.cycles > 0:
            ends.cycles.append((program.name, program.cycles, bench.completions()[-1].arg))
    return [ends, l1, memory]


def check_vector_core_published(path: Path) -> list[Tally]:
    """The recordings of `vector_core_published.npz`, each with the errata it lists.

    Compared: header and payload of the signals after RUN (a finished RUN's cycle count aside) and of every flit to
    a node, the (address, data) read and written in order, all of L1 and the recorded memory. Not compared: the
    cycles, how words are cut into bursts, and what `NOT_COMPARED` names.
    """
    ends = Tally(path.name, "vector recordings: signals", "signals")
    traffic = Tally(path.name, "vector recordings: words read and written, flits to nodes", "words")
    l1 = Tally(path.name, "vector recordings: L1 after", "words")
    memory = Tally(path.name, "vector recordings: memory after", "words")
    for program in programs(path, Published):
        if program.end != (program.code, program.arg):
            said = f"code, argument {program.code, program.arg}"
            ends.differ(1, f"{program.name}: the file says {said}, its last signal {program.end}")
        timing = [identifier for identifier in TIMING_ERRATA if identifier in program.errata]
        if timing:
            ends.left_out[timing[0]] = ends.left_out.get(timing[0], 0) + 1
            continue
        if program.errata - PUBLISHED:
            raise GoldenError(f"{path}: {program.name}: no model reproduces {', '.join(program.errata - PUBLISHED)}")
        with replaying(path, program.name):
            try:
                bench, flits = replay(program)
            except TimeoutError as error:
                ends.differ(1, f"{program.name}: {error}")
                continue
            ours, theirs = Traffic(flits), Traffic(program.sent)
        compare_list(ends, f"{program.name}: signal", ours.signals, theirs.signals)
        read, recorded = zip_longest(ours.reads, bench.answers), zip_longest(theirs.reads, program.answered)
        compare_list(traffic, f"{program.name}: (address, data) read", list(read), list(recorded))
        compare_list(traffic, f"{program.name}: (address, data) written", ours.writes, theirs.writes)
        compare_list(traffic, f"{program.name}: flit to a node", ours.node, theirs.node)
        compare_l1(l1, program.name, bench.core.l1_image(), program.l1_after)
        compare_memory(memory, program.name, bench, ours.writes, program.memory_after)
        if program.code == SignalCode.INST_COMPLETE:
            ends.cycles.append((program.name, program.arg, bench.completions()[-1].arg))
    return [ends, traffic, l1, memory]
