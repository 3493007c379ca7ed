"""What arrives at a vector core besides instructions: CU_DATA bursts into L1.

Timing and rules are `docs/microarchitecture/vector-core.md`, section "Receive". A burst is framed per sender:
the first CU_DATA flit of a source is its descriptor, and `last` ends the burst whether it was taken or not.
"""

from __future__ import annotations

from dataclasses import dataclass

from kohakutpu.isa.flit import Flit, FlitType, xy
from kohakutpu.isa.signals import CU_DATA, CU_SIGNAL, SIGNAL_ON_COMPLETE, SignalCode
from kohakutpu.noc.engine import Fifo
from kohakutpu.wording import counted

ACK_DEPTH = 8
BUFFER = 0  # the only one


@dataclass
class Burst:
    """A descriptor's contents and how far its data has come."""

    source: int
    word: int  # L1 word of the next data flit
    left: int
    buf: int
    ack: int  # node that DATA_RECEIVED goes to
    signal: bool


def _open(flit: Flit) -> Burst:
    fields = CU_DATA.decode(flit.payload)
    ack = fields["ack_y"] << 4 | fields["ack_x"]
    return Burst(
        flit.src, fields["offset"], fields["len"] + 1, fields["buf"], ack or flit.src,
        bool(fields["flags"] & SIGNAL_ON_COMPLETE),
    )  # fmt: skip


class Receiver:
    """Frames CU_DATA, says which L1 word each data flit goes to, and queues the acknowledgements.

    `fault` is F_CUDATA, sticky until the sequencer reports it.
    """

    def __init__(self, own: int, l1_words: int, *, lose_ack: bool = False):
        self.own = own
        self.l1_words = l1_words
        self.acks = Fifo(ACK_DEPTH)
        self.fault = False
        self.burst: Burst | None = None  # the one burst whose data is being written
        self._refused: dict[int, Burst] = {}  # by source: counted out to `last`
        self._lose_ack = lose_ack

    def take(self, flit: Flit, now: int) -> int | None:
        """One CU_DATA flit; returns the L1 word that its payload is written to, or None."""
        burst = self.burst
        if burst is not None and burst.source == flit.src:
            word = burst.word
            burst.word += 1
            burst.left -= 1
            if burst.left and flit.last:  # short
                self.fault = True
                burst.left = 0
            elif not burst.left and not flit.last:  # long: the rest is not written
                self.fault = True
                self._refused[flit.src] = burst
                self.burst = None
                return word
            if not burst.left:
                self.burst = None
                self._acknowledge(burst, now)
            return word
        refused = self._refused.get(flit.src)
        if refused is not None:
            if flit.last:
                del self._refused[flit.src]
                self._acknowledge(refused, now)
            return None
        opened = _open(flit)
        if burst is None and opened.buf == BUFFER and opened.word + opened.left <= self.l1_words:
            self.burst = opened
        else:
            self.fault = True
            self._refused[flit.src] = opened
        return None

    def _acknowledge(self, burst: Burst, now: int) -> None:
        if not burst.signal:
            return
        if self._lose_ack:
            self._lose_ack = False
            return
        payload = CU_SIGNAL.encode(code=SignalCode.DATA_RECEIVED, arg=burst.buf)
        self.acks.push(Flit(burst.ack, self.own, FlitType.CU_SIGNAL, 0, 1, 0, payload), now)

    def describe(self) -> list[str]:
        lines = []
        if self.burst is not None:
            burst = self.burst
            lines.append(
                f"burst open from {xy(burst.source)}: {counted(burst.left, 'data flit')} owed, next L1 word "
                f"{burst.word}"
            )
        for source, burst in self._refused.items():
            lines.append(f"burst from {xy(source)} (buffer {burst.buf}) refused, being counted out")
        if self.acks.items:
            lines.append(
                f"{counted(len(self.acks), 'acknowledgement')} unsent, the first for {xy(self.acks.items[0].dst)}"
            )
        return lines


class PublishedReceiver(Receiver):
    """Erratum `reject-silent`: framing by count only, no acknowledgement of a refused burst, no resynchronising."""

    def __init__(self, own: int, l1_words: int, *, lose_ack: bool = False):
        super().__init__(own, l1_words, lose_ack=lose_ack)
        self._writing = False

    def take(self, flit: Flit, now: int) -> int | None:
        burst = self.burst
        if burst is None:
            self.burst = burst = _open(flit)
            self._writing = burst.buf == BUFFER and burst.word + burst.left <= self.l1_words
            self.fault |= not self._writing
            return None
        if self._writing and flit.src != burst.source:
            self.fault = True
            self._writing = False
        word = burst.word if self._writing else None
        burst.word += 1
        burst.left -= 1
        if not burst.left:
            self.burst = None
            if self._writing:
                self._acknowledge(burst, now)
        return word
