"""The control agent through its registers: staging, dispatch, credit, mirror, mailbox, shared ports, reset."""

from __future__ import annotations

from collections import deque

import pytest

from kohakutpu.isa import registers as reg
from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.memory import MEM_REQ
from kohakutpu.isa.signals import CU_CTRL_REPLY, CU_CTRL_REQUEST, CU_SIGNAL, SignalCode, UnitType
from kohakutpu.machine import load
from kohakutpu.model import system as system_module
from kohakutpu.model.endpoint import Endpoint
from kohakutpu.model.system import System
from kohakutpu.noc.engine import NEVER

CLUSTER, VECTOR, MEMORY = node(2, 1), node(1, 0), node(0, 1)


class Worker(Endpoint):
    """Takes 3 cycles an instruction, keeps what it was given, and sends what a test puts in `chatter`."""

    def __init__(self, engine, spec, **_):
        super().__init__(engine, f"worker{spec.xy}", node=spec.node, unit_type=UnitType.BENCH_A, version=1, buffers=1,
                         inst_depth=spec.inst_depth, recv_depth=spec.recv_depth)  # fmt: skip
        self.taken = []
        self.got = []
        self.until = NEVER
        self.chatter = deque()

    def say(self, *flits):
        self.chatter.extend(flits)
        self.wake(self.engine.now)

    def unit_step(self, now):
        following = NEVER
        if self.in_flight is not None and now >= self.until:
            self.until = NEVER
            self.complete(now, len(self.taken), fault=bool(self.in_flight.payload & 1))
        elif self.instruction(now) is not None:
            self.taken.append(self.take_instruction(now))
            self.until = now + 3
        if self.receive(now) is not None:
            self.got.append((now, self.pop_receive(now)))
            following = now + 1
        if self.chatter:
            if self.may_send:
                self.send(self.chatter.popleft())
            if self.chatter:
                self.wait_to_send()
        return min(following, self.until)


@pytest.fixture(autouse=True)
def workers(monkeypatch):
    monkeypatch.setattr(system_module, "build_cluster", Worker)
    monkeypatch.setattr(system_module, "build_vector", Worker)


@pytest.fixture(params=["mm_mesh", "quad"])
def system(request):
    """An orchestrator on an endpoint of its own, and one behind two memory ports."""
    return System(load(request.param))


def write(system, register, index=0, **fields):
    system.host.write64(register.at(index), register.layout.encode(**fields))


def read(system, register, index=0):
    return register.layout.decode(system.host.read64(register.at(index)))


def inst(payload=0, txn=0, last=0):
    return Flit(0, 0, FlitType.CU_INST, txn, last, 0, payload)


def stage(system, flits, slot=0):
    words = [word for flit in flits for word in reg.to_words(flit.to_int())]
    system.host.write_block(reg.stage_offset(slot), b"".join(word.to_bytes(8, "little") for word in words))


def kick(system, at, count, base=0, credit=None):
    if credit is not None:
        write(system, reg.PROG_CRED, credit=credit)
    write(system, reg.PROG_DST, x=at & 15, y=at >> 4)
    write(system, reg.PROG_BASE, slot=base)
    write(system, reg.PROG_LEN, flits=count)
    write(system, reg.PROG_KICK, data=1)


def mail(system, flit):
    for index, word in enumerate(reg.to_words(flit.to_int())):
        write(system, reg.TX_FLIT, index, data=word)
    write(system, reg.TX_KICK, data=1)


def receive(system):
    if read(system, reg.RX_STATUS)["empty"]:
        return None
    words = [system.host.read64(reg.RX_FLIT.at(index)) for index in range(reg.FLIT_WORDS)]
    write(system, reg.RX_POP, data=0)
    return Flit.from_int(reg.from_words(words))


def signal(src, dst, code=SignalCode.INST_COMPLETE, arg=0, txn=0):
    return Flit(dst, src, FlitType.CU_SIGNAL, txn, 1, 0, CU_SIGNAL.encode(code=code, arg=arg))


def data(src, dst, payload=0):
    return Flit(dst, src, FlitType.CU_DATA, 0, 0, 0, payload)


class Held:
    """A sink that never takes anything."""

    def accept(self, flit, now):
        return False


# ---- plain registers --------------------------------------------------------------------------------


def test_caps(system):
    assert system.host.read64(reg.CAPS.at()) == 0x02_01_04_0120


def test_storage_and_nothing(system):
    host = system.host
    for register in (reg.CTRL, reg.IRQ_EN):
        host.write64(register.at(), 0x0123456789ABCDEF)
        assert host.read64(register.at()) == 0x0123456789ABCDEF
    write_only = [reg.TX_FLIT.at(2), reg.STAGE.at(3), reg.PROG_KICK.at()]
    for offset in (0x0028, 0x0128, 0x0200, 0x0900, 0x1800, 0x3FF8, *write_only):
        host.write64(offset, 0xFFFF_FFFF_FFFF_FFFF)
        assert host.read64(offset) == 0, hex(offset)
    assert read(system, reg.STATUS) == {"mesh_ready": 1, "error": 0, "busy": 0}


def test_the_window_repeats_every_64_kib(system):
    system.host.write64(0x30000 + reg.CTRL.at(), 77)
    assert system.host.read64(0x70000 + reg.CTRL.at()) == 77


def test_registers_keep_only_their_fields(system):
    for register, kept in ((reg.PROG_DST, 0xFF), (reg.PROG_LEN, 0xFFFF), (reg.PROG_BASE, 0xFFFF)):
        system.host.write64(register.at(), 0xFEDCBA9876543210)
        assert system.host.read64(register.at()) == 0x10 if kept == 0xFF else 0x3210


def test_read_only_registers_ignore_writes(system):
    for register in (reg.CAPS, reg.STATUS, reg.AUX_STAT, reg.NODE_STATUS, reg.RX_STATUS, reg.TX_STATUS):
        before = system.host.read64(register.at())
        system.host.write64(register.at(), 0xFFFF_FFFF_FFFF_FFFF)
        assert system.host.read64(register.at()) == before


def test_access_times(system):
    start = system.engine.now
    system.host.read64(0)
    system.host.write64(0, 1)
    assert system.engine.now - start == 8
    system.host.write_block(reg.STAGE.at(), bytes(8 * 50))
    assert system.engine.now - start == 8 + 53
    system.host.read_block(reg.NODE_STATUS.at(), 8 * 20)
    assert system.engine.now - start == 8 + 53 + 23


def test_strobes_count_for_the_mailbox_only(system):
    agent, now = system.orchestrator, system.engine.now
    agent.write(reg.TX_FLIT.at(1), 0x1111111111111111, now)
    agent.write(reg.TX_FLIT.at(1), 0x2222222222222222, now, strobe=0b0000_0110)
    assert agent.mailbox[1] == 0x1111111111222211
    agent.write(reg.CTRL.at(), 0x2222222222222222, now, strobe=0b0000_0110)
    assert agent.stored["CTRL"] == 0x2222222222222222


# ---- mailbox ---------------------------------------------------------------------------------------------


def test_mailbox_loopback(system):
    home = system.agent.node
    flit = Flit(home, node(9, 9), FlitType.CU_CTRL, 0xA5, 1, 3, (1 << 256) - 12345)
    mail(system, flit)
    system.engine.advance(30)
    assert not read(system, reg.RX_STATUS)["empty"]
    assert receive(system) == flit, "the mailbox stamps nothing"
    assert receive(system) is None
    assert system.host.read64(reg.RX_FLIT.at()) == 0


def test_a_unit_answers_the_mailbox(system):
    request = Flit(CLUSTER, system.agent.node, FlitType.CU_CTRL, 1, 1, 0, CU_CTRL_REQUEST.encode(index=0))
    mail(system, request)
    system.engine.advance(60)
    reply = receive(system)
    assert (reply.src, reply.type, CU_CTRL_REPLY.get(reply.payload, "op")) == (CLUSTER, FlitType.CU_CTRL, 2)


def test_the_mailbox_is_ignored_while_dispatch_runs_or_the_fifo_is_full(system):
    stage(system, [inst(i) for i in range(4)])
    kick(system, CLUSTER, 4, credit=0)
    mail(system, data(0, CLUSTER))
    assert not system.agent.tx.items
    write(system, reg.PROG_CRED, credit=8)
    system.engine.advance(100)
    assert not system.agent.tx.items
    out = system.agent.ports[0].out
    out.sink = Held()
    for index in range(20):
        mail(system, data(0, CLUSTER, index))
    assert len(system.agent.tx) == 16 and read(system, reg.TX_STATUS)["full"]
    assert read(system, reg.STATUS)["busy"]
    assert out.flit.payload == 0 and [flit.payload for flit in system.agent.tx.items] == list(range(1, 17))


# ---- dispatch -----------------------------------------------------------------------------------------


def test_dispatch_stamps_destination_and_source_and_nothing_else(system):
    staged = [Flit(0x77, 0x88, FlitType.CU_INST, 0x10 + i, i == 2, 5, (1 << 255) + i * 2) for i in range(3)]
    stage(system, staged, slot=9)
    kick(system, CLUSTER, 3, base=9, credit=8)
    assert read(system, reg.PROG_STAT)["run"] and read(system, reg.STATUS)["busy"]
    system.engine.advance(80)
    home = system.agent.node
    assert system.units[CLUSTER].taken == [flit._replace(dst=CLUSTER, src=home) for flit in staged]
    assert read(system, reg.PROG_STAT) == {"credit": 8 - 3 + 2, "left": 0, "run": 0}
    assert not read(system, reg.STATUS)["busy"]


def test_dispatch_times(system):
    stage(system, [inst(i) for i in range(6)])
    moves = []
    out = system.agent.ports[0].out
    system.engine.on_transfer = lambda cycle, link, flit: moves.append(cycle) if link is out else None
    kick(system, CLUSTER, 6, credit=8)
    begin = system.engine.now - 1  # in force in the fourth cycle of the access
    system.engine.advance(60)
    assert moves == [begin + 6 + 5 * i for i in range(6)]


def test_kicks_that_do_nothing(system):
    stage(system, [inst(i) for i in range(8)])
    kick(system, CLUSTER, 0, credit=8)
    assert not read(system, reg.PROG_STAT)["run"]
    kick(system, CLUSTER, 8, credit=0)
    write(system, reg.PROG_LEN, flits=2)
    write(system, reg.PROG_KICK, data=1)
    assert read(system, reg.PROG_STAT) == {"credit": 0, "left": 8, "run": 1}


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("name", ["mm_mesh", "quad"])
def test_dispatch_stops_at_a_full_transmit_fifo_and_goes_on(name, skip):
    system = System(load(name), skip=skip)
    stage(system, [inst(2 * i) for i in range(24)])
    out = system.agent.ports[0].out
    way = out.sink
    out.sink = Held()
    kick(system, CLUSTER, 24, credit=32)
    system.engine.advance(300)
    # 16 in the FIFO, one in the output register; the words of the next flit are not read
    assert len(system.agent.tx) == 16 and read(system, reg.PROG_STAT) == {"credit": 32 - 17, "left": 24 - 17, "run": 1}
    out.sink = way
    out.retry()
    system.engine.advance(6)  # a pop in the first cycle, five words from the second on
    assert system.agent.dispatched == 18
    system.engine.advance(400)
    assert [flit.payload for flit in system.units[CLUSTER].taken] == list(range(0, 48, 2))


@pytest.mark.parametrize("early", [0, 1])
def test_a_write_in_the_cycle_in_which_run_falls_still_finds_it_set(system, early):
    """The fifth word is read in cycle t: a kick loaded at the end of t is ignored, one cycle later it counts."""
    stage(system, [inst(2), inst(4)])
    kick(system, CLUSTER, 1, credit=8)
    agent, engine = system.agent, system.engine
    assert engine.run(lambda: not agent.run, 20)
    fell = engine.now  # the first cycle without `run`
    if not early:
        engine.advance(1)
    agent.write(reg.PROG_KICK.at(), 1, engine.now)
    assert agent.run is (not early) and engine.now == fell + (not early)
    agent.run, waiting = False, len(agent.tx)
    agent.write(reg.TX_KICK.at(), 1, engine.now)
    assert len(agent.tx) - waiting == (not early)


def test_a_kick_past_the_end_of_staging_is_refused_and_shown(system):
    slots = system.machine.staging_flits
    kick(system, CLUSTER, 3, base=slots - 2, credit=8)
    assert not read(system, reg.PROG_STAT)["run"] and read(system, reg.STATUS)["error"]
    assert system.host.read64(reg.IRQ_STAT.at()) == 1
    system.host.write64(reg.IRQ_STAT.at(), 1)
    assert not read(system, reg.STATUS)["error"]
    stage(system, [inst(), inst()], slot=slots - 2)
    kick(system, CLUSTER, 2, base=slots - 2)
    system.engine.advance(60)
    assert len(system.units[CLUSTER].taken) == 2


# ---- credit -----------------------------------------------------------------------------------------------


def test_credit_stalls_dispatch_and_completions_return_it(system):
    stage(system, [inst(i * 2, last=i == 9) for i in range(10)])
    kick(system, CLUSTER, 10, credit=2)
    system.engine.advance(400)
    assert len(system.units[CLUSTER].taken) == 10
    # ten left, nine INST_COMPLETE came back; the batch completion returns none
    assert read(system, reg.PROG_STAT) == {"credit": 2 - 10 + 9, "left": 0, "run": 0}


@pytest.mark.parametrize("code", [SignalCode.BATCH_COMPLETE, SignalCode.FAULT, SignalCode.DATA_RECEIVED])
def test_other_signals_return_no_credit(system, code):
    write(system, reg.PROG_CRED, credit=5)
    system.units[VECTOR].say(signal(VECTOR, system.agent.node, code))
    system.engine.advance(40)
    assert read(system, reg.PROG_CRED)["credit"] == 5
    system.units[VECTOR].say(signal(VECTOR, system.agent.node, SignalCode.INST_COMPLETE))
    system.engine.advance(40)
    assert read(system, reg.PROG_CRED)["credit"] == 6


def test_no_credit_no_flit(system):
    stage(system, [inst()])
    kick(system, CLUSTER, 1, credit=0)
    system.engine.advance(500)
    assert not system.units[CLUSTER].taken and read(system, reg.PROG_STAT)["left"] == 1
    text = "\n".join(system.agent.describe())
    assert "credit 0" in text and "dispatch to (2,1): 1 flit left, credit 0" in text


def test_credit_above_the_smallest_instruction_fifo_is_lowered_and_shown(system):
    depth = min(unit.inst_depth for unit in system.machine.units)
    write(system, reg.PROG_CRED, credit=depth)
    assert not read(system, reg.STATUS)["error"]
    write(system, reg.PROG_CRED, credit=512)
    assert read(system, reg.PROG_CRED)["credit"] == depth and read(system, reg.STATUS)["error"]


def test_a_hundred_instructions_through_a_32_deep_fifo_on_a_credit_of_24():
    system = System(load("mm_mesh"))
    assert system.units[CLUSTER].inst.depth == 32
    stage(system, [inst(2 * i, txn=3, last=i == 99) for i in range(100)])
    deepest = 0

    def watch(cycle, link, flit):
        nonlocal deepest
        deepest = max(deepest, len(system.units[CLUSTER].inst))

    system.engine.on_transfer = watch
    kick(system, CLUSTER, 100, credit=24)
    system.run(lambda: system.agent.signals == 100, 5_000)
    assert [flit.payload for flit in system.units[CLUSTER].taken] == list(range(0, 200, 2))
    assert read(system, reg.PROG_STAT)["credit"] == 24 - 100 + 99
    assert deepest <= 24 and system.agent.last_signal[CLUSTER][1:] == (SignalCode.BATCH_COMPLETE, 3)


def test_two_programs_at_once_each_awaited_by_its_own_count():
    """Stage, dispatch to one node and the other, then poll both mirrors: nothing waits for anything else."""
    system = System(load("quad"))
    for slot, at in ((0, node(1, 1)), (4, node(1, 2))):
        stage(system, [inst(2 * i + 1000 * slot) for i in range(4)], slot=slot)
    write(system, reg.PROG_CRED, credit=8)
    for slot, at in ((0, node(1, 1)), (4, node(1, 2))):
        while read(system, reg.PROG_STAT)["run"]:
            pass
        kick(system, at, 4, base=slot)
    for slot, at in ((0, node(1, 1)), (4, node(1, 2))):
        for _ in range(100):
            if (read(system, reg.NODE_STATUS, at)["count"], read(system, reg.NODE_STATUS, at)["valid"]) == (4, 1):
                break
        else:
            raise AssertionError("the mirror never showed four completions")
        assert [flit.payload for flit in system.units[at].taken] == [2 * i + 1000 * slot for i in range(4)]
    assert read(system, reg.PROG_CRED)["credit"] == 8


# ---- signals and mirror -----------------------------------------------------------------------------------


def test_signals_reach_the_mirror_and_bypass_the_receive_fifo(system):
    home = system.agent.node
    system.units[VECTOR].say(signal(VECTOR, home, SignalCode.DATA_RECEIVED, 7), signal(VECTOR, home, 0x41, 0xFFFFFFFF))
    system.units[CLUSTER].say(signal(CLUSTER, home, SignalCode.FAULT, 3))
    system.engine.advance(40)
    assert read(system, reg.NODE_STATUS, VECTOR) == {"code": 0x41, "arg": 0xFFFFFFFF, "count": 2, "valid": 1}
    assert read(system, reg.NODE_STATUS, CLUSTER) == {"code": SignalCode.FAULT, "arg": 3, "count": 1, "valid": 1}
    assert read(system, reg.NODE_STATUS, node(3, 3)) == {"code": 0, "arg": 0, "count": 0, "valid": 0}
    assert read(system, reg.SIG_DONE)["count"] == 3
    assert read(system, reg.RX_STATUS) == {"overflow": 0, "empty": 1}
    write(system, reg.SIG_DONE)
    assert read(system, reg.SIG_DONE)["count"] == 0
    assert read(system, reg.NODE_STATUS, VECTOR)["count"] == 2


def test_counts_wrap_at_16_bits(system):
    system.agent.mirror[VECTOR] = reg.NODE_STATUS.layout.encode(count=0xFFFF, valid=1)
    system.agent.signals = 0xFFFF
    system.units[VECTOR].say(signal(VECTOR, system.agent.node))
    system.engine.advance(40)
    assert read(system, reg.NODE_STATUS, VECTOR)["count"] == 0
    assert read(system, reg.SIG_DONE)["count"] == 0


def test_times_of_a_signal(system):
    """Accepted in t, in the mirror from t + 2 on."""
    moves = []
    port = system.agent.ports[0]
    system.engine.on_transfer = lambda cycle, link, flit: moves.append(cycle) if link is port.in_link else None
    system.units[VECTOR].say(signal(VECTOR, system.agent.node))
    assert system.engine.run(lambda: system.agent.mirror[VECTOR] != 0, 100)
    assert system.engine.now == moves[0] + 2


# ---- the receive FIFO -------------------------------------------------------------------------------------


def test_a_full_receive_fifo(system):
    """On its own endpoint the agent holds what it cannot take; on a shared port it drops it."""
    home = system.agent.node
    system.units[VECTOR].say(*[data(VECTOR, home, i) for i in range(20)])
    system.engine.advance(100)
    status = read(system, reg.RX_STATUS)
    assert status["overflow"] and not status["empty"]
    received = []
    while (flit := receive(system)) is not None:
        received.append(flit.payload)
    own = system.machine.agent.own_endpoint
    assert received == list(range(20 if own else 16))
    assert system.agent.dropped == (0 if own else 4)
    assert read(system, reg.RX_STATUS)["overflow"], "sticky"


def test_a_pop_in_the_cycle_of_an_arrival_does_nothing(system):
    """In that cycle the FIFO is still empty."""
    agent, engine = system.agent, system.engine
    system.units[VECTOR].say(data(VECTOR, agent.node, 5))
    assert engine.run(lambda: agent.rx.items, 100)
    agent.write(reg.RX_POP.at(), 0, engine.now)
    assert not read(system, reg.RX_STATUS)["empty"]
    agent.write(reg.RX_POP.at(), 0, engine.now)
    assert read(system, reg.RX_STATUS)["empty"]


def test_a_signal_passes_a_full_receive_fifo(system):
    home = system.agent.node
    system.units[VECTOR].say(*[data(VECTOR, home, i) for i in range(16)], signal(VECTOR, home))
    system.engine.advance(100)
    assert read(system, reg.NODE_STATUS, VECTOR)["count"] == 1
    assert read(system, reg.RX_STATUS)["overflow"], "any flit that arrives while it is full sets the flag"


# ---- memory traffic beside it ---------------------------------------------------------------------------


def memory_read(src, dst, beats, txn=1):
    return Flit(dst, src, FlitType.MEM_RD_REQ, txn, 1, 0, MEM_REQ.encode(addr=0x1000, len=beats - 1))


def test_aux_stat_counts_memory_traffic(system):
    unit = system.units[VECTOR]
    write_request = Flit(MEMORY, VECTOR, FlitType.MEM_WR_REQ, 1, 0, 0, MEM_REQ.encode(addr=0x2000, len=0))
    unit.say(memory_read(VECTOR, MEMORY, 4), memory_read(VECTOR, MEMORY, 1), write_request,
             Flit(MEMORY, VECTOR, FlitType.MEM_WR_DATA, 1, 1, 0, 5))  # fmt: skip
    system.engine.advance(200)
    assert read(system, reg.AUX_STAT) == {"moves": 0, "reads": 2, "writes": 1, "fault": 0, "busy": 0}
    assert [flit.type for _, flit in unit.got] == [FlitType.MEM_RD_RESP] * 5 + [FlitType.MEM_WR_ACK]
    assert system.memory.read(0x2000, 4) == b"\5\0\0\0"


def test_starting_a_mover_that_is_not_built_is_a_mode_fault(system):
    system.orchestrator.mover = None
    for offset, fields in ((0x10, {"base": 64}), (0x00, {"mode": 0})):
        system.host.write64(reg.aux_offset(offset), reg.MOVER[offset].encode(**fields))
    assert read(system, reg.AUX_STAT)["fault"] == reg.MoverFault.NONE
    system.host.write64(reg.aux_offset(0x00), reg.MV_CONTROL.encode(mode=0, go=1))
    assert read(system, reg.AUX_STAT)["fault"] == reg.MoverFault.MODE


@pytest.fixture
def shared():
    return System(load("quad"))


def test_outbound_leaves_by_the_port_of_the_destination_s_row(shared):
    targets = {node(2, 2): 1, node(3, 1): 0, node(1, 0): 0, node(3, 2): 1}
    for target, port in targets.items():
        before = [place.out.count for place in shared.ports]
        mail(shared, data(shared.agent.node, target))
        shared.engine.advance(40)
        after = [place.out.count for place in shared.ports]
        assert [b - a for a, b in zip(before, after)] == [int(port == 0), int(port == 1)]
        assert shared.units[target].got[-1][1].dst == target


def test_of_two_ports_on_a_row_the_last_one_sends():
    system = System(load("2x1_6+0"))
    assert [port.node for port in system.ports] == [node(0, 1), node(3, 1)]
    mail(system, data(system.agent.node, node(1, 1)))
    mail(system, data(system.agent.node, node(1, 2)))
    system.engine.advance(40)
    assert [port.out.count for port in system.ports] == [1, 1]
    assert len(system.units[node(1, 1)].got) == len(system.units[node(1, 2)].got) == 1


def test_both_ports_lead_to_the_agent_one_flit_a_cycle_in_turn(shared):
    """Signals for either port's coordinate are the agent's."""
    a, b = node(1, 1), node(1, 2)
    shared.units[a].say(*[signal(a, node(0, 1), arg=i) for i in range(30)])
    shared.units[b].say(*[signal(b, node(0, 2), arg=i) for i in range(30)])
    shared.engine.advance(20)
    first, turns = shared.agent.signals, []
    for _ in range(16):
        before = [reg.NODE_STATUS.layout.get(shared.agent.mirror[at], "count") for at in (a, b)]
        shared.engine.advance(1)
        after = [reg.NODE_STATUS.layout.get(shared.agent.mirror[at], "count") for at in (a, b)]
        turns.append(tuple(y - x for x, y in zip(before, after)))
    assert first > 0 and set(turns) == {(1, 0), (0, 1)} and all(x != y for x, y in zip(turns, turns[1:]))
    shared.engine.advance(100)
    assert [read(shared, reg.NODE_STATUS, at)["count"] for at in (a, b)] == [30, 30]


def test_the_agent_goes_before_memory_responses(shared):
    reader = node(1, 1)
    shared.units[reader].say(memory_read(reader, MEMORY, 64))
    out = shared.ports[0].out
    moves = []
    shared.engine.on_transfer = lambda cycle, link, flit: moves.append((cycle, flit.type)) if link is out else None
    assert shared.engine.run(lambda: len(moves) >= 5, 200)
    shared.agent.push_outbound(data(shared.agent.node, reader), shared.engine.now - 1)
    begin = shared.engine.now
    shared.engine.advance(100)
    kinds = [kind for _, kind in moves]
    assert kinds.count(FlitType.MEM_RD_RESP) == 64
    # at the head in `begin`, loaded in that cycle, on the link in the next
    assert (begin + 1, FlitType.CU_DATA) in moves
    assert [cycle for cycle, _ in moves] == list(range(moves[0][0], moves[0][0] + 65)), "and no cycle was lost"


def test_strays_at_a_memory_port_without_an_agent_are_dropped_and_reported():
    system = System(load("mm_mesh"))
    system.units[CLUSTER].say(signal(CLUSTER, MEMORY), data(CLUSTER, MEMORY))
    system.engine.advance(60)
    assert system.ports[0].strays == 2 and read(system, reg.SIG_DONE)["count"] == 0
    assert "dropped 2 flits for an agent that is not here" in "\n".join(system.ports[0].describe())


# ---- reset ------------------------------------------------------------------------------------------------


def test_reset_keeps_memories_and_clears_the_rest(system):
    home = system.agent.node
    system.memory.write(0x3000, b"kept")
    stage(system, [inst(2 * i) for i in range(4)])
    system.units[VECTOR].say(signal(VECTOR, home, arg=9), data(VECTOR, home))
    write(system, reg.CTRL, data=5)
    kick(system, CLUSTER, 4, credit=1)
    system.engine.advance(60)
    before = system.engine.now
    system.reset()
    assert system.engine.now == before + 10
    assert read(system, reg.NODE_STATUS, VECTOR) == {"code": 0, "arg": 9, "count": 1, "valid": 1}
    assert read(system, reg.SIG_DONE)["count"] == 0
    assert read(system, reg.PROG_STAT) == {"credit": 0, "left": 0, "run": 0}
    assert read(system, reg.RX_STATUS)["empty"] and read(system, reg.CTRL)["data"] == 0
    assert system.memory.read(0x3000, 4) == b"kept"
    assert not system.units[CLUSTER].busy
    kick(system, CLUSTER, 4, credit=8)
    system.engine.advance(200)
    assert [flit.payload for flit in system.units[CLUSTER].taken] == [0, 2, 4, 6], "staging is still there"
    assert read(system, reg.NODE_STATUS, CLUSTER)["count"] > 4, "counts go on: a driver takes baselines"


# ---- faults and skipping ------------------------------------------------------------------------------------


def outcome(faults=(), skip=True):
    moves = []
    system = System(load("quad"), faults=faults, skip=skip)
    system.engine.on_transfer = lambda cycle, link, flit: moves.append((cycle, link.name, flit))
    for at in (CLUSTER, VECTOR):
        stage(system, [inst((2 * i + 100 * at) << 200, txn=i, last=i == 7) for i in range(8)])
        kick(system, at, 8, credit=3)
        for _ in range(60):
            if read(system, reg.NODE_STATUS, at)["count"] == 8:
                break
            system.engine.advance(17)
    return {
        "taken": [flit.payload for at in (CLUSTER, VECTOR) for flit in system.units[at].taken],
        "credit": system.agent.credit,
        "counts": [read(system, reg.NODE_STATUS, at)["count"] for at in (CLUSTER, VECTOR)],
        "cycle": system.engine.now,
        "moves": sorted(moves),
    }


def test_skipping_gives_the_same_run():
    assert outcome() == outcome(skip=False)


@pytest.mark.parametrize(
    "fault, changed",
    [
        ("orchestrator-lost-credit", "credit"),
        ("orchestrator-lost-signal", "counts"),
        ("orchestrator-stale-slot", "taken"),
    ],
)
def test_every_fault_shows(fault, changed):
    assert outcome([fault])[changed] != outcome()[changed]
