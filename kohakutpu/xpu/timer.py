"""Timing launches (spec/xpu.md 5.5): host nanoseconds and simulated cycles are tiers of their own, never mixed."""

from __future__ import annotations

import enum

from .errors import XpuError
from .launch import Event, KernelStream


class Tier(enum.IntEnum):
    """What a reading is of."""

    UNAVAILABLE = 0
    HOST = 1
    DEVICE = 2
    SIMULATED = 3


class KernelTimer:
    """Brackets a stream: `begin`, launches, `end`, then `elapsed`."""

    def __init__(self):
        self._begin, self._end = Event(), Event()

    def begin(self, stream: KernelStream) -> None:
        """Start."""
        self._begin.record(stream)
        self._end = Event()

    def end(self, stream: KernelStream) -> None:
        """Stop."""
        stream.sync()
        self._end.record(stream)

    @property
    def tier(self) -> Tier:
        """SIMULATED if the bracketed launches ran on a simulated device, else HOST."""
        if self._begin.when is None or self._end.when is None:
            return Tier.UNAVAILABLE
        return Tier.SIMULATED if self._end.cycles > self._begin.cycles else Tier.HOST

    def elapsed_nanos(self) -> int:
        """Nanoseconds of the host's clock; -1 if nothing was recorded or the device counts cycles."""
        return self._end.when - self._begin.when if self.tier is Tier.HOST else -1

    def elapsed_cycles(self) -> int:
        """Simulated cycles; -1 elsewhere."""
        return self._end.cycles - self._begin.cycles if self.tier is Tier.SIMULATED else -1


def within_peak(nanos: int, moved: int, peak_gbps: float, operations: int, peak_ops: float) -> bool:
    """True if a reading claims no more than the device's peaks.

    Zero work is not checked; work without a peak to hold it against is refused.
    """
    if nanos <= 0:
        raise XpuError(f"within_peak of {nanos} ns: a positive reading is expected")
    for amount, peak, what in ((moved, peak_gbps * 1e9, "bytes"), (operations, peak_ops, "operations")):
        if amount and not peak:
            raise XpuError(f"within_peak: {amount} {what} and no peak to hold them against")
        if amount and amount * 1e9 / nanos > peak:
            return False
    return True
