"""Programs for one unit on the gates of mm_mesh: faults, refused bursts, and what the seed left unverified.

Each runs through the whole machine under Verilator and is repeated on the model: every flit on every link in the same
cycle. What it means is checked besides.
"""

import sys
from pathlib import Path

import pytest

from kohakutpu.isa import cluster, vector
from kohakutpu.isa.assembler import assemble_words
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import (
    CU_CAPS, CU_CTRL_REPLY, CU_CTRL_REQUEST, CU_DATA, CU_SIGNAL, SIGNAL_ON_COMPLETE, ControlIndex, SignalCode, UnitType,
)  # fmt: skip
from kohakutpu.isa.vector import DescField, Fault
from kohakutpu.machine import load
from sim.machine import build

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "rtl"))
import peer_scenario as peer  # noqa: E402
from rtl_compare import model_transfers, run_job  # noqa: E402
from support.models import compare  # noqa: E402

QUIET, BUDGET = 300, 60_000
TXN = 0x40


@pytest.fixture(scope="module")
def built():
    return build(load("mm_mesh"), simulator="verilator", agent="bench")


@pytest.fixture
def play(built, tmp_path):
    """play(groups, memory=(), look=()): (flits that reached the bench, memory looked at), after the comparison."""

    def run(groups, memory=(), look=()):
        result, transfers = run_job(
            built,
            "play",
            tmp_path / "flits",
            groups=groups,
            memory=list(memory),
            quiet=QUIET,
            budget=BUDGET,
            look=list(look),
        )
        model, system = model_transfers(built.machine, result["injected"], result["cycles"], memory)
        assert compare(transfers, model) > 0
        assert system.bench.received == result["received"]
        for (address, length), data in zip(look, result["memory"]):
            assert system.memory.read(address, length) == data
        return [flit for _, flit in result["received"]], result["memory"]

    return run


def to_core(*payloads):
    return [Flit(peer.CORE, peer.AGENT, FlitType.CU_INST, TXN, 0, 0, payload) for payload in payloads]


def to_cluster(*payloads):
    return [Flit(peer.CLUSTER, peer.AGENT, FlitType.CU_INST, TXN, 0, 0, payload) for payload in payloads]


def kernel(words, start=0):
    return [vector.IMEM.encode(addr=start + i, word=word) for i, word in enumerate(words)]


def burst(target, words, *, buf=0, offset=0, length=None, signal=True):
    """A CU_DATA burst of 256-bit words that asks for an acknowledgement at the agent."""
    x, y = peer.AGENT & 15, peer.AGENT >> 4
    head = CU_DATA.encode(
        buf=buf, offset=offset, len=(length or len(words)) - 1, flags=SIGNAL_ON_COMPLETE if signal else 0, ack_x=x,
        ack_y=y,
    )  # fmt: skip
    flits = [Flit(target, peer.AGENT, FlitType.CU_DATA, 0, 0, 0, head)]
    return flits + [
        Flit(target, peer.AGENT, FlitType.CU_DATA, 0, int(i == len(words) - 1), 0, w) for i, w in enumerate(words)
    ]


def signals(received, source):
    return [
        (found["code"], found["arg"])
        for found in (CU_SIGNAL.decode(f.payload) for f in received if f.type == FlitType.CU_SIGNAL and f.src == source)
    ]


BAD_DTYPE = assemble_words("VLD v1, A0, FP16")[0] & ~(7 << 24)
# name -> (words, fault); a fault of words that the assembler refuses is made from those that it takes
PROGRAMS = {
    "F_DTYPE": ([BAD_DTYPE], Fault.F_DTYPE),
    "F_VSRC": (assemble_words("VSETMODE D2\nVMOV v1, v2\nVADD v1, c, v3 vb=k0"), Fault.F_VSRC),
    "F_CHAIN": (assemble_words("VMOV v1, c"), Fault.F_CHAIN),
    "F_OPCODE": (assemble_words("VSETMODE TREE\nVMOV v1, v0"), Fault.F_OPCODE),
    "F_LEN": (assemble_words("VFILL A1, 0"), Fault.F_LEN),
    "F_LOOP": (assemble_words("VSETI s0, 3\nVLOOP s0, 2\nVSETMODE FLAT\nVLOOP s0, 1"), Fault.F_LOOP),
    "F_VL": (assemble_words("VSETI s0, 129\nVSETVL s0"), Fault.F_VL),
    "F_REDVL": (assemble_words("VSETI s0, 17\nVSETVL s0\nVSETMODE TREE\nVRED s1, v0, v0, MAX"), Fault.F_REDVL),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fault_of_the_vector_core(play, name):
    """The RUN completes with the fault's code, and the next one works."""
    words, fault = PROGRAMS[name]
    halt = assemble_words("VHALT")
    long_walk = vector.DESC_DIM.encode(ad=1, field=DescField.DIM0, stride=32, bound=257)
    first = to_core(*kernel(words + halt), long_walk, *kernel(halt, start=64))
    received, _ = play([(1, first + to_core(vector.RUN.encode(pc=0), vector.RUN.encode(pc=64)))])
    codes = signals(received, peer.CORE)
    assert codes[-2] == (SignalCode.FAULT, fault)
    assert codes[-1][0] == SignalCode.INST_COMPLETE
    assert sum(code == SignalCode.FAULT for code, _ in codes) == 1


REJECTED = {
    "unknown buffer": (burst(peer.CORE, [1, 2, 3], buf=1), False),
    "past the end of L1": (burst(peer.CORE, [1, 2, 3], offset=510), False),
    "last too early": (burst(peer.CORE, [1, 2], length=3), True),
}


@pytest.mark.parametrize("name", REJECTED)
def test_a_rejected_burst_into_the_vector_core_is_acknowledged(play, name):
    """The seed's second unverified point: unlike the published core, ours answers; the next RUN reports F_CUDATA."""
    flits, kept = REJECTED[name]
    program = to_core(*kernel(assemble_words("VHALT")), vector.RUN.encode(pc=0), vector.RUN.encode(pc=0))
    received, _ = play([(1, flits), (40, program)])
    codes = signals(received, peer.CORE)
    assert [code for code, _ in codes].count(SignalCode.DATA_RECEIVED) == 1
    assert [arg for code, arg in codes if code == SignalCode.FAULT] == [Fault.F_CUDATA]


def test_a_rejected_burst_into_the_cluster_is_acknowledged(play):
    """Framing follows the descriptor, the acknowledgement comes, and the next retirement is a FAULT."""
    plain = cluster.GEMM.encode(gm=1, gn=1, nk=1)
    received, _ = play([(1, burst(peer.CLUSTER, list(range(1, 5)), buf=5)), (40, to_cluster(plain, plain))])
    codes = signals(received, peer.CLUSTER)
    assert [code for code, _ in codes] == [SignalCode.DATA_RECEIVED, SignalCode.FAULT, SignalCode.INST_COMPLETE]


def test_a_drain_walks_two_dimensions(play):
    """The seed's third unverified point: a VDRAIN of 3 rows of 4 words, rows 512 bytes apart."""
    base = 0x4000
    rows, columns, pitch = 3, 4, 512
    data = [int.from_bytes(bytes([i + 1]) * 32, "little") for i in range(rows * columns)]
    descriptor = [
        vector.DESC_BASE.encode(ad=2, field=DescField.BASE, base=base),
        vector.DESC_DIM.encode(ad=2, field=DescField.DIM0, stride=32, bound=columns),
        vector.DESC_DIM.encode(ad=2, field=DescField.DIM0 + 1, stride=pitch, bound=rows),
    ]
    program = to_core(*kernel(assemble_words("VDRAIN A2, 0\nVHALT")), *descriptor, vector.RUN.encode(pc=0))
    received, (image,) = play([(1, burst(peer.CORE, data)), (40, program)], look=[(base, rows * pitch)])
    assert not [code for code, _ in signals(received, peer.CORE) if code == SignalCode.FAULT]
    for row in range(rows):
        line = image[row * pitch : (row + 1) * pitch]
        want = b"".join(word.to_bytes(32, "little") for word in data[row * columns : (row + 1) * columns])
        assert line == want.ljust(pitch, b"\0")


def test_a_zero_acknowledgement_node_is_wrong(play):
    """A drain with dack (0,0) is answered to the sending cluster, which drops it: the agent never hears of it."""
    a, b = peer.operands()
    first, second, *_ = peer.phases(a, b)
    loads = [flit for flit in first if flit.type == FlitType.CU_DATA]
    gemm, drain = second
    unnamed = cluster.WORD.decode(drain.payload) | {"dack_x": 0, "dack_y": 0}
    drains = [drain._replace(payload=cluster.WORD.encode(**unnamed))]
    received, _ = play([(1, loads + [gemm, *drains])])
    assert (SignalCode.DATA_RECEIVED, 0) not in signals(received, peer.CORE)
    assert [code for code, _ in signals(received, peer.CLUSTER)].count(SignalCode.INST_COMPLETE) == 2


def test_every_unit_says_what_it_is(play):
    """CU_CAPS by CU_CTRL: types, buffers and depths as the machine has them."""
    machine = load("mm_mesh")
    request = CU_CTRL_REQUEST.encode(index=ControlIndex.CAPS)
    ask = [Flit(unit.node, peer.AGENT, FlitType.CU_CTRL, 9, 1, 0, request) for unit in machine.units]
    received, _ = play([(1, ask)])
    answers = {f.src: CU_CAPS.decode(CU_CTRL_REPLY.get(f.payload, "value")) for f in received}
    assert answers == {
        unit.node: {"type": kind, "version": 4, "buffers": buffers, "inst_depth": unit.inst_depth}
        for units, kind, buffers in ((machine.clusters, UnitType.CLUSTER, 2), (machine.vectors, UnitType.VECTOR, 1))
        for unit in units
    }
