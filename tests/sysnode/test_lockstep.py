"""The comparison of two runs, on runs that are made up: where they part, and what is said about it."""

from threading import Event as Flag

import pytest

from kohakutpu.cli.kernel_options import read_array
from kohakutpu.cli.sim import EXAMPLES, cases
from kohakutpu.compiler import compile_kernel
from kohakutpu.host.driver import Driver
from kohakutpu.host.loader import Loader
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.isa.flit import FlitType
from kohakutpu.lang.kernel import load as load_kernel
from kohakutpu.machine import load
from kohakutpu.model.system import System
from kohakutpu.noc.trace import Level, Orderer, Transfer, order
from sim.lockstep import HISTORY, Comparison, Side

MACHINE = load("mm_mesh")
LINKS = [link.name for link in System(MACHINE).engine.links]


@pytest.fixture(scope="module")
def artifact():
    reference, knobs, files = {title: rest for title, *rest in cases(MACHINE)}["fused"]
    operands = {name: read_array(name, str(EXAMPLES / file)) for name, file in files.items()}
    return compile_kernel(load_kernel(reference), MACHINE, {n: a.shape for n, a in operands.items()}, knobs), operands


@pytest.fixture(scope="module")
def records(artifact):
    """Every record of the fused kernel on the model."""
    found = []
    sink = Orderer(found.extend)
    system = System(MACHINE)
    with system.observed(sink):
        Loader(Driver(ModelTransport(system))).run(*artifact)
    sink.finish()
    return found


def sent_to_memory(record):
    """The vector core begins a write burst."""
    return LINKS[record.link] == "vector0.out" and record.flit.type == FlitType.MEM_WR_REQ


def compared(artifact, ours, theirs):
    """(equal records, divergence or None) of two lists of records."""
    stop = Flag()
    sides = [Side(name, stop) for name in ("model", "gates")]

    def feed(records):
        def work(sink):
            for record in records:
                sink.advance(record.cycle)
                sink.add(record)

        return work

    threads = [side.run(feed(records)) for side, records in zip(sides, (ours, theirs))]
    comparison = Comparison(artifact[0], MACHINE, LINKS)
    equal, parted = comparison.difference(*sides)
    divergence = comparison.explain(*sides, "the command") if parted else None
    stop.set()
    for thread in threads:
        thread.join()
    return equal, divergence


def moved(records, number, cycles=1):
    """`records` with one of them a little later."""
    record = records[number]
    return [*records[:number], *records[number + 1 :], record._replace(cycle=record.cycle + cycles)]


def test_equal_runs_have_no_difference(artifact, records):
    assert compared(artifact, records, records) == (len(records), None)


def test_a_flit_that_is_late_is_found_on_its_link(artifact, records):
    number = next(i for i, r in enumerate(records) if isinstance(r, Transfer) and sent_to_memory(r))
    record = records[number]
    late = sorted(moved(records, number), key=lambda r: r.cycle)
    for ours, theirs, who in ((records, late, "gates"), (late, records, "model")):
        equal, found = compared(artifact, ours, theirs)
        assert (equal, found.cycle, found.name) == (number, record.cycle, "vector0.out")
        assert {"model": found.model, "gates": found.gates}[who] is None
        assert f"{who:6} nothing in this cycle; the same 1 later: " in found.text
        assert "vector0.out (vector0 and r11) differs" in found.text
        assert f"the last {HISTORY} events of r11" in found.text and "events of vector0" in found.text
        assert "kohakutpu/kernels/linear.py:" in found.text and "vector0 is at instruction" in found.text
        window = f"{record.cycle - 100}:{record.cycle + 50}"
        assert found.text.endswith(f"to record waves of the gates around it: the command --window {window}")


def test_other_contents_are_shown_from_both_sides(artifact, records):
    number = next(
        i for i, r in enumerate(records) if isinstance(r, Transfer) and r.flit.type == FlitType.CU_DATA and i > 500
    )
    record = records[number]
    wrong = record._replace(flit=record.flit._replace(txn=0x55))
    equal, found = compared(artifact, records, [*records[:number], wrong, *records[number + 1 :]])
    assert (equal, found.model, found.gates) == (number, record, wrong)
    assert "txn=0x55" in found.text


def test_a_level_is_named_by_its_track(artifact, records):
    number = next(i for i, r in enumerate(records) if isinstance(r, Level) and i > 300)
    wrong = records[number]._replace(value=records[number].value + 7)
    equal, found = compared(artifact, records, [*records[:number], wrong, *records[number + 1 :]])
    assert equal == number and found.gates == wrong and f"= {wrong.value}" in found.text


@pytest.mark.parametrize("who", ["model", "gates"])
def test_a_run_that_ends_early_is_a_difference(artifact, records, who):
    sides = {"model": records, "gates": records}
    cut = next(i for i, r in enumerate(records) if i > 1000 and r.cycle != records[i - 1].cycle)
    sides[who] = records[:cut]
    equal, found = compared(artifact, *sides.values())
    assert equal == cut and found.cycle == records[cut].cycle
    assert f"{who:6} nothing in this cycle, nor soon" in found.text


def test_a_side_that_lacks_only_the_last_record_of_a_cycle_is_looked_at_further(artifact, records):
    last = [
        i for i, r in enumerate(records[:-1]) if records[i + 1].cycle != r.cycle and records[i - 1].cycle == r.cycle
    ]
    number = next(i for i in last if isinstance(records[i], Level))
    late = sorted(moved(records, number), key=order)
    equal, found = compared(artifact, records, late)
    assert equal == number and "gates  nothing in this cycle; the same 1 later: " in found.text


def test_what_ended_a_run_is_said(artifact, records):
    stop = Flag()
    model, gates = Side("model", stop), Side("gates", stop)

    def fail(sink):
        raise RuntimeError("out of order")

    def feed(sink):
        sink.add(records[0])

    threads = [model.run(fail), gates.run(feed)]
    comparison = Comparison(artifact[0], MACHINE, LINKS)
    assert comparison.difference(model, gates) == (0, True)
    assert (
        "model  nothing in this cycle, nor soon; its run ended: out of order"
        in comparison.explain(model, gates, "").text
    )
    for thread in threads:
        thread.join()


def test_a_difference_stops_the_other_side(artifact, records):
    """A run that is far from its end does not go on once the other one has parted from it."""
    stop = Flag()
    side = Side("model", stop)
    steps = []

    def work(sink):
        for cycle in range(1_000_000):
            steps.append(cycle)
            sink.advance(cycle)
            sink.add(Level(cycle, 0, cycle))

    thread = side.run(work)
    stop.set()
    thread.join(timeout=30)
    assert not thread.is_alive() and len(steps) < 10_000
