"""The Chrome trace: well-formed, complete against the trace, and small in memory."""

import io
import json
from collections import Counter, defaultdict

import pytest

from kohakutpu.isa.flit import FlitType, type_name
from kohakutpu.noc.trace import Level, Trace, Transfer
from kohakutpu.view.survey import Survey
from kohakutpu.view.timeline import LINKS, PROCESSES, SPANS, UNITS, write_timeline

from .conftest import rewritten


def events_of(run):
    file = io.StringIO()
    write_timeline(Survey(Trace(run.path)), file)
    return json.loads(file.getvalue())["traceEvents"]


@pytest.fixture
def events(any_run):
    return events_of(any_run)


def threads(events):
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def slices(events, process):
    return [event for event in events if event["ph"] == "X" and event["pid"] == process]


def test_every_process_and_thread_has_a_name(events):
    named = threads(events)
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == set(PROCESSES.values())
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X" and e["pid"] != 1} <= named.keys()


def test_slices_of_a_track_do_not_overlap(events):
    by_track = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] > 0
            by_track[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in by_track.values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))


def test_links_carry_every_flit_of_the_trace(any_run, events):
    named, shown = threads(events), Counter()
    for event in slices(events, LINKS):
        assert event["args"]["flits"] == event["dur"]
        for cycle in range(event["ts"], event["ts"] + event["dur"]):
            shown[named[LINKS, event["tid"]], cycle, event["name"]] += 1
    trace = Trace(any_run.path)
    assert shown == Counter(
        (trace.links[r.link], r.cycle, type_name(r.flit.type)) for r in trace if type(r) is Transfer
    )


def test_spans_are_those_of_the_trace(any_run, events):
    named, trace = threads(events), Trace(any_run.path)
    shown = Counter()
    for event in slices(events, SPANS):
        shown[named[SPANS, event["tid"]]] += event["dur"]
    held, now = Counter(), {}
    for record in [r for r in trace if type(r) is Level and trace.tracks[r.track].kind == "span"]:
        since, value = now.get(record.track, (0, 0))
        held[trace.tracks[record.track].name] += (record.cycle - since) * (value != 0)
        now[record.track] = record.cycle, record.value
    for track, (since, value) in now.items():
        held[trace.tracks[track].name] += (trace.cycles - since) * (value != 0)
    assert shown == +held


def test_a_span_that_is_open_at_the_end_is_shown(tmp_path, fused):
    cut = rewritten(tmp_path / "cut.trace", fused, lambda record: record if record.cycle < 700 else None)
    file = io.StringIO()
    write_timeline(Survey(Trace(cut)), file)
    shown = json.loads(file.getvalue())["traceEvents"]
    named = threads(shown)
    ends = {named[SPANS, e["tid"]]: e["ts"] + e["dur"] for e in slices(shown, SPANS)}
    assert ends["cluster0.fill"] == Trace(cut).cycles
    fill = next(event for event in slices(shown, UNITS) if not event["args"]["retired"])
    assert fill["name"].startswith("FILL") and fill["ts"] + fill["dur"] == Trace(cut).cycles


def test_levels_are_those_of_the_trace(any_run, events):
    trace = Trace(any_run.path)
    shown = [(e["ts"], e["name"], e["args"]["value"]) for e in events if e["ph"] == "C"]
    expected = [
        (r.cycle, trace.tracks[r.track].name, r.value)
        for r in trace
        if type(r) is Level and trace.tracks[r.track].kind == "level"
    ]
    assert shown == expected


def test_instructions_are_named_by_opcode_and_txn(any_run, events):
    named, survey = threads(events), Survey(Trace(any_run.path))
    shown = Counter((named[UNITS, e["tid"]], e["ts"], e["dur"], e["name"]) for e in slices(events, UNITS))
    assert shown == Counter(
        (one.unit, one.begin, one.end + 1 - one.begin, f"{one.opcode} txn {one.txn:#04x}")
        for one in survey.instructions
    )


def test_arrows_lead_from_dispatch_to_completion(any_run, events):
    """Each starts on a CU_INST, steps on the instruction, ends on the signal that reports it."""
    named, arrows = threads(events), defaultdict(dict)
    there = set()
    for event in events:
        if event["ph"] == "X":
            there.add((event["pid"], event["tid"], event["ts"]))
        elif event["ph"] in "stf":
            assert (event["pid"], event["tid"], event["ts"]) in there  # a reader looks for a slice that came before
            arrows[event["id"]][event["ph"]] = event
    survey = Survey(Trace(any_run.path))
    assert len(arrows) == len(survey.instructions)
    inside = {
        (e["pid"], e["tid"], cycle): e for e in events if e["ph"] == "X" for cycle in range(e["ts"], e["ts"] + e["dur"])
    }
    left = {(one.unit, one.begin): one for one in survey.instructions}
    for arrow in arrows.values():
        start, step, end = (inside[arrow[p]["pid"], arrow[p]["tid"], arrow[p]["ts"]] for p in "stf")
        one = left.pop((named[UNITS, step["tid"]], arrow["t"]["ts"]))
        assert start["name"] == type_name(FlitType.CU_INST) and arrow["s"]["ts"] == one.sent
        assert end["name"] == type_name(FlitType.CU_SIGNAL) and arrow["f"]["ts"] > one.end
        unit = next(unit for unit in survey.units if unit.name == one.unit)
        assert end["args"]["from"] == f"({unit.x}, {unit.y})"
        assert end["args"]["first"].split()[0] in ("INST_COMPLETE", "BATCH_COMPLETE")
        assert ("BATCH_COMPLETE" in end["args"]["first"]) == one.last
    assert not left
