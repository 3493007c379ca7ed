"""The report: what a trace shows as text, and the same as data for JSON."""

from __future__ import annotations

from collections.abc import Iterator

from kohakutpu.isa.flit import xy
from kohakutpu.wording import counted

from .lanes import STATES
from .limits import LABELS, limiter, roofline, uses
from .measure import FLIT_BYTES, Measures, Part

MOST_STAGES = 40  # printed; the JSON has all
FULLEST = 6


def lines(measures: Measures) -> Iterator[str]:
    """The report, a line each, at most some hundred columns wide."""
    survey, whole = measures.survey, measures.whole
    yield f"{measures.title}: {survey.machine.name}, cycles {whole.start:,} to {whole.end:,}: {whole.cycles:,} cycles"
    yield f"  limiter: {limiter(measures, whole)}"
    yield "  cycles went to " + ", ".join(
        f"{LABELS[key]} {count:,}" for key, count in whole.states["run"].items() if count
    )
    yield f"  DRAM {whole.dram_read:,} bytes read, {whole.dram_written:,} bytes written"
    yield f"  NoC {counted(whole.hops, 'flit', form=',')} over links, {FLIT_BYTES * whole.hops:,} bytes"
    yield from _roofline(measures, whole)
    yield from _stages(measures)
    yield from _units(measures, whole)
    yield from _links(measures, whole)
    queues = [item for item in measures.peaks.items() if item[0] != "agent.credit"]
    fullest = sorted(queues, key=lambda item: -item[1])[:FULLEST]
    yield "  fullest queues of the whole trace: " + ", ".join(f"{name} {peak}" for name, peak in fullest if peak)


def _roofline(measures: Measures, part: Part) -> Iterator[str]:
    roof = roofline(measures, part)
    if not roof.operations:
        return
    wide = "no DRAM" if roof.intensity is None else f"{roof.intensity:.2f} operations a byte"
    yield (
        f"  matrix products: {roof.operations:,} operations, {wide}, {roof.reached:.1f} a cycle of {roof.compute:,} "
        f"that the arrays can and {roof.bound:.1f} that the roof allows"
    )


def _stages(measures: Measures) -> Iterator[str]:
    yield f"  {'stage':>7} {'from':>10} {'cycles':>10}  {'DRAM read':>10} {'written':>10} {'flit-hops':>10}  what"
    number = 0
    for stage, part in measures.parts[:MOST_STAGES]:
        number += stage is not None
        what = (
            "host"
            if stage is None
            else stage.title + (f", {counted(stage.rounds, 'round')}" if stage.rounds > 1 else "")
        )
        yield (
            f"  {number if stage else '':>7} {part.start:>10,} {part.cycles:>10,}  {part.dram_read:>10,} "
            f"{part.dram_written:>10,} {part.hops:>10,}  {what}"
        )
        if stage is not None:
            yield f"  {'':>7} {limiter(measures, part)}"
    if len(measures.parts) > MOST_STAGES:
        rest = measures.parts[MOST_STAGES:]
        cycles = sum(part.cycles for _, part in rest)
        yield f"  {'':>7} ... and {counted(len(rest), 'more part', form=',')}, {cycles:,} cycles (--json has all)"


def _units(measures: Measures, part: Part) -> Iterator[str]:
    for name, lane in measures.lanes.items():
        if name == "run":
            continue
        spent = part.states[name]
        shares = ", ".join(
            f"{state.label} {spent[state.key]:,} ({100 * spent[state.key] / part.cycles:.1f}%)"
            for state in STATES[lane.kind]
        )
        place = next((place for place in measures.survey.topology.places if place.name == name), None)
        yield f"  {name:10} {f'({place.x},{place.y})' if place else '':7} {shares}"


def _links(measures: Measures, part: Part) -> Iterator[str]:
    for wire, count in sorted(
        zip(measures.survey.topology.wires, part.links.tolist(), strict=True), key=lambda item: -item[1]
    ):
        if count:
            ends = f"{wire.source} to {wire.sink}"
            yield f"  {wire.name:14} {ends:22} {count:>10,} flits {100 * count / part.cycles:5.1f}%"


def to_dict(measures: Measures) -> dict:
    """The report as data, in cycles, flits, bytes and operations, for the window and for every part of it."""
    survey, whole = measures.survey, measures.whole
    units = {place.name: xy(place.node) for place in survey.topology.places}
    number = 0
    parts = []
    for stage, part in measures.parts:
        number += stage is not None
        parts.append(
            {
                "stage": number if stage else None,
                "title": stage.title if stage else "host",
                "rounds": stage.rounds if stage else 0,
                **_part(measures, part),
            }
        )
    return {
        "title": measures.title,
        "trace": survey.trace.path.name,
        "machine": survey.machine.name,
        "machine_digest": survey.trace.digest,
        "trace_cycles": survey.trace.cycles,
        "instructions": len(survey.instructions),
        "places": units,
        **_part(measures, whole),
        "parts": parts,
        "highest_levels": {name: peak for name, peak in measures.peaks.items() if peak},
    }


def _part(measures: Measures, part: Part) -> dict:
    wires, roof = measures.survey.topology.wires, roofline(measures, part)
    return {
        "start": part.start,
        "end": part.end,
        "cycles": part.cycles,
        "limiter": limiter(measures, part),
        "busy": {use.resource: use.busy for use in uses(measures, part)},
        "states": part.states,
        "links": {wire.name: count for wire, count in zip(wires, part.links.tolist(), strict=True) if count},
        "flit_hops": part.hops,
        "noc_bytes": FLIT_BYTES * part.hops,
        "dram_read_bytes": part.dram_read,
        "dram_written_bytes": part.dram_written,
        "operations": part.operations,
        "operations_a_cycle": roof.reached,
        "operations_a_byte": roof.intensity,
        "roof_operations_a_cycle": roof.bound,
    }
