"""Counters of a unit: instructions retired, busy cycles, and its own (spec: CU_CTRL indices 2 and 3).

They run from reset, wrap at 2^32 and cannot be cleared, so only differences between two readings say anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kohakutpu.isa.fields import Layout
from kohakutpu.isa.signals import CLUSTER_DEBUG, CU_COUNTERS, VECTOR_DEBUG, ControlIndex, UnitType

from .driver import Driver

MODULUS = 1 << 32
DEBUG: Mapping[int, Layout] = {UnitType.CLUSTER: CLUSTER_DEBUG, UnitType.VECTOR: VECTOR_DEBUG}
NOT_CUMULATIVE = frozenset({"kernel_cycles"})  # of the last RUN alone


@dataclass(frozen=True)
class Counters:
    """One reading: 32-bit values by name. `retired` and `busy_cycles` of every unit; a cluster's `array_cycles` and
    `fill_cycles`; a vector core's `kernel_cycles`, of its last RUN."""

    values: Mapping[str, int]

    def since(self, before: Counters) -> dict[str, int]:
        """What was counted after `before`, modulo 2^32; what is not cumulative as it is.

        Raises `ValueError` when the two readings are of different kinds of unit.
        """
        if self.values.keys() != before.values.keys():
            raise ValueError(f"counters {', '.join(self.values)} against {', '.join(before.values)}: two kinds of unit")
        return {
            name: value if name in NOT_CUMULATIVE else (value - before.values[name]) % MODULUS
            for name, value in self.values.items()
        }


def read(driver: Driver, at: int, kind: int, *, agent: int) -> Counters:
    """The counters of the unit of CU_TYPE `kind` at node `at`; `NoAnswer` when it is silent.

    CU_DEBUG is read of a kind whose layout is known.
    """
    values = CU_COUNTERS.decode(driver.control(at, ControlIndex.COUNTERS, agent=agent))
    if kind in DEBUG:
        values |= DEBUG[kind].decode(driver.control(at, ControlIndex.DEBUG, agent=agent))
    return Counters(values)
