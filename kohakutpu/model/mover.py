"""The memory mover: walks memory with two address generators and copies, gathers, fills or generates words.

Registers are `kohakutpu.isa.registers.MOVER` (spec: memory mover); timing is
`docs/microarchitecture/memory-agent.md`, section "Memory mover".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import prod

from kohakutpu.isa import registers as reg
from kohakutpu.isa.memory import ADDRESS_WIDTH, WORD_BYTES
from kohakutpu.isa.registers import ElementWidth, MoverFault, MoverMode, Walker
from kohakutpu.model.memory import Channel
from kohakutpu.noc.engine import NEVER, Component, Engine
from kohakutpu.wording import counted

DIMS = 6
OUTSTANDING = 64  # words read or made and not yet written
GENERATE_CYCLES = 20  # ten Philox rounds of two stages
GATHER_CYCLES = 7  # look an index up, multiply and add, before the first row's first word is read
MAX_INDICES = 2048
ADDRESS_MASK = (1 << ADDRESS_WIDTH) - 1
MOVES_MASK = (1 << 24) - 1
WORD32 = 0xFFFFFFFF

FAULTS = {"mover-skips-word": "the memory mover does not write the second word of a move"}


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox-4x32 with ten rounds: four 32-bit counter words and two key words to four 32-bit words."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        low, high = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = high >> 32 ^ b ^ k0, high & WORD32, low >> 32 ^ d ^ k1, low & WORD32
        k0, k1 = (k0 + 0x9E3779B9) & WORD32, (k1 + 0xBB67AE85) & WORD32
    return a, b, c, d


def generated_word(address: int, seed: int) -> int:
    """The 256-bit word that mode GENERATE stores at byte `address`: a function of address and seed alone."""
    number = address // WORD_BYTES
    key = (seed & WORD32, seed >> 32)
    word = 0
    for half in (1, 0):
        for value in reversed(philox((number & WORD32, (number >> 32 & 7) << 1 | half, 0, 0), key)):
            word = word << 32 | value
    return word


class Walk:
    """One walker's registers: a base, dimensions (the last innermost), and the bounds of two axes."""

    def __init__(self):
        self.base = 0
        self.dims = 0
        self.count = [1] * 8
        self.stride = [0] * 8
        self.axis = [0] * 8
        self.step = [0] * 8
        self.axis_base = [0, 0]
        self.extent = [0, 0]

    @property
    def elements(self) -> int:
        return prod(self.count[: self.dims])

    def _inside(self, index: list[int]) -> bool:
        for tag, base, extent in zip((1, 2), self.axis_base, self.extent):
            at = base + sum(i * step for i, step, axis in zip(index, self.step, self.axis) if axis == tag)
            if extent and not 0 <= at < extent:
                return False
        return True

    def places(self) -> Iterator[tuple[int, bool]]:
        """(byte address, inside both axes' bounds) element by element, starting over at the end."""
        index = [0] * self.dims
        while True:
            address = self.base + sum(i * s for i, s in zip(index, self.stride))
            yield address & ADDRESS_MASK, self._inside(index)
            for dim in reversed(range(self.dims)):
                index[dim] += 1
                if index[dim] < self.count[dim]:
                    break
                index[dim] = 0


class MemoryMover(Component):
    """Commanded through `configure`; `busy`, `done` (successful moves, 24 bits) and `fault` are its status."""

    def __init__(self, engine: Engine, name: str, channel: Channel, *, faults: frozenset[str] = frozenset()):
        super().__init__(engine, name)
        self.channel = channel
        self.busy = False
        self.done = 0
        self.fault = MoverFault.NONE
        self.walks = {Walker.SOURCE: Walk(), Walker.DESTINATION: Walk()}
        self._faults = faults
        self._dim = {"walker": 0, "dim": 0, "count": 0, "stride": 0}
        self._index = {"addr": 0, "count": 0}
        self._gather = {"words": 0, "pitch": 0}
        self._seed = 0
        self._value = 0
        self._mode = MoverMode.COPY
        self._pattern = b""
        self._indices: list[int] = []
        self._indices_at = -1  # the cycle in which the latest word of the index vector arrives
        self._moved = 0
        self._elements = 0
        self._unwritten: deque[int] = deque()  # first beats of the writes of words not yet written
        self._issue_at = NEVER
        self._finish_at = NEVER
        self._element: tuple[int, bool, int, bool] | None = None  # target, inside, source, inside: the next one
        self._sources: Iterator[tuple[int, bool]] = iter(())
        self._targets: Iterator[tuple[int, bool]] = iter(())

    # ---- registers -----------------------------------------------------------------------------------

    def configure(self, offset: int, value: int, now: int) -> None:
        """A register write in force in cycle `now`; ignored while a move runs and where nothing answers."""
        layout = reg.MOVER.get(offset)
        if layout is None or self.busy:
            return
        f = layout.decode(value)
        if layout is reg.MV_CONTROL:
            if f["go"]:
                self._start(f, now)
        elif layout is reg.MV_WALKER:
            walk = self.walks[f["walker"]]
            walk.base, walk.dims = f["base"], f["dims"]
        elif layout is reg.MV_DIM:
            self._dim = f
        elif layout is reg.MV_AXIS:
            walk, dim = self.walks[self._dim["walker"]], self._dim["dim"]
            walk.count[dim], walk.stride[dim] = self._dim["count"] or 1, self._dim["stride"]
            walk.axis[dim], walk.step[dim] = f["axis"], f["step"]
        elif layout is reg.MV_BOUNDS:
            walk = self.walks[f["walker"]]
            walk.axis_base[f["axis"]], walk.extent[f["axis"]] = f["base"], f["extent"]
        elif layout is reg.MV_INDEX:
            self._index = f
        elif layout is reg.MV_SEED:
            self._seed = f["seed"]
        elif layout is reg.MV_VALUE:
            self._value = f["value"]
        elif layout is reg.MV_GATHER:
            self._gather = f

    def _start(self, control: dict[str, int], now: int) -> None:
        self.busy = True
        self._indices = []
        self._indices_at = now
        self._moved = 0
        self._element = None
        self._finish_at = NEVER
        self._issue_at = now + 1
        self._mode = control["mode"]
        self.fault = self._refusal(control["mode"], control["width"])
        if self.fault:
            self._finish_at, self._issue_at = now + 1, NEVER
        else:
            size = {ElementWidth.BITS_8: 1, ElementWidth.BITS_16: 2, ElementWidth.BITS_32: 4}[control["width"]]
            self._pattern = self._value.to_bytes(4, "little")[:size] * (WORD_BYTES // size)
            target = self.walks[Walker.DESTINATION]
            self._elements = target.elements
            self._targets, self._sources = target.places(), self.walks[Walker.SOURCE].places()
        self.wake(now + 1)

    def _refusal(self, mode: int, width: int) -> MoverFault:
        """What is wrong with the registers themselves."""
        if mode not in (MoverMode.COPY, MoverMode.GATHER, MoverMode.GENERATE, MoverMode.FILL):
            return MoverFault.MODE
        if width == ElementWidth.FAULTS:
            return MoverFault.ELEMENT_WIDTH
        if any(walk.dims > DIMS for walk in self.walks.values()):
            return MoverFault.RANGE
        if mode == MoverMode.GATHER:
            if not 0 < self._index["count"] <= MAX_INDICES:
                return MoverFault.INDEX_LENGTH
            if self._index["addr"] % WORD_BYTES:
                return MoverFault.ALIGNMENT
        return MoverFault.NONE

    # ---- moving --------------------------------------------------------------------------------------

    def step(self, now: int) -> int:
        if now >= self._issue_at:
            if self._mode == MoverMode.GATHER and len(self._indices) < self._index["count"]:
                self._load_indices(now)
            else:
                self._move_word(now)
        if self._issue_at < NEVER:
            return self._issue_at
        if now >= self._finish_at:
            self._finish_at = NEVER
            self.busy = False
            if not self.fault:
                self.done = (self.done + 1) & MOVES_MASK
        return self._finish_at

    def _load_indices(self, now: int) -> None:
        """The next word of the index vector: eight indices."""
        address = self._index["addr"] + len(self._indices) * 4
        if not self.channel.memory.contains(address, WORD_BYTES):
            self._stop(now, MoverFault.AXI)
            return
        if now < self.channel.next_read:
            self._issue_at = self.channel.next_read
            return
        self._indices_at, data = self.channel.read(now, address, 1)
        self._indices += [int.from_bytes(data[at : at + 4], "little") for at in range(0, WORD_BYTES, 4)]
        whole = len(self._indices) >= self._index["count"]
        self._issue_at = self._indices_at + GATHER_CYCLES if whole else now + 1

    def _move_word(self, now: int) -> None:
        """Issue the next element: its read now, its write when the word is there."""
        channel = self.channel
        if self._element is None:
            self._element = (*next(self._targets), *next(self._sources))
        target, inside, source, held = self._element
        number = self._moved
        if inside:
            if target % WORD_BYTES:
                return self._stop(now, MoverFault.ALIGNMENT)
            if not channel.memory.contains(target, WORD_BYTES):
                return self._stop(now, MoverFault.AXI)
            if self._mode == MoverMode.GENERATE:
                ready, data = now + GENERATE_CYCLES, generated_word(target, self._seed).to_bytes(WORD_BYTES, "little")
            elif self._mode == MoverMode.FILL or self._mode == MoverMode.COPY and not held:
                ready, data = now + 1, self._pattern
            else:
                if self._mode == MoverMode.GATHER:
                    row, word = divmod(number, self._gather["words"] or 1)
                    if row >= self._index["count"]:
                        return self._stop(now, MoverFault.INDEX_LENGTH)
                    offset = self._indices[row] * self._gather["pitch"] & WORD32
                    source = (self.walks[Walker.SOURCE].base + offset + word * WORD_BYTES) & ADDRESS_MASK
                if source % WORD_BYTES:
                    return self._stop(now, MoverFault.ALIGNMENT)
                if not channel.memory.contains(source, WORD_BYTES):
                    return self._stop(now, MoverFault.AXI)
                # only what is read waits for the channel
                if now < channel.next_read:
                    self._issue_at = channel.next_read
                    return
                first, data = channel.read(now, source, 1)
                ready = first + 1
            self._write(max(ready, channel.next_write), target, data, number)
        self._element = None
        self._moved += 1
        if self._moved == self._elements:
            return self._stop(now, MoverFault.NONE)
        self._issue_at = now + 1
        if len(self._unwritten) >= OUTSTANDING:
            self._issue_at = max(self._issue_at, self._unwritten[-OUTSTANDING] + 1)

    def _write(self, cycle: int, target: int, data: bytes, number: int) -> None:
        if "mover-skips-word" in self._faults and number == 1:
            data = self.channel.memory.sample(self.engine.now, target, WORD_BYTES)
        self._finish_at = self.channel.write(cycle, target, data) + 1
        self._unwritten.append(cycle)
        if len(self._unwritten) > OUTSTANDING:
            self._unwritten.popleft()

    def _stop(self, now: int, fault: MoverFault) -> None:
        """Issue nothing more; the move is over when what was asked for has come and what was written is answered."""
        self.fault = fault
        self._issue_at = NEVER
        over = max(now, self._indices_at) + 1
        self._finish_at = over if self._finish_at == NEVER else max(self._finish_at, over)

    def describe(self) -> list[str]:
        if not self.busy:
            return []
        return [f"{self.name}: mode {self._mode}, {self._moved} of {counted(self._elements, 'element')}"]
