"""The vector core at its port: envelope, completions, faults, discovery, reports, injected faults."""

import random

import numpy as np
import pytest

from kohakutpu.conformance.vector import BENCH, TXN, UNIT, VectorBench, integer
from kohakutpu.isa.assembler import assemble_words
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import CU_CAPS, CU_CTRL_REPLY, CU_CTRL_REQUEST, CU_DATA, ControlIndex, SignalCode, UnitType
from kohakutpu.isa.vector import DESC, IMEM, RUN, Fault
from kohakutpu.machine import VectorUnit, load
from kohakutpu.model.vector import FAULTS, FAULTY_BIT, FAULTY_WORD, build_vector
from kohakutpu.noc.engine import Engine

ONE = 0x3F8000
FIRST = 2  # cycles from the acceptance of RUN to the first decode


def words_of(value, count=128):
    return np.full(count, value, dtype=np.uint32)


# ---- the envelope ------------------------------------------------------------------------------------------


def test_every_instruction_completes_in_order():
    """IMEM, DESC, RUN and unknown opcodes: txn echoed, `last` makes a batch, RUN alone has a result."""
    bench = VectorBench()
    payloads = [
        IMEM.encode(addr=3, word=assemble_words("VHALT")[0]), DESC.encode(ad=1, value=5), 0, 0xF << 252, 4 << 252,
        RUN.encode(pc=3),
    ]  # fmt: skip
    for number, payload in enumerate(payloads):
        bench.instruct(payload, txn=number)
    bench.instruct(payloads[-1], txn=0x99, last=1)
    bench.wait(7)
    assert [(s.code, s.arg, s.txn, s.dst) for s in bench.completions()] == [
        *((SignalCode.INST_COMPLETE, 0, number, BENCH) for number in range(5)),
        (SignalCode.INST_COMPLETE, FIRST, 5, BENCH),
        (SignalCode.BATCH_COMPLETE, 0x99, 0x99, BENCH),
    ]


def test_instruction_rate():
    """One IMEM or DESC every 2 cycles; RUN's completion is on the link 3 cycles after its kernel's last."""
    bench = VectorBench()
    bench.load(assemble_words("VHALT") * 8)
    bench.instruct(RUN.encode(pc=0))
    bench.wait(9)
    cycles = [signal.cycle for signal in bench.completions()]
    # on the link in 1, taken in 2, retired in 3, output register loaded in 4
    assert cycles[:8] == [5 + 2 * i for i in range(8)]
    # taken in 18, decoded in 20, retired in 21
    assert cycles[8] == 23


def test_descriptor_fields():
    """Fields 5 to 7 are ignored, a bound of 0 is 1, strides are signed, a base has all 40 bits."""
    bench = VectorBench()
    bench.load([], [(3, 0, 0xFF_1234_5678), (3, 1, 0x20000 << 16), (3, 2, 0x1FFFF << 16 | 7)])
    legal = DESC.encode(ad=3, value=1)
    bench.instruct(*(legal | part << 246 for part in (5, 6, 7)))
    bench.wait(6)
    descriptor = bench.core.sequencer.descriptors[3]
    assert descriptor.base == 0xFF_1234_5678
    assert descriptor.dims == ((-0x20000, 1), (0x1FFFF, 7), (0, 1), (0, 1))
    assert descriptor.words == 7


@pytest.mark.parametrize("errata, buffers", [(frozenset(), 1), (frozenset({"caps-buffers"}), 2)])
def test_capabilities(errata, buffers):
    """`caps-buffers`: the truth is one buffer."""
    bench = VectorBench(VectorUnit(x=1, y=0, inst_depth=77), errata=errata)
    request = CU_CTRL_REQUEST.encode(index=ControlIndex.CAPS)
    bench.put(Flit(UNIT.node, BENCH, FlitType.CU_CTRL, 9, 1, 0, request))
    bench.engine.advance(10)
    ((_, flit),) = bench.sent
    value = CU_CTRL_REPLY.get(flit.payload, "value")
    assert CU_CAPS.decode(value) == {"type": UnitType.VECTOR, "version": 4, "buffers": buffers, "inst_depth": 77}


def test_build_from_a_machine():
    machine = load("mm_mesh")
    core = build_vector(Engine(), machine.vectors[0], machine=machine)
    assert core.node == 0x01 and core.fill.port == machine.ports[0].node
    assert (core.inst.depth, core.recv.depth) == (machine.vectors[0].inst_depth, machine.vectors[0].recv_depth)


# ---- faults ----------------------------------------------------------------------------------------------------

LONG = [(1, 1, 32 << 16 | 257), (2, 1, 32 << 16 | 32), (2, 2, 9), (3, 1, 32 << 16 | 256)]
# name -> (what goes before, the faulting word, its code)
REFUSED = {
    "VLD dtype 3": ("", "VLD v1, A0, 3", Fault.F_DTYPE),
    "VLD dtype 0": ("", "VLD v1, A0, 0", Fault.F_DTYPE),
    "VST dtype 7": ("", "VST v1, A0, 7", Fault.F_DTYPE),
    "VCVT dtype 4": ("", "VCVT v1, v0, 4", Fault.F_DTYPE),
    "V in a stage": ("VSETMODE D2\nVMOV v1, v2", "VADD v1, c, v3 vb=k0", Fault.F_VSRC),
    "V in an unused field of a stage": (
        "VSETMODE D4\nVMOV v1, v2\nVMOV v1, c vb=k0 vc=k0", "VMOV v1, c vc=k0", Fault.F_VSRC),
    "C in a FLAT word": ("", "VMOV v1, c", Fault.F_CHAIN),
    "C in an unused field": ("", "VMOV v1, v0 vc=c", Fault.F_CHAIN),
    "C in a first stage": ("VSETMODE D2", "VMOV v1, v0 vb=c", Fault.F_CHAIN),
    "ALU word in TREE": ("VSETMODE TREE", "VMOV v1, v0", Fault.F_OPCODE),
    "ALU word with C in TREE": ("VSETMODE TREE", "VMOV v1, c", Fault.F_OPCODE),
    "VLD in a chain": ("VSETMODE D2\nVMOV v1, v2", "VLD v1, A0, FP16", Fault.F_OPCODE),
    "VHALT in a chain": ("VSETMODE D2\nVMOV v1, v2", "VHALT", Fault.F_OPCODE),
    "VSETMODE in a chain": ("VSETMODE D4\nVMOV v1, v2\nVMOV v1, c vb=k0 vc=k0", "VSETMODE FLAT", Fault.F_OPCODE),
    "VRED outside TREE": ("", "VRED s1, v0, v0, SUM", Fault.F_OPCODE),
    "VRED on a tail": ("VSETI s0, 17\nVSETVL s0\nVSETMODE TREE", "VRED s1, v0, v0, MAX", Fault.F_REDVL),
    "VRED on a tail outside TREE": ("VSETI s0, 17\nVSETVL s0", "VRED s1, v0, v0, DOT", Fault.F_REDVL),
    "VFILL of 257": ("", "VFILL A1, 0", Fault.F_LEN),
    "VDRAIN of 288": ("", "VDRAIN A2, 0", Fault.F_LEN),
    "peer VDRAIN of 257": ("", "VDRAIN A1, 0 -> (2,1) buf=0", Fault.F_LEN),
    "nested loop": ("VSETI s0, 3\nVLOOP s0, 2\nVSETMODE FLAT", "VLOOP s0, 1", Fault.F_LOOP),
    "VL 0": ("VSETI s0, 0", "VSETVL s0", Fault.F_VL),
    "VL 129": ("VSETI s0, 129", "VSETVL s0", Fault.F_VL),
    "VL -1": ("VSETI s0, 0xffffff", "VSETVL s0", Fault.F_VL),
}  # fmt: skip


def assemble(text):
    """`assemble_words`, with the dtypes that no legal word has."""
    words = []
    for line in text.splitlines():
        head, _, dtype = line.rpartition(", ")
        if line.startswith(("VLD", "VST ", "VCVT")) and dtype.isdigit():
            legal = assemble_words(f"{head}, FP16")[0]
            words.append(legal & ~(7 << 24) | int(dtype) << 24)
        else:
            words += assemble_words(line)
    return words


@pytest.mark.parametrize("name", REFUSED)
def test_fault(name):
    """The code; all before the word has happened, the word and what follows has not; the next RUN works."""
    before, word, code = REFUSED[name]
    bench = VectorBench()
    path = bench.core.path
    path.s[9] = path.s[10] = ONE
    start = "VBCAST v9, s9\nVST v9, A0, FP16\n"
    program = assemble(f"{start}{before}\n{word}\n".replace("\n\n", "\n")) + assemble("VBCAST v10, s10\nVHALT")
    signal = bench.run(program, [(0, 1, 1 << 16 | 8), *LONG])
    assert (signal.code, signal.arg, signal.txn) == (SignalCode.FAULT, code, TXN)
    assert (path.v[9] == words_of(ONE)).all()
    assert (bench.core.l1_image()[:8].view(np.uint16) == 0x3C00).all()
    assert not path.v[10].any() and not path.v[1].any() and path.s[1] == 0
    assert not any(flit.type != FlitType.CU_SIGNAL for _, flit in bench.sent)
    sequencer = bench.core.sequencer
    assert sequencer.vl == (17 if "17" in before else 128)
    # the mode persists, the loop and the half-gathered chain do not
    signal = bench.run(assemble_words("VSETMODE FLAT\nVSETI s0, 2\nVLOOP s0, 1\nVADD v3, v9, v9\nVHALT"))
    assert signal.code == SignalCode.INST_COMPLETE
    assert (path.v[3, : sequencer.vl] == 0x400000).all() and not path.v[3, sequencer.vl :].any()


def test_fault_wins_over_last():
    bench = VectorBench()
    count = bench.load(assemble_words("VMOV v1, c\nVHALT"))
    bench.instruct(RUN.encode(pc=0), last=1)
    bench.wait(count + 1)
    assert (bench.completions()[-1].code, bench.completions()[-1].arg) == (SignalCode.FAULT, Fault.F_CHAIN)


def test_fault_cycle_and_completion_order():
    """A fault ends the kernel the cycle after its decode, or when the pipelines are empty, and behind drained words."""
    bench = VectorBench()
    bench.run(assemble_words("VMOV v1, c"))
    assert bench.core.sequencer.cycles == FIRST + 1
    bench.run(assemble_words("VMOV v1, k1\nVMOV v1, c"))
    assert bench.core.sequencer.cycles == FIRST + 8 + 17 + 1
    bench = VectorBench(accepts=lambda cycle: cycle % 30 == 0)
    bench.run(assemble_words("VDRAIN A3, 0\nVMOV v1, c"), LONG)
    assert len(bench.memory) == 256 and bench.sent[-1][1].type == FlitType.CU_SIGNAL


def test_fill_in_flight_at_a_fault_still_lands():
    bench = VectorBench(latency=300)
    bench.memory.update({32 * i: i + 1 for i in range(4)})
    signal = bench.run(assemble_words("VFILL A4, 7\nVMOV v1, c"), [(4, 1, 32 << 16 | 4)])
    assert signal.arg == Fault.F_CHAIN and signal.cycle < 300
    assert bench.core.fill.open == 1
    assert bench.run(assemble_words("VBAR\nVHALT")).cycle > 300
    assert [integer(row) for row in bench.core.l1_image()[7:11]] == [1, 2, 3, 4]


def test_state_persists_across_runs():
    bench = VectorBench()
    bench.run(assemble_words("VSETI s1, 0x400000\nVSETI k3, 0xc00000\nVSETI s2, 48\nVSETVL s2\nVSETMODE D2\nVHALT"))
    text = "VMOV v1, k3\nVADD v1, c, s1 vb=k0\nVSETMODE FLAT\nVMOV v2, k1\nVCMPEQ p2, v2, k1\nVHALT"
    bench.run(assemble_words(text), pc=100)
    path = bench.core.path
    assert (path.v[2, :48] == ONE).all() and not path.v[2, 48:].any() and not path.v[1].any()
    assert path.p[2, :48].all() and not path.p[2, 48:].any()
    assert path.k == [0, ONE, 0xBF8000, 0xC00000]


# ---- reports and injected faults ----------------------------------------------------------------------------------


def test_describe_names_what_is_waited_for():
    bench = VectorBench(latency=10_000)
    assert bench.core.describe() == []
    with pytest.raises(TimeoutError) as caught:
        bench.run(assemble_words("VFILL A0, 0\nVBAR\nVHALT"), [(0, 1, 32 << 16 | 3)], budget=300)
    text = str(caught.value)
    assert "(1, 0)" in text
    assert "pc 1, waiting for every fill to land" in text
    assert "1 fill open, 3 words owed in 1 request," in text
    bench = VectorBench(accepts=lambda cycle: cycle < 40)
    bench.put(Flit(UNIT.node, 0x12, FlitType.CU_DATA, 0, 0, 0, CU_DATA.encode(len=7, offset=3)), 60)
    bench.put(Flit(UNIT.node, 0x13, FlitType.CU_DATA, 0, 0, 0, CU_DATA.encode(len=7, buf=2)), 60)
    with pytest.raises(TimeoutError) as caught:
        bench.run(assemble_words("VDRAIN A3, 0\nVHALT"), LONG, budget=300)
    text = str(caught.value)
    assert "burst open from (2, 1): 8 data flits owed, next L1 word 3" in text
    assert "burst from (3, 1) (buffer 2) refused" in text
    assert "drain to memory" in text


PROBE = """
VLD v1, A0, FP16
VCMPGT p0, v1, k1
VMOV v2, k1
VMOV v2, v1 if p0
VADD v3, v2, v1
VST v3, A0+8, FP16
VDRAIN A1, 0
VHALT
"""


def probe(faults=frozenset()):
    """A kernel that meets every injectable fault: (memory, acknowledgements)."""
    bench = VectorBench(faults=faults)
    rng = random.Random(1)
    count = bench.load(assemble_words(PROBE), [(0, 1, 1 << 16 | 16), (1, 0, 0x8000), (1, 1, 32 << 16 | 16)])
    bench.burst([sum(rng.randrange(0x3800, 0x4400) << 16 * i for i in range(16)) for _ in range(8)], flags=1)
    bench.instruct(RUN.encode(pc=0))
    bench.wait(count + 1)
    bench.engine.advance(100)
    return bench.memory, len(bench.signals) - len(bench.completions())


def test_probe_is_repeatable():
    assert probe() == probe()


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_injected_fault_is_seen(fault):
    memory, acks = probe()
    broken, answered = probe(frozenset({fault}))
    changed = {address for address in memory.keys() | broken.keys() if memory.get(address) != broken.get(address)}
    assert (answered < acks) == (fault == "vector-lost-ack")
    assert bool(changed) == (fault != "vector-lost-ack")
    if fault == "vector-l1-bit":
        assert memory[0x8000 + 32 * FAULTY_WORD] ^ broken[0x8000 + 32 * FAULTY_WORD] == 1 << FAULTY_BIT


def test_unknown_switches_are_not_the_cores_business():
    """Identifiers of other blocks are ignored."""
    assert probe(frozenset({"cluster-something"})) == probe()
