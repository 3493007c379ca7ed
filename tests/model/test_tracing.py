"""Tracks of the models' traces, held against what the machine counts and against its registers in every cycle."""

from __future__ import annotations

from collections import Counter

import pytest

from kohakutpu.cli.kernel_options import read_array
from kohakutpu.cli.sim import EXAMPLES, cases
from kohakutpu.compiler import compile_kernel
from kohakutpu.host.driver import Driver
from kohakutpu.host.loader import Loader
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.simulate import run_model
from kohakutpu.isa.flit import FlitType
from kohakutpu.isa.signals import CLUSTER_DEBUG, VECTOR_DEBUG
from kohakutpu.lang.kernel import load as load_kernel
from kohakutpu.machine import load
from kohakutpu.model.system import System
from kohakutpu.noc.trace import Event, Level, Trace, Transfer
from kohakutpu.noc.trace_tracks import BEGIN, RETIRE

PLACES = [("mm_mesh", "fused"), ("mm_mesh", "staged"), ("quad", "fused"), ("quad", "staged")]


def case(machine, title):
    """(artifact, operands) of an example kernel."""
    reference, knobs, files = {t: rest for t, *rest in cases(machine)}[title]
    operands = {name: read_array(name, str(EXAMPLES / file)) for name, file in files.items()}
    artifact = compile_kernel(load_kernel(reference), machine, {n: a.shape for n, a in operands.items()}, knobs)
    return artifact, operands


@pytest.fixture(scope="module", params=PLACES, ids="-".join)
def traced(request, tmp_path_factory):
    """(system after the run, trace, {track name: its records})."""
    machine = load(request.param[0])
    artifact, operands = case(machine, request.param[1])
    path = tmp_path_factory.mktemp("trace") / "t"
    system = System(machine)
    with system.record(path):
        Loader(Driver(ModelTransport(system))).run(artifact, operands)
    trace = Trace(path)
    found: dict[str, list] = {track.name: [] for track in trace.tracks}
    for record in trace:
        if not isinstance(record, Transfer):
            found[trace.tracks[record.track].name].append(record)
    return system, trace, found


def cycles_of(levels, end, value=None):
    """Cycles in which a track is not 0, or is `value`."""
    total = 0
    for record, after in zip(levels, [*levels, Level(end, 0, 0)][1:]):
        if record.value if value is None else record.value == value:
            total += after.cycle - record.cycle
    return total


def test_levels_change_and_events_are_events(traced):
    _, trace, found = traced
    kinds = {track.name: track.kind for track in trace.tracks}
    for name, records in found.items():
        assert {type(record) for record in records} <= {Event if kinds[name] == "event" else Level}
        if kinds[name] != "event":
            values = [0, *(record.value for record in records)]
            assert all(a != b for a, b in zip(values, values[1:])), name
            if kinds[name] == "span":
                assert values[-1] == 0, f"{name} is over when the machine is idle"


def test_spans_are_as_long_as_the_units_count(traced):
    system, trace, found = traced
    now = system.engine.now
    for unit in system.units.values():
        word = unit.debug_counter(now)
        if unit.name.startswith("cluster"):
            counted = CLUSTER_DEBUG.decode(word)
            spans = [cycles_of(found[f"{unit.name}.{name}"], now) for name in ("array", "fill")]
            assert spans == [counted["array_cycles"], counted["fill_cycles"]]
            assert all(spans) == bool(unit.retired)
        elif found[f"{unit.name}.run"]:
            results = [RETIRE.decode(event.value)["result"] for event in found[f"{unit.name}.retire"]]
            assert cycles_of(found[f"{unit.name}.run"], now) == sum(results)
            last = [event for event in found[f"{unit.name}.retire"] if RETIRE.decode(event.value)["result"]][-1]
            assert VECTOR_DEBUG.decode(word)["kernel_cycles"] == RETIRE.decode(last.value)["result"]
            assert cycles_of(found[f"{unit.name}.decode"], now) == sum(results)
        busy = [cycles_of(found[f"{unit.name}.{name}"], now) for name in ("inst", "completions")]
        assert max(busy) <= unit.busy_cycles(now)


def test_instructions_begin_and_retire(traced):
    system, trace, found = traced
    arrived: Counter = Counter()
    for record in trace:
        if isinstance(record, Transfer) and record.flit.type == FlitType.CU_INST:
            sink = system.engine.links[record.link].sink
            arrived[getattr(sink, "name", "")] += 1
    for unit in system.units.values():
        begins, retires = found[f"{unit.name}.begin"], found[f"{unit.name}.retire"]
        assert len(begins) == len(retires) == unit.retired == arrived[unit.name]
        for begin, retire, following in zip(begins, retires, [*begins[1:], None]):
            assert begin.cycle < retire.cycle and (following is None or retire.cycle < following.cycle)
            old, new = BEGIN.decode(begin.value), RETIRE.decode(retire.value)
            assert (old["txn"], old["last"]) == (new["txn"], new["last"]) and not new["fault"]


def test_memory_bursts_are_in_flight_for_the_latency(traced):
    system, trace, found = traced
    latency, now = system.machine.memory.latency, system.engine.now
    for port in system.ports:
        channel = port.memory.channel
        for kind, words in (("read", channel.words_read), ("write", channel.words_written)):
            levels = found[f"{port.name}.dram.{kind}"]
            assert bool(levels) == bool(words)
            if words:
                total = sum(record.value * (after.cycle - record.cycle) for record, after in zip(levels, levels[1:]))
                assert total >= latency * words / 8 and cycles_of(levels, now) >= latency


def test_every_register_in_every_cycle(tmp_path):
    """The trace of a run, unrolled, is what each FIFO says of itself at the start of each cycle."""
    machine = load("mm_mesh")
    artifact, operands = case(machine, "fused")
    system = System(machine, skip=False)
    seen: list[dict[str, int]] = []
    cycle = type(system.engine).cycle

    def look(engine):
        now, agent = engine.now, system.agent
        levels = {"agent.tx": agent.tx.level(now), "agent.credit": agent.credit, "agent.run": int(agent.run)}
        for port in (*system.ports, *agent.ports):
            if port in agent.ports:
                levels[f"{port.name}.intake"] = port.intake.level(now)
        for unit in system.units.values():
            for name, fifo in (("inst", unit.inst), ("recv", unit.recv), ("completions", unit.completions)):
                levels[f"{unit.name}.{name}"] = fifo.level(now)
        for port in system.ports:
            levels[f"{port.name}.reads"] = port.memory.read_path.queue.level(now)
            levels[f"{port.name}.writes"] = port.memory.write_path.queue.level(now)
        for router in system.mesh.routers.values():
            for source in router.inputs:
                levels[f"{router.name}.{source.port.name.lower()}"] = len(source.queue)
        seen.append(levels)
        cycle(engine)

    with pytest.MonkeyPatch.context() as patch, system.record(tmp_path / "t"):
        patch.setattr(type(system.engine), "cycle", look)
        Loader(Driver(ModelTransport(system))).run(artifact, operands)
    trace = Trace(tmp_path / "t")
    names = {index: track.name for index, track in enumerate(trace.tracks)}
    changes: dict[int, dict[str, int]] = {}
    for record in trace:
        if isinstance(record, Level):
            changes.setdefault(record.cycle, {})[names[record.track]] = record.value
    now = dict.fromkeys(names.values(), 0)
    assert len(seen) == trace.cycles
    for number, levels in enumerate(seen):
        now |= changes.get(number, {})
        wrong = {name: (value, now[name]) for name, value in levels.items() if name in now and now[name] != value}
        assert not wrong, f"cycle {number}: (register, trace) {wrong}"


def test_skipping_writes_the_same_trace(tmp_path):
    machine = load("quad")
    artifact, operands = case(machine, "staged")
    for skip in (True, False):
        run_model(artifact, machine, operands, skip=skip, trace=tmp_path / str(skip))
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()


def test_watching_changes_nothing(tmp_path):
    machine = load("mm_mesh")
    artifact, operands = case(machine, "fused")
    plain = run_model(artifact, machine, operands)
    watched = run_model(artifact, machine, operands, trace=tmp_path / "t")
    assert plain.to_dict() == watched.to_dict() and plain.run.images == watched.run.images


def test_a_reset_ends_every_span(tmp_path):
    """A trace goes on over a reset: what was in the FIFOs is gone when time goes on."""
    machine = load("mm_mesh")
    artifact, operands = case(machine, "fused")
    system = System(machine)
    with system.record(tmp_path / "t"):
        loader = Loader(Driver(ModelTransport(system)))
        loader.load(artifact, operands)
        loader.driver.stage(flit.to_int() for flit in artifact.rounds[0].flits)
        loader.driver.seed_credit(8)
        system.engine.advance(20)
        system.reset()
        assert system.agent.credit == 0
        system.engine.advance(5)
    track = [track.name for track in system.tracks].index("agent.credit")
    levels = [record for record in Trace(tmp_path / "t") if isinstance(record, Level) and record.track == track]
    assert [record.value for record in levels] == [8, 0]
