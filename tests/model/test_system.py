"""Whole machines: every one is built and answers, hangs are reported, traces and counts do not depend on skipping."""

from __future__ import annotations

import numpy as np
import pytest

from kohakutpu.errata import UnknownErratum
from kohakutpu.isa import cluster, vector
from kohakutpu.isa import registers as reg
from kohakutpu.isa.flit import Flit, FlitType, node, xy
from kohakutpu.isa.memory import MEM_REQ
from kohakutpu.isa.signals import (
    CU_CAPS,
    CU_CTRL_REPLY,
    CU_CTRL_REQUEST,
    CU_DATA,
    SIGNAL_ON_COMPLETE,
    SignalCode,
    UnitType,
)
from kohakutpu.machine import MachineError, list_machines, load
from kohakutpu.model import faults
from kohakutpu.model.hang import Hang, report
from kohakutpu.model.system import System
from kohakutpu.noc.trace import Trace

CLUSTER, VECTOR, MEMORY, AGENT = node(2, 1), node(1, 0), node(0, 1), node(1, 1)
MACHINES = {name: load(name) for name in list_machines()}
BUILDABLE = sorted(name for name, machine in MACHINES.items() if not machine.compile_only)
assert len(BUILDABLE) > 10


def fill(side, n, addr):
    return cluster.FILL.encode(sel=side, n=n, addr=addr)


def gemm(gm, gn, nk):
    return cluster.GEMM.encode(gm=gm, gn=gn, nk=nk)


def drain(n, target, ack, flags=SIGNAL_ON_COMPLETE):
    return cluster.DRAIN.encode(
        n=n, dnode=1, dst_x=target & 15, dst_y=target >> 4, dflags=flags, dack_x=ack & 15, dack_y=ack >> 4
    )


def inst(dst, payload, last=0, txn=0x40):
    return Flit(dst, AGENT, FlitType.CU_INST, txn, last, 0, payload)


def operands(system, seed=1):
    """FP16 entries of small numbers at 0 and 0x10000."""
    values = np.random.default_rng(seed).normal(size=(2, 8192)).astype("<f2")
    system.memory.write(0, values[0].tobytes())
    system.memory.write(0x10000, values[1].tobytes())


def cluster_program(target, ack):
    """FILL both sides, multiply 2x2 tiles over two blocks, drain into a vector core."""
    return [fill(0, 4, 0), fill(1, 4, 0x10000), gemm(2, 2, 2), drain(4, target, ack)]


def vector_program(addr):
    """Store the four L1 words that were delivered at `addr`."""
    words = [vector.encode(vector.Opcode.VDRAIN, ad=0), vector.encode(vector.Opcode.VHALT)]
    return [
        *(vector.IMEM.encode(addr=i, word=word) for i, word in enumerate(words)),
        vector.DESC_BASE.encode(ad=0, base=addr),
        vector.DESC_DIM.encode(ad=0, stride=32, bound=4),
        vector.RUN.encode(pc=0),
    ]


# ---- building ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILDABLE)
def test_every_machine_is_built_and_every_unit_says_what_it_is(name):
    machine = MACHINES[name]
    system = System(machine)
    assert [port.name for port in system.ports] == [f"mag{i}" for i in range(len(machine.ports))]
    assert set(system.units) == {unit.node for unit in machine.units}
    for index, unit in enumerate(machine.units):
        request = CU_CTRL_REQUEST.encode(index=0)
        flit = Flit(unit.node, machine.agent.node, FlitType.CU_CTRL, index, 1, 0, request)
        for word, value in enumerate(reg.to_words(flit.to_int())):
            system.host.write64(reg.TX_FLIT.at(word), value)
        system.host.write64(reg.TX_KICK.at(), 1)
        empty = reg.RX_STATUS.layout
        system.run(lambda: not empty.get(system.agent.read(reg.RX_STATUS.at(), system.engine.now), "empty"), 200)
        reply = system.agent.rx.pop(system.engine.now - 1)
        assert (reply.src, reply.txn) == (unit.node, index)
        caps = CU_CAPS.decode(CU_CTRL_REPLY.get(reply.payload, "value"))
        kind = UnitType.CLUSTER if unit in machine.clusters else UnitType.VECTOR
        assert (caps["type"], caps["inst_depth"]) == (kind, unit.inst_depth)


@pytest.mark.parametrize("name", BUILDABLE)
def test_link_names_are_unique_and_follow_the_description(name):
    system = System(MACHINES[name])
    names = [link.name for link in system.engine.links]
    assert len(names) == len(set(names)) and all(link.accept is not None for link in system.engine.links)
    for kind, units in (("cluster", system.machine.clusters), ("vector", system.machine.vectors)):
        for index, unit in enumerate(units):
            assert system.units[unit.node].out.name == f"{kind}{index}.out"


def test_a_compile_only_machine_is_refused():
    name = next(name for name, machine in MACHINES.items() if machine.compile_only)
    with pytest.raises(MachineError, match="compile-only"):
        System(MACHINES[name])


def test_names_nobody_knows_are_refused():
    machine = MACHINES["mm_mesh"]
    with pytest.raises(faults.UnknownFault, match="no fault is named 'gremlin'; there are: .*orchestrator-lost-credit"):
        System(machine, faults=["gremlin"])
    with pytest.raises(UnknownErratum, match="exp2-wrap"):
        System(machine, errata=["exp2-wrapp"])
    with pytest.raises(ValueError, match="'orchestrator' or 'bench'"):
        System(machine, agent="nobody")


def test_every_fault_is_listed_once_with_a_meaning():
    listed = faults.table()
    assert len(listed) >= 10 and list(listed) == sorted(listed)
    assert all(meaning and not meaning.endswith(".") for meaning in listed.values())


def test_a_bench_has_no_registers_and_an_orchestrator_no_injection():
    with pytest.raises(TypeError, match="no registers"):
        System(MACHINES["mm_mesh"], agent="bench").host.read64(0)
    with pytest.raises(TypeError, match="agent='bench'"):
        _ = System(MACHINES["mm_mesh"]).bench


@pytest.mark.parametrize("name", ["mm_mesh", "quad"])
def test_a_bench_injects_and_receives_at_the_agent_s_coordinate(name):
    system = System(MACHINES[name], agent="bench")
    home = system.machine.agent.node
    for unit in system.units:
        system.bench.inject(Flit(unit, home, FlitType.CU_CTRL, 3, 1, 0, CU_CTRL_REQUEST.encode(index=0)))
    assert not system.bench.sent
    system.run(lambda: len(system.bench.received) == len(system.units), 200)
    assert system.bench.sent
    assert {flit.src for _, flit in system.bench.received} == set(system.units)


# ---- the host --------------------------------------------------------------------------------------------


def test_memory_window_round_trip_takes_time_and_is_counted():
    system = System(MACHINES["mm_mesh"])
    data = bytes(range(256)) * 8
    system.host.write_memory(0x4000, data)
    written = system.engine.now
    assert written >= len(data) // 32
    assert system.host.read_memory(0x4000, len(data)) == data == system.memory.read(0x4000, len(data))
    assert system.engine.now - written >= len(data) // 32
    assert (system.host.bytes_written, system.host.bytes_read) == (len(data), len(data))


# ---- a real program, skipping on and off ------------------------------------------------------------------


def run_everything(name, skip, path=None):
    """Each cluster of a machine drains into a vector core, which stores what it got; all at once."""
    system = System(MACHINES[name], agent="bench", skip=skip)
    operands(system)
    home, machine = system.machine.agent.node, system.machine
    pairs = list(zip(machine.clusters, machine.vectors))
    cycles = 0

    def wait(count):
        nonlocal cycles
        cycles += system.run(lambda: len(system.bench.received) == count, 20_000)

    def send(at, payload):
        system.bench.inject(inst(at, payload)._replace(src=home))

    with system.record(path):
        for source, target in pairs:
            for payload in cluster_program(target.node, home):
                send(source.node, payload)
        wait(5 * len(pairs))
        for number, (_, target) in enumerate(pairs):
            for payload in vector_program(0x8000 + 0x100 * number):
                send(target.node, payload)
        wait(10 * len(pairs))
        system.engine.advance(100)
    return system, cycles


@pytest.mark.parametrize("name", ["mm_mesh", "quad", "ship_3x2"])
def test_skipping_changes_neither_cycles_nor_traffic_nor_a_byte_of_the_trace(tmp_path, name):
    skipped, cycles = run_everything(name, True, tmp_path / "skip")
    visited, all_cycles = run_everything(name, False, tmp_path / "all")
    assert cycles == all_cycles
    assert (tmp_path / "skip").read_bytes() == (tmp_path / "all").read_bytes()
    assert skipped.traffic() == visited.traffic()
    assert skipped.memory.read(0x8000, 0x1000) == visited.memory.read(0x8000, 0x1000)
    assert skipped.engine.cycles < visited.engine.cycles and skipped.engine.steps < visited.engine.steps / 3
    trace = Trace(tmp_path / "skip")
    trace.require(skipped.machine)
    assert trace.flits == skipped.traffic().hops
    assert trace.links == [link.name for link in skipped.engine.links]


def test_every_pair_stores_the_same_tile(tmp_path):
    """All clusters multiply the same operands, so a flit that went astray shows as a difference."""
    system, _ = run_everything("quad", True, tmp_path / "t")
    tiles = {system.memory.read(0x8000 + 0x100 * number, 128) for number in range(4)}
    assert len(tiles) == 1 and any(tiles.pop())


def test_a_listener_hears_what_is_recorded(tmp_path):
    seen = []
    other = System(MACHINES["mm_mesh"], on_transfer=lambda *event: seen.append(event))
    with other.record(tmp_path / "u"):
        other.host.write64(reg.TX_KICK.at(), 1)
        other.engine.advance(30)
    recorded = Trace(tmp_path / "u").flits
    assert len(seen) == recorded > 0
    other.host.write64(reg.TX_KICK.at(), 1)
    other.engine.advance(30)
    assert len(seen) > recorded, "and it goes on hearing after the recording has ended"


# ---- hangs -------------------------------------------------------------------------------------------------


def dispatch(system, at, payloads, credit):
    flits = [inst(0, payload, last=i == len(payloads) - 1) for i, payload in enumerate(payloads)]
    words = [word for flit in flits for word in reg.to_words(flit.to_int())]
    host = system.host
    host.write_block(reg.stage_offset(0), b"".join(word.to_bytes(8, "little") for word in words))
    host.write64(reg.PROG_CRED.at(), credit)
    host.write64(reg.PROG_DST.at(), at)
    host.write64(reg.PROG_LEN.at(), len(flits))
    host.write64(reg.PROG_KICK.at(), 1)


def count(system, at):
    return reg.NODE_STATUS.layout.get(system.host.read64(reg.NODE_STATUS.at(at)), "count")


def test_a_withheld_credit_is_reported():
    system = System(MACHINES["mm_mesh"], faults=["orchestrator-lost-credit"])
    operands(system)
    dispatch(system, CLUSTER, [fill(0, 1, 0)] * 8, credit=2)
    with pytest.raises(Hang) as hang:
        system.run(lambda: system.agent.signals == 8, 5_000, "8 signals of cluster (2,1)")
    text = str(hang.value)
    assert text.startswith("8 signals of cluster (2,1) was not reached within 5000 cycles")
    assert "dispatch to (2,1): 4 flits left, credit 0, 4 sent since reset" in text
    assert "nothing can change any more by itself" in text
    assert "cluster0 (2, 1): idle\n    last signal raised: INST_COMPLETE" in text
    assert "agent.out: cycle" in text
    assert hang.value.exit_status == 4


@pytest.mark.parametrize("ack", [node(0, 0), CLUSTER], ids=["ack-zero", "ack-sender"])
def test_an_acknowledgement_that_goes_to_the_sender_is_reported(ack):
    """Zero answers the descriptor's source, which is the sending cluster: it drops the signal."""
    system = System(MACHINES["mm_mesh"])
    operands(system)
    dispatch(system, CLUSTER, cluster_program(VECTOR, ack), credit=8)
    with pytest.raises(Hang) as hang:
        system.run(lambda: system.agent.mirror[VECTOR] != 0, 20_000, "DATA_RECEIVED of vector core (1,0)")
    text = str(hang.value)
    assert "vector0 (1, 0): idle\n    last signal raised: DATA_RECEIVED arg 0x0" in text
    after = text[text.index("vector0 (1, 0)") :]
    assert after.splitlines()[2].strip() == "last signal seen at the agent: none"
    assert "r21.local: cycle" in text and "CU_SIGNAL (1, 0) to (2, 1)" in text


def test_the_right_acknowledgement_arrives():
    system = System(MACHINES["mm_mesh"])
    operands(system)
    dispatch(system, CLUSTER, cluster_program(VECTOR, AGENT), credit=8)
    system.run(lambda: system.agent.mirror[VECTOR] != 0 and system.agent.signals == 5, 20_000)
    assert system.agent.last_signal[VECTOR][1] == SignalCode.DATA_RECEIVED
    assert "CU_DATA" in report(system)


def test_open_bursts_and_write_slots_are_reported():
    system = System(MACHINES["mm_mesh"], agent="bench")
    bench = system.bench
    bench.inject(Flit(VECTOR, AGENT, FlitType.CU_DATA, 0, 0, 0, CU_DATA.encode(buf=0, offset=5, len=7)))
    bench.inject(Flit(VECTOR, AGENT, FlitType.CU_DATA, 0, 0, 0, 1))
    bench.inject(Flit(CLUSTER, AGENT, FlitType.CU_DATA, 0, 0, 0, CU_DATA.encode(buf=1, offset=0, len=3)))
    bench.inject(Flit(MEMORY, AGENT, FlitType.MEM_WR_REQ, 9, 0, 0, MEM_REQ.encode(addr=0x1000, len=3)))
    bench.inject(Flit(MEMORY, AGENT, FlitType.MEM_WR_DATA, 9, 0, 0, 1))
    bench.inject(Flit(node(3, 1), AGENT, FlitType.CU_DATA, 9, 0, 0, 1))
    with pytest.raises(Hang) as hang:
        system.run(lambda: False, 500)
    text = str(hang.value)
    for name in ("vector0", "cluster0", "mag0"):
        lines = text[text.index(f"  {name} (") :].splitlines()
        assert "(1, 1)" in lines[1], f"{name} does not say whose burst is open"
    assert "empty site (3,1): 1 flit vanished, the last a CU_DATA from (1, 1) to (3, 1)" in text


def test_a_unit_waiting_for_memory_says_so():
    """A fill whose responses are lost at a port that never answers."""
    system = System(MACHINES["mm_mesh"], agent="bench")
    system.ports[0].memory.step = lambda now: 1 << 62
    system.bench.inject(inst(CLUSTER, fill(0, 1, 0)))
    with pytest.raises(Hang) as hang:
        system.run(lambda: bool(system.bench.received), 2_000)
    text = str(hang.value)
    assert "cluster0 (2, 1): instruction in flight txn 0x40" in text and f"waiting for memory at {xy(MEMORY)}" in text


def test_a_blocked_link_is_named():
    system = System(MACHINES["mm_mesh"], agent="bench")

    class Held:
        def accept(self, flit, now):
            return False

    system.units[VECTOR].in_link.sink = Held()
    for _ in range(40):
        system.bench.inject(Flit(VECTOR, AGENT, FlitType.CU_DATA, 0, 0, 0, 0))
    with pytest.raises(Hang) as hang:
        system.run(lambda: False, 500)
    text = str(hang.value)
    assert "r11.north holds CU_DATA (1, 1) to (1, 0)" in text and "r11.local in: 33 flits held" in text
