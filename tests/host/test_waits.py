"""What the driver waits for and how long, and what a run leaves behind for the next one on the same machine."""

import dataclasses

import numpy as np
import pytest

from kohakutpu.compiler import Options, compile_kernel
from kohakutpu.compiler.artifact import Seed
from kohakutpu.host.compare import compare
from kohakutpu.host.driver import AgentError, Driver
from kohakutpu.host.loader import Loader
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.isa import registers
from kohakutpu.kernels.linear import linear_silu
from kohakutpu.machine import load
from kohakutpu.model.system import System

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
    assert all(row.equal for row in compare(artifact, run_reference(linear_silu, knobs, operands(), machine).outputs, run.outputs))


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
