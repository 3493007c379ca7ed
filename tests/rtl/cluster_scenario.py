"""Random life of a cluster, the same for the model and for the gates: instructions, operand bursts, memory,
nonsense."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from kohakutpu.isa import cluster
from kohakutpu.isa.cluster import FILL_LIMIT, Op
from kohakutpu.isa.flit import Flit, FlitType, node, pack_peers
from kohakutpu.isa.memory import MEM_REQ
from kohakutpu.isa.signals import CU_CTRL_REQUEST, CU_DATA, CU_SIGNAL, Buffer, SignalCode
from kohakutpu.machine import ClusterUnit

AT, PORT, HOST, CORE = node(2, 1), node(0, 1), node(1, 1), node(1, 0)
DEPTHS = {"inst_depth": 16, "recv_depth": 16}
# The sizes that lives run on. `banked` is what is shipped; the others wrap everywhere.
UNITS = {
    "small": {"tiles": 16, "a_entries": 32, "b_entries": 64, "mantissa": 14, **DEPTHS},
    "banked": {"tiles": 512, "a_entries": 512, "b_entries": 512, "mantissa": 14, "inst_depth": 32, "recv_depth": 64},
    "narrow": {"tiles": 8, "a_entries": 4, "b_entries": 8, "mantissa": 10, "inst_depth": 2, "recv_depth": 1},
    "wide": {"tiles": 8, "a_entries": 512, "b_entries": 4, "mantissa": 16, "inst_depth": 1, "recv_depth": 5},
}
COMPLETIONS = (SignalCode.INST_COMPLETE, SignalCode.BATCH_COMPLETE, SignalCode.FAULT)
BANK = 256
# (gm, gn): every narrow shape, the first wide ones, zeros, and more sub-tiles than the result queue holds
SHAPES = [(1, 1), (1, 2), (2, 1), (3, 1), (2, 2), (1, 4), (1, 5), (2, 3), (4, 4), (0, 3), (0, 0), (12, 12), (9, 17)]


def unit_of(sizes: str) -> ClusterUnit:
    return ClusterUnit(x=AT & 15, y=AT >> 4, **UNITS[sizes])


def operand_word(chance: random.Random) -> int:
    """256 bits that are an operand word: any significands, scales near 1."""
    scales = sum((chance.randrange(0x90, 0xB0)) << (8 * lane) for lane in range(4))
    return chance.getrandbits(224) << 32 | scales


class Life:
    """The flits of one life of a cluster of these `sizes`, in order, each with the cycle it may be sent in."""

    def __init__(self, sizes: str, seed: int, length: int, *, scrub: bool):
        """`scrub` first writes everything that could be read, so that what was there before does not matter."""
        self.unit = unit_of(sizes)
        self.chance = random.Random(f"{sizes} {seed}")
        self.flits: list[tuple[int, Flit | int]] = []  # a number: wait until so many instructions are under way
        self.now = 0
        self._operands(everything=scrub)
        if scrub:
            self._instruct(op=Op.GEMM, gm=1, gn=self.unit.tiles)
        kinds = {
            self._fill: 4, self._gemm: 6, self._fused: 3, self._drain: 4, self._burst: 2, self._peer_burst: 2,
            self._bad_burst: 1,
            self._shared_fill: 1, self._ask: 2, self._nonsense: 1,
        }  # fmt: skip
        for kind in self.chance.choices(list(kinds), list(kinds.values()), k=length):
            self.now += self.chance.choice([0, 0, 0, 1, 5, 40])
            kind()
        self._bounds()

    def _send(self, *flits: Flit | int) -> None:
        self.flits += [(self.now, flit) for flit in flits]

    def _instruct(self, **fields) -> None:
        last = int(self.chance.random() < 0.2)
        self._send(Flit(AT, HOST, FlitType.CU_INST, self.chance.getrandbits(8), last, 0, cluster.WORD.pack(**fields)))

    def _data(self, buf: int, offset: int, length: int, *, ack: bool = False) -> None:
        """A CU_DATA burst, acknowledged to its source or to another node if `ack`."""
        chance = self.chance
        txn, source, answer = chance.getrandbits(8), chance.choice([HOST, CORE]), chance.choice([0, HOST, CORE])
        head = CU_DATA.pack(
            buf=buf, offset=offset, len=length - 1, flags=int(ack), ack_y=answer >> 4, ack_x=answer & 15
        )
        self._send(Flit(AT, source, FlitType.CU_DATA, txn, 0, 0, head))
        lies = chance.random() < 0.1  # the flits are counted, whatever their `last` says
        for left in reversed(range(length)):
            if chance.random() < 0.05:
                self._send(Flit(AT, PORT, FlitType.MEM_WR_ACK, 0, 1, 0, 0))
            last = chance.randrange(2) if lies else int(not left)
            self._send(Flit(AT, source, FlitType.CU_DATA, txn, last, 0, operand_word(chance)))

    def _operands(self, everything: bool) -> None:
        """Something to multiply: the first entries of each bank and its last, or all."""
        for buf, entries in ((Buffer.FIRST, self.unit.a_entries), (Buffer.SECOND, self.unit.b_entries)):
            size = min(entries, BANK)
            for bank in range(entries // size):
                whole = everything or size <= 64
                for first, count in ((0, size),) if whole else ((0, 12), (size - 8, 8)):
                    for entry in range(first, first + count, 64):
                        at = bank * size + entry
                        self._data(buf, 4 * at, 4 * min(64, first + count - entry))

    def _destination(self) -> dict[str, int]:
        chance = self.chance
        if chance.random() < 0.4:
            return {"addr": chance.randrange(1 << 35) << 5, "dnode": 0}
        far = chance.random() < 0.2
        return {
            "addr": chance.randrange(1 << 16) << 5, "dnode": 1, "dst_x": 1, "dst_y": chance.randrange(2),
            "dbuf": chance.choice([0, 1, 2]), "dflags": chance.randrange(2), "dack_x": 1, "dack_y": 1,
            "dfin": chance.randrange(1, 256) if far else 0, "dmesh": chance.randrange(4) if far else 0,
        }  # fmt: skip

    def _sweep(self, emit: int) -> dict[str, int]:
        chance = self.chance
        gm, gn = chance.choice(SHAPES)
        offsets = [0, 0, 1, 3, 250, 255] if max(self.unit.a_entries, self.unit.b_entries) > 64 else range(256)
        return {
            "op": Op.GEMM, "gm": gm, "gn": gn, "nk": chance.choice([0, 1, 1, 2, 3]), "acc": chance.randrange(2),
            "emit": emit,
            "aoff": chance.choice(offsets), "boff": chance.choice(offsets), "abank": chance.randrange(2),
            "bbank": chance.randrange(2), "anchor": chance.choice([40, 40, 40, 38, 90]),
        }  # fmt: skip

    def _fill(self) -> None:
        chance = self.chance
        n = chance.choice([0, 1, 2, 3, 5, 9, 9, 40])
        self._instruct(op=Op.FILL, n=n, sel=chance.randrange(2), addr=chance.randrange(1 << 20) << 7, preq=chance.randrange(2),
                       eoff=chance.choice([0, 0, 3, 250, chance.randrange(256)]),
                       fbank=chance.randrange(2))  # fmt: skip

    def _shared_fill(self) -> None:
        """A FILL with peers. If another unit leads, what it has asked for arrives without a request; were another
        instruction under way then, it could take what is not for it."""
        chance = self.chance
        peers = [
            chance.choice([node(1, 1), node(2, 0), node(2, 2), node(3, 1), AT]) for _ in range(chance.randint(1, 3))
        ]
        count, n, eoff = chance.randrange(4), chance.choice([1, 2, 4]), chance.randrange(256)
        self._instruct(op=Op.FILL, n=n, sel=chance.randrange(2), addr=chance.randrange(1 << 20) << 7, eoff=eoff,
                       **pack_peers(peers) | {"npeer": count})  # fmt: skip
        listed = (peers + [0] * 3)[:count]
        if not all(AT < peer for peer in listed):
            self._send(1, *answers(chance, eoff, n))

    def _gemm(self) -> None:
        self._instruct(**self._sweep(0))

    def _fused(self) -> None:
        """An emitting GEMM; mostly with its fused DRAIN, sometimes with another thing in between or a wrong n."""
        chance = self.chance
        fields = self._sweep(1)
        self._instruct(**fields, **self._destination())
        if chance.random() < 0.3:
            self.chance.choice([self._fill, self._peer_burst, self._ask])()
        if chance.random() < 0.7:
            n = max(fields["gm"], 1) * max(fields["gn"], 1) + (chance.random() < 0.1)
            self._instruct(op=Op.DRAIN, fuse=1, n=n, **self._destination())

    def _drain(self) -> None:
        n = self.chance.choice([0, 1, 4, 8, 9, 16, 20, 70, 140])
        self._instruct(op=Op.DRAIN, n=n, **self._destination())

    def _burst(self) -> None:
        chance = self.chance
        buf = chance.randrange(2)
        limit = 4 * (self.unit.b_entries if buf else self.unit.a_entries)
        length = chance.randrange(1, 9)
        self._data(
            buf, chance.choice([limit - length, chance.randrange(limit - length + 1)]), length,
            ack=chance.random() < 0.5,
        )  # fmt: skip

    def _peer_burst(self) -> None:
        chance = self.chance
        length = chance.choice([1, 2, 4, 5])
        pairs = self.unit.tiles - length // 2
        self._data(
            2, 2 * chance.choice([0, pairs - length % 2, chance.randrange(pairs)]), length, ack=chance.random() < 0.5
        )

    def _bad_bursts(self) -> list[tuple[int, int, int]]:
        """(buffer, offset, length) of bursts that are refused."""
        a, b, tile = self._limits()
        return [
            (3, 0, 2), (0, a - 1, 2), (1, b, 1), (2, tile - 2, 3), (2, 1, 2), (255, 0, 1), (0, 0xFFFF, 2),
            (1, b - 16, 256),
        ]  # fmt: skip

    def _limits(self) -> tuple[int, int, int]:
        """Granules in each buffer."""
        return 4 * self.unit.a_entries, 4 * self.unit.b_entries, 2 * self.unit.tiles

    def _bad_burst(self) -> None:
        self._data(*self.chance.choice(self._bad_bursts()), ack=True)

    def _bounds(self) -> None:
        """Every refused burst, and one up to the end of each buffer, each alone between two DRAINs: the next completion
        tells which was refused. A DRAIN starts when everything before it has been added up and has left, so nothing
        moves after the last."""
        up_to_the_end = [(buf, limit - 2, 2) for buf, limit in enumerate(self._limits())]
        for burst in self.chance.sample(bursts := self._bad_bursts() + up_to_the_end, len(bursts)):
            self._instruct(op=Op.DRAIN, n=1)
            self._send(0)
            self._data(*burst, ack=True)
        self._instruct(op=Op.DRAIN, n=1)

    def _ask(self) -> None:
        index, txn = self.chance.choice([0, 1, 2, 3, 3, 3, 4]), self.chance.getrandbits(8)
        self._send(Flit(AT, HOST, FlitType.CU_CTRL, txn, 1, 0, CU_CTRL_REQUEST.pack(index=index)))

    def _nonsense(self) -> None:
        chance = self.chance
        kind = chance.randrange(3)
        if kind == 0:
            self._send(Flit(AT, HOST, chance.choice([3, 6, 9, 12]), 0, 1, 0, chance.getrandbits(256)))
        elif kind == 1:
            self._instruct(op=chance.choice([0, 4, 15]))
        else:
            self._instruct(op=Op.FILL, n=chance.choice([FILL_LIMIT + 1, 0xFFFF]), eoff=7)


def answers(chance: random.Random, tag: int, count: int) -> list[Flit]:
    """What a memory port returns for `count` entries from L1 entry `tag` on."""
    return [
        Flit(AT, PORT, FlitType.MEM_RD_RESP, (tag + entry) & 0xFF, int(word == 3), word, operand_word(chance))
        for entry in range(count)
        for word in range(4)
    ]


class World:
    """Whoever a cluster talks to: sends a life's flits through `source` and answers what comes back.

    No more instructions are under way than the unit's FIFO holds, as a dispatcher's credit has it. Answers of memory
    come ahead of what still waits, `latency` cycles after what they answer; on a mesh they do not queue behind
    instructions either.
    """

    def __init__(self, source, life: Life, seed: int, wake: Callable[[int], None] = lambda cycle: None):
        self.source = source
        self.wake = wake
        self.chance = random.Random(seed)
        self.latency = [1, 20, 7][seed % 3]
        self.waiting = deque(life.flits)
        self.depth = self.credit = life.unit.inst_depth
        self._pump()

    @property
    def done(self) -> bool:
        """Everything was sent, and every instruction has completed."""
        return not self.waiting and not self.source.queue and self.credit == self.depth

    def _pump(self) -> None:
        while self.waiting:
            at, flit = self.waiting[0]
            if isinstance(flit, int):
                if self.depth - self.credit != flit:
                    return
            elif flit.type != FlitType.CU_INST:
                self.source.send(flit, at=at)
            elif self.credit:
                self.credit -= 1
                self.source.send(flit, at=at)
            else:
                return
            self.waiting.popleft()

    def _answer(self, cycle: int, *flits: Flit) -> None:
        self.source.queue.extendleft((cycle + self.latency, flit) for flit in reversed(flits))
        self.wake(cycle + self.latency)

    def __call__(self, cycle: int, flit: Flit) -> None:
        if flit.type == FlitType.MEM_RD_REQ:
            self._answer(cycle, *answers(self.chance, flit.txn, MEM_REQ.get(flit.payload, "count")))
        elif flit.type == FlitType.MEM_WR_DATA and flit.last:
            self._answer(cycle, Flit(AT, PORT, FlitType.MEM_WR_ACK, flit.txn, 1, 0, 0))
        elif flit.type == FlitType.CU_SIGNAL and CU_SIGNAL.get(flit.payload, "code") in COMPLETIONS:
            self.credit += 1
            self._pump()
