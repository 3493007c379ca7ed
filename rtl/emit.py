# amaranth: UnusedElaboratable=no
"""Amaranth to Verilog text: one module for each distinct block, however often it is instantiated.

`amaranth.back.verilog` writes a module for every instance. A block wrapped by `shared` becomes an `Instance` of a
module that `verilog` emits once for each set of parameters.
"""

from __future__ import annotations

import hashlib
import re
from contextvars import ContextVar
from functools import cache
from typing import NamedTuple

from amaranth import ClockSignal, Instance, ResetSignal, Value
from amaranth.back import verilog as backend
from amaranth.lib import wiring
from amaranth.lib.wiring import In

NAME_LIMIT = 60


class _Block(NamedTuple):
    """A shared module: its text, the blocks it instantiates, and which of `clk` and `rst` it has."""

    name: str
    text: str
    needs: tuple[_Block, ...]
    clocks: tuple[str, ...]


_needed: ContextVar[dict[str, _Block]] = ContextVar("needed")


def shared(kind: type[wiring.Component], **parameters) -> wiring.Component:
    """`kind(**parameters)` as an instance of a module that is emitted once.

    The result has the members of the component and its other attributes; parameters must be hashable. It can only be
    turned into Verilog by `verilog` below: what pysim and `amaranth.back` make of it lacks the module. A large
    component with many instances sets `APART = True`: Verilator then compiles less of it again for each instance.
    """
    return _Shared(kind, parameters, src_loc_at=1)  # whoever leaves it unused is named, not this line


class _Shared(wiring.Component):
    def __init__(self, kind: type[wiring.Component], parameters: dict, *, src_loc_at: int = 0):
        self._kind = kind
        self._parameters = tuple(sorted(parameters.items()))
        component = _component(kind, self._parameters)
        super().__init__(component.signature)
        self._component = component

    def __getattr__(self, name):
        # Only reached for what this object lacks: parameters and constants of the component.
        if name.startswith("_") or "_component" not in self.__dict__:
            raise AttributeError(f"{self._kind.__name__} has no attribute {name!r}")
        return getattr(self._component, name)

    def elaborate(self, platform):
        try:
            needed = _needed.get()
        except LookupError:
            raise RuntimeError(
                f"{self._kind.__name__} is a shared block: emit its parent with rtl.emit.verilog"
            ) from None
        block = _block(self._kind, self._parameters)
        _enter(needed, block)
        ports = {"clk": ClockSignal(), "rst": ResetSignal()}
        connections = {f"i_{name}": ports[name] for name in block.clocks}
        for path, member, value in self.signature.flatten(self):
            direction = "i" if member.flow is In else "o"
            value = Value.cast(value)
            if len(value):
                connections[f"{direction}_{'__'.join(map(str, path))}"] = value
        return Instance(block.name, **connections)


def _enter(blocks: dict[str, _Block], block: _Block) -> None:
    """Note that a module needs `block`; refuses another block of the same name."""
    if blocks.setdefault(block.name, block) is not block:
        raise ValueError(f"two shared blocks are named {block.name}")


@cache
def _component(kind: type[wiring.Component], parameters: tuple) -> wiring.Component:
    return kind(**dict(parameters))


@cache
def _block(kind: type[wiring.Component], parameters: tuple) -> _Block:
    words = [f"{name}_{value}" for name, value in parameters if value is not None]
    name = re.sub(r"\W+", "_", "_".join([kind.__name__, *words]))
    if len(name) > NAME_LIMIT:
        digest = hashlib.sha256(repr(parameters).encode()).hexdigest()[:12]
        name = f"{kind.__name__}_{digest}"
    text, needs = _convert(_component(kind, parameters), name)
    end = text.index(");")
    header = text[text.index("module ") : end]
    if getattr(kind, "APART", False):
        text = f"{text[: end + 2]} /*verilator no_inline_module*/{text[end + 2 :]}"
    clocks = tuple(port for port in ("clk", "rst") if re.search(rf"\b{port}\b", header))
    return _Block(name, text, needs, clocks)


def _convert(component: wiring.Component, name: str) -> tuple[str, tuple[_Block, ...]]:
    token = _needed.set({})
    try:
        text = backend.convert(component, name=name, emit_src=False, strip_internal_attrs=True)
        needs = tuple(_needed.get().values())
    finally:
        _needed.reset(token)
    return _awake(_constants(_short(_TRIGGER.sub(_AFTER_ALL, text)))), needs


def handwritten(name: str, text: str) -> None:
    """Have `verilog` emit `text`, the module `name` that the component being elaborated instantiates.

    For parts that are no gates, such as the memory behind AXI in simulations. Raises `RuntimeError` outside of
    `verilog`.
    """
    try:
        _enter(_needed.get(), _handwritten(name, text))
    except LookupError:
        raise RuntimeError(f"{name} is handwritten Verilog: emit its parent with rtl.emit.verilog") from None


@cache
def _handwritten(name: str, text: str) -> _Block:
    return _Block(name, text, (), ())


def verilog(component: wiring.Component, *, name: str) -> str:
    """The Verilog text of `component` as top module `name`, with every shared block below it.

    Equal components give equal text. Raises `ValueError` when two shared blocks would have one name.
    """
    text, needs = _convert(component, name)
    blocks: dict[str, _Block] = {}

    def collect(items: tuple[_Block, ...]) -> None:
        for block in items:
            if block.name not in blocks:
                collect(block.needs)
            _enter(blocks, block)

    collect(needs)
    if name in blocks:
        raise ValueError(f"the top module {name} has the name of a shared block")
    return "\n".join([*(block.text for block in blocks.values()), text])


# A constant part of a signal whose other parts are decided in `if`s: nothing would ever trigger such a block.
_CONSTANT = re.compile(r"^  always @\*\n    (?P<assign>\S+ ?(?:\[[\d:]+\])? = \d+'[bh][0-9a-f]+;)$", re.M)


def _constants(text: str) -> str:
    """`text` with combinational blocks that only assign a constant as initial values."""
    return _CONSTANT.sub(r"  initial \g<assign>", text)


# A part of a signal that only copies something. Yosys leaves its trigger out of such a block, which then never runs
# when what it copies is a register that keeps its initial value.
_COPY = re.compile(r"^  always @\*\n(    \S+ ?(?:\[[\d:]+\])? = .+;)$", re.M)
_TRIGGERED = re.compile(r"^    if \(\\\$auto\$verilog_backend\S+ \) begin end$", re.M)


def _awake(text: str) -> str:
    """`text` with Yosys' trigger in combinational blocks of one assignment."""
    modules = re.split(r"^(?=module )", text, flags=re.M)
    for index, module in enumerate(modules):
        if trigger := _TRIGGERED.search(module):
            modules[index] = _COPY.sub(lambda copy: f"  always @* begin\n{trigger[0]}\n{copy[1]}\n  end", module)
    return "".join(modules)


# Yosys reads this register in every `always @*` so that it runs once at time 0. SystemVerilog initialises variables
# before any process starts, and the event would be lost; a nonblocking assignment comes after they all wait.
_TRIGGER = re.compile(r"^  reg (\\\$auto\$verilog_backend\S+ ) = 0;", re.M)
_AFTER_ALL = r"  reg \1;\n  /*verilator lint_off INITIALDLY*/ initial \1 <= 0; /*verilator lint_on INITIALDLY*/"

# `memory[3] = 8'h00;`, once for every word
_ZERO = re.compile(r"^    (?P<memory>\S+) ?\[(?P<index>\d+)\] = (?P<zero>\d+'h0+);\n", re.M)


def _short(text: str) -> str:
    """`text` with the initial zeros of each memory as a loop."""
    pieces, at = [], 0
    for block in re.finditer(r"^  initial begin\n((?:    \S+ ?\[\d+\] = .*;\n)+)  end\n", text, re.M):
        rows = list(_ZERO.finditer(block[1]))
        if len(rows) < 4 or len(rows) != block[1].count("\n"):
            continue
        memory, zero = rows[0]["memory"], rows[0]["zero"]
        # an escaped name ends with its space
        memory += " " if memory.startswith("\\") else ""
        pieces += [
            text[at : block.start()],
            f"  initial begin : zero_{block.start()}\n    integer i;\n"
            f"    for (i = 0; i < {len(rows)}; i = i + 1) {memory}[i] = {zero};\n  end\n",
        ]  # fmt: skip
        at = block.end()
    return "".join([*pieces, text[at:]])
