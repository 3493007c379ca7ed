"""Transport, driver and loader against the model: what they refuse, and what they report when nothing answers."""

import numpy as np
import pytest

from kohakutpu.compiler import compile_kernel
from kohakutpu.host.compare import compare
from kohakutpu.host.driver import Driver, NoAnswer
from kohakutpu.host.loader import Loader, LoadError
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.host.transport import CONTROL_BASE, MEMORY_BASE, TransportError
from kohakutpu.isa import registers
from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.signals import CU_CAPS, CU_CTRL_REPLY, CU_CTRL_REQUEST, UnitType
from kohakutpu.kernels.linear import linear_silu, matmul
from kohakutpu.machine import load
from kohakutpu.model.system import System


@pytest.fixture(params=["mm_mesh", "quad"])
def transport(request):
    return ModelTransport(System(load(request.param)))


def test_memory_reads_back_what_was_written_and_nothing_around_it(transport):
    pad = b"\xaa" * 64
    for length in (8, 16, 24, 32, 40, 256, 4096, 4104):
        for offset in (0, 8, 32, 4096 - 8):
            at = MEMORY_BASE + 0x8000 + offset
            data = bytes((i * 7 + length) & 0xFF for i in range(length))
            transport.write_block(at - 64, pad + bytes(length) + pad)
            transport.write_block(at, data)
            assert transport.read_block(at - 64, length + 128) == pad + data + pad


def test_words_and_blocks_agree(transport):
    at = MEMORY_BASE + 0x4000
    transport.write64(at, 0x0123456789ABCDEF)
    transport.write64(at + 8, 0xFEDCBA9876543210)
    assert transport.read_block(at, 16) == bytes.fromhex("efcdab8967452301" "1032547698badcfe")
    assert transport.read64(at + 8) == 0xFEDCBA9876543210


def test_accesses_take_simulated_time(transport):
    before = transport.now
    transport.read64(CONTROL_BASE + registers.CAPS.offset)
    assert transport.now > before


@pytest.mark.parametrize(
    "address, length, reason",
    [
        (CONTROL_BASE + 4, 8, "multiple of 8"),
        (CONTROL_BASE, 12, "length 12"),
        (CONTROL_BASE, 0, "length 0"),
        (CONTROL_BASE - 8, 8, "in no window"),
        (CONTROL_BASE + 0xFFF8, 16, "in no window"),
        (2 * MEMORY_BASE, 8, "in no window"),
        (-8, 8, "not a non-negative"),
    ],
)
def test_an_access_outside_is_refused_by_address(transport, address, length, reason):
    with pytest.raises(TransportError, match=reason):
        transport.read_block(address, length)
    with pytest.raises(TransportError, match=reason):
        transport.write_block(address, bytes(length))


def test_the_driver_knows_the_agent(transport):
    caps = Driver(transport).identify()
    assert caps["flit_width"] == 288 and caps["pos_width"] == 4 and caps["grid_lo"] == 1


def test_something_else_at_the_base_is_refused(transport):
    with pytest.raises(TransportError, match="no control agent"):
        Driver(transport, CONTROL_BASE + 0x800).identify()


def test_mailbox_reaches_a_unit(transport):
    driver, machine = Driver(transport), transport.system.machine
    unit = machine.clusters[0]
    ask = Flit(unit.node, machine.agent.node, FlitType.CU_CTRL, 0x21, 1, 0, CU_CTRL_REQUEST.encode(index=0))
    assert driver.receive() is None
    driver.send(ask)
    for _ in range(20):
        answer = driver.receive()
        if answer is not None:
            break
        transport.pause()
    assert answer.src == unit.node and answer.txn == 0x21
    caps = CU_CAPS.decode(CU_CTRL_REPLY.get(answer.payload, "value"))
    assert caps["type"] == UnitType.CLUSTER and caps["inst_depth"] == unit.inst_depth
    assert driver.drain() == 0


def test_shadowed_registers_are_written_once(transport):
    driver = Driver(transport)
    driver.write(registers.PROG_DST, x=1, y=1)
    before = transport.system.host.accesses
    driver.write(registers.PROG_DST, x=1, y=1)
    assert transport.system.host.accesses == before
    driver.forget()
    driver.write(registers.PROG_DST, x=1, y=1)
    driver.write(registers.PROG_CRED, credit=1)
    driver.write(registers.PROG_CRED, credit=1)
    assert transport.system.host.accesses == before + 3


def test_a_poll_that_expires_says_what_it_read(transport):
    driver = Driver(transport, timeout=500)
    with pytest.raises(
        NoAnswer, match=r"NODE_STATUS\[0x21\] still reads count=0 valid=0 after 500 cycles, wanted count=3 valid=1"
    ) as caught:
        driver.await_signals(node(1, 2), 3)
    assert "nodes:" in str(caught.value) and caught.value.exit_status == 4


@pytest.fixture(scope="module")
def artifact():
    return compile_kernel(linear_silu, load("mm_mesh"), {"x": (32, 64), "w": (32, 64)}, {"gm": 8, "gn": 8})


def operands(seed=0):
    random = np.random.default_rng(seed)
    return {name: random.normal(0, 0.3, (32, 64)).astype(np.float16) for name in ("x", "w")}


def test_two_runs_on_one_machine_need_no_reset(artifact):
    loader = Loader(Driver(ModelTransport(System(load("mm_mesh")))))
    runs = [loader.run(artifact, operands(seed)) for seed in (1, 2, 1)]
    for run, seed in zip(runs, (1, 2, 1)):
        want = run_reference(linear_silu, {"gm": 8, "gn": 8}, operands(seed), load("mm_mesh"))
        assert all(row.equal for row in compare(artifact, want.outputs, run.outputs))
    assert runs[0].images == runs[2].images and runs[0].images != runs[1].images


def test_wrong_operands_are_refused_before_anything_is_written(artifact):
    system = System(load("mm_mesh"))
    loader = Loader(Driver(ModelTransport(system)))
    with pytest.raises(LoadError, match="takes w, x; given x"):
        loader.run(artifact, {"x": operands()["x"]})
    with pytest.raises(LoadError, match="w: expected float16 or uint16 bit patterns, got float32"):
        loader.load(artifact, {"x": operands()["x"], "w": operands()["w"].astype(np.float32)})
    assert system.host.bytes_written <= 4096


def test_progress_counts_rounds(artifact):
    seen = []
    loader = Loader(
        Driver(ModelTransport(System(load("mm_mesh")))), progress=lambda done, total: seen.append((done, total))
    )
    loader.run(artifact, operands())
    assert seen == [(i + 1, len(artifact.rounds)) for i in range(len(artifact.rounds))]


def test_a_word_that_is_lost_on_the_way_is_waited_for_in_vain(artifact):
    """The loader knows how many words a stage writes, so it never reads a result that is not all there."""
    with pytest.raises(NoAnswer, match="waiting for the stage's words in memory"):
        run_model(artifact, load("mm_mesh"), operands(), faults=["noc-lost-tail"], timeout=5000)


def test_a_mismatch_is_at_the_lowest_offset(artifact):
    want = run_reference(linear_silu, {"gm": 8, "gn": 8}, operands(), load("mm_mesh")).outputs
    wrong = {"y": want["y"].copy()}
    wrong["y"][0, 17] ^= 1
    wrong["y"][1, 0] ^= 0x8000
    (row,) = compare(artifact, want, wrong)
    assert row.different == 2 and row.first.index == (1, 0) and row.first.offset == 8
    assert row.first.found == row.first.expected ^ 0x8000 and row.expected != row.found
    with pytest.raises(KeyError):
        compare(artifact, want, {})
    with pytest.raises(ValueError, match="shapes"):
        compare(artifact, want, {"y": want["y"][:1]})


def test_more_rounds_than_staging_holds():
    machine = load("mm_mesh")
    shapes = {"a": (32, 4096), "b": (32, 4096)}
    artifact = compile_kernel(matmul, machine, shapes, {"gm": 8, "gn": 8, "nk": 1})
    assert artifact.flit_count > 128 and len(artifact.rounds) > 1
    random = np.random.default_rng(5)
    values = {name: random.normal(0, 0.3, shape).astype(np.float16) for name, shape in shapes.items()}
    result = run_model(artifact, machine, values)
    want = run_reference(matmul, {"gm": 8, "gn": 8, "nk": 1}, values, machine)
    assert all(row.equal for row in compare(artifact, want.outputs, result.run.outputs))
