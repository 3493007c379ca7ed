"""Random instructions of a matmul cluster."""

from __future__ import annotations

import random

from kohakutpu.fuzz import statements as make
from kohakutpu.fuzz.play import REGION
from kohakutpu.fuzz.program import Statement
from kohakutpu.isa.cluster import ANCHOR, DRAIN, FILL, FILL_LIMIT, GEMM, WORD, Side
from kohakutpu.isa.flit import Flit, FlitType, pack_peers
from kohakutpu.isa.memory import MEM_REQ
from kohakutpu.machine import ClusterUnit

# (gm, gn, nk): narrow ones, wide ones, zeros, more sub-tiles than the result queue holds, each field's end
SHAPES = [
    (1, 1, 1), (1, 1, 4), (1, 2, 2), (2, 1, 3), (3, 1, 1), (2, 2, 2), (1, 4, 1), (1, 5, 2), (2, 3, 1), (4, 4, 2),
    (0, 3, 0), (0, 0, 0),
    (3, 4, 1), (2, 6, 2),
]  # fmt: skip
PRESSED = 64  # the deepest instruction FIFO that is filled to the brim
RARE = [(12, 12, 1), (9, 17, 1), (255, 1, 1), (1, 255, 1), (1, 1, 255), (16, 17, 1), (255, 0, 0), (0, 255, 0)]


class ClusterStream:
    """Statements of the cluster `unit`; parameters as `MeshKernel` has them."""

    def __init__(self, chance: random.Random, name: str, unit: ClusterUnit, *, agent: int, port: int | None, own: int,
                 targets: list[tuple], nobody: list[int], tidy: bool):  # fmt: skip
        """`port` is the memory port that the bench may use, `nobody` nodes at which flits vanish, and in front of which
        this unit leads a shared FILL."""
        self.chance, self.name, self.unit, self.port = chance, name, unit, port
        self.agent, self.own, self.targets, self.tidy = agent, own, targets, tidy
        self.nobody = nobody
        self.statements: list[Statement] = []

    def make(self, rounds: int) -> list[Statement]:
        """So many rounds of FILLs, GEMMs and DRAINs."""
        chance = self.chance
        for _ in range(rounds):
            for _ in range(chance.choice([0, 1, 2, 2])):
                self.fill()
            for _ in range(chance.choice([1, 1, 2, 3])):
                self.gemm()
            if not self.tidy and chance.random() < 0.2:
                self.odd()
            if chance.random() < 0.08:
                self.refused()
            self.drain()
        return self.statements

    def _add(self, payload: int, purpose: str = "") -> None:
        flit = make.instruction(self.chance, self.unit.node, self.agent, payload)
        self.statements.append(Statement(self.name, (flit,), make.pause(self.chance), purpose=purpose))

    def fill(self) -> None:
        chance = self.chance
        n = chance.choice([0, 1, 2, 3, 4, 8, 9, 16])
        if chance.random() < 0.02:
            n = FILL_LIMIT
        quarter = chance.choice([0, 1, 1, 2, 3]) * (REGION // 4)
        address = quarter + chance.randrange(REGION // 8 // 32) * 32
        if chance.random() < 0.03:
            address = chance.choice([0, 1, (1 << 40) - 1, 0xFF_FFFF_FFE0, 0x80_0000_0000, (1 << 39) - 32])
        if n == FILL_LIMIT:
            address %= REGION // 4
        # nodes that get the entries too: nobody, or the bench where that leaves this unit the leader
        peers = [chance.choice(self.nobody) for _ in range(chance.choice([0, 0, 0, 0, 1, 2, 3]) if self.nobody else 0)]
        if peers and self.agent > self.unit.node:
            peers[0] = self.agent
        listed = pack_peers(peers)
        if not peers and chance.random() < 0.1:
            listed["peers"] = chance.choice([1, 0xFFFFFF])  # not listed: npeer is 0
        elif 255 in self.nobody and chance.random() < 0.03:
            listed = pack_peers([255] * 3)
        sizes = {Side.A: self.unit.a_entries, Side.B: self.unit.b_entries}
        side = chance.choice(list(Side))
        self._add(FILL.encode(
            addr=address, n=n, sel=side, preq=chance.choice([0, 1]), nk=chance.choice([1, 1, 0, 7, 255]),
            eoff=chance.choice([0, 0, 1, 255, sizes[side] - 1 & 255, chance.randrange(256)]), fbank=chance.randrange(2),
            anchor=chance.choice([ANCHOR, ANCHOR, 0, 1, 255]), **listed,
        ))  # fmt: skip

    def _destination(self) -> dict[str, int]:
        """Memory, or a node."""
        chance = self.chance
        if chance.random() < 0.45:
            address = self.own + chance.randrange(0x2000 // 32) * 32
            if chance.random() < 0.05:
                address = chance.choice([0xFF_FFFF_FFE0, 0x80_0000_0000, 0xFF_FFFF_FF00, (1 << 40) - 1, 1])
            # what is not read for memory may be anything
            return {
                "addr": address, "dflags": chance.choice([0, 0, 1, 0x54, 255]), "dst_x": chance.choice([0, 15]),
                "dst_y": chance.choice([0, 15]), "dbuf": chance.choice([0, 0, 1, 9, 255]),
                "dack_x": chance.choice([0, 9, 15]),
                "dack_y": chance.choice([0, 9, 15]),
            }  # fmt: skip
        x, y, buf, first, room, ack = chance.choice(self.targets)
        # where it ends depends on the batch: the first quarter is always far enough from the end
        offset = first + chance.choice([0, chance.randrange(max(room // 4, 1))])
        far = ack and chance.random() < 0.15
        return {
            "addr": offset // 2 * 2 * 32 if buf == 2 else offset * 32, "dnode": 1, "dst_x": x, "dst_y": y, "dbuf": buf,
            "dflags": chance.choice([0, 1, 1, 0x54, 255]), "dack_x": ack & 15, "dack_y": ack >> 4,
            "dfin": chance.choice([1, 0x21, 255]) if far else 0, "dmesh": chance.randrange(4) if far else 0,
        }  # fmt: skip

    def gemm(self) -> None:
        """A GEMM; one that emits mostly with its DRAIN behind it."""
        chance = self.chance
        gm, gn, nk = chance.choice(RARE if chance.random() < 0.06 else SHAPES)
        emit = int(chance.random() < 0.4)
        fields = {
            "gm": gm, "gn": gn, "nk": nk, "acc": chance.randrange(2), "emit": emit, "abank": chance.randrange(2),
            "bbank": chance.randrange(2), "aoff": chance.choice([0, 0, 1, 255, chance.randrange(256)]),
            "boff": chance.choice([0, 0, 1, 255, chance.randrange(256)]),
            "anchor": chance.choice([ANCHOR, ANCHOR, ANCHOR, 38, 90, 0, 1, 255]),
        }  # fmt: skip
        if emit or chance.random() < 0.2:
            fields |= self._room(max(gm, 1) * max(gn, 1))
        self._add(GEMM.encode(**fields))
        if emit:
            if not self.tidy and chance.random() < 0.3:
                self.fill()
            if chance.random() < 0.75:
                n = max(gm, 1) * max(gn, 1)
                wrong = chance.random() < 0.05
                n = n + 1 if wrong else 0 if n == 1 and chance.random() < 0.3 else n
                self._add(
                    DRAIN.encode(fuse=1, n=n, nk=chance.choice([1, 0, 7, 255]), **self._room(n)),
                    "count" if wrong else "",
                )

    def _room(self, granules: int) -> dict[str, int]:
        """A destination with room for so many granules."""
        while True:
            fields = self._destination()
            buf = fields.get("dbuf")
            rooms = [
                room for x, y, b, _, room, _ in self.targets if (x, y, b) == (fields["dst_x"], fields["dst_y"], buf)
            ] if fields.get("dnode") else [granules]  # fmt: skip
            if granules + (fields["addr"] // 32 if fields.get("dnode") and rooms[0] < 0x1000 else 0) <= rooms[0]:
                return fields
            if granules > 256:
                return {"addr": self.own}

    def drain(self) -> None:
        chance = self.chance
        n = chance.choice([0, 1, 1, 2, 4, 7, 8, 9, 16, 20] + [70, 140, 300] * (chance.random() < 0.15))
        fields = self._room(max(n, 1) * 2)
        self._add(
            DRAIN.encode(n=n, nk=chance.choice([1, 0, 7, 255]), anchor=chance.choice([ANCHOR, 0, 1, 255]), **fields)
        )

    def refused(self) -> None:
        """What retires with a fault, or means nothing."""
        which = self.chance.random()
        if which < 0.3:  # a fused DRAIN that no GEMM is before
            self._add(DRAIN.encode(n=1))
            self._add(DRAIN.encode(fuse=1, n=2), "count")
        elif which < 0.7:
            self._add(WORD.pack(op=1, n=self.chance.choice([FILL_LIMIT + 1, 0xFFFF]), eoff=7), "count")
        else:
            self._add(WORD.pack(op=self.chance.choice([0, 4, 8, 15])), "opcode")

    def odd(self) -> None:
        """Legal, and nothing to build a kernel of."""
        chance, at = self.chance, self.unit.node
        if (
            chance.random() < 0.5 and self.unit.inst_depth <= PRESSED
        ):  # more than the FIFO holds, of what needs no memory
            payload = GEMM.encode(gm=chance.choice([1, 2]), gn=2, nk=chance.choice([1, 20]))
            flits = [make.instruction(chance, at, self.agent, payload) for _ in range(self.unit.inst_depth + 6)]
            self.statements.append(Statement(self.name, tuple(flits), press=True))
            return
        # a FILL whose entries the bench asks for
        n, txn, side = chance.choice([1, 2, 5]), chance.getrandbits(8), chance.randrange(2)
        if self.agent > at or self.port is None:
            return
        fill = FILL.encode(n=n, sel=side, eoff=txn, **pack_peers([self.agent]))
        request = MEM_REQ.pack(addr=chance.randrange(REGION // 256) * 64, len=3, stream=1, count=n, **pack_peers([at]))
        flits = (
            make.instruction(chance, at, self.agent, fill),
            Flit(self.port, self.agent, FlitType.MEM_RD_REQ, txn, 1, 0, request),
        )
        self.statements.append(Statement(self.name, flits))
