"""A sweep's rows as Parquet, CSV and plots."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence

from kohakutpu.wording import counted

from .cluster import NoScheduler
from .point import MEASURED, VERDICTS

TYPES = {int: "int64", float: "float64", str: "string", bool: "bool"}
PLOTS = {
    "cycles": ("cycles", "cycles"),
    "bytes": ("dram_bytes", "bytes read and written by the memory ports"),
}
MOST_SERIES = 12  # told apart in one plot
MOST_TICKS = 8  # legible ones


def columns(rows: Sequence[Mapping]) -> dict[str, str]:
    """{column: type name} in order: identity, shapes, knobs, measurements. A knob of mixed types is a string."""
    found: dict[str, str] = {}
    for row in rows:
        for name, value in row.items():
            if name in MEASURED:
                continue
            kind = TYPES[type(value)]
            found[name] = kind if found.setdefault(name, kind) == kind else "string"
    return found | {name: TYPES[kind] for name, kind in MEASURED.items()}


def table(rows: Sequence[Mapping]):
    """The rows as a `pyarrow.Table`."""
    pyarrow = _library("pyarrow")
    kinds = columns(rows)
    arrays = {}
    for name, kind in kinds.items():
        values = [row.get(name) for row in rows]
        if kind == "string":
            values = [value if value is None else str(value) for value in values]
        arrays[name] = pyarrow.array(values, type=pyarrow.type_for_alias(kind))
    return pyarrow.table(arrays)


def _library(name: str):
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise NoScheduler(f"{error.name} is not installed: run `make env`, or `pip install -e '.[sweep]'`") from error


def files(name: str, rows: Sequence[Mapping]) -> dict[str, bytes]:
    """{file name: contents} of everything that is made of the rows, in their order."""
    made = table(rows)
    parquet, csv = io.BytesIO(), io.BytesIO()
    _library("pyarrow.parquet").write_table(made, parquet)
    _library("pyarrow.csv").write_csv(made, csv)
    found = {"rows.parquet": parquet.getvalue(), "rows.csv": csv.getvalue()}
    for title, (column, label) in PLOTS.items():
        found[f"{title}.png"] = plot(f"{name}: {label}", rows, column, label)
    return found


def work(row: Mapping) -> int:
    """Elements of all operands: the one size that every kernel has."""
    shapes = (value for column, value in row.items() if column.startswith("shape_"))
    return sum(math.prod(map(int, shape.split("x"))) for shape in shapes)


def series(rows: Sequence[Mapping], column: str) -> dict[str, dict[int, list[int]]]:
    """{what is drawn as one line: {work: values}} of rows whose results are right.

    A line is a machine, an engine and a setting of those knobs that vary.
    """
    right = [row for row in rows if row["verdict"] == VERDICTS[0]]
    names = [
        name
        for name in dict.fromkeys(name for row in right for name in row)
        if name in ("machine", "engine") or name.startswith("knob_")
    ]
    varying = [name for name in names if len({str(row.get(name)) for row in right}) > 1]
    found: dict[str, dict[int, list[int]]] = {}
    for row in right:
        label = ", ".join(
            str(row[name]) if not name.startswith("knob_") else f"{name.removeprefix('knob_')} {row[name]}"
            for name in varying if name in row
        ) or str(row["machine"])  # fmt: skip
        value = row["dram_read_bytes"] + row["dram_written_bytes"] if column == "dram_bytes" else row[column]
        found.setdefault(label, {}).setdefault(work(row), []).append(value)
    return found


def plot(title: str, rows: Sequence[Mapping], column: str, label: str) -> bytes:
    """A PNG: `column` over the size of the operands, a line for each series, its median with the range of its rows."""
    figure_module = _library("matplotlib.figure")
    figure = figure_module.Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    lines = series(rows, column)
    shown = dict(list(lines.items())[:MOST_SERIES])
    for name, points in shown.items():
        places = sorted(points)
        middle = [sorted(points[x])[len(points[x]) // 2] for x in places]
        below = [value - min(points[x]) for x, value in zip(places, middle, strict=True)]
        above = [max(points[x]) - value for x, value in zip(places, middle, strict=True)]
        axes.errorbar(
            places, middle, yerr=[below, above], marker="o", markersize=4, capsize=3, linewidth=1.2, label=name
        )
    right = sum(row["verdict"] == VERDICTS[0] for row in rows)
    left_out = (
        f", {len(lines) - len(shown)} of {counted(len(lines), 'line')} not drawn" if len(lines) > len(shown) else ""
    )
    axes.set_title(f"{title}\n{right} of {counted(len(rows), 'row')}, those that are byte-equal{left_out}", fontsize=10)
    axes.set_xlabel("elements of all operands")
    axes.set_ylabel(label)
    if lines:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.legend(fontsize=8)
        places = sorted({x for points in lines.values() for x in points})
        if len(places) <= MOST_TICKS:
            axes.set_xticks(places, [f"{x:,}" for x in places])
            axes.minorticks_off()
            axes.yaxis.set_major_formatter(_library("matplotlib.ticker").StrMethodFormatter("{x:,.0f}"))
            axes.yaxis.set_major_locator(_library("matplotlib.ticker").LogLocator(base=10, subs=(1, 1.5, 2, 3, 5, 7)))
    axes.grid(True, which="major", alpha=0.3)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()
