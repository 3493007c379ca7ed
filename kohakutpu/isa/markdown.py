"""The encodings as Markdown: `python -m kohakutpu.isa.markdown > docs/isa.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import IntEnum

from . import assembler, cluster, flit, memory, registers, signals, vector, wordtext
from .fields import Field, Layout
from .registers import Register

_HEAD = """# Encodings

Generated from the tables of `kohakutpu/isa` by `python -m kohakutpu.isa.markdown > docs/isa.md`; edit those. Bit
ranges are inclusive and bit 0 is the least significant. Reserved bits are written 0 and refused by the
validator; hardware ignores them. "Default" is what the encoder writes for a field that is not given.
"""


def _ranges(item: Field) -> str:
    return ", ".join(f"{high}:{low}" if high != low else f"{high}" for high, low in item.bits)


def _meaning(item: Field) -> str:
    text = item.meaning.replace("|", "\\|")
    if item.signed:
        text += " (signed)"
    if item.fixed:
        return f"{text} (always {item.default})"
    return f"{text}: `{item.enum.__name__}`" if item.enum is not None else text


def _default(item: Field) -> str:
    return hex(item.default) if item.hex and item.default else str(item.default)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


def _reserved(layout: Layout) -> str:
    """The reserved bits of a layout as ranges, highest first."""
    out, bit = [], layout.width - 1
    while bit >= 0:
        if layout.reserved >> bit & 1:
            low = bit
            while low and layout.reserved >> (low - 1) & 1:
                low -= 1
            out.append(f"{bit}:{low}" if bit != low else f"{bit}")
            bit = low
        bit -= 1
    return ", ".join(out) or "none"


def _fields(layout: Layout) -> list[str]:
    """A layout's field table, its reserved bits and its rules."""
    items = sorted(layout.fields.values(), key=lambda item: -max(high for high, _ in item.bits))
    rows = [[_ranges(f), f"`{f.name}`", str(f.width), _default(f), _meaning(f)] for f in items]
    lines = _table(["bits", "field", "width", "default", "meaning"], rows) if rows else []
    lines += [f"Reserved: {_reserved(layout)}.", ""]
    return lines + [line for rule in layout.rules for line in (f"Rule: {rule.__doc__}", "")]


def _layout(layout: Layout, level: int = 3) -> list[str]:
    title = f"{'#' * level} {layout.name} ({layout.width} bits)"
    meaning = layout.meaning[:1].upper() + layout.meaning[1:]
    return [title, "", *([f"{meaning}.", ""] if meaning else []), *_fields(layout)]


def _enum(kind: type[IntEnum], width: int = 1) -> list[str]:
    values = ", ".join(f"{member.value:#0{width + 2}x} {member.name}" for member in kind)
    return [f"`{kind.__name__}`: {values}.", ""]


def _flits() -> list[str]:
    lines = ["## Flit", "", *_layout(flit.HEADER), *_enum(flit.FlitType)]
    return lines + ["`rsvd`: 0, but on a MEM_RD_RESP of an entry [1:0] is the word's index, and on a remote write or",
                    "CU_DATA burst it is {1, mesh} with the final node {y,x} in `txn`.", ""]  # fmt: skip


def _payloads() -> list[str]:
    lines = ["## Payloads between units, memory and controller", ""]
    for layout in (memory.MEM_REQ, memory.MEM_WR, memory.MEM_DATA, memory.MEM_ACK, signals.CU_DATA,
                   signals.CU_SIGNAL, signals.CU_CTRL_REQUEST, signals.CU_CTRL_REPLY):  # fmt: skip
        lines += _layout(layout)
    for kind in (signals.SignalCode, signals.ControlOp, signals.ControlIndex):
        lines += _enum(kind, 2)
    lines += _enum(signals.Buffer)
    lines += ["## Values behind CU_CTRL", ""]
    for layout in (
        signals.CU_CAPS,
        signals.CU_STATUS,
        signals.CU_COUNTERS,
        signals.CLUSTER_DEBUG,
        signals.VECTOR_DEBUG,
    ):
        lines += _layout(layout)
    lines += [*_enum(signals.UnitType, 4), "## Addresses", ""]
    return lines + _layout(memory.DRAM_ADDRESS) + _layout(memory.APERTURE_ADDRESS) + _enum(memory.Aperture)


def _cluster() -> list[str]:
    lines = ["## Cluster instructions", "", *_layout(cluster.WORD), *_enum(cluster.Op), *_enum(cluster.Side)]
    for layout in cluster.LAYOUTS.values():
        names = ", ".join(f"`{name}`" for name in layout.fields if name != "op")
        lines += [
            f"### {layout.name}",
            "",
            f"{layout.meaning[:1].upper()}{layout.meaning[1:]}.",
            "",
            f"Fields: {names}.",
            "",
        ]
        lines += [line for rule in layout.rules for line in (f"Rule: {rule.__doc__}", "")]
    return lines


def _vector() -> list[str]:
    lines = ["## Vector core: envelope and descriptors", ""]
    for layout in (vector.IMEM, vector.DESC_BASE, vector.DESC_DIM, vector.RUN, vector.PEER_RECORD):
        lines += _layout(layout)
    lines += [*_enum(vector.Envelope), *_enum(vector.DescField), "## Vector core: the 32-bit word", ""]
    rows = [[f"{op:#04x}", op.name, layout.meaning.replace("|", "\\|")] for op, layout in vector.LAYOUTS.items()]
    lines += _table(["op", "name", "meaning"], rows)
    formats: dict[tuple, list[Layout]] = {}
    for layout in [*vector.LAYOUTS.values(), vector.VDRAIN_PEER]:
        formats.setdefault(tuple(f for f in layout.fields.values() if f.name != "op"), []).append(layout)
    for layouts in formats.values():
        names = ", ".join(layout.name for layout in layouts)
        first = layouts[0]
        opcode = f"bits 31:27 are {'their' if len(layouts) > 1 else 'its'} opcode"
        lines += [f"### {names}", ""]
        body = Layout(first.name, first.width, [f for f in first.fields.values() if f.name != "op"], rules=first.rules)
        body.reserved &= ~first.fields["op"].mask
        lines += [f"{opcode[:1].upper()}{opcode[1:]}.", "", *_fields(body)]
    lines += _layout(vector.IMMEDIATE)
    for kind in (vector.Source, vector.Mask, vector.DType, vector.Mode, vector.RedKind, vector.Fault):
        lines += _enum(kind)
    return lines


def _span(item: Register) -> str:
    if item is registers.STAGE:
        return f"{item.offset:#06x}.."
    last = item.offset + registers.REGISTER_BYTES * item.count - 1
    return f"{item.offset:#06x}" if item.count == 1 else f"{item.offset:#06x}..{last:#06x}"


def _inline(layout: Layout) -> str:
    return "; ".join(f"[{_ranges(f)}] `{f.name}` {_meaning(f)}" for f in layout.fields.values())


def _registers() -> list[str]:
    rows = [
        [_span(r), r.name + (f"[{r.count}]" if r.count > 1 and r is not registers.STAGE else ""), r.access.value,
         r.meaning, _inline(r.layout)]
        for r in registers.REGISTERS
    ]  # fmt: skip
    lines = [
        "## Orchestrator registers",
        "",
        "64 bits each, at byte offsets of a 64 KiB window. Elsewhere reads give 0.",
        "",
    ]
    lines += _table(["offset", "name", "access", "meaning", "bits"], rows)
    lines += [
        "## Memory mover and interlink",
        "",
        f"Offsets are relative to AUX_CFG ({registers.AUX_CFG.offset:#06x}).",
        "",
    ]
    aux = [[f"{at:#04x}", layout.name, layout.meaning, _inline(layout)] for at, layout in registers.AUX.items()]
    lines += _table(["offset", "name", "meaning", "bits"], aux)
    for kind in (registers.MoverMode, registers.MoverFault, registers.ElementWidth, registers.Walker):
        lines += _enum(kind)
    return lines


def _text() -> list[str]:
    """The assembler's own description, whose indented examples are code blocks in Markdown as they are."""
    blocks = [(module.__doc__ or "").strip() for module in (assembler, wordtext)]
    return ["## Assembly text", "", blocks[0], "", "### Vector words", "", blocks[1], ""]


def document() -> str:
    """The whole of `docs/isa.md`."""
    sections = (_flits, _payloads, _cluster, _vector, _registers, _text)
    lines = [*_HEAD.splitlines(), "", *(line for section in sections for line in section())]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
