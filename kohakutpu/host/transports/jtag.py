"""`Transport` through a Tcl server that owns a JTAG-to-AXI master (spec: driver view, transports). docs/transports.md,
jtag.

A request is a line with the length of a script, then the script; a reply the line `code n_result n_log`, then a result
and a log of so many bytes. The scripts need `jtag.tcl`, which is sent when a session opens. Addresses are the board's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import resources

from kohakutpu.isa import registers
from kohakutpu.isa.flit import FLIT_WIDTH
from kohakutpu.wording import counted

from ..transport import WORD, NoTransport, TransportError, Unanswered, check_access
from .session import SessionTransport, reason
from .stream import Dropped, Late, Stream

ADDRESS = ("127.0.0.1", 5570)
TIMEOUT = 30.0  # s that an answer may take
MASTER = "hw_axi_1"
BURST = 8  # beats of a write; some boards take no more
PAGE = 4096  # bytes; no burst crosses a multiple
WORDS = 512  # of one request
RESULT_LIMIT = 1 << 20  # bytes of a result or a log
WORD_DIGITS = 16
LATEST = 7  # transactions that a read may be late, or beats that a write may be shifted, and still be recognised
# Where the probe reads CAPS, and where a register that reads 0: no shift of it is like it.
PROBE = "1101001110010111010001100"
NOTHING = 0x0028  # a register offset that reads 0


class Untrusted(TransportError):
    """The link is there and does not do what it is told; says what was seen."""

    exit_status = 2


def check_burst(beats: int) -> None:
    if not 0 < beats <= 256:
        raise TransportError(f"bursts of {beats} beats: expected 1 to 256")


class JtagTransport(SessionTransport):
    """A session with the server at `address`, on the 64-bit JTAG-to-AXI master `master`.

    Opening measures whether reads answer for earlier reads (CAPS at `control`, a board's address) and whether bursts
    land shifted (32 words of memory at `scratch`, which are put back), and raises `Untrusted` when they do. With
    `realign` late reads are made up for and writes go beat by beat, if that is measured to be right. Raises
    `NoTransport` without a server, `Unanswered` for what it cannot do or leaves unanswered.
    """

    bulk = True
    unit = "s"
    again_when_late = True

    def __init__(self, address: tuple[str, int] = ADDRESS, *, control: int, scratch: int, master: str = MASTER,
                 burst: int = BURST, realign: bool = False, timeout: float = TIMEOUT):  # fmt: skip
        check_burst(burst)
        super().__init__(address, timeout)
        self.skew = 0  # reads that an answer is late
        self._control = control
        self._burst = burst
        try:
            self._stream = Stream.connect(address, timeout)
            self._talk(resources.files(__package__).joinpath("jtag.tcl").read_text())
            self._talk(f"kohakutpu::begin {self._session} {master}")
            self._trust(scratch, realign)
        except (OSError, Dropped, Late) as error:
            self._hang_up()
            raise NoTransport(f"no JTAG server on {self.where}: {reason(error)}") from error
        except BaseException:
            self._hang_up()
            raise

    # ---- the server --------------------------------------------------------------------------------------

    def _receive(self) -> tuple[str, str]:
        """(result, log) of the next reply. Raises `Unanswered` for a Tcl error."""
        line = self._stream.receive_line()
        parts = line.split()
        if len(parts) != 3 or not all(part.lstrip("-").isdecimal() for part in parts):
            raise Dropped(f"{line[:80]!r} is no reply: expected 'code n_result n_log'")
        code, *sizes = map(int, parts)
        if not all(0 <= size <= RESULT_LIMIT for size in sizes):
            raise Dropped(f"a reply of {sizes[0]} and {sizes[1]} bytes: no part may have more than {RESULT_LIMIT}")
        result, log = (self._stream.receive(size).decode(errors="replace") for size in sizes)
        if code:
            raise Unanswered(
                f"the JTAG server on {self.where}: {result.strip() or 'an error without a text'}{_noted(log)}"
            )
        return result, log

    def _send(self, stream: Stream, message: str) -> None:
        data = message.encode()
        stream.send(f"{len(data)}\n".encode() + data)

    def _talk(self, script: str) -> str:
        """The result of a script that may be evaluated twice."""
        self._send(self._stream, script)
        return self._receive()[0]

    def _resume(self, what: str) -> int:
        self._stream = Stream.connect(self.address, self.timeout)
        try:
            result = self._talk(f"kohakutpu::resume {self._session}")
        except Unanswered as error:
            raise NoTransport(f"{error}: whether the {what} was done is not known") from error
        while not result.startswith(head := f"session {self._session} "):
            self.stale += 1
            result = self._receive()[0]
        return int(result.removeprefix(head))

    def _answer(self, what: str) -> str:
        while True:
            try:
                result, log = self._receive()
            except Unanswered as error:
                raise Unanswered(f"{what}: {error}") from error
            number, _, rest = result.partition(" ")
            failed, _, text = rest.partition(" ")
            if not number.isdecimal() or failed not in ("0", "1"):
                raise Dropped(f"{result[:80]!r} is no answer to a request")
            if int(number) > self._sequence:
                raise Dropped(f"an answer to request {number} came, and {self._sequence} was asked")
            if int(number) == self._sequence:
                break
            self.stale += 1
        if failed == "1":
            raise Unanswered(f"{what}: {text.strip() or 'refused without a text'}{_noted(log)}")
        return text

    def _ask(self, what: str, command: str) -> str:
        """The result of a command that is done once."""
        number = self._number()
        return self._converse(what, f"kohakutpu::ask {self._session} {number} {command}")

    # ---- accesses ------------------------------------------------------------------------------------------

    def _read_words(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        """Words of (address, count) spans as the link gives them, in single beats."""
        total = sum(count for _, count in spans)
        what = f"read of {WORD * total} bytes at {spans[0][0]:#x}"
        command = " ".join(f"{address} {count}" for address, count in spans)
        texts = self._ask(what, f"kohakutpu::read_beats {command}").split()
        if len(texts) != total:
            raise Untrusted(f"{what}: {counted(len(texts), 'word')} came")
        for text in texts:
            if len(text) != WORD_DIGITS or not set(text.lower()) <= set("0123456789abcdef"):
                width = f", as a master of {4 * len(text)} bits gives it" if len(text) == 8 else ""
                raise Untrusted(f"{what}: {text[:40]!r} is no 64-bit word of {WORD_DIGITS} hexadecimal digits{width}")
        return [int(text, 16) for text in texts]

    def _write_words(self, address: int, words: Sequence[int]) -> None:
        bursts, at = [], 0
        while at < len(words):
            start = address + WORD * at
            count = min(self._burst, len(words) - at, (PAGE - start % PAGE) // WORD)
            bursts.append(f"{start} {{{' '.join(f'{word:0{WORD_DIGITS}x}' for word in words[at : at + count])}}}")
            at += count
        what = f"write of {WORD * len(words)} bytes at {address:#x}"
        self._ask(what, f"kohakutpu::write_bursts {' '.join(bursts)}")

    def write64(self, address: int, value: int) -> None:
        check_access(address, WORD, "write")
        self._write_words(address, [value])

    def read64(self, address: int) -> int:
        return int.from_bytes(self.read_block(address, WORD), "little")

    def write_block(self, address: int, data: bytes) -> None:
        check_access(address, len(data), "write")
        words = [int.from_bytes(data[at : at + WORD], "little") for at in range(0, len(data), WORD)]
        for at in range(0, len(words), WORDS):
            self._write_words(address + WORD * at, words[at : at + WORDS])

    def read_block(self, address: int, length: int) -> bytes:
        check_access(address, length, "read")
        found = []
        for at in range(0, length // WORD, WORDS):
            count = min(WORDS, length // WORD - at)
            last = (address + WORD * (at + count - 1), 1)
            found += self._read_words([(address + WORD * at, count), *[last] * self.skew])[self.skew :]
        return b"".join(word.to_bytes(WORD, "little") for word in found)

    @property
    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        """Let go of the server, which keeps nothing of a session that matters to the next."""
        self._hang_up()

    # ---- trust ---------------------------------------------------------------------------------------------

    def _trust(self, scratch: int, realign: bool) -> None:
        skew = self._measured_skew()
        if skew and not realign:
            raise Untrusted(
                f"reads at {self._control:#x} answer for the read {skew} before: nothing that is read can be believed "
                "(option realign=1 makes up for it)"
            )
        self.skew = skew
        shift = self._measured_shift(scratch)
        if shift and realign:
            self._burst = 1
            shift = self._measured_shift(scratch)
            if shift:
                raise Untrusted(f"writes at {scratch:#x} land {counted(shift, 'word')} away, single beats too")
        if shift:
            raise Untrusted(
                f"bursts of {self._burst} beats at {scratch:#x} land {counted(shift, 'word')} away: nothing that is "
                "written can "
                "be believed (option realign=1 writes in single beats)"
            )

    def _measured_skew(self) -> int:
        """How many reads late answers are, from reads alone: CAPS and a register that reads 0, in an order unlike
        itself.
        """
        caps = self._control + registers.CAPS.offset
        places = [caps if digit == "1" else self._control + NOTHING for digit in PROBE]
        seen = self._read_words([(place, 1) for place in places])
        for skew in range(LATEST + 1):
            pairs = list(zip(places, seen[skew:]))
            values = {value for place, value in pairs if place == caps}
            others = {value for place, value in pairs if place != caps}
            if (
                len(values) == 1
                and others == {0}
                and registers.CAPS.layout.decode(min(values))["flit_width"] == FLIT_WIDTH
            ):
                return skew
        raise Untrusted(
            f"no control agent to be believed at {self._control:#x}: CAPS and a register that reads 0 were read in "
            f"turns, and gave {', '.join(f'{value:#x}' for value in seen[:8])}, ..."
        )

    def _measured_shift(self, scratch: int) -> int:
        """How many words away a burst lands; nonzero whenever a word is not where it was written."""
        count = 4 * LATEST + 4
        middle = slice(LATEST + 1, count - LATEST - 1)
        before = self.read_block(scratch, WORD * count)
        pattern = [0x0123_4567_89AB_CDEF ^ (0x0101_0101_0101_0101 * (37 * i % 256)) for i in range(count)]
        blank = bytes(WORD)
        try:
            for i in range(count):
                self.write_block(scratch + WORD * i, blank)
            self._write_words(scratch + WORD * middle.start, pattern[middle])
            seen = self.read_block(scratch, WORD * count)
        finally:
            self.write_block(scratch, before)
        words = [int.from_bytes(seen[at : at + WORD], "little") for at in range(0, len(seen), WORD)]
        expected = [word if middle.start <= i < middle.stop else 0 for i, word in enumerate(pattern)]
        if words == expected:
            return 0
        for shift in (step for size in range(1, LATEST + 1) for step in (size, -size)):
            if all(word in (0, *expected) for word in words) and expected[middle.start] == words[middle.start + shift]:
                return shift
        wrong = next(i for i, word in enumerate(words) if word != expected[i])
        raise Untrusted(
            f"a pattern that was written at {scratch:#x} does not read back: {words[wrong]:#018x} at "
            f"{scratch + WORD * wrong:#x}, expected {expected[wrong]:#018x}"
        )


def _noted(log: str) -> str:
    return f"\n{log.strip()}" if log.strip() else ""
