"""The page: one self-contained HTML file for one trace or several beside each other. It loads nothing from anywhere."""

from __future__ import annotations

import base64
import html
import json
from importlib.resources import files

import numpy as np

from kohakutpu import __version__
from kohakutpu.isa.flit import type_name
from kohakutpu.wording import counted

from . import ViewError
from .excerpt import Excerpt, Texts, excerpt
from .lanes import STATES
from .limits import difference, limiter, roofline
from .measure import Measures, Part
from .survey import Survey

SCRIPTS = ("base.js", "mesh.js", "lanes.js", "charts.js", "main.js")
MOST_BYTES = 8 << 20  # of a page; the budgets below keep well inside of it
TEXT_BYTES = 2 << 20
MOST_FLITS = 40_000
MOST_COUNTS = 400_000  # of all time bins of a page
MOST_INSTRUCTIONS = 10_000
MOST_STAGES = 500


def page(traces: list[Measures]) -> str:
    """The page's text, at most `MOST_BYTES` long whatever the length of the traces.

    What does not fit is left out by whole cycles from the end, and the page says so. Time bins are those of `measure`.
    Raises `ViewError` for more traces than fit even so.
    """
    texts, notes = Texts(), []
    shown = [_trace(measures, texts, len(traces), notes) for measures in traces]
    notes.append(f"Made by kohakutpu {__version__} from traces alone; docs/viewing.md says what each figure means.")
    data = {
        "traces": shown,
        "texts": texts.all,
        "types": [type_name(kind) for kind in range(16)],
        "notes": notes,
        "why": " ".join(difference(traces[0], other) for other in traces[1:]),
    }
    folder = files(__package__) / "page"
    parts = {
        "TITLE": html.escape(" · ".join(measures.title for measures in traces)),
        "STYLE": (folder / "page.css").read_text(),
        "DATA": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        "SCRIPT": "\n".join((folder / name).read_text() for name in SCRIPTS),
    }
    text = (folder / "page.html").read_text()
    for name, content in parts.items():
        before, _, after = text.partition(f"@{name}@")
        text = before + content + after
    if len(text.encode()) > MOST_BYTES:
        raise ViewError(
            f"a page of {counted(len(traces), 'trace')} would have {len(text.encode()):,} bytes, and {MOST_BYTES:,} "
            "is the most: "
            "show fewer of them on one page"
        )
    return text


def bins_for(survey: Survey, sharing: int) -> int:
    """How many time bins a trace may have on a page that `sharing` traces share."""
    rows = (
        len(survey.topology.wires)
        + sum(len(STATES[place.kind]) for place in survey.topology.places)
        + len(STATES["run"])
    )
    return max(256, min(8192, MOST_COUNTS // sharing // rows))


def _array(table: np.ndarray) -> str:
    return base64.b64encode(table.astype("<u4").tobytes()).decode()


def _trace(measures: Measures, texts: Texts, sharing: int, notes: list[str]) -> dict:
    """A trace as the page reads it: cycles of stages count from the window's start, all others are the trace's own."""
    survey, whole, topology = measures.survey, measures.whole, measures.survey.topology
    flits = excerpt(
        survey,
        texts,
        start=whole.start,
        end=whole.end,
        total=whole.hops,
        most_flits=MOST_FLITS // sharing,
        most_bytes=texts.bytes + TEXT_BYTES // sharing,
    )
    instructions = [
        one
        for one in survey.instructions
        if one.begin is not None and one.begin < whole.end and (one.end is None or one.end >= whole.start)
    ]
    kept = instructions[: MOST_INSTRUCTIONS // sharing]
    _say(measures, flits, len(instructions), len(kept), notes)
    return {
        "title": measures.title,
        "file": survey.trace.path.name,
        "machine": survey.machine.name,
        "start": whole.start,
        "end": whole.end,
        "width": int(measures.bins[1] - measures.bins[0]),
        "routers": topology.routers,
        "places": [
            {"name": place.name, "kind": place.kind, "x": place.x, "y": place.y, "router": place.router}
            for place in topology.places
        ],
        "wires": [
            {"name": wire.name, "source": wire.source, "sink": wire.sink, "flits": int(count)}
            for wire, count in zip(topology.wires, whole.links, strict=True)
        ],
        "heat": _array(measures.heat),
        "lanes": [
            {
                "name": name,
                "kind": lane.kind,
                "states": [{"key": state.key, "label": state.label} for state in STATES[lane.kind]],
                "bins": _array(lane.between(measures.bins)),
                "cycles": whole.states[name],
            }
            for name, lane in measures.lanes.items()
        ],
        "stages": [
            {
                "title": stage.title if stage else "host: signals read, next program staged",
                "kinds": stage.kinds if stage else [],
                "start": part.start - whole.start,
                "end": part.end - whole.start,
                "limit": limiter(measures, part),
                "dram": part.dram_read + part.dram_written,
                "hops": part.hops,
            }
            for stage, part in measures.parts[:MOST_STAGES]
        ],
        "totals": {"read": whole.dram_read, "written": whole.dram_written, "hops": whole.hops},
        "limit": limiter(measures, whole),
        "roofline": _roofline(measures, whole),
        "flits": {"from": flits.start, "to": flits.end, "total": flits.total, "kept": flits.kept, "rows": flits.rows},
        "instructions": {
            "total": len(instructions),
            "kept": len(kept),
            "rows": [[one.unit, one.begin, one.end, f"{one.txn:#04x}", texts(one.text)] for one in kept],
        },
    }


def _say(measures: Measures, flits: Excerpt, instructions: int, kept: int, notes: list[str]) -> None:
    title, width = measures.title, int(measures.bins[1] - measures.bins[0])
    if width > 1:
        notes.append(f"{title}: time is in bins of {width:,} cycles.")
    if flits.kept < flits.total:
        notes.append(
            f"{title}: the flits of cycles {flits.start:,} to {flits.end:,} are in this page, {flits.kept:,} of "
            f"{flits.total:,}; the others were left out (choose the cycles with --from and --to)."
        )
    if len(measures.parts) > MOST_STAGES:
        notes.append(
            f"{title}: the first {MOST_STAGES} of {len(measures.parts):,} stages and pauses are listed; report has all."
        )
    if kept < instructions:
        notes.append(
            f"{title}: {kept:,} of {instructions:,} instructions are in this page; the later ones were left out."
        )


def _roofline(measures: Measures, part: Part) -> dict:
    roof = roofline(measures, part)
    return {
        "intensity": roof.intensity,
        "reached": roof.reached,
        "bound": roof.bound,
        "compute": roof.compute,
        "bandwidth": roof.bandwidth,
    }
