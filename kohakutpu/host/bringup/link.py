"""Steps 1 and 2: is there a link of the right width to a control agent, and does it write what it is told?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kohakutpu.isa import registers
from kohakutpu.isa.flit import FLIT_WIDTH, POS_WIDTH
from kohakutpu.wording import counted

from ..driver import Driver
from ..transport import MEMORY_BASE
from .board import Board, NotThisMachine, WrongAnswer

STORAGE = (registers.CTRL, registers.IRQ_EN)  # they do nothing but hold 64 bits
BESIDE = registers.IRQ_EN.offset - registers.CTRL.offset
READINGS = 16  # of CAPS, which never changes
LOW = (1 << 32) - 1
ALL = (1 << 64) - 1
WIDTH_PATTERN = 0x0123_4567_89AB_CDEF
MOST_SHIFT = 8  # words; more than any link was seen to be late by
SPANS = (8, 32, 40, 256, 4096, 4104)  # bytes: below a memory word, one, across its end, bursts, across a page
GUARD = b"\xaa" * 32


def shift_of(expected: Sequence[int], found: Sequence[int]) -> int | None:
    """By how many words `found` is late (negative: early), None when it is not simply `expected` shifted.

    The words must differ from each other, and all but the shifted-out ones must be there.
    """
    for shift in sorted(range(-MOST_SHIFT, MOST_SHIFT + 1), key=abs):
        overlap = len(expected) - abs(shift)
        if shift and overlap > 0:
            ours = expected[max(0, -shift) :][:overlap]
            theirs = found[max(0, shift) :][:overlap]
            if list(ours) == list(theirs) and len(set(ours)) == len(ours) and overlap * 2 >= len(expected):
                return shift
    return None


def words_of(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]


@contextmanager
def storage_kept(driver: Driver) -> Iterator[None]:
    """The two storage registers hold at the end what they held before; not after a failure: the link is left alone
    then."""
    kept = {register: driver.read(register)["data"] for register in STORAGE}
    yield
    for register, value in kept.items():
        driver.write(register, data=value)


def width(driver: Driver, facts: dict) -> None:
    """The link carries 64 bits: both halves of a storage register hold what was written, and nothing beside it does."""
    driver.write(registers.IRQ_EN, data=0)
    driver.write(registers.CTRL, data=WIDTH_PATTERN)
    found, beside = driver.read(registers.CTRL)["data"], driver.read(registers.IRQ_EN)["data"]
    if found != WIDTH_PATTERN:
        half = {WIDTH_PATTERN & LOW, WIDTH_PATTERN >> 32}
        narrow = {found & LOW, found >> 32} <= half | {0} and found
        said = ": the link moves 32 bits at a time, and 64 are expected" if narrow else ""
        raise NotThisMachine(f"CTRL reads {found:#018x} after {WIDTH_PATTERN:#018x} was written{said}", facts)
    if beside:
        raise NotThisMachine(f"a write of CTRL changed IRQ_EN, {BESIDE} bytes on, to {beside:#018x}", facts)


def blocks(driver: Driver, facts: dict) -> None:
    """Block reads give the same words as single reads."""
    driver.write(registers.CTRL, data=0x5A5A_0001)
    driver.write(registers.IRQ_EN, data=0xA5A5_0002)
    count = registers.IRQ_EN.offset // registers.REGISTER_BYTES + 1
    single = [driver.transport.read64(driver.base + registers.REGISTER_BYTES * index) for index in range(count)]
    block = words_of(driver.transport.read_block(driver.base, registers.REGISTER_BYTES * count))
    if block != single:
        shift = shift_of(single, block)
        how = f"come {counted(abs(shift), 'word')} {'late' if shift > 0 else 'early'}" if shift else "differ"
        raise NotThisMachine(
            f"block reads cannot be trusted: the words at {driver.base:#x} {how}: {[hex(word) for word in block]}, one "
            f"by one {[hex(word) for word in single]}", facts,
        )  # fmt: skip


def link(board: Board) -> dict:
    """CAPS is constant and an agent's, registers have 64 bits, and block reads give the same words as single ones."""
    driver, transport = board.driver, board.transport
    address = driver.base + registers.CAPS.offset
    seen = [transport.read64(address) for _ in range(READINGS)]
    facts = {"caps": f"{seen[0]:#018x}", "readings": READINGS}
    if len(set(seen)) > 1:
        raise NotThisMachine(
            f"CAPS is a constant and reads {', '.join(sorted({f'{value:#018x}' for value in seen}))}", facts
        )
    caps = registers.CAPS.layout.decode(seen[0])
    if caps["flit_width"] != FLIT_WIDTH or caps["pos_width"] != POS_WIDTH:
        nothing = {0: ": nothing seems to answer there", ALL: ": nothing seems to answer there"}.get(seen[0], "")
        raise NotThisMachine(
            f"no control agent at {driver.base:#x}: CAPS reads {seen[0]:#018x}, a flit of {caps['flit_width']} bits "
            f"and coordinates of {caps['pos_width']}; {FLIT_WIDTH} and {POS_WIDTH} are expected{nothing}", facts,
        )  # fmt: skip
    with storage_kept(driver):
        width(driver, facts)
        blocks(driver, facts)
    return facts


def patterns() -> list[int]:
    """One bit set, one bit clear, for each of 64 bits."""
    ones = [1 << bit for bit in range(64)]
    return [*ones, *(ALL ^ one for one in ones)]


def registers_hold(driver: Driver) -> None:
    for pattern in patterns():
        driver.write(registers.CTRL, data=pattern)
        driver.write(registers.IRQ_EN, data=pattern ^ ALL)
        for register, expected in ((registers.CTRL, pattern), (registers.IRQ_EN, pattern ^ ALL)):
            found = driver.read(register)["data"]
            if found != expected:
                bits = [bit for bit in range(64) if (found ^ expected) >> bit & 1]
                raise WrongAnswer(
                    f"{register.name} reads {found:#018x} after {expected:#018x} was written: bits {bits}"
                )


def numbered(length: int, at: int) -> list[int]:
    """`length` bytes as words that all differ and name their place."""
    return [0x0001_0001_0001_0001 * (index + 1) ^ at << 16 for index in range(length // 8)]


def data_of(words: Sequence[int]) -> bytes:
    return b"".join(word.to_bytes(8, "little") for word in words)


def unshifted(board: Board) -> None:
    """Blocks come back where they were written, not some words further on; before anything is concluded from them."""
    at = board.half
    expected = numbered(256, at)
    board.write(at, data_of(expected))
    found = words_of(board.read(at, 256))
    shift = shift_of(expected, found) if found != expected else None
    if shift:
        raise NotThisMachine(
            f"a block of 256 bytes written at {at:#x} reads back {counted(abs(shift), 'word')} "
            f"{'late' if shift > 0 else 'early'}: writes or reads of this link are shifted, and nothing that it moves "
            "can be trusted"
        )


def memory_holds(board: Board, length: int, offset: int) -> None:
    """A block of counted words between two guards: written, then read back as a block and word by word."""
    at = board.half + 4096 + offset
    expected = numbered(length, at)
    start, front = at // 32 * 32 - 32, 32 + at % 32
    span = -(-(front + length + 32) // 32) * 32
    board.write(start, GUARD * (span // len(GUARD)))
    board.write(at, data_of(expected))
    around = board.read(start, span)
    found = words_of(around[front : front + length])
    if found != expected:
        wrong = next(index for index in range(len(expected)) if found[index] != expected[index])
        raise WrongAnswer(
            f"{at + 8 * wrong:#x} reads {found[wrong]:#018x} after a block of {length} bytes with "
            f"{expected[wrong]:#018x} was written at {at:#x}"
        )
    outside = [i for i in range(span) if not front <= i < front + length and around[i] != GUARD[0]]
    if outside:
        raise WrongAnswer(
            f"a write of {length} bytes at {at:#x} changed {start + outside[0]:#x}, which is outside of it"
        )
    for index in {0, len(expected) - 1}:
        word = board.transport.read64(MEMORY_BASE + at + 8 * index)
        if word != expected[index]:
            raise WrongAnswer(
                f"{at + 8 * index:#x} reads {word:#018x} as a word and {expected[index]:#018x} in a block"
            )


def write(board: Board) -> dict:
    """What is written is read back: 128 patterns in two registers, blocks of several lengths and places in memory."""
    driver = board.driver
    with storage_kept(driver):
        registers_hold(driver)
    unshifted(board)
    offsets = (0, 8, 24, 4096 - 16)
    for length in SPANS:
        for offset in offsets:
            memory_holds(board, length, offset)
    return {"patterns": len(patterns()), "blocks": len(SPANS) * len(offsets), "bytes": sum(SPANS) * len(offsets)}
