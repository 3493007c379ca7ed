"""What reaches one vector core: image words, descriptor fields and runs, as CU_INST payloads.

A core keeps its image and descriptors between runs, so a stage need not send again what it has already. A default
program leaves dimensions 1 to 3 of the descriptors as it found them, at one step. The published fused program does not:
it leaves dimension 1 of the descriptor that reads its per-channel words walked, and the core keeps that until a reset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kohakutpu.isa import vector as isa
from kohakutpu.isa.vector import DescField, Opcode

TRIVIAL = (0, 1)  # stride and bound of a dimension that is not walked
# A published program before may have left dimension 1 walked: of descriptor n + 3, for its n >= 1 accumulators.
LEFT_WALKED_FROM = 4


@dataclass
class CoreState:
    """What is known to be in a core: image words, bases, and dimensions as (stride, bound)."""

    image: dict[int, int] = field(default_factory=dict)
    bases: dict[int, int] = field(default_factory=dict)
    dims: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def holds(self, words: Sequence[int]) -> bool:
        """Whether the image is known to begin with `words`."""
        return all(self.image.get(address) == word for address, word in enumerate(words))


class CoreWriter:
    """Collects the payloads of one instance; with `reuse`, leaves out what the core is known to hold."""

    def __init__(self, state: CoreState, reuse: bool):
        self.state = state
        self.reuse = reuse
        self.payloads: list[int] = []

    def image(self, words: Sequence[int], start: int = 0) -> None:
        """Load words from IMEM address `start` on."""
        for address, word in enumerate(words, start):
            if not (self.reuse and self.state.image.get(address) == word):
                self.state.image[address] = word
                self.payloads.append(isa.IMEM.encode(addr=address, word=word))

    def base(self, ad: int, value: int) -> None:
        """Set a descriptor's base: a byte address, or an L1 word."""
        if not (self.reuse and self.state.bases.get(ad) == value):
            self.state.bases[ad] = value
            self.payloads.append(isa.DESC_BASE.encode(ad=ad, base=value))

    def dim(self, ad: int, number: int, stride: int, bound: int) -> None:
        """Set one dimension of a descriptor's walk."""
        if not (self.reuse and self.state.dims.get((ad, number)) == (stride, bound)):
            self.state.dims[ad, number] = (stride, bound)
            self.payloads.append(isa.DESC_DIM.encode(ad=ad, field=DescField.DIM0 + number, stride=stride, bound=bound))

    def line(self, ad: int, stride: int, bound: int) -> None:
        """A descriptor that walks dimension 0 alone."""
        self.dim(ad, 0, stride, bound)
        if self.reuse and ad >= LEFT_WALKED_FROM:
            self.dim(ad, 1, *TRIVIAL)
        self.restore(ad)

    def restore(self, ad: int) -> None:
        """Put the outer dimensions that are known to be walked back to one step."""
        for number in range(1, isa.DIMS):
            if self.state.dims.get((ad, number), TRIVIAL) != TRIVIAL:
                self.dim(ad, number, *TRIVIAL)

    def run(self, pc: int = 0) -> None:
        self.payloads.append(isa.RUN.encode(pc=pc))


class Image:
    """Instruction words in the making."""

    def __init__(self):
        self.words: list[int] = []

    def put(self, op: Opcode, **fields: int) -> None:
        self.words.append(isa.encode(op, **fields))

    def set_scalar(self, register: int, value: int) -> None:
        """VSETI and its immediate."""
        self.put(Opcode.VSETI, vd=register)
        self.words.append(isa.IMMEDIATE.encode(value=value))

    def __len__(self) -> int:
        return len(self.words)
