"""Random life of a cluster, the same for the model and for the gates: instructions, operand bursts, memory, nonsense."""

from __future__ import annotations

import random

from kohakutpu.isa import cluster
from kohakutpu.isa.cluster import Op
from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.memory import MEM_REQ
from kohakutpu.isa.signals import CU_CTRL_REQUEST, CU_DATA

AT, PORT, HOST, CORE = node(2, 1), node(0, 1), node(1, 1), node(1, 0)
UNIT = {"tiles": 16, "a_entries": 32, "b_entries": 64, "mantissa": 14, "inst_depth": 256, "recv_depth": 16}  # no credit here: a full FIFO would block its own responses
SCALES = 0xA0A0A0A0


def operand_word(chance: random.Random) -> int:
    """256 bits that are an operand word: any significands, scales near 1."""
    scales = sum((chance.randrange(0x90, 0xB0)) << (8 * lane) for lane in range(4))
    return chance.getrandbits(224) << 32 | scales


def burst(chance: random.Random, buf: int, offset: int, length: int, *, ack: bool, source: int = HOST) -> list[Flit]:
    flags = int(ack)
    ack_node = chance.choice([0, HOST, CORE])
    head = CU_DATA.pack(buf=buf, offset=offset, len=length - 1, flags=flags, ack_y=ack_node >> 4, ack_x=ack_node & 15)
    txn = chance.getrandbits(8)
    flits = [Flit(AT, source, FlitType.CU_DATA, txn, 0, 0, head)]
    return flits + [
        Flit(AT, source, FlitType.CU_DATA, txn, int(i == length - 1), 0, operand_word(chance)) for i in range(length)
    ]


def instruction(chance: random.Random, **fields) -> Flit:
    word = cluster.WORD.pack(**fields)
    return Flit(AT, HOST, FlitType.CU_INST, chance.getrandbits(8), int(chance.random() < 0.2), 0, word)


def destination(chance: random.Random) -> dict[str, int]:
    if chance.random() < 0.4:
        return {"addr": chance.randrange(1 << 35) << 5, "dnode": 0}
    far = chance.random() < 0.2
    return {
        "addr": chance.randrange(1 << 16) << 5, "dnode": 1, "dst_x": 1, "dst_y": chance.randrange(2), "dbuf": chance.choice([0, 1, 2]),
        "dflags": chance.randrange(2), "dack_x": 1, "dack_y": 1, "dfin": chance.randrange(1, 256) if far else 0,
        "dmesh": chance.randrange(4) if far else 0,
    }  # fmt: skip


def gemm(chance: random.Random, emit: int) -> dict[str, int]:
    gm, gn = chance.choice([(1, 1), (1, 2), (3, 1), (2, 2), (1, 5), (2, 3), (4, 4), (0, 3)])
    return {
        "op": Op.GEMM, "gm": gm, "gn": gn, "nk": chance.choice([0, 1, 1, 2, 3]), "acc": chance.randrange(2), "emit": emit,
        "aoff": chance.randrange(256), "boff": chance.randrange(256), "abank": chance.randrange(2), "bbank": chance.randrange(2),
        "anchor": chance.choice([40, 40, 40, 38, 90]),
    }  # fmt: skip


def program(seed: int, length: int) -> list[tuple[int, Flit]]:
    """(cycle, flit) to send to the cluster, seeded; responses of memory are `Memory`'s."""
    chance = random.Random(seed)
    out: list[tuple[int, Flit]] = []
    now = 0

    def send(*flits: Flit, gap: int = 0) -> None:
        nonlocal now
        now += gap
        out.extend((now, flit) for flit in flits)

    for side in (0, 1):  # something to multiply
        send(*burst(chance, side, 0, 32, ack=bool(side)))
    for _ in range(length):
        kind = chance.randrange(12)
        gap = chance.choice([0, 0, 0, 1, 5, 40])
        if kind < 2:
            n = chance.choice([0, 1, 2, 3, 5, 9])
            send(instruction(chance, op=Op.FILL, n=n, sel=chance.randrange(2), addr=chance.randrange(1 << 20) << 7,
                             preq=chance.randrange(2), eoff=chance.randrange(256), fbank=chance.randrange(2)), gap=gap)  # fmt: skip
        elif kind < 5:
            send(instruction(chance, **gemm(chance, 0)), gap=gap)
        elif kind == 5:
            fields = gemm(chance, 1)
            send(instruction(chance, **(fields | destination(chance))), gap=gap)
            if chance.random() < 0.8:
                n = max(fields["gm"], 1) * max(fields["gn"], 1) + (chance.random() < 0.1)
                send(instruction(chance, op=Op.DRAIN, fuse=1, n=n, **destination(chance)))
        elif kind < 8:
            send(instruction(chance, op=Op.DRAIN, n=chance.choice([0, 1, 4, 8, 9, 16, 20]), **destination(chance)), gap=gap)
        elif kind == 8:
            send(*burst(chance, chance.randrange(2), chance.randrange(90), chance.randrange(1, 9), ack=chance.random() < 0.5), gap=gap)
        elif kind == 9:
            send(*burst(chance, 2, 2 * chance.randrange(14), chance.choice([1, 2, 4, 5]), ack=chance.random() < 0.5), gap=gap)
        elif kind == 10:
            bad = chance.choice([(3, 0, 2), (0, 127, 2), (2, 31, 2), (2, 1, 2), (255, 0, 1)])
            send(*burst(chance, *bad, ack=True), gap=gap)
        else:
            index = chance.choice([0, 1, 2, 3, 4])
            ask = Flit(AT, HOST, FlitType.CU_CTRL, chance.getrandbits(8), 1, 0, CU_CTRL_REQUEST.pack(index=index))
            junk = Flit(AT, HOST, chance.choice([3, 6, 9, 12]), 0, 1, 0, chance.getrandbits(256))
            odd = instruction(chance, op=chance.choice([0, 4, 15]))
            large = instruction(chance, op=Op.FILL, n=256)
            send(chance.choice([ask, junk, odd, large]), gap=gap)
    return out


class Memory:
    """Answers entry reads `latency` cycles after they arrive, ahead of whatever else `source` has to send.

    (On a mesh a port's answers do not queue behind other senders' instructions.) It acknowledges nothing.
    """

    def __init__(self, source, seed: int, latency: int, wake=lambda cycle: None):
        self.source = source
        self.wake = wake
        self.chance = random.Random(seed)
        self.latency = latency

    def __call__(self, cycle: int, flit: Flit) -> None:
        if flit.type != FlitType.MEM_RD_REQ:
            return
        count = MEM_REQ.get(flit.payload, "count")
        answers = [
            Flit(AT, PORT, FlitType.MEM_RD_RESP, (flit.txn + entry) & 0xFF, int(word == 3), word, operand_word(self.chance))
            for entry in range(count)
            for word in range(4)
        ]
        self.source.queue.extendleft((cycle + self.latency, answer) for answer in reversed(answers))
        self.wake(cycle + self.latency)
