"""How a kernel is to be compiled."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from .layouts import Layout
from .refusals import CompileError
from .tiles import AUTO

LOWERINGS = ("default", "published")
CONSTANTS = ("registers", "arrays")
RELAYOUTS = ("machine", "host")


@dataclass(frozen=True)
class Options:
    """How to compile; none but `constants` and `ksplit` changes a value.

    `lowering`: 'default', or 'published' for the published instruction streams. `constants`: in 'registers' (E8M15,
    truncated), or as 'arrays' in memory (FP16, rounded). `addresses` places buffers by name; with `allow_overlap` those
    may lie over each other, which only a listing that is never run can want. `preq` names operands of products that
    are quantised as they are uploaded and lie in memory as MXFP7: half the bytes, fetched at twice the rate.
    `relayout` says who copies a temp into the order that a product reads: the 'machine', or the 'host'. `layouts` has the
    byte orders, of one batch element, in which operands lie already. `bands=False` gives every statement over whole buffers
    a program of its own. `ksplit` sets the knob of that name, to a number of parts or to what is predicted to be fastest
    ("auto"); None leaves the knob alone.
    """

    lowering: str = "default"
    constants: str = "registers"
    addresses: Mapping[str, int] = field(default_factory=dict)
    allow_overlap: bool = False
    preq: Collection[str] = ()
    relayout: str = "machine"
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    bands: bool = True
    ksplit: int | str | None = None

    def __post_init__(self):
        for name, legal in (("lowering", LOWERINGS), ("constants", CONSTANTS), ("relayout", RELAYOUTS)):
            if getattr(self, name) not in legal:
                raise CompileError(f"{name}={getattr(self, name)!r} is none of {', '.join(legal)}")
        if not isinstance(self.bands, bool):
            raise CompileError(f"bands={self.bands!r}: expected True or False")
        if isinstance(self.preq, str):
            raise CompileError(f"preq={self.preq!r}: expected a collection of operands' names")
        if self.preq and self.lowering == "published":
            raise CompileError("preq: the published programs have no operands that are quantised in memory")
        whole = isinstance(self.ksplit, int) and not isinstance(self.ksplit, bool) and self.ksplit >= 1
        if not whole and self.ksplit not in (None, AUTO):
            raise CompileError(f"ksplit={self.ksplit!r}: expected a number of parts, at least 1, or {AUTO!r}")
