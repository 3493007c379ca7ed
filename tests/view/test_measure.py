"""The numbers of a trace against plain loops over its records, and against what the models counted while they ran."""

from collections import Counter

import numpy as np
import pytest

from kohakutpu.formats.mxfp7 import BLOCK
from kohakutpu.isa import cluster
from kohakutpu.isa.flit import FlitType
from kohakutpu.isa.memory import MEM_REQ
from kohakutpu.noc.trace import Level, Trace, TraceWriter, Transfer
from kohakutpu.noc.trace_tracks import Decode
from kohakutpu.view import ViewError
from kohakutpu.view.limits import difference, limiter, roofline, uses
from kohakutpu.view.measure import measure, read_words
from kohakutpu.view.survey import Survey

from .conftest import Link, measured, rewritten


def flits(run, start=0, end=None):
    return [record for record in Trace(run.path).window(start, end) if type(record) is Transfer]


def levels(run, cycles):
    """{track: value in each of `cycles`} by replaying every record."""
    trace = Trace(run.path)
    now = [0] * len(trace.tracks)
    changes = {}
    for record in trace:
        if type(record) is Level:
            changes.setdefault(record.cycle, []).append(record)
    found = {track.name: [] for track in trace.tracks}
    for cycle in range(cycles.stop):
        for record in changes.get(cycle, []):
            now[record.track] = record.value
        if cycle >= cycles.start:
            for track, value in zip(trace.tracks, now, strict=True):
                found[track.name].append(value)
    return found


# ---- traffic ------------------------------------------------------------------------------------------


def test_traffic_is_what_the_models_counted(any_run):
    whole = measured(any_run.path).whole
    assert whole.hops == any_run.run.hops
    assert whole.dram_read == any_run.run.dram_read
    assert whole.dram_written == any_run.run.dram_written


def test_links_are_what_a_loop_counts(any_run):
    measures = measured(any_run.path)
    counted = Counter(record.link for record in flits(any_run))
    assert {index: count for index, count in enumerate(measures.whole.links.tolist()) if count} == dict(counted)
    assert measures.heat.sum(axis=1).tolist() == measures.whole.links.tolist()
    assert sum(part.hops for _, part in measures.parts) == measures.whole.hops


def test_a_window_counts_what_lies_in_it(fused):
    end = flits(fused)[600].cycle  # a flit moves in the first cycle that is outside
    measures = measured(fused.path, window=(600, end))
    inside = flits(fused, 600, end)
    assert measures.whole.hops == len(inside) > 100
    written = sum(
        record.flit.type == FlitType.MEM_WR_DATA for record in inside if "west" in Trace(fused.path).links[record.link]
    )
    assert measures.whole.dram_written == 32 * written


@pytest.mark.parametrize("window", [(0, 0), (5, 2), (-1, 10), (0, 10**9)])
def test_a_window_outside_of_the_trace_is_refused(fused, window):
    with pytest.raises(ViewError, match="the trace has 0 to"):
        measure(Survey(Trace(fused.path)), window=window)


def test_bins_add_up_and_hold_what_lies_in_them(any_run):
    survey = Survey(Trace(any_run.path))
    measures = measure(survey, most_bins=37)
    assert len(measures.bins) <= 38 and (np.diff(measures.bins) > 0).all()
    for low, high, column in zip(measures.bins[:-1], measures.bins[1:], measures.heat.T, strict=True):
        counted = Counter(record.link for record in flits(any_run, int(low), int(high)))
        assert {index: count for index, count in enumerate(column.tolist()) if count} == dict(counted)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({}, 1), ({"len": 7}, 8), ({"len": 7, "count": 9}, 8), ({"stream": 1, "count": 5, "entry_words": 3}, 15),
        ({"stream": 1, "count": 0, "entry_words": 0}, 4), ({"stream": 1, "count": 3, "entry_words": 9}, 12),
        ({"stream": 1, "quant": 1, "count": 6, "entry_words": 2}, 48), ({"quant": 1, "count": 6}, 8),
    ],
)  # fmt: skip
def test_words_of_a_read_request(fields, words):
    assert read_words(MEM_REQ.pack(**fields)) == words


def test_the_words_of_a_converted_entry():
    """Sixteen FP16 values a word; an entry is four rows of a block."""
    assert 4 * BLOCK == 8 * 16


# ---- states -------------------------------------------------------------------------------------------


def test_states_are_what_a_loop_over_the_levels_says(any_run):
    measures = measured(any_run.path)
    cycles = range(measures.whole.start, measures.whole.end)
    values = levels(any_run, cycles)
    for unit in measures.survey.units:
        counted = Counter()
        for at in range(len(cycles)):
            now = {
                name.removeprefix(f"{unit.name}."): values[name][at]
                for name in values
                if name.startswith(f"{unit.name}.")
            }
            if unit.kind == "cluster":
                computing, operands, link = now["array"], now["fill"] or now["receive"], now["drain"] or now["results"]
            else:
                computing = now["decode"] in (Decode.WORD, Decode.FETCH, Decode.PIPELINE)
                operands, link = (
                    now["decode"] == Decode.FILL or now["receive"],
                    now["decode"] == Decode.DRAIN or now["drain"],
                )
            counted["computing" if computing else "operands" if operands else "link" if link else "idle"] += 1
        assert {key: count for key, count in measures.whole.states[unit.name].items() if count} == dict(counted), (
            unit.name
        )


def test_every_lane_accounts_for_every_cycle(any_run):
    measures = measured(any_run.path)
    for part in [measures.whole, *(part for _, part in measures.parts)]:
        for name, spent in part.states.items():
            assert sum(spent.values()) == part.cycles, name
    assert sum(part.cycles for _, part in measures.parts) == measures.whole.cycles


def test_array_cycles_are_those_of_the_sweeps(fused):
    """One GEMM of 8 x 8 sub-tiles and 2 K blocks: issues and 19 cycles behind the last (cluster.md, counters)."""
    assert measured(fused.path).whole.states["cluster0"]["computing"] == 8 * 8 * 2 + 19


def test_the_host_has_the_cycles_without_a_program(any_run):
    measures = measured(any_run.path)
    sent, retired = {}, {}
    for one in measures.survey.instructions:
        if one.last:
            retired.setdefault(one.unit, []).append(one.end)
    first = {}
    for one in measures.survey.instructions:
        first.setdefault(one.unit, one.sent)
        if one.last:
            sent.setdefault(one.unit, []).append(first.pop(one.unit))
    busy = set()
    for unit, starts in sent.items():
        for start, end in zip(starts, retired[unit], strict=True):
            busy |= set(range(start, end + 1))
    between = [part for stage, part in measures.parts if stage is None]
    assert sum(part.cycles for part in between) <= measures.whole.cycles - len(
        busy & set(range(measures.whole.start, measures.whole.end))
    )
    assert measures.whole.states["agent"]["idle"] <= measures.whole.cycles - len(busy)


# ---- instructions, stages, limits -----------------------------------------------------------------------


def test_instructions_are_those_of_the_trace(any_run):
    survey = Survey(Trace(any_run.path))
    into = {survey.topology.into(unit.name): unit.name for unit in survey.units}
    delivered = [record for record in flits(any_run) if record.flit.type == FlitType.CU_INST and record.link in into]
    assert Counter(one.unit for one in survey.instructions) == Counter(into[record.link] for record in delivered)
    assert all(one.sent < one.begin <= one.end for one in survey.instructions)
    work = sum(
        2 * 512 * word.gm * word.gn * word.nk
        for record in delivered
        if into[record.link].startswith("cluster")
        and (word := cluster.decode(record.flit.payload)).op == cluster.Op.GEMM
    )
    assert sum(one.operations for one in survey.instructions) == work == measured(any_run.path).whole.operations > 0


def test_operations_are_those_of_the_product(fused, quad, ports):
    for run, (m, k, n) in ((fused, (32, 64, 32)), (quad, (64, 128, 64)), (ports, (128, 64, 128))):
        assert measured(run.path).whole.operations == 2 * m * k * n


def test_stages(fused, staged):
    for run in (fused, staged):
        measures = measured(run.path)
        stages = [stage for stage, _ in measures.parts if stage]
        assert [stage.kinds for stage in stages] == [("cluster",), ("vector",)]
        assert stages[0].opcodes == {"FILL": 2, "GEMM": 1, "DRAIN": 1}
        assert stages[1].opcodes["RUN"] == len([one for one in measures.survey.instructions if one.opcode == "RUN"])
        total = sum((stage.opcodes for stage in stages), Counter())
        assert total == Counter(one.opcode for one in measures.survey.instructions)


def test_rounds_of_one_kind_are_one_stage(ports):
    measures = measured(ports.path)
    assert [stage.kinds for stage in measures.survey.stages] == [("cluster",)]
    assert measures.survey.stages[0].rounds == len(measures.survey.rounds)


def test_the_difference_adds_up(fused, staged):
    first, other = measured(fused.path, title="fused"), measured(staged.path, title="staged")
    parts = {key: other.whole.states["run"][key] - count for key, count in first.whole.states["run"].items()}
    assert sum(parts.values()) == other.whole.cycles - first.whole.cycles > 0
    text = difference(first, other)
    assert f"staged takes {other.whole.cycles - first.whole.cycles:,} more cycles" in text
    assert f"{parts['operands']:+,} operands on their way" in text
    assert "It reads 2,048 more bytes and writes 2,048 more bytes of DRAM" in text
    assert "fewer cycles" in difference(other, first)


def test_the_limiter_is_what_most_cycles_went_to(any_run):
    whole = (measures := measured(any_run.path)).whole
    most = max(whole.states["run"].values())
    assert f"({most:,} of {whole.cycles:,} cycles)" in limiter(measures, whole)


def test_a_saturated_resource_is_the_limiter(fused):
    survey = Survey(Trace(fused.path))
    measures = measure(survey, window=(510, 600))  # operands arrive through mag0
    measures.whole.read_words[0] = 80
    assert limiter(measures, measures.whole) == "DRAM reading through mag0, 88.9% (80 of 90 cycles)"


def test_uses_are_shares_of_peaks(any_run):
    measures = measured(any_run.path)
    found = {use.resource: use for use in uses(measures, measures.whole)}
    assert all(0 < use.busy <= use.cycles for use in found.values())
    reading = sum(use.busy for name, use in found.items() if name.startswith("DRAM reading"))
    assert 32 * reading == any_run.run.dram_read


def test_roofline(fused):
    roof = roofline(measured(fused.path), measured(fused.path).whole)
    assert (roof.compute, roof.bandwidth, roof.bytes) == (1024, 32.0, 8192)
    assert roof.intensity == 2 * 32 * 64 * 32 / 8192 == 16 and roof.bound == 512


# ---- what is refused ------------------------------------------------------------------------------------


def test_a_trace_without_a_flit_is_refused(tmp_path, fused):
    empty = rewritten(tmp_path / "empty.trace", fused, lambda record: None)
    with pytest.raises(ViewError, match=f"no flit moved in {Trace(fused.path).cycles} cycles"):
        Survey(Trace(empty))


@pytest.mark.parametrize(
    "names, reason",
    [([], "no link into cluster0"), (["r99.east"], "'r99.east' is on no router"), (["mag7.out"], "'mag7.out'")],
)
def test_links_that_do_not_fit_the_machine_are_refused(tmp_path, fused, names, reason):
    source = Trace(fused.path)
    with TraceWriter(
        tmp_path / "other.trace", fused.machine, [Link(*pair) for pair in enumerate(names)], source.tracks
    ):
        pass
    with pytest.raises(ViewError, match=reason):
        Survey(Trace(tmp_path / "other.trace"))


def test_an_instruction_that_never_retires_is_open(tmp_path, fused):
    """A hang: nothing after the GEMM began."""
    gemm = next(one for one in Survey(Trace(fused.path)).instructions if one.opcode == "GEMM")
    cut = rewritten(tmp_path / "cut.trace", fused, lambda record: record if record.cycle <= gemm.begin else None)
    survey = Survey(Trace(cut))
    assert survey.instructions[-1].end is None and survey.stages[-1].end == survey.end
    assert measure(survey).whole.operations == 0


def test_events_without_instructions_are_refused(tmp_path, fused):
    broken = rewritten(
        tmp_path / "broken.trace", fused,
        lambda record: None if type(record) is Transfer and record.flit.type == FlitType.CU_INST else record,
    )  # fmt: skip
    with pytest.raises(ViewError, match="which got fewer instructions"):
        Survey(Trace(broken))


def test_an_event_of_another_instruction_is_refused(tmp_path, fused):
    def other(record):
        if type(record) is Transfer and record.flit.type == FlitType.CU_INST:
            return record._replace(flit=record.flit._replace(txn=0x55))
        return record

    with pytest.raises(ViewError, match="has 0x55"):
        Survey(Trace(rewritten(tmp_path / "other.trace", fused, other)))
