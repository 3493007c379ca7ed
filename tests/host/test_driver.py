"""Discovery, capabilities, counters, faults, credit and hand-made programs, over the models."""

import dataclasses

import numpy as np
import pytest

from kohakutpu.compiler import compile_kernel
from kohakutpu.host import counters
from kohakutpu.host.capabilities import Capabilities, Status, expected, kind_name, kind_of
from kohakutpu.host.counters import Counters
from kohakutpu.host.discovery import (
    Flicker,
    coordinates,
    discover,
    find_agent,
    hears,
    port_answers,
    unit_answers,
    write_through_port,
)
from kohakutpu.host.driver import REPLY_WAIT, Driver, NoAnswer
from kohakutpu.host.faults import UnitFault, check_fault, fault_text
from kohakutpu.host.loader import Loader
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.programs import Credit, CreditError, Program, WrongSignal, rounds, run_programs
from kohakutpu.host.transport import MEMORY_BASE
from kohakutpu.isa import vector
from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.signals import CU_CAPS, CU_CTRL_REQUEST, CU_DATA, ControlIndex, SignalCode, UnitType
from kohakutpu.isa.vector import Fault
from kohakutpu.kernels.linear import linear_silu
from kohakutpu.machine import from_picture, list_machines, load
from kohakutpu.model.system import System

BUILT = [name for name in list_machines() if not load(name).compile_only]
SOUTH = """
xxx vec xxx xxx
xxx mat mat vec
xxx mat xxx xxx
xxx xxx mag xxx
"""  # the agent at (2,3): replies to (0,0), as the published driver asks for, reach nobody there


def driver_of(machine, **options):
    return Driver(ModelTransport(System(machine, **options)))


# ---- discovery -------------------------------------------------------------------------------------------


def check_found(machine):
    found = discover(driver_of(machine))
    assert found.agent == machine.agent.node
    assert found.ports == tuple(port.node for port in machine.ports)
    assert found.units == {unit.node: expected(machine, unit) for unit in machine.units}


@pytest.mark.parametrize("name", BUILT)
def test_everything_is_found_with_nothing_known(name):
    check_found(load(name))


def test_the_agent_may_be_anywhere():
    machine = from_picture(SOUTH, name="south")
    assert machine.agent.node == node(2, 3)
    check_found(machine)
    driver = driver_of(machine)
    assert not hears(driver, node(0, 1)) and driver.ask(node(1, 1), agent=node(0, 0)) is None


def test_published_vector_cores_say_two_buffers():
    check_found(dataclasses.replace(load("quad"), errata=frozenset({"caps-buffers"})))


def test_a_neighbour_that_answers_for_an_empty_site_does_not_count():
    """On a grid that is not square: (1,3) of a 2x1 is served by the router of (1,1), which passes it south to (1,2)."""
    machine = load("2x1_6+0")
    driver = driver_of(machine)
    assert node(1, 3) in coordinates(driver.identify()) and node(0, 0) not in coordinates(driver.identify())
    assert unit_answers(driver, node(1, 2), agent=machine.agent.node) is not None
    assert unit_answers(driver, node(1, 3), agent=machine.agent.node) is None


def test_an_agent_that_hears_nothing_is_no_answer(monkeypatch):
    driver = driver_of(load("mm_mesh"))
    monkeypatch.setattr(driver, "receive", lambda: None)
    with pytest.raises(NoAnswer, match="received none of the flits"):
        find_agent(driver)


def test_the_wait_for_a_reply_is_bounded():
    driver = driver_of(load("quad"))
    start = driver.transport.now
    assert driver.ask(node(4, 4), agent=node(0, 1)) is None
    assert REPLY_WAIT["cycles"] < driver.transport.now - start < 2 * REPLY_WAIT["cycles"]
    with pytest.raises(NoAnswer, match=r"unit at \(4,4\) did not answer CU_CTRL index 0x1 .*asked 2 times") as caught:
        driver.control(node(4, 4), ControlIndex.STATUS, agent=node(0, 1))
    assert "nodes:" in str(caught.value)


def test_a_request_that_is_lost_is_repeated(monkeypatch):
    """A unit keeps one reply and loses a request that comes meanwhile (spec: CU_CTRL), so silence once is not yet
    absence."""
    machine = load("quad")
    driver, at = driver_of(machine), machine.clusters[0].node
    send, sent = driver.send, []
    monkeypatch.setattr(driver, "send", lambda flit: sent.append(flit) or (send(flit) if len(sent) > 1 else None))
    assert CU_CAPS.decode(driver.control(at, agent=machine.agent.node))["type"] == UnitType.CLUSTER
    assert len(sent) == 2 and sent[0].txn != sent[1].txn


def test_stale_flits_are_no_answers():
    machine = load("quad")
    driver, unit = driver_of(machine), machine.vectors[0]
    for index in (ControlIndex.STATUS, ControlIndex.CAPS):
        driver.send(
            Flit(unit.node, machine.agent.node, FlitType.CU_CTRL, 0xEE, 1, 0, CU_CTRL_REQUEST.encode(index=index))
        )
        driver.transport.system.engine.advance(200)
    status = Status.decode(driver.control(unit.node, ControlIndex.STATUS, agent=machine.agent.node))
    assert status == Status(busy=0, error=0, space=unit.inst_depth)


def test_capabilities_that_change_are_flicker(monkeypatch):
    driver = driver_of(load("quad"))
    values = iter(range(8))
    monkeypatch.setattr(driver, "ask", lambda *_, **__: next(values))
    with pytest.raises(Flicker, match=r"CU_CAPS of \(1,1\) reads 0x0+, 0x0+1, 0x0+2, 0x0+3") as caught:
        unit_answers(driver, node(1, 1), agent=node(0, 1))
    assert caught.value.exit_status == 1


def test_ports_read_and_write_for_the_mailbox():
    machine = load("quad")
    driver, agent = driver_of(machine), machine.agent.node
    word = bytes(range(32))
    for port in machine.ports:
        assert write_through_port(driver, port.node, 0x40, word, agent=agent)
        assert driver.transport.read_block(MEMORY_BASE + 0x40, 32) == word
        assert port_answers(driver, port.node, agent=agent, address=0x40).payload == int.from_bytes(word, "little")
        driver.transport.write_block(MEMORY_BASE + 0x40, bytes(32))
    assert port_answers(driver, machine.units[0].node, agent=agent) is None
    assert not write_through_port(driver, machine.units[0].node, 0x40, word, agent=agent)


def test_kinds_have_names():
    assert kind_name(UnitType.CLUSTER) == "matmul cluster" and kind_name(0x4B48) == "unit of type 0x4b48 ('KH')"
    assert kind_name(0x0A10) == "unit of type 0x0a10"
    ours, theirs = Capabilities(UnitType.VECTOR, 3, 1, 32), Capabilities(UnitType.CLUSTER, 4, 2, 512)
    assert ours.differences(theirs) == [
        "vector core, expected matmul cluster", "version 0x03, expected version 0x04", "1 buffer, expected 2 buffers",
        "an instruction FIFO of 32, expected an instruction FIFO of 512",
    ]  # fmt: skip
    assert ours.differences(ours) == []


# ---- counters --------------------------------------------------------------------------------------------


def test_counters_are_differences_modulo_2_to_the_32():
    before = Counters({"retired": 0xFFFF_FFFE, "busy_cycles": 5, "kernel_cycles": 900})
    after = Counters({"retired": 3, "busy_cycles": 4, "kernel_cycles": 17})
    assert after.since(before) == {"retired": 5, "busy_cycles": 0xFFFF_FFFF, "kernel_cycles": 17}
    with pytest.raises(ValueError, match="two kinds of unit"):
        after.since(Counters({"retired": 0, "busy_cycles": 0}))


def test_counters_count_what_a_unit_retired():
    machine = load("quad")
    driver = driver_of(machine)
    for unit in machine.units:
        kind = kind_of(unit)
        driver.transport.system.units[unit.node].retired = 0xFFFF_FFFF  # about to wrap
        before = counters.read(driver, unit.node, kind, agent=machine.agent.node)
        run_programs(driver, [Program(unit.node, (0, 0, 0))], slots=128, credit=4)
        spent = counters.read(driver, unit.node, kind, agent=machine.agent.node).since(before)
        assert spent["retired"] == 3 and 3 <= spent["busy_cycles"] < 100
        assert set(spent) - {"retired", "busy_cycles"} == (
            {"array_cycles", "fill_cycles"} if kind is UnitType.CLUSTER else {"kernel_cycles"}
        )


# ---- faults ----------------------------------------------------------------------------------------------


def run_word(at, word):
    return Program(at, (vector.IMEM.encode(addr=0, word=word), vector.RUN.encode(pc=0)), 7)


def test_a_fault_of_a_vector_core_is_named():
    machine = load("quad")
    driver, at = driver_of(machine), machine.vectors[0].node
    words = [vector.encode(vector.Opcode.VSETVL, va=0)]
    words.append(vector.encode(vector.Opcode.VADD, sa=vector.Source.C))
    for word, name in zip(words, ("F_VL: VSETVL of 0", "F_CHAIN: a FLAT word"), strict=True):
        with pytest.raises(UnitFault, match=rf"the unit at \(1,0\) reports FAULT: {name}") as caught:
            run_programs(driver, [run_word(at, word)], slots=128, credit=4, kinds={at: UnitType.VECTOR})
        assert caught.value.exit_status == 1


def test_a_kernel_that_ends_in_a_fault_is_no_result():
    """Its signals come all the same, and the words that it did not write would only be waited for."""
    machine = load("mm_mesh")
    artifact = compile_kernel(linear_silu, machine, {"x": (32, 64), "w": (32, 64)}, {"gm": 8, "gn": 8})
    last = artifact.rounds[-1]
    *others, run = last.flits
    bad = [
        vector.IMEM.encode(addr=500, word=vector.encode(vector.Opcode.VADD, sa=vector.Source.C)),
        vector.RUN.encode(pc=500),
    ]
    others[-1] = others[-1]._replace(payload=bad[0])
    spoilt = dataclasses.replace(last, flits=(*others, run._replace(payload=bad[1])))
    operands = {name: np.ones((32, 64), np.float16) for name in ("x", "w")}
    with pytest.raises(
        UnitFault, match=r"linear_silu, round 1 of 2: at the end .* \(1,0\) reports FAULT: F_CHAIN: "
    ) as caught:
        Loader(driver_of(machine)).run(dataclasses.replace(artifact, rounds=(*artifact.rounds[:-1], spoilt)), operands)
    assert caught.value.exit_status == 1


def test_a_fault_in_the_middle_is_noticed_by_its_credit():
    """Its signal is overwritten in the mirror by the last one, but it returned no credit."""
    machine = load("quad")
    driver, at = driver_of(machine), machine.vectors[0].node
    faulty, _ = run_word(at, vector.encode(vector.Opcode.VSETVL, va=0)), None
    program = Program(at, (*faulty.payloads, vector.IMEM.encode(addr=0, word=0)), 7)
    with pytest.raises(WrongSignal, match="1 completion too few returned it"):
        run_programs(driver, [program], slots=128, credit=8)


def test_a_fault_of_a_cluster_is_a_rejected_burst():
    machine = load("quad")
    driver, at = driver_of(machine), machine.clusters[0].node
    driver.send(Flit(at, machine.agent.node, FlitType.CU_DATA, 0, 0, 0, CU_DATA.encode(buf=9)))
    driver.send(Flit(at, machine.agent.node, FlitType.CU_DATA, 0, 1, 0, 0))
    driver.transport.system.engine.advance(200)
    with pytest.raises(UnitFault, match="an inbound CU_DATA burst was rejected since the retirement before"):
        run_programs(driver, [Program(at, (0,))], slots=128, credit=4, kinds={at: UnitType.CLUSTER})


def test_every_fault_code_has_words():
    for code in Fault:
        assert fault_text(UnitType.VECTOR, code).startswith(f"{code.name}: ")
    assert fault_text(UnitType.VECTOR, 0x40) == "code 0x40, which no vector core has"
    assert "7 operations" in fault_text(UnitType.CLUSTER, 7)
    assert (
        fault_text(0x5256, 3) == "argument 0x3 of a RV32 core, whose faults are not known"
        and fault_text(None, 3) == "argument 0x3"
    )
    check_fault(1, {"valid": 0, "code": SignalCode.FAULT, "arg": 0}, None, "nothing was seen")


# ---- credit and rounds -----------------------------------------------------------------------------------


def test_credit_keeps_one_of_each_kick():
    account = Credit(4, 32)
    for at in (1, 2, 3):
        account.kick(at, 10)
    assert account.left == 1
    with pytest.raises(CreditError, match="kick 4 of a round with 4 of credit"):
        account.kick(4, 1)
    for seeded in (0, 33):
        with pytest.raises(CreditError, match=f"{seeded} of credit: 1 to 32"):
            Credit(seeded, 32)


def test_programs_are_cut_to_staging_and_credit():
    programs = [
        Program(1, tuple(range(10)), 5),
        Program(2, (20, 21)),
        Program(1, (30,)),
        Program(3, ()),
        Program(4, (40,)),
    ]
    cut = list(rounds(programs, slots=4, credit=3))
    assert all(sum(len(p.payloads) for p in taken) <= 4 and len(taken) <= 2 for taken in cut)
    assert all(len({p.node for p in taken}) == len(taken) for taken in cut)
    sent = {}
    for taken in cut:
        for program in taken:
            sent.setdefault(program.node, []).extend(program.payloads)
    assert sent == {1: [*range(10), 30], 2: [20, 21], 4: [40]}


@pytest.mark.parametrize("credit, slots", [(2, 1), (2, 128), (32, 7), (64, 128)])
def test_long_programs_run_whatever_the_credit(credit, slots):
    machine = load("quad")
    driver = driver_of(machine)
    run_programs(
        driver,
        [Program(unit.node, (0,) * (13 + number), number) for number, unit in enumerate(machine.units)],
        slots=slots,
        credit=credit,
    )
    retired = {unit.node: driver.transport.system.units[unit.node].retired for unit in machine.units}
    assert list(retired.values()) == [13 + number for number in range(len(machine.units))]


def test_a_baseline_is_taken_before_so_that_old_signals_do_not_count():
    """The mirror survives a reset: the second run starts from what the first left."""
    machine = load("mm_mesh")
    driver = driver_of(machine)
    for _ in range(2):
        run_programs(driver, [Program(unit.node, (0, 0)) for unit in machine.units], slots=128, credit=4)
        driver.transport.system.reset()
    assert driver.node_status(machine.units[0].node)["count"] == 4
    assert driver.transport.system.units[machine.units[0].node].retired == 0


def test_a_completion_of_another_batch_is_a_wrong_signal(monkeypatch):
    machine = load("mm_mesh")
    driver = driver_of(machine)
    stage = driver.stage
    monkeypatch.setattr(
        driver, "stage", lambda flits: stage(Flit.from_int(flit)._replace(txn=9).to_int() for flit in flits)
    )
    with pytest.raises(
        WrongSignal, match=r"\(1,0\) ended with signal 0x01 arg 0x9, expected BATCH_COMPLETE of txn 0x3"
    ):
        run_programs(driver, [Program(node(1, 0), (0,), 3)], slots=128, credit=4)
