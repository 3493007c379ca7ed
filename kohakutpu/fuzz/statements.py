"""The flits of single statements: instructions, reads, writes, bursts, questions, nonsense."""

from __future__ import annotations

import random

from kohakutpu.fuzz.program import Statement, problem
from kohakutpu.isa import vector
from kohakutpu.isa.flit import Flit, FlitType, pack_peers
from kohakutpu.isa.memory import MEM_REQ, MEM_WR, WORD_BYTES
from kohakutpu.isa.signals import CU_CTRL_REQUEST, CU_DATA, ControlIndex
from kohakutpu.isa.vector import DescField
from kohakutpu.machine import ClusterUnit, Machine

PAUSES = [0, 0, 0, 0, 1, 3, 20, 90]
BURSTS = [1, 1, 2, 3, 5, 8, 9, 40]


def pause(chance: random.Random) -> int:
    return chance.choice(PAUSES)


def judged(statement: Statement, machine: Machine, legal: bool) -> Statement:
    """`statement`, marked if it turned out not to be legal and did not have to be."""
    wrong = None if legal else problem(statement, machine)
    return statement._replace(purpose="format") if wrong else statement


def instruction(chance: random.Random, at: int, agent: int, payload: int) -> Flit:
    """A CU_INST with any txn, now and then the last of its program."""
    return Flit(at, agent, FlitType.CU_INST, chance.getrandbits(8), int(chance.random() < 0.15), 0, payload)


def descriptor(ad: int, part: int, value: int) -> int:
    """The payload of a DESC: a base, or a dimension as its 34 bits."""
    if part == DescField.BASE:
        return vector.DESC_BASE.encode(ad=ad, base=value)
    stride = value >> 16 & 0x3FFFF
    return vector.DESC_DIM.encode(ad=ad, field=part, stride=stride - (stride >> 17 << 18), bound=value & 0xFFFF)


def payload_word(chance: random.Random) -> int:
    """256 bits: sixteen ordinary halves, an operand word, or anything."""
    kind = chance.randrange(3)
    if kind == 0:
        return sum(
            (chance.choice([0x3000, 0x3C00, 0xB800, 0]) + chance.getrandbits(10)) << (16 * at) for at in range(16)
        )
    if kind == 1:
        return chance.getrandbits(224) << 32 | sum(chance.randrange(0x90, 0xB0) << (8 * at) for at in range(4))
    return chance.getrandbits(256)


def plain_read(chance: random.Random, port: int, agent: int, address: int, count: int) -> Flit:
    return Flit(
        port,
        agent,
        FlitType.MEM_RD_REQ,
        chance.getrandbits(8),
        1,
        0,
        MEM_REQ.pack(addr=address % (1 << 40), len=count - 1),
    )


def reflected(chance: random.Random, port: int, agent: int) -> Flit:
    """A read whose answer goes to the bench and to the port itself, which drops it."""
    payload = MEM_REQ.pack(stream=1, count=chance.choice([1, 4]), **pack_peers([port]))
    return Flit(port, agent, FlitType.MEM_RD_REQ, chance.getrandbits(8), 1, 0, payload)


def _outside(chance: random.Random, size: int) -> int:
    """An address past the memory, at its very end, or of another space."""
    return chance.choice(
        [size, size - 32, size - 64, 0x10_0000_0000, 0x80_0000_0000, 0x84_0000_0000, 0xFF_FFFF_FFE0, (1 << 40) - 1, 1]
    )


def read(
    chance: random.Random, port: int, agent: int, *, own: int, region: int, size: int, strict: bool, others: list[int]
) -> list[Flit]:
    """A read of any kind; its peers are the bench itself and nobody."""
    address = chance.randrange(region // 2 // WORD_BYTES) * WORD_BYTES
    if chance.random() < 0.1:
        address = _outside(chance, size)
    elif not strict and chance.random() < 0.3:
        address += chance.choice([1, 8, 31])
    kind = chance.random()
    if kind < 0.4:
        return [plain_read(chance, port, agent, address, chance.choice([1, 2, 7, 8, 9, 33, 130, 256]))]
    if kind < 0.5:  # single words, one behind the other
        return [
            plain_read(chance, port, agent, address + WORD_BYTES * at, 1) for at in range(chance.choice([4, 20, 64]))
        ]
    fields = {
        "addr": address, "stream": chance.choice([1, 1, 0]), "quant": chance.randrange(2),
        "blayout": chance.randrange(2),
        "count": chance.choice([0, 1, 2, 5, 9, 17] + [255] * (chance.random() < 0.1)),
        "entry_words": chance.choice([0, 0, 1, 2, 3, 4, 5, 255]), "len": chance.choice([3, 0, 255]),
        "flush": int(chance.random() < 0.1), "invalidate": int(chance.random() < 0.1),
        "cacheable": int(chance.random() < 0.1),
    }  # fmt: skip
    if fields["count"] == 255:
        fields["addr"] %= region // 4
    peers = [chance.choice([agent, chance.choice(others)]) for _ in range(chance.choice([0, 0, 1, 2, 3]))]
    fields |= pack_peers(peers)
    return [Flit(port, agent, FlitType.MEM_RD_REQ, chance.getrandbits(8), 1, 0, MEM_REQ.pack(**fields))]


def write(
    chance: random.Random, port: int, agent: int, *, own: int, region: int, size: int, strict: bool, others: list[int]
) -> list[Flit]:
    """Some write bursts."""
    flits = []
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        count = chance.randint(1, 8)
        address = own + chance.randrange(0x3F00 // WORD_BYTES) * WORD_BYTES
        if chance.random() < 0.1:
            address = _outside(chance, size)
        elif not strict and chance.random() < 0.3:
            address += chance.choice([1, 8, 31])
        txn, sent = chance.getrandbits(8), count
        if not strict and chance.random() < 0.2:
            sent, count = chance.choice([(count, count + 1), (count + 1, count), (9, 9), (0, count)])
        flits.append(Flit(port, agent, FlitType.MEM_WR_REQ, txn, 0, 0, MEM_WR.pack(addr=address, len=count - 1)))
        for left in reversed(range(sent)):
            flits.append(Flit(port, agent, FlitType.MEM_WR_DATA, txn, int(not left), 0, payload_word(chance)))
        if sent < count:  # what is missing, as an afterthought: or the next burst's data would be taken for it
            flits += [Flit(port, agent, FlitType.MEM_WR_DATA, txn, 0, 0, 0)] * (count - sent)
    return flits


def burst(chance: random.Random, unit, agent: int, *, good: bool, small: bool = False) -> tuple[list[Flit], str]:
    """A CU_DATA burst of the bench into `unit`, and what is wrong with it; a `small` one is acknowledged, too."""
    if isinstance(unit, ClusterUnit):
        rooms = [4 * unit.a_entries, 4 * unit.b_entries, 2 * unit.tiles]
    else:
        rooms = [unit.l1_words]
    buf = chance.randrange(len(rooms))
    count = 1 if small else min(chance.choice([*BURSTS, 256]), rooms[buf])
    offset = chance.choice([0, rooms[buf] - count, chance.randrange(rooms[buf] - count + 1)])
    offset -= offset % 2 if buf == 2 else 0
    sent, purpose = count, ""
    if not good:
        which, purpose = chance.randrange(4), "refused"
        if which == 0:
            buf = chance.choice([len(rooms), 3, 255])
        elif which == 1:
            offset = chance.choice([rooms[buf] - count + 1, 0xFFFF])
        elif which == 2 and buf == 2:
            offset |= 1
        elif not isinstance(unit, ClusterUnit):
            sent = chance.choice([max(1, count - 1), min(count + 1, 256)])  # framed by `last` as well as by count
        else:
            purpose = ""
    ack = chance.choice([0, agent, agent, unit.node])
    head = CU_DATA.pack(
        buf=buf, offset=offset, len=count - 1, flags=int(small) or chance.randrange(2), ack_y=ack >> 4, ack_x=ack & 15
    )
    txn = chance.getrandbits(8)
    flits = [Flit(unit.node, agent, FlitType.CU_DATA, txn, 0, 0, head)]
    for left in reversed(range(sent)):
        flits.append(Flit(unit.node, agent, FlitType.CU_DATA, txn, int(not left), 0, payload_word(chance)))
    return flits, purpose


def question(chance: random.Random, at: int, agent: int) -> Flit:
    """CU_CTRL, mostly of an index that exists."""
    index = chance.choice([*ControlIndex, ControlIndex.CAPS, ControlIndex.STATUS, 4, 255])
    payload = CU_CTRL_REQUEST.encode(
        op=chance.randrange(2), index=index, value=chance.choice([0, 1, 0x1234, (1 << 64) - 1])
    )
    return Flit(at, agent, FlitType.CU_CTRL, chance.getrandbits(8), 1, 0, payload)


def nonsense(chance: random.Random, at: int, agent: int, *, response: bool) -> list[Flit]:
    """Types that the receiver does not know, or has not asked for; no `response` where one would stay for good."""
    kinds = [FlitType.MEM_WR_ACK, FlitType.CU_SIGNAL, FlitType.ERROR, 9, 12] + [
        FlitType.MEM_RD_RESP,
        FlitType.MEM_WR_DATA,
    ] * response
    return [
        Flit(at, agent, chance.choice(kinds), chance.getrandbits(8), chance.randrange(2), 0, chance.getrandbits(256))
    ]
