"""The one interface of the mesh: a flit held until taken (docs/microarchitecture.md, links)."""

from __future__ import annotations

from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.fields import Layout
from kohakutpu.isa.flit import HEADER


def view(layout: Layout) -> data.Layout:
    """The `amaranth.lib.data` layout of an encoding table.

    Fields of one contiguous range appear under their names; a field of several pieces as `NAME_0`,
    `NAME_1`, ..., least significant piece first.
    """
    members = {}
    for item in layout.fields.values():
        pieces = list(reversed(item.bits))
        for index, (high, low) in enumerate(pieces):
            name = item.name if len(pieces) == 1 else f"{item.name}_{index}"
            members[name] = data.Field(high - low + 1, low)
    return data.FlexibleLayout(layout.width, members)


FLIT = view(HEADER)


class LinkSignature(wiring.Signature):
    """Sender's view: `valid` and `flit` keep still until a cycle in which `busy` is low; that cycle transfers."""

    def __init__(self):
        super().__init__({"flit": Out(FLIT), "valid": Out(1), "busy": In(1)})

    def __eq__(self, other):
        return isinstance(other, LinkSignature)
