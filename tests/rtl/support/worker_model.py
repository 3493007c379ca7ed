"""The model of `worker.Worker`, on the endpoint base of the cycle models."""

from __future__ import annotations

from kohakutpu.model.endpoint import Endpoint
from kohakutpu.noc.engine import NEVER, Fifo

MASK32 = (1 << 32) - 1


class WorkerModel(Endpoint):
    """See `worker.Worker`; `eats` is its input of that name."""

    def __init__(self, engine, *, eats: bool = True, **parameters):
        super().__init__(engine, "worker", **parameters)
        self.eats = eats
        self.echo = Fifo(2)
        self.eaten = 0
        self.until = NEVER

    def debug_counter(self, now: int) -> int:
        return self.eaten

    def unit_step(self, now: int) -> int:
        if self.in_flight is not None:
            if now >= self.until:
                payload = self.in_flight.payload
                self.until = NEVER
                self.complete(now, payload >> 32 & MASK32, fault=bool(payload >> 16 & 1))
        elif self.instruction(now) is not None:
            self.until = now + (self.take_instruction(now).payload & 0xFFFF)
        if self.echo.head(now) is not None:
            if self.may_send:
                self.send(self.echo.pop(now))
            else:
                self.wait_to_send()
        if self.eats and self.receive(now) is not None and not self.echo.full(now):
            flit = self.pop_receive(now)
            self.echo.push(flit._replace(src=flit.dst, dst=flit.src), now)
            self.eaten += 1
        waiting = self.echo.items or (self.eats and self.recv.items)
        return min(now + 1 if waiting else NEVER, self.until)
