"""A simulation-only observer of a whole machine: writes the records of a trace as text, in order, while it runs.

It stands beside the machine and looks into it by hierarchical names, so that the gates have no port for it.
`+records=FILE` on the simulator's command line makes it write (a named pipe will do): a line for each record,

    f LINK CYCLE FLIT        l TRACK CYCLE VALUE        e TRACK CYCLE VALUE        end CYCLES

numbers in hexadecimal, in the order of `docs/trace.md`; the last one when `over` rises, after which nothing follows.
Where a track is in the gates is said by `levels` and `events`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kohakutpu.isa.cluster import WORD as INSTRUCTION
from kohakutpu.isa.fields import Layout
from kohakutpu.isa.flit import HEADER
from kohakutpu.isa.vector import LAYOUTS, Opcode
from kohakutpu.machine import Machine
from kohakutpu.noc.trace_tracks import BEGIN, RETIRE, Decode, tracks

NAME = "trace_writer"
VALUE_BITS = 64
ARRAY_CYCLES = 19  # from an issue to the cycle before its command enters the accumulator

_MODULE = re.compile(r"^module (\\\S+ |\w+) ?\(.*?^endmodule$", re.M | re.S)
_INSTANCE = re.compile(r"^  (\\\S+ |\w+) ?(\\\S+ |\w+) ?\(\n", re.M)
_SIGNAL = re.compile(r"^  (?:input|output|wire|reg) (?:signed )?(?:\[[\d:]+\] )?(\\\S+ |\w+)", re.M)
_PLACE = re.compile(r"\{([\w.]+)\}")
_SUFFIX = re.compile(r"\$\d+$")  # of a name that had to be told from another one


class Places:
    """Finds signals by their Amaranth names below the module `top` of a Verilog text."""

    def __init__(self, verilog: str, top: str):
        self.modules = {found[1].strip(): found[0] for found in _MODULE.finditer(verilog)}
        self.top = top
        self._names: dict[tuple[str, re.Pattern], dict[str, str]] = {}

    def _inside(self, module: str, pattern: re.Pattern, group: int) -> dict[str, str]:
        """Plain name -> name in the text, of what `pattern` finds in a module; one without a suffix goes first."""
        key = module, pattern
        if key not in self._names:
            found: dict[str, str] = {}
            for item in pattern.finditer(self.modules[module]):
                name = item[group]
                plain = _SUFFIX.sub("", name.strip().removeprefix("\\"))
                if plain == name.strip() or plain not in found:
                    found[plain] = name
            self._names[key] = found
        return self._names[key]

    def resolve(self, path: str) -> str:
        """The hierarchical name of the signal `path` ("gates.cluster0.sweep.running"). Raises `KeyError` naming it."""
        module, *rest = self.top, *path.split(".")
        written = []
        for step in rest[:-1]:
            labels = self._inside(module, _INSTANCE, 2)
            if step not in labels:
                raise KeyError(f"trace: {path}: the module {module} has no instance {step}")
            written.append(labels[step])
            module = self._kind(module, labels[step])
        signals = self._inside(module, _SIGNAL, 1)
        if rest[-1] not in signals:
            raise KeyError(f"trace: {path}: the module {module} has no signal {rest[-1]}")
        return ".".join([*written, signals[rest[-1]]])

    def _kind(self, module: str, label: str) -> str:
        return next(found[1].strip() for found in _INSTANCE.finditer(self.modules[module]) if found[2] == label)


def packed(layout: Layout, **values: str) -> str:
    """The Verilog expression of `layout` with its fields given as expressions."""
    parts = [f"({value}) << {layout.fields[name].bits[0][1]}" for name, value in values.items()]
    return " | ".join([f"{VALUE_BITS}'d0", *(f"({part})" for part in parts)])


def selected(layout: Layout, name: str, word: str) -> str:
    """The field `name` of the signal `word`."""
    high, low = layout.fields[name].bits[0]
    return f"{word}[{high}:{low}]"


def levels(machine: Machine, agent: str) -> dict[str, str]:
    """The expression of every level and span; signals are in braces, named from the simulated top."""
    found = {}
    for track in tracks(machine, agent=agent):
        unit, name = track.unit, track.name.removeprefix(f"{track.unit}.")
        if track.kind == "event":
            continue
        if name.startswith("dram."):
            found[track.name] = f"{track.name.replace('.', '_')}"
        elif unit.startswith("r"):
            stage = f"gates.mesh.{unit}.input_{name}"
            found[track.name] = f"{{{stage}.fifo.level}} + ({{{stage}.ask}} != 0)"
        elif name in ("reads", "writes", "flight"):
            fifo = "reads.flight" if name == "flight" else f"{name}.queue"
            found[track.name] = f"{{gates.memory{unit.removeprefix('mag')}.{fifo}.level}}"
        elif unit == "agent" and name != "intake":
            found[track.name] = f"{{gates.control.{name}{'.level' if name in ('tx', 'rx') else ''}}}"
        elif name in _COMMON:
            found[track.name] = _COMMON[name].replace("@", f"gates.{unit}")
        else:
            table = _CLUSTER if unit.startswith("cluster") else _VECTOR
            found[track.name] = table[name].replace("@", f"gates.{unit}")
    return found


_COMMON = {
    "intake": "{@.intake.level}",
    "inst": "{@.base.inst_fifo.level}",
    "recv": "{@.base.recv_fifo.level}",
    "completions": "{@.base.completions.level}",
}
_CLUSTER = {
    "fill": "{@.sequencer.filling}",
    "sweep": "{@.sweep.running}",
    "array": f"{{@.sweep.running}} | (|{{@.issued}}[{ARRAY_CYCLES - 1}:0])",
    "drain": "~{@.writer.clear} & 1'b1",
    "results": "{@.writer.outstanding}",
    "receive": "{@.receiver.state}",
}


def _decode() -> str:
    """What decode does, from what it looks at (docs/trace.md)."""
    op = selected(LAYOUTS[Opcode.VHALT], "op", "{@.word}")
    pipeline, fill, drain = int(Decode.PIPELINE), int(Decode.FILL), int(Decode.DRAIN)
    waits = {
        Opcode.VLD: f"{{@.full}} ? {pipeline} : {fill}",
        Opcode.VST: f"{{@.full}} ? {pipeline} : {fill}",
        Opcode.VBAR: f"{fill}",
        Opcode.VFILL: f"!{{@.empty}} ? {pipeline} : {fill}",
        Opcode.VDRAIN: f"(!{{@.empty}} || {{@.l1_busy}}) ? {pipeline} : {{@.fills}} > 1 ? {fill} : {drain}",
        Opcode.VHALT: f"!{{@.idle}} ? {pipeline} : {{@.fills}} != 0 ? {fill} : {drain}",
    }
    chosen = " : ".join(f"{op} == {int(code)} ? ({wait})" for code, wait in waits.items())
    return (
        f"!{{@.running}} ? {int(Decode.OFF)} : "
        "({@.take} || {@.raised} || {@.finish} || ({@.draining} && {@.drain_read_last})) "
        f"? {int(Decode.WORD)} : "
        f"{{@.ending}} ? (!{{@.idle}} ? {pipeline} : {drain}) : {{@.draining}} ? {drain} : "
        f"!{{@.present}} ? {int(Decode.FETCH)} : {chosen} : {pipeline}"
    )


_VECTOR = {
    "run": "{@.decode.running}",
    "decode": _decode().replace("@", "@.decode"),
    "fill": "{@.fill.open}",
    "requests": "{@.fill.outstanding.level}",
    "drain": "~{@.drain.idle} & 1'b1",
    "receive": "{@.receiver.active}",
}


def events(machine: Machine, agent: str) -> dict[str, tuple[str, str]]:
    """(condition, value) of every event, as `levels` has expressions."""
    op_high, op_low = INSTRUCTION.fields["op"].bits[0]
    origin = "{@.base.origin}"
    begin = packed(
        BEGIN, op=f"{{@.base.inst}}[{op_high}:{op_low}]", last=selected(HEADER, "last", "{@.base.inst}"),
        txn=selected(HEADER, "txn", "{@.base.inst}"),
    )  # fmt: skip
    retire = packed(
        RETIRE, result="{@.base.result}", fault="{@.base.fault}", last=f"{origin}[16]", txn=f"{origin}[15:8]"
    )
    table = {"begin": ("{@.base.take}", begin), "retire": ("{@.base.retire}", retire)}
    found = {}
    for track in tracks(machine, agent=agent):
        if track.kind == "event":
            condition, value = table[track.name.removeprefix(f"{track.unit}.")]
            found[track.name] = tuple(text.replace("@", f"gates.{track.unit}") for text in (condition, value))
    return found


def _bursts(machine: Machine, agent: str) -> Iterator[str]:
    """Registers that count the bursts in flight of each memory port, of the host's window and of the mover."""
    requesters = [*(f"mag{index}" for index in range(len(machine.ports))), "window"]
    for index, unit in enumerate([*requesters, *(["mover"] if agent == "orchestrator" else [])]):
        axi = f"dram.axi__{index}__"
        for kind, up, down in (("read", "ar", "r"), ("write", "aw", "b")):
            register, last = f"{unit}_dram_{kind}", f" & {{{axi}rlast}}" if kind == "read" else ""
            changes = " ".join(
                f"{sign} ({{{axi}{channel}valid}} & {{{axi}{channel}ready}}{rest})"
                for sign, channel, rest in (("+", up, ""), ("-", down, last))
            )
            yield f"  reg [31:0] {register} = 0;"
            yield f"  always @(posedge clk) {register} <= rst ? 0 : {register} {changes};"


def verilog(machine: Machine, agent: str, links: int, text: str, top: str) -> str:
    """The module `NAME` for the simulated top `top` of `machine`: its Verilog is `text`, and it has `links` monitors.

    Raises `KeyError` for a signal that is not there.
    """
    places = Places(text, top)
    body = [
        f"module {NAME}(input clk, input rst, input over, input [31:0] cycle);",
        "  integer file = 0;",
        "  string path;",
        '  initial if ($value$plusargs("records=%s", path)) file = $fopen(path, "w");',
        *_bursts(machine, agent),
    ]
    index = {track.name: number for number, track in enumerate(tracks(machine, agent=agent))}
    written = []
    for link in range(links):
        monitor = f"monitor_{link}"
        written += [
            f"    if ({monitor}.valid & ~{monitor}.busy)",
            f'      $fwrite(file, "f {link:x} %0h %0h\\n", cycle, {monitor}.flit);',
        ]
    for name, expression in levels(machine, agent).items():
        number = index[name]
        body += [f"  wire [31:0] now_{number} = {expression};", f"  reg [31:0] last_{number} = 0;"]
        written += [
            f"    if (now_{number} != last_{number}) begin",
            f'      $fwrite(file, "l {number:x} %0h %0h\\n", cycle, now_{number});',
            f"      last_{number} <= now_{number};",
            "    end",
        ]
    for name, (condition, value) in events(machine, agent).items():
        number = index[name]
        body.append(f"  wire [{VALUE_BITS - 1}:0] now_{number} = {value};")
        written.append(f'    if ({condition}) $fwrite(file, "e {number:x} %0h %0h\\n", cycle, now_{number});')
    body += [
        "  always @(posedge clk) if (file != 0 && !rst && !over) begin", *written, "  end",
        '  always @(posedge over) if (file != 0) begin',
        '    $fwrite(file, "end %0h\\n", cycle);',
        "    $fflush(file);",
        "  end",
        "  final if (file != 0) $fclose(file);", "endmodule", "",
    ]  # fmt: skip
    return _PLACE.sub(lambda place: places.resolve(place[1]), "\n".join(body))
