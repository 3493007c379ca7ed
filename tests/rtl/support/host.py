"""A host at the pins of a memory window: whole transfers as AXI4 bursts, a cycle at a time."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from memory_rig import HOST_STATUS, width

from kohakutpu.isa.memory import APERTURE_ADDRESS

PAGE = 4096
WORD = 32
SIZE = 5
FIXED, INCR = 0, 1
READY = 0b10100  # bready and rready
FIXED_BEATS = 16  # the longest FIXED burst of AXI4
PLACES = {name: (sum(width((n,)) for n in HOST_STATUS[:i]), width((name,))) for i, name in enumerate(HOST_STATUS)}


class Transfer(NamedTuple):
    """A write of `data` or a read of `length` bytes, asked for in cycle `at` or when the one before is over."""

    at: int
    address: int
    data: bytes | None = None
    length: int = 0


class Burst(NamedTuple):
    address: int
    beats: int
    kind: int


def is_upload(address: int) -> bool:
    return bool(APERTURE_ADDRESS.get(address, "special"))


def bursts(address: int, length: int) -> list[Burst]:
    """How a host cuts a transfer: at 4 KiB; an upload, whose addresses are those of results, into FIXED bursts."""
    out = []
    if is_upload(address):
        beats = length // WORD
        for at in range(0, beats, FIXED_BEATS):
            out.append(Burst(address + at * WORD // 2, min(FIXED_BEATS, beats - at), FIXED))
        return out
    end = address + length
    while address < end:
        stop = min(end, address // PAGE * PAGE + PAGE)
        out.append(Burst(address, (stop - 1) // WORD - address // WORD + 1, INCR))
        address = stop
    return out


def beats(address: int, data: bytes):
    """(word, strobes) of each beat of a write."""
    if is_upload(address):
        return [(int.from_bytes(data[at : at + WORD], "little"), (1 << WORD) - 1) for at in range(0, len(data), WORD)]
    lead = address % WORD
    # bytes whose strobe is low are anything but what is in memory
    padded = b"\x5a" * lead + data + b"\x5a" * (-(lead + len(data)) % WORD)
    strobes = ((1 << len(data)) - 1) << lead
    return [
        (int.from_bytes(padded[at : at + WORD], "little"), strobes >> at & (1 << WORD) - 1)
        for at in range(0, len(padded), WORD)
    ]


class HostDriver:
    """Runs `transfers`; `done` lists (cycle it began in, cycle from which the next may, data or None, worst response).

    Hang `tick` on `Links.each_cycle`.
    """

    def __init__(self, dut, transfers: list[Transfer]):
        self.dut = dut
        self.waiting = deque(transfers)
        self.done: list[tuple[int, int, bytes | None, int]] = []
        self.current: Transfer | None = None
        self.addresses: deque[Burst] = deque()
        self.words: deque[tuple[int, int, int]] = deque()
        self.flags = -1
        dut.host_aw.value = dut.host_ar.value = dut.host_w.value = 0
        self._drive(READY)

    def _drive(self, flags: int) -> None:
        if flags != self.flags:
            self.dut.host_flags.value = self.flags = flags

    @property
    def idle(self) -> bool:
        return not self.waiting and self.current is None

    def tick(self, now: int) -> None:
        """At the falling edge of cycle `now`: see what was taken in it, choose what is on the pins in the next."""
        if self.current is None and (not self.waiting or self.waiting[0].at > now + 1):
            return
        if self.current is not None:
            self._see(now)
        if self.current is None and self.waiting and self.waiting[0].at <= now + 1:
            self._begin(now + 1)
        self._offer()

    def _see(self, now: int) -> None:
        word = int(self.dut.host_status.value)
        status = {name: word >> low & (1 << bits) - 1 for name, (low, bits) in PLACES.items()}
        writing = self.current.data is not None
        if self.flags & (1 if writing else 8) and status["awready" if writing else "arready"]:
            self.addresses.popleft()
        if self.flags & 2 and status["wready"]:
            self.words.popleft()
        assert not (status["bvalid"] and not writing), f"cycle {now}: a write response that nobody waits for"
        assert not (status["rvalid"] and writing), f"cycle {now}: read data that nobody waits for"
        if writing and status["bvalid"]:
            assert status["bid"] == self.ids.popleft(), f"cycle {now}: the response has id {status['bid']}"
            self.answer = max(self.answer, status["bresp"])
            if not self.ids:
                assert not self.words and not self.addresses, f"cycle {now}: the response is there before the data"
                self._end(now + 1, None)
        if not writing and status["rvalid"]:
            self.read.append(int(self.dut.host_rdata.value).to_bytes(WORD, "little"))
            self.answer = max(self.answer, status["rresp"])
            assert status["rid"] == self.ids[0][0], f"cycle {now}: read data have id {status['rid']}"
            left = self.ids[0][1] - 1
            assert bool(status["rlast"]) == (left == 0), f"cycle {now}: RLAST with {left} beats to come"
            self.ids[0] = self.ids[0][0], left
            if left == 0:
                self.ids.popleft()
            if not self.ids:
                lead = self.current.address % WORD
                self._end(now + 1, b"".join(self.read)[lead : lead + self.current.length])

    def _end(self, cycle: int, data: bytes | None) -> None:
        self.done.append((self.began, cycle, data, self.answer))
        self.current = None

    def _begin(self, cycle: int) -> None:
        transfer = self.current = self.waiting.popleft()
        self.began, self.answer, self.read = cycle, 0, []
        writing = transfer.data is not None
        pieces = bursts(transfer.address, len(transfer.data) if writing else transfer.length)
        self.addresses.extend(pieces)
        self.ids = deque((number + len(self.done)) & 15 for number in range(len(pieces)))
        self.offered = deque(self.ids)
        if writing:
            words = deque(beats(transfer.address, transfer.data))
            for piece in pieces:
                self.words.extend((*words.popleft(), int(k == piece.beats - 1)) for k in range(piece.beats))
        else:
            self.ids = deque((number, piece.beats) for number, piece in zip(self.ids, pieces))
        self.total = len(pieces)

    def _offer(self) -> None:
        flags = READY
        if self.current is not None:
            writing = self.current.data is not None
            if self.addresses:
                burst = self.addresses[0]
                number = self.offered[self.total - len(self.addresses)]
                word = burst.address | (burst.beats - 1) << 40 | SIZE << 48 | burst.kind << 51 | number << 53
                (self.dut.host_aw if writing else self.dut.host_ar).value = word
                flags |= 1 if writing else 8
            if self.words:
                data, strobes, last = self.words[0]
                self.dut.host_w.value = data | strobes << 256 | last << 288
                flags |= 2
        self._drive(flags)
