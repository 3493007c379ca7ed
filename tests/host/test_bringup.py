"""The bring-up ladder on the models: every machine passes, and every step is seen to fail, by name and exit status."""

import dataclasses
import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kohakutpu.cli.main import main
from kohakutpu.host.bringup import STEPS, Report, Verdict, climb, plan
from kohakutpu.host.bringup.ladder import NoStep
from kohakutpu.host.bringup.link import shift_of
from kohakutpu.host.bringup.memory import walked_addresses
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.transport import CONTROL_BASE, MEMORY_BASE, NoTransport, Unanswered
from kohakutpu.isa import registers
from kohakutpu.isa.registers import MoverFault
from kohakutpu.machine import from_picture, list_machines, load, picture
from kohakutpu.model import faults
from kohakutpu.model.system import System

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 20_000
NAMES = [step.name for step in STEPS]
PASSED, WRONG, REFUSED, NO_TRANSPORT, NO_ANSWER = range(5)


def ladder(machine, opener, **options):
    """The report of a climb, and the names of the steps that were yielded."""
    options = {"timeout": TIMEOUT, "runs": 3, **options}
    *results, report = climb(machine, opener, transport="model", **options)
    assert isinstance(report, Report)
    return report, [result.step.name for result in results]


# ---- passing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_machines())
def test_every_machine_passes(name):
    machine = load(name)
    report, seen = ladder(machine, lambda: ModelTransport(System(machine)), runs=2)
    assert report.status == PASSED and seen == NAMES
    verdicts = {result.step.name: result.verdict for result in report.results}
    if machine.compile_only:
        assert verdicts.pop("kernel") is Verdict.PASSED and report.results[9].facts["compiled_only"]
        assert set(verdicts.values()) == {Verdict.DOES_NOT_APPLY}
        return
    assert set(verdicts.values()) == {Verdict.PASSED}, report.summary
    kernel = report.results[9].facts
    expected = {(True, True): "linear_silu", (True, False): "matmul", (False, True): "activated"}
    assert kernel["kernel"] == expected[bool(machine.clusters), bool(machine.vectors)]
    assert machine.vectors or "plain product" in kernel["note"]
    worked = {
        at
        for group in report.results[8].facts["done"].values()
        for at, cycles in group["busy_cycles"].items()
        if cycles
    }
    assert worked == {f"({unit.x},{unit.y})" for unit in machine.units}


def random_machine(seed):
    """Some ports on the ring, up to ten units anywhere, the agent at a port or on its own."""
    draw = random.Random(seed)
    nx, ny = draw.randint(1, 4), draw.randint(1, 4)
    rows = [["xxx"] * (nx + 2) for _ in range(ny + 2)]
    inner = [(x, y) for y in range(1, ny + 1) for x in range(1, nx + 1)]
    edge = [
        *((x, y) for y in (0, ny + 1) for x in range(1, nx + 1)),
        *((x, y) for x in (0, nx + 1) for y in range(1, ny + 1)),
    ]
    draw.shuffle(edge)
    ports = edge[: draw.randint(1, 4)]
    places = draw.sample(edge[len(ports) :] + inner, min(draw.randint(2, 10), len(edge) - len(ports) + len(inner)))
    for x, y in ports:
        rows[y][x] = "mag"
    for number, (x, y) in enumerate(places):
        rows[y][x] = "agt" if number and (x, y) in inner and "agt" not in sum(rows, []) else draw.choice(["mat", "vec"])
    return from_picture("\n".join(map(" ".join, rows)), name=f"random{seed}")


@pytest.mark.parametrize("seed", range(6))
def test_random_machines_pass(seed):
    machine = random_machine(seed)
    report, _ = ladder(machine, lambda: ModelTransport(System(machine)), runs=2)
    assert report.passed == len(STEPS), (picture(machine), report.summary, report.failed and report.failed.text)


def test_a_machine_of_vector_cores_alone_runs_the_activation():
    machine = from_picture("xxx vec xxx\nmag vec xxx\nxxx xxx xxx", name="vectors")
    report, _ = ladder(machine, lambda: ModelTransport(System(machine)))
    assert report.status == PASSED and report.passed == len(STEPS)
    assert "no cluster" in report.results[9].facts["note"]


def test_two_climbs_give_the_same_report():
    machine = load("mm_mesh")
    reports = [ladder(machine, lambda: ModelTransport(System(machine)))[0].to_dict() for _ in range(2)]
    assert reports[0] == reports[1]


def test_a_part_of_the_ladder():
    machine = load("mm_mesh")
    report, _ = ladder(machine, lambda: ModelTransport(System(machine)), first="memory", last="7")
    ran = [result.step.name for result in report.results if result.verdict is not Verdict.NOT_RUN]
    assert ran == ["memory", "mover", "flit"] and report.status == PASSED
    assert "steps 5 to 7 were asked for" in report.results[0].text
    with pytest.raises(NoStep, match="no step 'jump'; there are 1 link, 2 write"):
        plan(machine, first="jump")
    with pytest.raises(NoStep, match=r"from step 7 \(flit\) until step 5 \(memory\)"):
        plan(machine, first="flit", last="memory")
    with pytest.raises(NoStep, match="none of steps 1 to 3 applies: seed_case is compile-only"):
        plan(load("seed_case"), last="identity")


# ---- failing: what is wrong with the link or the board -----------------------------------------------------


class Tampered(ModelTransport):
    """A model with a spoilt way to it. `armed` says whether the harm is done yet; a climb arms it after a step."""

    def __init__(self, machine, armed=True):
        super().__init__(System(machine))
        self.machine = machine
        self.armed = armed
        self.accesses = 0

    def write_block(self, address, data):
        self.accesses += 1
        super().write_block(address, data)

    def read_block(self, address, length):
        self.accesses += 1
        data = super().read_block(address, length)
        return self.spoil(address, data) if self.armed else data

    def spoil(self, address, data):
        return data


def words(data):
    return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]


def data_of(values):
    return b"".join(value.to_bytes(8, "little") for value in values)


def spoiling(change):
    """A `Tampered` whose read words go through `change(self, byte address, value)`."""

    class Spoilt(Tampered):
        def spoil(self, address, data):
            return data_of(change(self, address + 8 * i, value) for i, value in enumerate(words(data)))

    return Spoilt


def register_is(register, index=0):
    return CONTROL_BASE + register.at(index)


def of_register(register, change):
    return spoiling(lambda self, at, value: change(self, value) if at == register_is(register) else value)


def field_of(register, **fields):
    """Reads of a register with these fields changed."""
    layout = register.layout
    return of_register(register, lambda _, value: layout.encode(**(layout.decode(value) | fields)))


class Lost(Tampered):
    """The link drops in the second step."""

    def read_block(self, address, length):
        if self.accesses > 400:
            raise NoTransport(f"read of {length} bytes at {address:#x}: the link was closed")
        return super().read_block(address, length)


class Mute(Tampered):
    def read_block(self, address, length):
        raise Unanswered(f"read of {length} bytes at {address:#x}: no answer within 5 s")


class Narrow(Tampered):
    """A 32-bit master: the upper half of each word is not moved."""

    def write_block(self, address, data):
        super().write_block(address, data_of(word & 0xFFFF_FFFF for word in words(data)))


class LateBlocks(Tampered):
    """Block reads are a word late."""

    def read_block(self, address, length):
        data = super().read_block(address, length)
        return data if length == 8 else bytes(8) + data[:-8]


class LateWrites(Tampered):
    """Block writes to memory are a word late."""

    def write_block(self, address, data):
        if address >= MEMORY_BASE and 8 < len(data) < 4096:
            data = bytes(8) + data[:-8]
        super().write_block(address, data)


class Replicating(Tampered):
    """Writes of less than a memory word fill all of it."""

    def write_block(self, address, data):
        if address >= MEMORY_BASE and len(data) < 32:
            address, data = address // 32 * 32, data[:8] * 4
        super().write_block(address, data)


class StuckAddress(Tampered):
    """Address line 14 of the host's memory window is always 0."""

    @staticmethod
    def at(address):
        return address & ~(1 << 14) if address >= MEMORY_BASE else address

    def write_block(self, address, data):
        super().write_block(self.at(address), data)

    def read_block(self, address, length):
        return super().read_block(self.at(address), length)


class TurnedAddress(Tampered):
    """Address line 14 of the host's window is inverted: it alone cannot tell, the memory ports can."""

    def at(self, address):
        return address ^ 1 << 14 if self.armed and address >= MEMORY_BASE else address

    def write_block(self, address, data):
        super().write_block(self.at(address), data)

    def read_block(self, address, length):
        return super().read_block(self.at(address), length)


def stuck_data(line, value):
    def change(_, at, word):
        mask = 1 << line % 64
        if at < MEMORY_BASE or at % 32 // 8 != line // 64 or at - MEMORY_BASE < (4 << 10):
            return word
        return word | mask if value else word & ~mask

    return spoiling(change)


def forgetful(self, at, value):
    """Memory that was not touched for long loses a bit."""
    if at >= MEMORY_BASE and self.now - self.written > 10_000:
        value ^= 1 << 20
    return value


class Forgetful(spoiling(forgetful)):
    written = 0

    def write_block(self, address, data):
        if address >= MEMORY_BASE:
            self.written = self.now
        super().write_block(address, data)


class WeakPage(Tampered):
    """One place out of sixteen loses a bit of what is written there at random."""

    def spoil(self, address, data):
        if address >= MEMORY_BASE and len(data) == 256:
            return data[:200] + bytes([data[200] ^ 4]) + data[201:]
        return data


class Flickering(Tampered):
    """Every fifth read of a result of 2 KiB has a bit wrong."""

    reads = 0

    def spoil(self, address, data):
        if address >= MEMORY_BASE and len(data) == 2048:
            self.reads += 1
            if self.reads % 5 == 2:
                return data[:100] + bytes([data[100] ^ 1]) + data[101:]
        return data


def steady(self, at, value):
    """Results at one place have a bit wrong, always."""
    return value ^ 1 << 33 if at >= MEMORY_BASE and at % 2048 == 1024 else value


def unit_with(**changes):
    """A `System` whose first unit says something else of itself."""

    def build(machine):
        transport = Tampered(machine)
        unit = transport.system.units[machine.units[0].node]
        for name, value in changes.items():
            setattr(unit, name, value)
        return transport

    return build


def without_units(machine):
    transport = Tampered(machine)
    for unit in transport.system.units.values():
        unit._control_reply = lambda *_: None
    return transport


def another(**changes):
    """What is really there is another machine than the one described."""
    return lambda machine: Tampered(
        dataclasses.replace(machine, **{name: change(machine) for name, change in changes.items()})
    )


def forgets_to_count(machine):
    """The first cluster counts one instruction less than it was sent, as if another unit had done that work."""
    transport = Tampered(machine)
    unit = transport.system.units[machine.clusters[0].node]
    value, readings = unit.control_value, []

    def control_value(index, now):
        readings.append(index)
        lost = transport.armed and readings.count(2) % 2 == 0
        return value(index, now) - (1 << 32 if index == 2 and lost else 0)

    unit.control_value = control_value
    return transport


def broken_mover(machine):
    transport = Tampered(machine)
    transport.system.orchestrator.mover.configure = lambda *_: None
    return transport


def flit_to_another(machine):
    """What is dispatched to the first unit goes to the second."""
    transport = Tampered(machine)
    agent = transport.system.orchestrator
    first, second = (unit.node for unit in machine.units[:2])
    push = agent.push_outbound
    agent.push_outbound = lambda flit, now: push(
        flit._replace(dst=second if flit.type == 5 and flit.dst == first else flit.dst), now
    )
    return transport


def hanging(machine):
    """The first unit still waits for something of before."""
    transport = Tampered(machine)
    unit = transport.system.units[machine.units[0].node]
    value = unit.control_value
    unit.control_value = lambda index, now: value(index, now) | (1 << 63 if index == 1 else 0)
    return transport


def no_door(machine):
    raise NoTransport("127.0.0.1:5570: connection refused")


def fault(name):
    return lambda machine: ModelTransport(System(machine, faults=[name]))


VECTORS_GONE = {"vectors": lambda machine: machine.vectors[1:]}
DEEP = {"clusters": lambda machine: tuple(dataclasses.replace(unit, inst_depth=16) for unit in machine.clusters)}
EXTRA = {"vectors": lambda machine: tuple(sorted(
    (*machine.vectors, dataclasses.replace(machine.vectors[0], x=1, y=3, port=1)),
    key=lambda unit: (unit.y, unit.x)))}  # fmt: skip
PORT_GONE = {
    "ports": lambda machine: machine.ports[:1],
    "clusters": lambda machine: tuple(dataclasses.replace(unit, port=0) for unit in machine.clusters),
    "vectors": lambda machine: tuple(dataclasses.replace(unit, port=0) for unit in machine.vectors),
}

# (what, machine, what answers, the step it shows in, exit status, part of the text, armed after which step)
FAILURES = [
    ("no transport", "quad", no_door, "link", NO_TRANSPORT, "127.0.0.1:5570: connection refused", None),
    ("nothing there", "quad", of_register(registers.CAPS, lambda *_: 0), "link", REFUSED, "nothing seems to answer there", None),
    ("another device", "quad", of_register(registers.CAPS, lambda *_: 0xC0DE_0001), "link", REFUSED, "no control agent", None),
    ("CAPS flickers", "quad", of_register(registers.CAPS, lambda self, value: value ^ (self.accesses % 7 == 3)), "link", REFUSED,
     "CAPS is a constant and reads", None),
    ("32-bit link", "quad", Narrow, "link", REFUSED, "moves 32 bits at a time", None),
    ("late block reads", "quad", LateBlocks, "link", REFUSED, "come 1 word late", None),
    ("first access unanswered", "quad", Mute, "link", NO_ANSWER, "no answer within 5 s", None),
    ("register bit stuck", "quad", of_register(registers.IRQ_EN, lambda _, value: value | 1 << 40), "write", WRONG, "bits [40]", "link"),
    ("late block writes", "quad", LateWrites, "write", REFUSED, "1 word late: writes or reads of this link are shifted", None),
    ("replicating writes", "quad", Replicating, "write", WRONG, "which is outside of it", None),
    ("link lost", "quad", Lost, "write", NO_TRANSPORT, "the link was closed", None),
    ("another grid", "quad", lambda _: Tampered(load("2x4")), "identity", REFUSED, "grid_hi 4, expected 2", None),
    ("agent elsewhere", "mm_mesh", lambda machine: Tampered(dataclasses.replace(
        machine, agent=dataclasses.replace(machine.agent, x=0, y=1, own_endpoint=False))), "identity", REFUSED,
     "does not receive at (1,1), as described; it does at (0,1)", None),
    ("unknown version", "quad", unit_with(version=3), "identity", REFUSED, "vector core at (1,0): version 0x03", None),
    ("unit hangs", "quad", hanging, "identity", NO_ANSWER, "vector core at (1,0) is busy, 0 instructions queued", None),
    ("no unit answers", "quad", without_units, "identity", NO_ANSWER, "none of the 8 described units", None),
    ("missing unit", "quad", another(**VECTORS_GONE), "enumerate", NO_ANSWER, "missing: vector core at (1,0)", None),
    ("missing port", "quad", another(**PORT_GONE), "enumerate", NO_ANSWER, "missing: memory port at (0,2)", None),
    ("extra unit", "quad", another(**EXTRA), "enumerate", REFUSED, "extra: vector core at (1,3)", None),
    ("wrong type", "quad", unit_with(unit_type=0x5256), "enumerate", REFUSED, "(1,0): RV32 core, expected vector core", None),
    ("wrong depth", "quad", another(**DEEP), "enumerate", REFUSED, "an instruction FIFO of 16, expected an instruction FIFO of 64", None),
    ("port reads wrong", "quad", fault("memory-read-bit"), "enumerate", WRONG, "memory port at (0,1) reads", None),
    ("line turned before", "quad", TurnedAddress, "enumerate", WRONG, "memory port at (0,1) reads at 0x2000000", None),
    ("stuck address line", "quad", StuckAddress, "memory", WRONG, "address lines [14] do not count", None),
    ("stuck data line", "quad", stuck_data(77, 1), "memory", WRONG, "data line 77 is stuck at 1", "enumerate"),
    ("data line at 0", "quad", stuck_data(200, 0), "memory", WRONG, "data line 200 is stuck at 0", "enumerate"),
    ("weak memory", "quad", WeakPage, "memory", WRONG, "random data: ", "enumerate"),
    ("forgetful memory", "quad", Forgetful, "memory", WRONG, "not retained: ", None),
    ("mover skips", "quad", fault("mover-skips-word"), "mover", WRONG, "a fill of 4 words between guards", None),
    ("mover hangs", "quad", broken_mover, "mover", NO_ANSWER, "a fill of 4 words did not end", None),
    ("signal lost", "quad", fault("orchestrator-lost-signal"), "flit", NO_ANSWER, "waiting for signals of node", None),
    ("sent elsewhere", "quad", flit_to_another, "flit", NO_ANSWER, "waiting for signals of node (1,0)", None),
    ("turned address line", "quad", TurnedAddress, "flit", WRONG, "reads at 0x0 what the host wrote at 0x4000", "mover"),
    ("write not stored", "quad", fault("memory-write-lost"), "flit", WRONG, "reads what was there before after", None),
    ("write not acknowledged", "quad", fault("memory-ack-lost"), "flit", NO_ANSWER, "did not acknowledge a write", None),
    ("wrong ALU", "mm_mesh", fault("vector-alu-sign"), "unit", WRONG, "activated on (1,0) alone: 1 of 16 elements differ", None),
    ("wrong product", "quad", fault("cluster-tile-bit"), "unit", WRONG, "product on (1,1) alone", None),
    ("completion lost", "quad", fault("cluster-lost-completion"), "unit", NO_ANSWER, "waiting for signals of node (1,1)", None),
    ("wrong with much data", "quad", fault("vector-drain-slip"), "all-units", WRONG, "activated on all vector cores", None),
    ("did not work", "quad", forgets_to_count, "all-units", WRONG, "instructions, and 4 were sent to it", "unit"),
    ("credit lost", "quad", fault("orchestrator-lost-credit"), "all-units", NO_ANSWER, "waiting for", None),
    ("acknowledgement lost", "quad", fault("vector-lost-ack"), "kernel", NO_ANSWER, "linear_silu, round 0 of 2", None),
    ("wrong result", "quad", spoiling(steady), "kernel", WRONG, "reproducible: 1 of 1024 elements of y", "all-units"),
    ("flicker", "mm_mesh", Flickering, "repeat", WRONG, "flicker: 1 of 1024 elements of y change over 3 runs", "kernel"),
    ("reproducible error", "mm_mesh", spoiling(steady), "repeat", WRONG, "reproducible: 1 of 1024 elements of y are wrong", "kernel"),
]  # fmt: skip


def fail(case):
    """(report, names of the steps yielded) of a climb over what a row of FAILURES describes."""
    _, name, build, *_, after = case
    machine = load(name)
    opened, seen = [], []

    def opener():
        transport = build(machine)
        if after is not None:
            transport.armed = False
        opened.append(transport)
        return transport

    for result in climb(machine, opener, timeout=TIMEOUT, runs=3, transport="model"):
        if isinstance(result, Report):
            return result, seen
        seen.append(result.step.name)
        if result.step.name == after:
            opened[0].armed = True
    raise AssertionError("no report")


@pytest.mark.parametrize("case", FAILURES, ids=lambda case: case[0])
def test_a_failure_is_reported_as_its_step(case):
    _, _, _, step, status, text, _ = case
    report, seen = fail(case)
    assert report.failed is not None, report.summary
    assert (report.failed.step.name, report.status) == (step, status), report.failed.text
    assert text in report.failed.text
    at = NAMES.index(step)
    assert seen == NAMES[: at + 1]
    assert all(result.verdict is Verdict.PASSED for result in report.results[:at])
    assert all(result.verdict is Verdict.NOT_RUN and step in result.text for result in report.results[at + 1 :])


def test_every_step_is_made_to_fail():
    assert {case[3] for case in FAILURES} == set(NAMES)
    assert {case[4] for case in FAILURES} == {WRONG, REFUSED, NO_TRANSPORT, NO_ANSWER}


def test_the_page_has_every_step():
    page = (ROOT / "docs" / "bringup.md").read_text()
    assert re.findall(r"^\| (\d+) \| `(\S+)` \|", page, re.M) == [(str(step.number), step.name) for step in STEPS]
    for verdict in Verdict:
        assert f"`{verdict.value}`" in page.replace("\n", " ")


BLOCKS = ("cluster-", "memory-", "mover-", "noc-", "orchestrator-", "vector-")  # whose faults any machine can have


def test_the_faults_that_the_ladder_does_not_find_are_those_that_the_page_names():
    machine, missed = load("quad"), set()
    for name in (name for name in faults.table() if name.startswith(BLOCKS)):
        report, _ = ladder(machine, lambda name=name: ModelTransport(System(machine, faults=[name])))
        missed |= {name} if report.status == PASSED else set()
    page = (ROOT / "docs" / "bringup.md").read_text()
    (sentence,) = re.findall(r"the ladder finds all but (.*?) on `quad`", page, re.S)
    assert missed == set(re.findall(r"`(\S+)`", sentence))


# ---- parts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "found, shift",
    [
        ([1, 2, 3, 4, 5, 6], None), ([0, 1, 2, 3, 4, 5], 1), ([9, 9, 1, 2, 3, 4], 2), ([2, 3, 4, 5, 6, 0], -1),
        ([1, 2, 9, 4, 5, 6], None), ([0, 0, 0, 0, 0, 0], None), ([9, 9, 9, 9, 1, 2], None),
    ],
)  # fmt: skip
def test_a_shift_is_told_from_wrong_data(found, shift):
    assert shift_of([1, 2, 3, 4, 5, 6], found) == shift


def test_every_address_line_is_walked():
    assert walked_addresses(1 << 12) == [0, 32, 64, 128, 256, 512, 1024, 2048, 4064]
    assert walked_addresses(3 << 12) == [0, *(1 << bit for bit in range(5, 14)), (3 << 12) - 32]


def test_a_machine_without_a_mover_says_so():
    machine = load("mm_mesh")

    def opener():
        transport = ModelTransport(System(machine))
        transport.system.orchestrator.mover = None
        return transport

    report, _ = ladder(machine, opener)
    assert report.status == PASSED and report.results[5].verdict is Verdict.NOT_PRESENT
    assert "no memory mover" in report.results[5].text and "not present: mover" in report.summary


def test_a_mover_that_faults_is_wrong():
    machine = load("mm_mesh")

    def opener():
        transport = ModelTransport(System(machine))
        transport.system.orchestrator.mover._refusal = lambda *_: MoverFault.RANGE
        return transport

    report, _ = ladder(machine, opener, last="mover")
    assert report.status == WRONG and "faults with RANGE" in report.failed.text


def test_a_hang_is_reported_with_every_node():
    for case in FAILURES:
        if case[4] == NO_ANSWER and case[3] not in ("link",):
            text = fail(case)[0].failed.text
            assert "nodes:" in text and "agent (0, 1)" in text and "last flit on each link" in text, case[0]


# ---- the command -----------------------------------------------------------------------------------------


def test_the_command_writes_its_report_and_page(tmp_path, capsys):
    report, page = tmp_path / "r.json", tmp_path / "r.html"
    assert (
        main(["bringup", "--machine", "mm_mesh", "--runs", "2", "--report", str(report), "--page", str(page)]) == PASSED
    )
    out = capsys.readouterr().out
    assert len(re.findall(r"^ ?\d+ \S+ +passed", out, re.M)) == len(STEPS)
    assert out.splitlines()[-1] == "mm_mesh over model: 11 of 11 steps passed"
    record = json.loads(report.read_text())
    assert record["format"] == "kohakutpu-bringup-1" and record["exit_status"] == 0
    assert [step["step"] for step in record["steps"]] == NAMES and {step["verdict"] for step in record["steps"]} == {
        "passed"
    }
    assert record["steps"][6]["facts"] == {"units": 2, "ports": 1, "words_by_each_port": 21}
    text = page.read_text()
    HTMLParser().feed(text)
    assert text.count('class="verdict"') == len(STEPS) and "11 of 11 steps passed" in text
    assert not re.search(r"https?:|<script|<link|src=|@import", text)


def test_a_failure_is_in_report_and_page_too(tmp_path, capsys):
    report, page = tmp_path / "r.json", tmp_path / "r.html"
    options = ["--fault", "vector-lost-ack", "--timeout", "20000", "--report", str(report), "--page", str(page)]
    assert main(["bringup", "--machine", "mm_mesh", "--from", "9", *options]) == NO_ANSWER
    out = capsys.readouterr().out
    assert re.search(r"^10 kernel +no answer$", out, re.M) and "nodes:" in out
    assert out.splitlines()[-1] == "mm_mesh over model: step 10 (kernel) failed: no answer"
    record = json.loads(report.read_text())
    verdicts = [step["verdict"] for step in record["steps"]]
    assert verdicts == ["not run"] * 8 + ["passed", "no answer", "not run"] and record["exit_status"] == NO_ANSWER
    assert "DATA_RECEIVED" in record["steps"][9]["text"] and "no answer</td>" in page.read_text()


def test_a_dry_run_opens_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("kohakutpu.cli.bringup.open_transport", lambda *_, **__: pytest.fail("opened"))
    for spec in ("socket:/none", "jtag:h:1", "xdma:/dev/none", "rtl", "replay:none", f"record:{tmp_path}/s:model"):
        assert main(["bringup", "--dry-run", "--transport", spec]) == 0
    assert not list(tmp_path.iterdir())
    capsys.readouterr()
    assert main(["bringup", "--dry-run", "--machine", "seed_case"]) == 0
    out = capsys.readouterr().out
    assert out.count("would not run: seed_case is compile-only") == 10 and "10 kernel     one real kernel" in out


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--transport", "telepathy"], "no transport 'telepathy'"),
        (["--until", "roof"], "no step 'roof'"),
        (["--from", ""], "no step ''"),
        (["--until", ""], "no step ''"),
        (["--transport", "socket:"], "no address: expected HOST:PORT"),
        (["--transport", "jtag:localhost:abc"], "'localhost:abc' is no address"),
        (["--dry-run", "--transport", "telepathy"], "no transport 'telepathy'"),
        (["--dry-run", "--transport", "socket:"], "no address: expected HOST:PORT"),
        (["--dry-run", "--transport", "jtag:h:1,burst=0"], "bursts of 0 beats"),
        (["--dry-run", "--transport", "record:no/such/place:model"], "there is no directory"),
        (["--dry-run", "--fault", "vector-alu-sine"], "vector-alu-sign"),
        (["--dry-run", "--transport", "rtl", "--fault", "lane-tie"], "expected place=name"),
        (["--runs", "1"], "--runs 1: at least 2"),
        (["--seed", "-1"], "--seed -1"),
        (["--timeout", "0"], "--timeout 0: expected more than 0"),
        (["--fault", "vector-alu-sine"], "vector-alu-sign"),
        (["--machine", "nowhere"], "nowhere"),
        (["--report", "no/such/place.json"], "there is no directory"),
        (["--dry-run", "--page", "x.html"], "--dry-run has nothing to report"),
    ],
)
def test_what_the_command_does_not_understand_is_refused(arguments, reason, capsys):
    assert main(["bringup", *arguments]) == REFUSED
    out, err = capsys.readouterr()
    assert reason in err and "passed" not in out and "nothing is opened" not in out


def test_serving_on_no_address_is_refused(capsys):
    assert main(["serve", "--listen", ""]) == REFUSED
    assert "no address: expected HOST:PORT" in capsys.readouterr().err
