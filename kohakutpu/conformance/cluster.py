"""Golden cluster cases (`cluster.npz`) through the cycle model, driven by the flits a mesh would bring it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kohakutpu.formats import mxfp7, words
from kohakutpu.formats.accumulator import AccumulatorFormat
from kohakutpu.isa import cluster as isa
from kohakutpu.isa.flit import Flit, FlitType, node, xy
from kohakutpu.isa.memory import decode_request
from kohakutpu.isa.signals import CU_DATA, CU_SIGNAL, SIGNAL_ON_COMPLETE, Buffer, SignalCode
from kohakutpu.machine import ClusterUnit
from kohakutpu.model.cluster import Cluster
from kohakutpu.model.cluster_sweep import CHAIN, EMIT_VALID, SEND_VALID, TILE_WRITE
from kohakutpu.noc.engine import NEVER, Component, Engine, Link
from kohakutpu.wording import counted

from .arrays import Arrays, open_arrays, replaying
from .report import Tally

AGENT, PORT, CLUSTER = node(1, 1), node(0, 1), node(2, 1)
BUDGET = 200_000
BURST = 256  # data flits that one descriptor announces
ENTRY_BYTES, SOURCE_BYTES = 128, 256  # an entry in memory, packed and as FP16


class Signal(NamedTuple):
    """One CU_SIGNAL that the bench took."""

    cycle: int
    code: int
    arg: int
    txn: int
    dst: int


class Neighbour:
    """Everything around a cluster, played by one neighbour: agent, mesh, memory port.

    It answers entry reads from `memory`, one flit a cycle from `latency` (at least 2) cycles after the request was
    taken, stores what is written, and keeps every flit it takes in `received` with its cycle. Whoever runs the cluster
    gives it what the cluster sends (`take`) and sends what is due (`next_due`, `next_flit`).
    """

    def __init__(self, *, latency: int = 10, memory_bytes: int = 1 << 20):
        self.latency = latency
        self.memory = np.full(memory_bytes, 0xAA, dtype=np.uint8)
        self.received: list[tuple[int, Flit]] = []
        self.signals: list[Signal] = []
        self._queue: list[tuple[int, int, Flit]] = []
        self._order = 0
        self._streamed = 0  # the memory port is busy until then
        self._write: list[int] = []  # address and words left of the open write

    @property
    def now(self) -> int:
        """The next cycle to come."""
        raise NotImplementedError

    def run(self, completions: int, received: int = 0, budget: int = BUDGET) -> None:
        """Advance until so many completions and DATA_RECEIVED in all were seen. Raises `TimeoutError` when they do
        not come."""
        raise NotImplementedError

    def times(self) -> tuple[int, int, int] | None:
        """Cycles that the last sweep, drain and send took from their starts; None where nobody looks inside."""
        return None

    # ---- what the cluster sees ---------------------------------------------------------------------

    def take(self, flit: Flit, now: int) -> None:
        self.received.append((now, flit))
        if flit.type == FlitType.CU_SIGNAL:
            fields = CU_SIGNAL.decode(flit.payload)
            self.signals.append(Signal(now, fields["code"], fields["arg"], flit.txn, flit.dst))
        if flit.dst == PORT:
            self._serve(flit, now)

    def next_due(self) -> int:
        """The cycle in which the next flit may enter the link's register; NEVER when there is none."""
        return self._queue[0][0] if self._queue else NEVER

    def next_flit(self) -> Flit:
        return heapq.heappop(self._queue)[2]

    def complete(self, completions: int, received: int) -> bool:
        """So many completions and DATA_RECEIVED in all were seen."""
        answers = sum(signal.code == SignalCode.DATA_RECEIVED for signal in self.signals)
        return answers >= received and len(self.signals) - answers >= completions

    def _serve(self, flit: Flit, now: int) -> None:
        if flit.type == FlitType.MEM_RD_REQ:
            request = decode_request(flit.payload)
            entries = self.entries(request.addr, max(request.count, 1), request.quant, "AB"[request.blayout])
            at = max(now + self.latency, self._streamed)
            for index, word in enumerate(words.to_ints(entries)):
                entry, number = divmod(index, mxfp7.WORDS)
                tag = (flit.txn + entry) & 0xFF
                answer = Flit(flit.src, PORT, FlitType.MEM_RD_RESP, tag, int(number == 3), number, word)
                self.put(answer, at + index)
            self._streamed = at + len(entries) * mxfp7.WORDS
        elif flit.type == FlitType.MEM_WR_REQ:
            request = decode_request(flit.payload)
            self._write = [request.addr, request.len + 1]
        elif flit.type == FlitType.MEM_WR_DATA:
            address, left = self._write
            self.write(address, words.from_int(flit.payload))
            self._write = [address + words.WORD_BYTES, left - 1]

    def entries(self, address: int, count: int, quant: int, layout: str) -> np.ndarray:
        """Operand words uint32[count,4,8] that the memory port returns."""
        size = SOURCE_BYTES if quant else ENTRY_BYTES
        data = self.memory[address : address + size * count]
        if not quant:
            return data.view("<u4").astype(np.uint32).reshape(count, mxfp7.WORDS, 8)
        halves = data.view("<u2").astype(np.uint16).reshape(count, mxfp7.LANES, mxfp7.BLOCK)
        return mxfp7.pack(*mxfp7.quantise(halves), layout)

    # ---- driving -----------------------------------------------------------------------------------

    def put(self, flit: Flit, cycle: int | None = None) -> None:
        """Offer `flit` to the cluster from `cycle` on (the next when not given), in order of cycle and call."""
        cycle = self.now + 1 if cycle is None else cycle
        self._order += 1
        heapq.heappush(self._queue, (cycle - 1, self._order, flit))

    def instruct(self, *payloads: int, txn: int = 0x40, last: int = 0) -> None:
        for payload in payloads:
            self.put(Flit(CLUSTER, AGENT, FlitType.CU_INST, txn, last, 0, payload))

    def burst(self, buf: int, offset: int, data: Iterable[int], *, flags: int = 0, ack: int = 0, txn: int = 0x21,
              source: int = AGENT, length: int | None = None, cycle: int | None = None) -> None:  # fmt: skip
        """A CU_DATA burst, from `cycle` on; `length` overrules the number of data flits in the descriptor."""
        data = list(data)
        length = len(data) if length is None else length
        ack_x, ack_y = xy(ack)
        payload = CU_DATA.pack(buf=buf, offset=offset, len=length - 1, flags=flags, ack_x=ack_x, ack_y=ack_y)
        self.put(Flit(CLUSTER, source, FlitType.CU_DATA, txn, 0, 0, payload), cycle)
        for index, word in enumerate(data):
            self.put(Flit(CLUSTER, source, FlitType.CU_DATA, txn, int(index == len(data) - 1), 0, word), cycle)

    def load(self, side: isa.Side, bank: int, operands: np.ndarray) -> int:
        """Send operand words uint32[n,4,8] to entry 0 on of a bank by CU_DATA; returns the number of bursts."""
        data = words.to_ints(operands)
        starts = range(0, len(data), BURST)
        for start in starts:
            offset = bank * 256 * mxfp7.WORDS + start
            self.burst(Buffer(side), offset, data[start : start + BURST], flags=SIGNAL_ON_COMPLETE, ack=AGENT)
        return len(starts)

    def write(self, address: int, data: np.ndarray) -> None:
        """Little-endian bytes of an array into the bench's memory."""
        raw = np.ascontiguousarray(data).view(np.uint8).ravel()
        self.memory[address : address + len(raw)] = raw

    def node_words(self, target: int) -> list[int]:
        """The data words of every CU_DATA burst sent to a node, in order."""
        flits = [flit for _, flit in self.received if flit.type == FlitType.CU_DATA and flit.dst == target]
        out, left = [], 0
        for flit in flits:
            if left:
                out.append(flit.payload)
                left -= 1
            else:
                left = CU_DATA.get(flit.payload, "len") + 1
        return out


class ClusterBench(Neighbour, Component):
    """A cluster model of the sizes of `unit` and its neighbour, which refuses a flit in each cycle for which `refuse`
    holds."""

    def __init__(self, unit: ClusterUnit, *, latency: int = 10, memory_bytes: int = 1 << 20, skip: bool = True,
                 faults: frozenset[str] = frozenset(), refuse: Callable[[int], bool] | None = None):  # fmt: skip
        engine = Engine(skip=skip)
        Component.__init__(self, engine, "bench")
        Neighbour.__init__(self, latency=latency, memory_bytes=memory_bytes)
        self.cluster = Cluster(engine, "cluster0", unit, port=PORT, faults=faults)
        self.cluster.out.sink = self
        self.out = Link(engine, "bench.out", self)
        self.out.sink = self.cluster
        self.cluster.in_link = self.out
        self.refuse = refuse
        if refuse is not None:
            self.wake(0)

    @property
    def now(self) -> int:
        return self.engine.now

    def accept(self, flit: Flit, now: int) -> bool:
        if self.refuse is not None and self.refuse(now):
            return False
        self.take(flit, now)
        return True

    def put(self, flit: Flit, cycle: int | None = None) -> None:
        super().put(flit, cycle)
        self.wake(max(self.next_due(), self.engine.now))

    def step(self, now: int) -> int:
        following = NEVER
        if self.refuse is not None:
            following = now + 1
            if not self.refuse(following):
                self.cluster.out.retry()
        due = self.next_due()
        if due > now:
            return min(due, following)
        if self.out.flit is not None:
            self.out.wanted = True
            return following
        self.out.send(self.next_flit())
        return now + 1

    def run(self, completions: int, received: int = 0, budget: int = BUDGET) -> None:
        if not self.engine.run(lambda: self.complete(completions, received), budget):
            raise TimeoutError("\n".join([f"cycle {self.now}: the cluster is stuck", *self.cluster.describe()]))

    def times(self) -> tuple[int, int, int]:
        sweep, drain = self.cluster.sweep, self.cluster.drain
        spent = drain.last_command - drain.start
        return sweep.last_issue + CHAIN - sweep.start, spent + EMIT_VALID + 1, spent + SEND_VALID + 2


def matrix(subtiles: np.ndarray, gm: int, gn: int) -> np.ndarray:
    """Sub-tiles [gm*gn,16] in sweep order as the matrix [4gm,4gn]."""
    return subtiles.reshape(gm, gn, 4, 4).transpose(0, 2, 1, 3).reshape(4 * gm, 4 * gn)


def entries_of(lanes: np.ndarray, groups: int, chunk: int, nk: int) -> np.ndarray:
    """Row-major operand lanes [4*groups, K] of one chunk as entries [groups*nk, 4, 32], group-major."""
    block = lanes.reshape(groups, 4, -1, mxfp7.BLOCK)[:, :, chunk * nk : (chunk + 1) * nk]
    return np.ascontiguousarray(block.transpose(0, 2, 1, 3)).reshape(groups * nk, 4, mxfp7.BLOCK)


def scales_of(scales: np.ndarray, groups: int, chunk: int, nk: int) -> np.ndarray:
    block = scales.reshape(groups, 4, -1)[:, :, chunk * nk : (chunk + 1) * nk]
    return np.ascontiguousarray(block.transpose(0, 2, 1)).reshape(groups * nk, 4)


GOLDEN_UNIT = ClusterUnit(2, 1, tiles=512, a_entries=512, b_entries=512)
A_AT, B_AT, C_AT = 0, 0x20000, 0x40000


class Case:
    """One golden case: operands per chunk, and what the published unit made of them.

    `data` holds the arrays of the case. Raises `GoldenError` for shapes that do not belong together.
    """

    def __init__(self, data: Arrays, label: str):
        self.label = label
        data.leave({"name": "a label"})
        self.gm, self.gn, self.nk, self.chunks = (data.integer(name, 1) for name in ("gm", "gn", "nk", "chunks"))
        self.anchor = data.integer("anchor", 0)
        rows, columns, blocks = 4 * self.gm, 4 * self.gn, self.nk * self.chunks
        depth = mxfp7.BLOCK * blocks
        self.A_q, self.A_s = data.array("A_q", "int8", rows, depth), data.array("A_s", "uint8", rows, blocks)
        self.B_q, self.B_s = data.array("B_q", "int8", depth, columns), data.array("B_s", "uint8", columns, blocks)
        self.fp16 = "A_fp16" in data or "Bt_fp16" in data  # the operands came through the quantiser
        if self.fp16:
            self.A_fp16 = data.array("A_fp16", "uint16", rows, depth)
            self.Bt_fp16 = data.array("Bt_fp16", "uint16", columns, depth)
        self.C_fp16 = data.array("C_fp16", "uint16", self.chunks, rows, columns)
        self.C_fp22 = data.array("C_fp22", "uint32", self.chunks, rows, columns)
        self.gemm_cycles = data.array("gemm_cycles", "int64", self.chunks)
        self.sweep_cycles = data.array("sweep_cycles", "int64", self.chunks)
        for name in ("gemm_cycles", "sweep_cycles"):
            if getattr(self, name).min() < 1:
                raise data.error(name, "holds a time below one cycle")
        self.drain_cycles, self.send_cycles = data.integer("drain_cycles", 1), data.integer("send_cycles", 1)

    def entries(self, side: str, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        """Significands int8[n,4,32] and scales uint8[n,4] of one side."""
        groups = self.gm if side == "A" else self.gn
        q = self.A_q if side == "A" else np.ascontiguousarray(self.B_q.T)
        scales = self.A_s if side == "A" else self.B_s
        return entries_of(q, groups, chunk, self.nk), scales_of(scales, groups, chunk, self.nk)

    def packed(self, side: str, chunk: int) -> np.ndarray:
        """Operand words uint32[n,4,8] of one side."""
        return mxfp7.pack(*self.entries(side, chunk), side)

    def source(self, side: str, chunk: int) -> np.ndarray:
        """FP16 entries uint16[n,4,32] of one side."""
        groups = self.gm if side == "A" else self.gn
        return entries_of(self.A_fp16 if side == "A" else self.Bt_fp16, groups, chunk, self.nk)


def check_quantised(case: Case, tally: Tally) -> None:
    """What the quantiser makes of a case's FP16 matrices, beside the operands recorded for it."""
    for chunk in range(case.chunks):
        for side in "AB":
            where = f"{case.label} chunk {chunk} side {side}"
            ours, recorded = mxfp7.quantise(case.source(side, chunk)), case.entries(side, chunk)
            compare(tally, f"{where} significands", ours[0], recorded[0])
            compare(tally, f"{where} scales", ours[1], recorded[1])


def run_case(case: Case, fp16: Tally, raw: Tally, bench: Neighbour | None = None) -> None:
    """Compute a case chunk by chunk: operands by FILL and by CU_DATA in turn, results by DRAIN and by SEND.

    On the model, with cycle rows, or on what `bench` runs.
    """
    bench = bench or ClusterBench(GOLDEN_UNIT)
    subtiles = case.gm * case.gn
    done = answers = 0
    for chunk in range(case.chunks):
        bank = chunk % 2
        where = f"{case.label} after chunk {chunk}"
        if chunk % 2 and not case.fp16:
            answers += sum(bench.load(side, bank, case.packed(side.name, chunk)) for side in isa.Side)
        else:
            for side, groups, at in ((isa.Side.A, case.gm, A_AT), (isa.Side.B, case.gn, B_AT)):
                source = case.source if case.fp16 else case.packed
                bench.write(at, source(side.name, chunk))
                preq = int(not case.fp16)
                bench.instruct(isa.FILL.encode(addr=at, n=groups * case.nk, sel=side, preq=preq, fbank=bank))
            done += 2
        bench.run(done, answers)
        shape = {"gm": case.gm, "gn": case.gn, "nk": case.nk, "anchor": case.anchor}
        bench.instruct(isa.GEMM.encode(**shape, acc=int(chunk > 0), abank=bank, bbank=bank))
        bench.instruct(isa.DRAIN.encode(addr=C_AT, n=subtiles))
        bench.run(done := done + 2, answers)
        drained = bench.times()
        before = len(bench.node_words(AGENT))
        bench.instruct(isa.DRAIN.encode(n=subtiles, dnode=1, dst_x=1, dst_y=1, dbuf=Buffer.ACCUMULATOR))
        bench.run(done := done + 1, answers)
        sent = bench.times()

        got = bench.memory[C_AT : C_AT + 32 * subtiles].view("<u2").reshape(subtiles, 16)
        compare(fp16, where, matrix(got, case.gm, case.gn), case.C_fp16[chunk])
        granules = words.from_ints(bench.node_words(AGENT)[before:]).reshape(-1, 2, 8)
        tile = AccumulatorFormat(GOLDEN_UNIT.mantissa).unpack_granules(granules)
        compare(raw, where, matrix(tile, case.gm, case.gn), case.C_fp22[chunk])
        if sent:
            fp16.cycles += [
                (f"{where}: sweep", int(case.sweep_cycles[chunk]), sent[0]),
                (f"{where}: GEMM", int(case.gemm_cycles[chunk]), sent[0] + TILE_WRITE + 1),
                (f"{where}: drain", int(case.drain_cycles), drained[1]),
                (f"{where}: send", int(case.send_cycles), sent[2]),
            ]


def compare(tally: Tally, where: str, ours: np.ndarray, published: np.ndarray) -> None:
    """Count the elements of two matrices of one shape, and where they differ first."""
    tally.compared += published.size
    wrong = np.argwhere(ours != published)
    if len(wrong):
        at = tuple(wrong[0])
        values = f"{int(ours[at]):#x}, published {int(published[at]):#x}"
        tally.differ(len(wrong), f"{where}, element {tuple(map(int, at))}: {values}")


def golden_cases(path: Path) -> list[Case]:
    """The cases of `cluster.npz`."""
    data = open_arrays(path)
    cases = [Case(data.under(f"c{i:03d}_"), f"case {i:03d}") for i in range(data.integer("n_cases", 1))]
    data.close()
    return cases


def check_cluster(path: Path) -> list[Tally]:
    """Every case of `cluster.npz`: FP16 results and the raw accumulator after each chunk, with cycle rows.

    Cases that came through the quantiser are run from their FP16 matrices, and their recorded operands compared
    with what the quantiser makes of those. The cycles are reported beside ours and do not bind.
    """
    cases = golden_cases(path)
    fp16 = Tally(path.name, f"{counted(len(cases), 'cluster case')}, FP16 results", "elements")
    raw = Tally(path.name, f"{counted(len(cases), 'cluster case')}, raw accumulator", "elements")
    sources = [case for case in cases if case.fp16]
    operands = Tally(path.name, f"{counted(len(sources), 'cluster case')}, operands from the quantiser", "elements")
    for case in cases:
        with replaying(path, case.label):
            if case.fp16:
                check_quantised(case, operands)
            try:
                run_case(case, fp16, raw)
            except TimeoutError as error:
                fp16.differ(case.C_fp16.size, f"{case.label}: {error}")
    return [fp16, raw, operands] if sources else [fp16, raw]
