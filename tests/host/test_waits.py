"""What the driver waits for and how long, and what a run leaves behind for the next one on the same machine."""

import dataclasses

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import Options, compile_kernel
from kohakutpu.compiler.artifact import Seed
from kohakutpu.host.compare import compare
from kohakutpu.host.driver import DEFAULT_TIMEOUT, AgentError, Driver, NoAnswer
from kohakutpu.host.loader import Loader
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.isa import registers
from kohakutpu.kernels.linear import linear_silu
from kohakutpu.lang import dims, kernel, loop, units
from kohakutpu.machine import load
from kohakutpu.model.system import System

M, K, N = dims("M, K, N")
SHAPES = {"x": (32, 64), "w": (32, 64)}
KNOBS = {"gm": 4, "gn": 4}


def operands(seed=0, shapes=SHAPES):
    random = np.random.default_rng(seed)
    return {name: random.normal(0, 0.3, shape).astype(np.float16) for name, shape in shapes.items()}


def quad(unit, **changes):
    """The machine quad with those sizes of every 'clusters', 'vectors' or of its 'memory' changed."""
    machine = load("quad")
    if unit == "memory":
        return dataclasses.replace(machine, memory=dataclasses.replace(machine.memory, **changes))
    units = tuple(dataclasses.replace(site, **changes) for site in getattr(machine, unit))
    return dataclasses.replace(machine, **{unit: units})


# ---- credit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lowering", ["default", "published"])
@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("unit", ["vectors", "clusters"])
def test_the_smallest_instruction_fifo_of_the_machine_is_what_a_round_seeds(unit, fuse, lowering):
    machine = quad(unit, inst_depth=2)
    knobs = {**KNOBS, "fuse": fuse}
    artifact = compile_kernel(linear_silu, machine, SHAPES, knobs, Options(lowering))
    seeds = {step.credits for round_ in artifact.rounds for step in round_.steps if isinstance(step, Seed)}
    assert seeds == {machine.credit_limit} == {2}
    run = run_model(artifact, machine, operands(), timeout=50_000).run
    assert all(
        row.equal
        for row in compare(artifact, run_reference(linear_silu, knobs, operands(), machine).outputs, run.outputs)
    )


def test_an_error_of_the_agent_ends_a_wait_by_name():
    """An artifact of a roomier machine stops the smaller one: the agent lowered the credit that it seeds."""
    artifact = compile_kernel(linear_silu, load("quad"), SHAPES, KNOBS)
    machine = quad("vectors", inst_depth=2)
    transport = ModelTransport(System(machine))
    with pytest.raises(AgentError, match=r"round 0 of \d+: .*\(STATUS.error\): PROG_CRED") as caught:
        Loader(Driver(transport)).run(artifact, operands())
    assert caught.value.exit_status == 4 and "nodes:" in str(caught.value) and transport.now < 100_000


def test_an_error_of_before_is_forgotten():
    driver = Driver(ModelTransport(System(load("quad"))))
    driver.seed_credit(65)
    assert driver.read(registers.STATUS)["error"]
    Loader(driver).run(compile_kernel(linear_silu, load("quad"), SHAPES, KNOBS), operands())
    assert not driver.read(registers.STATUS)["error"]


def test_a_kick_past_staging_ends_the_wait_for_it():
    driver = Driver(ModelTransport(System(load("quad"))))
    driver.kick(1, 1, 127, 2)
    with pytest.raises(AgentError, match=r"waiting for signals of node \(1,1\): the agent reports"):
        driver.await_signals(0x11, 1)


# ---- how long a wait lasts --------------------------------------------------------------------------------


class Slow(ModelTransport):
    """Answers nothing, one tick a poll; the machine works until `works`."""

    def __init__(self, works):
        self.clock, self.works = 0, works

    @property
    def now(self):
        return self.clock

    @property
    def progress(self):
        return min(self.clock, self.works)

    def read_block(self, address, length):
        return bytes(length)

    def pause(self):
        self.clock += 1000

    def diagnose(self):
        return "nodes: all of them"


@pytest.mark.parametrize(
    "works, timeout, spent, end",
    [
        (0, None, r"2,000,000 cycles without a sign of life \(2,001,000 in all\)", 2_001_000),
        (9_000_000, None, r"2,000,000 cycles without a sign of life \(11,\d\d\d,000 in all\)", 11_200_000),
        (10**12, None, r"200,000,000 cycles, the most a wait may take, though flits still move", 200_001_000),
        (10**12, 5_000_000, "5,000,000 cycles", 5_001_000),
    ],
)
def test_the_budget_counts_from_the_last_sign_of_life(works, timeout, spent, end):
    transport = Slow(works)
    with pytest.raises(NoAnswer, match=rf"after {spent}, wanted count=3 valid=1\nnodes: all of them"):
        Driver(transport, timeout=timeout).await_signals(0x11, 3)
    assert end - 130_000 <= transport.clock <= end


def test_a_memory_slower_than_the_budget_is_no_hang(monkeypatch):
    """A thousand cycles a word: the stage takes far longer than the budget, and words trickle all the time."""
    monkeypatch.setitem(DEFAULT_TIMEOUT, "cycles", 50_000)
    machine = quad("memory", cycles_per_word=1024, latency=10_000)
    artifact = compile_kernel(linear_silu, machine, SHAPES, KNOBS)
    result = run_model(artifact, machine, operands())
    assert result.cycles > 4 * 50_000
    want = run_reference(linear_silu, KNOBS, operands(), machine).outputs
    assert all(row.equal for row in compare(artifact, want, result.run.outputs))
    with pytest.raises(NoAnswer, match="after 50,000 cycles, wanted"):
        run_model(artifact, machine, operands(), timeout=50_000)


def test_a_machine_that_stands_still_is_reported_after_the_budget(monkeypatch):
    monkeypatch.setitem(DEFAULT_TIMEOUT, "cycles", 50_000)
    artifact = compile_kernel(linear_silu, load("quad"), SHAPES, KNOBS)
    with pytest.raises(NoAnswer, match=r"(?s)after 50,000 cycles without a sign of life .*nodes:"):
        run_model(artifact, load("quad"), operands(), faults=["noc-lost-tail"])


# ---- counts and leftovers ---------------------------------------------------------------------------------


def test_signal_counts_wrap_at_16_bits():
    """The mirror survives resets, so a node's count passes 65,535 sooner or later."""
    system = System(load("quad"))
    artifact = compile_kernel(linear_silu, load("quad"), SHAPES, KNOBS)
    nodes = {step.node for round_ in artifact.rounds for step in round_.awaits}
    for at in nodes:
        system.orchestrator.mirror[at] = registers.NODE_STATUS.layout.encode(code=0, arg=0, count=0xFFFE, valid=1)
    driver = Driver(ModelTransport(system), timeout=50_000)
    run = Loader(driver).run(artifact, operands())
    want = run_reference(linear_silu, KNOBS, operands(), load("quad")).outputs
    assert all(row.equal for row in compare(artifact, want, run.outputs))
    assert all(driver.node_status(at)["count"] < 0x8000 for at in nodes)


def test_results_and_temporaries_of_before_are_cleared():
    artifact = compile_kernel(linear_silu, load("quad"), SHAPES, {**KNOBS, "fuse": False})
    system = System(load("quad"))
    loader = Loader(Driver(ModelTransport(system)))
    cleared = [image for image in artifact.buffers if image.role in ("out", "temp")]
    assert {image.role for image in cleared} == {"out", "temp"}
    for image in cleared:
        system.memory.write(image.address, b"\xa5" * image.bytes)
    loader.load(artifact, operands())
    assert all(system.memory.read(image.address, image.bytes) == bytes(image.bytes) for image in cleared)


def test_a_round_trusts_no_register_of_before():
    """Somebody else may have used the agent: each round writes destination, base and length again."""
    system = System(load("quad"))
    loader = Loader(Driver(ModelTransport(system), timeout=50_000))
    artifact = compile_kernel(linear_silu, load("quad"), SHAPES, KNOBS)
    first = next(round_ for round_ in artifact.rounds if round_.kicks)
    kick = first.kicks[0]
    loader.driver.write(registers.PROG_DST, x=kick.node & 15, y=kick.node >> 4)
    loader.driver.write(registers.PROG_BASE, slot=kick.base)
    loader.driver.write(registers.PROG_LEN, flits=kick.count)
    for register in (registers.PROG_DST, registers.PROG_BASE, registers.PROG_LEN):
        system.orchestrator.write(register.offset, 0, system.engine.now)
    run = loader.run(artifact, operands())
    want = run_reference(linear_silu, KNOBS, operands(), load("quad")).outputs
    assert all(row.equal for row in compare(artifact, want, run.outputs))


# ---- one artifact after another ---------------------------------------------------------------------------


@kernel
def biased(x=L.In(M, K), w=L.In(N, K), b=L.In(N), y=L.Out(M, N), *, gm=2, gn=2):
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        acc = L.tile(gm, gn, 1)
        for k in loop(x.chunks32(1)):
            acc += x[i, k] @ w[j, k]
        y[i, j] <<= acc + b[j]


@kernel
def gated(x=L.In(M, K), w=L.In(N, K), b=L.In(N), y=L.Out(M, N), *, gm=2, gn=2):
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        first, second = L.tile(gm, gn, 1), L.tile(gm, gn, 1)
        for k in loop(x.chunks32(1)):
            first += x[i, k] @ w[j, k]
        for k in loop(x.chunks32(1)):
            second += x[i, k] @ w[j, k]
        y[i, j] <<= first * second + b[j]


@kernel
def three_operands(x=L.In(...), v=L.In(...), w=L.In(...), y=L.Out(...)):
    y <<= x + v * w


@kernel
def two_operands(x=L.In(...), v=L.In(...), y=L.Out(...)):
    y <<= x * v


BIASED = {"x": (16, 64), "w": (16, 64), "b": (16,)}
CASES = {
    "biased": (biased, BIASED),
    "silu": (linear_silu, {"x": (16, 64), "w": (16, 64)}),
    "two": (two_operands, {name: (2048,) for name in "xv"}),
    "three": (three_operands, {name: (2048,) for name in "xvw"}),
}


def run_after_published(first, name, lowering, second):
    """Whether a kernel gives its meaning after the published form of a bias kernel, on `second(transport)`."""
    machine = load("quad")
    transport = ModelTransport(System(machine))
    cases = [(first, BIASED, "published"), (*CASES[name], lowering)]
    for wrapped, (kernel_, shapes, how) in zip((transport, second(transport)), cases, strict=True):
        knobs = {"gm": 2, "gn": 2} if "w" in shapes and "v" not in shapes else {}
        artifact = compile_kernel(kernel_, machine, shapes, knobs, Options(how))
        run = Loader(Driver(wrapped, timeout=50_000)).run(artifact, operands(1, shapes))
        want = run_reference(kernel_, knobs, operands(1, shapes), machine).outputs
    return all(row.equal for row in compare(artifact, want, run.outputs))


def same(transport):
    return transport


def another(transport):
    return ModelTransport(transport.system)


@pytest.mark.parametrize("lowering", ["default", "published"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("first", [biased, gated], ids=lambda kernel_: kernel_.name)
def test_what_a_published_bias_kernel_leaves_walked_harms_no_later_one(first, name, lowering):
    assert run_after_published(first, name, lowering, same)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("first", [biased, gated], ids=lambda kernel_: kernel_.name)
def test_default_programs_need_no_record_of_what_ran_before(first, name):
    assert run_after_published(first, name, "default", another)


def test_published_programs_do_need_it():
    """The hazard is there: without the record, the drain walks its span twice and the machine stops."""
    with pytest.raises(NoAnswer):
        run_after_published(gated, "two", "published", another)
