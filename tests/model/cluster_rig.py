"""A cluster bench and the reference, driven alike."""


import numpy as np

from kohakutpu.conformance.cluster import CLUSTER, PORT, ClusterBench
from kohakutpu.formats import words
from kohakutpu.fuzz.cluster_reference import Reference, entry
from kohakutpu.isa.cluster import FILL, GEMM, Side
from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.signals import SignalCode
from kohakutpu.machine import ClusterUnit

UNIT = ClusterUnit(2, 1, tiles=512, a_entries=512, b_entries=512)
OTHER = node(1, 0)
INST, BATCH, RECEIVED, FAULT = (
    SignalCode.INST_COMPLETE, SignalCode.BATCH_COMPLETE, SignalCode.DATA_RECEIVED, SignalCode.FAULT,
)  # fmt: skip


def blocks_of(seed, count, layout, low=-63):
    """Random entries as lists of four words: significands `low`..63, scales around 1."""
    rng = np.random.default_rng(seed)
    q = rng.integers(low, 64, (count, 4, 32))
    scales = rng.integers(8 * 12, 8 * 19, (count, 4))
    return [entry(q[e].tolist(), scales[e].tolist(), layout) for e in range(count)]


def store(bench, address, blocks):
    """Entries into the bench's memory, as preq FILLs read them."""
    bench.write(address, words.from_ints([word for block in blocks for word in block]))


class Rig:
    """A bench and the reference, filled alike."""

    def __init__(self, unit=UNIT, **options):
        self.bench = ClusterBench(unit, **options)
        self.reference = Reference(unit.tiles, unit.a_entries)
        self.done = 0
        self.free = 0x40000  # operands lie from here on, results below

    def fill(self, side, bank, eoff, blocks):
        address, self.free = self.free, self.free + 128 * len(blocks)
        store(self.bench, address, blocks)
        self.reference.fill(side, bank, eoff, blocks)
        self.issue(FILL.encode(addr=address, n=len(blocks), sel=Side[side], preq=1, eoff=eoff, fbank=bank))

    def issue(self, *payloads, **options):
        self.bench.instruct(*payloads, **options)
        self.done += len(payloads)

    def gemm(self, gm, gn, nk, emit=0, **fields):
        destination = {name: fields.pop(name) for name in list(fields) if name in ("addr", "dnode", "dst_x", "dst_y")}
        self.issue(GEMM.encode(gm=gm, gn=gn, nk=nk, emit=emit, **fields, **destination))
        return self.reference.gemm(gm, gn, nk, **fields)

    def operands(self, gm, gn, nk, seed=1, bank=0):
        self.fill("A", bank, 0, blocks_of(seed, gm * nk, "A"))
        self.fill("B", bank, 0, blocks_of(seed + 1, gn * nk, "B"))

    def run(self, received=0):
        self.bench.run(self.done, received)

    def memory(self, address, count):
        return words.to_ints(self.bench.memory[address : address + 32 * count].view("<u4").reshape(count, 8))


def sent(bench, *types):
    """Flits of some types that the cluster sent, in order."""
    return [flit for _, flit in bench.received if flit.type in types]


def payloads(count, seed=0):
    rng = np.random.default_rng(seed)
    return [int.from_bytes(rng.bytes(32), "little") for _ in range(count)]


def answer(bench, tag, number, word, cycle=None):
    bench.put(Flit(CLUSTER, PORT, FlitType.MEM_RD_RESP, tag, int(number == 3), number, word), cycle)
