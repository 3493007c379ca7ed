"""Steps 5 and 6: every address and data line of the memory, and the memory mover where there is one."""

from __future__ import annotations

import random

from kohakutpu.isa import registers
from kohakutpu.isa.memory import WORD_BYTES
from kohakutpu.isa.registers import ElementWidth, MoverFault, MoverMode, Walker

from ..driver import NoAnswer
from .board import Board, NotPresent, WrongAnswer

RANDOM_BLOCKS, RANDOM_BYTES = 48, 256
RETAINED = 8192  # bytes
RETENTION = {"cycles": 20_000, "s": 1.0}
TAG = 0x9E37_79B9_7F4A_7C15  # odd, so that tags of two places differ
WORD64 = (1 << 64) - 1


def tag(address: int, turned: bool) -> bytes:
    """A word that says where it belongs; `turned`, with every bit the other way."""
    parts = [((address + 1) * TAG + lane) & WORD64 for lane in range(WORD_BYTES // 8)]
    return b"".join((part ^ (WORD64 if turned else 0)).to_bytes(8, "little") for part in parts)


def walked_addresses(size: int) -> list[int]:
    """0, each single address bit of a word inside `size` bytes, and the last word."""
    bits = range(WORD_BYTES.bit_length() - 1, (size - 1).bit_length())
    return list(dict.fromkeys([0, *(1 << bit for bit in bits if 1 << bit < size), size - WORD_BYTES]))


def address_lines(board: Board) -> int:
    """Words that name their own address, at every power of two: a line that is stuck or shorted makes two one."""
    places = walked_addresses(board.machine.memory.bytes)
    for turned in (False, True):
        belongs = {tag(at, turned): at for at in places}
        for at in places:
            board.write(at, tag(at, turned))
        for at in places:
            found = board.read(at, WORD_BYTES)
            if found != tag(at, turned):
                if found in belongs:
                    lines = [bit for bit in range(40) if (at ^ belongs[found]) >> bit & 1]
                    raise WrongAnswer(
                        f"{at:#x} reads what was written at {belongs[found]:#x}: address lines {lines} do not count"
                    )
                raise WrongAnswer(f"{at:#x} reads {found.hex()}, and {tag(at, turned).hex()} was written")
    return len(places)


def data_lines(board: Board) -> None:
    """One bit set and one bit clear, for each of the 256 data lines; all read back before any is judged."""
    at, lines = board.half, 8 * WORD_BYTES
    full = (1 << lines) - 1
    values = [1 << line for line in range(lines)] + [full ^ 1 << line for line in range(lines)]
    board.write(at, b"".join(value.to_bytes(WORD_BYTES, "little") for value in values))
    found = board.read(at, WORD_BYTES * len(values))
    read = [int.from_bytes(found[WORD_BYTES * i :][:WORD_BYTES], "little") for i in range(len(values))]
    high, low, wrong = full, 0, 0
    for expected, value in zip(values, read, strict=True):
        wrong |= expected ^ value
        high &= value
        low |= value
    if wrong:
        states = []
        for line in (line for line in range(lines) if wrong >> line & 1):
            stuck = 1 if high >> line & 1 else 0 if not low >> line & 1 else None
            states.append(f"data line {line} " + ("follows another" if stuck is None else f"is stuck at {stuck}"))
        raise WrongAnswer(f"words at {at:#x}: {'; '.join(states[:8])}{' ...' if len(states) > 8 else ''}")


def first_difference(address: int, expected: bytes, found: bytes) -> str:
    """The place and both bytes of the first difference, and how many bytes differ."""
    wrong = [at for at, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b]
    at, count = wrong[0], f"{len(wrong)} of {len(expected)} bytes"
    return f"{address + at:#x} reads {found[at]:#04x}, and {expected[at]:#04x} was written ({count})"


def random_blocks(board: Board) -> None:
    """Blocks at random places, all written before the first is read."""
    draw = random.Random(board.seed)
    slots = draw.sample(range(board.machine.memory.bytes // RANDOM_BYTES), RANDOM_BLOCKS)
    blocks = {slot * RANDOM_BYTES: draw.randbytes(RANDOM_BYTES) for slot in slots}
    for at, data in blocks.items():
        board.write(at, data)
    for at, data in blocks.items():
        found = board.read(at, RANDOM_BYTES)
        if found != data:
            raise WrongAnswer(f"random data: {first_difference(at, data, found)}")


def retention(board: Board) -> None:
    """What was written and read right is still there a while later."""
    at = board.half + 0x4000
    data = random.Random(board.seed + 1).randbytes(RETAINED)
    board.write(at, data)
    found = board.read(at, RETAINED)
    if found != data:
        raise WrongAnswer(f"before the wait for retention: {first_difference(at, data, found)}")
    board.wait(RETENTION)
    found = board.read(at, RETAINED)
    if found != data:
        raise WrongAnswer(
            f"not retained: {first_difference(at, data, found)}; it read right {RETENTION[board.transport.unit]:,} "
            f"{board.transport.unit} before"
        )


def memory(board: Board) -> dict:
    """Data lines, address lines, random data, and retention, through the host's window; the contents are lost."""
    data_lines(board)
    places = address_lines(board)
    random_blocks(board)
    retention(board)
    return {
        "bytes": board.machine.memory.bytes, "addresses_walked": places, "data_lines": 8 * WORD_BYTES,
        "random_bytes": RANDOM_BLOCKS * RANDOM_BYTES, "retained_bytes": RETAINED,
    }  # fmt: skip


# ---- the mover ---------------------------------------------------------------------------------------------


class Mover:
    """Commands through AUX_CFG, answers through AUX_STAT."""

    def __init__(self, board: Board):
        self.driver = board.driver
        self.transport = board.transport
        self.timeout = board.driver.timeout

    def configure(self, layout, **fields: int) -> None:
        offset = next(offset for offset, each in registers.MOVER.items() if each is layout)
        index = offset // registers.REGISTER_BYTES
        self.driver.write(registers.AUX_CFG, index, data=layout.encode(**fields))

    def walk(self, walker: Walker, base: int, *dims: tuple[int, int]) -> None:
        """Dimensions as (count, stride in bytes), the last innermost."""
        for number, (count, stride) in enumerate(dims):
            self.configure(registers.MV_DIM, walker=walker, dim=number, count=count, stride=stride)
            self.configure(registers.MV_AXIS)
        self.configure(registers.MV_WALKER, walker=walker, base=base, dims=len(dims))

    def go(self, mode: MoverMode, what: str, **control: int) -> int:
        """Start, wait for the end, and return the fault code; `NoAnswer` when it does not end."""
        status = self.driver.read(registers.AUX_STAT)
        before = status["moves"]
        self.configure(registers.MV_CONTROL, go=1, mode=mode, **control)
        start = self.transport.now
        while True:
            status = self.driver.read(registers.AUX_STAT)
            if not status["busy"] and (status["moves"] != before or status["fault"]):
                return status["fault"]
            if self.transport.now - start > self.timeout:
                raise NoAnswer(f"{what} did not end: AUX_STAT reads {status}\n{self.transport.diagnose()}".rstrip())
            self.transport.pause()


def region_is(board: Board, at: int, expected: bytes, what: str) -> None:
    found = board.read(at, len(expected))
    if found != expected:
        raise WrongAnswer(f"{what}: {first_difference(at, expected, found)}")


def mover(board: Board) -> dict:
    """The memory mover fills, copies with its strides, and refuses a misaligned place; not present where it is not."""
    machine = Mover(board)
    source, target = board.half, board.half + 0x1000
    guard = b"\xaa" * WORD_BYTES
    board.write(target, guard * 18)
    machine.configure(registers.MV_VALUE, value=0xBEEF)
    machine.walk(Walker.DESTINATION, target + WORD_BYTES, (4, WORD_BYTES))
    fault = machine.go(MoverMode.FILL, "a fill of 4 words", width=ElementWidth.BITS_16)
    if fault == MoverFault.MODE:
        raise NotPresent("no memory mover: starting one is a mode fault, as where none is built", {"present": False})
    if fault:
        raise WrongAnswer(f"a fill of 4 words at {target + WORD_BYTES:#x} faults with {MoverFault(fault).name}")
    region_is(board, target, guard + bytes.fromhex("efbe") * 64 + guard * 13, "a fill of 4 words between guards")
    words = [random.Random(board.seed + 2 + index).randbytes(WORD_BYTES) for index in range(16)]
    board.write(source, b"".join(words))
    board.write(target, guard * 18)
    machine.walk(Walker.SOURCE, source, (4, 4 * WORD_BYTES), (4, WORD_BYTES))
    machine.walk(Walker.DESTINATION, target + WORD_BYTES, (4, WORD_BYTES), (4, 4 * WORD_BYTES))
    fault = machine.go(MoverMode.COPY, "a copy of 16 words")
    if fault:
        raise WrongAnswer(f"a copy of 16 words faults with {MoverFault(fault).name}")
    turned = b"".join(words[4 * column + row] for row in range(4) for column in range(4))
    region_is(board, target, guard + turned + guard, "a 4x4 words' copy that swaps rows and columns, between guards")
    machine.walk(Walker.DESTINATION, target + 8, (1, WORD_BYTES))
    fault = machine.go(MoverMode.FILL, "a fill at a misaligned place")
    if fault != MoverFault.ALIGNMENT:
        raise WrongAnswer(
            f"a fill at {target + 8:#x}, no multiple of {WORD_BYTES}, ends with fault {fault}, expected ALIGNMENT"
        )
    return {"present": True, "filled_words": 4, "copied_words": 16}
