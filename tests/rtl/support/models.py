"""The model's side of a block bench: the same flits and the same backpressure, and the comparison cycle for cycle."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kohakutpu.isa.flit import Flit, type_name, xy
from kohakutpu.noc.engine import NEVER, Component, Engine, Link

Transfer = tuple[int, str, Flit]


class Peer(Component):
    """The far side of a model endpoint's links; what a `Source` and a `Sink` of `links` are to an RTL one.

    A flit sent with `at=t` is loaded into the output register in cycle t at the earliest; `busy(t)` is what the sink
    says in cycle t; `on_flit(cycle, flit)` is called for each arrival, and what is sent from it leaves in the next
    cycle at the earliest. `received` lists (cycle, flit).
    """

    def __init__(self, engine: Engine, name: str = "peer"):
        super().__init__(engine, name)
        self.out = Link(engine, f"{name}.out", self)
        self.in_link: Link | None = None
        self.queue: deque[tuple[int, Flit]] = deque()
        self.busy: Callable[[int], bool] | None = None
        self.on_flit: Callable[[int, Flit], None] | None = None
        self.received: list[tuple[int, Flit]] = []

    def join(self, endpoint) -> None:
        """Connect both ways with a model endpoint: `out`, `in_link`, `accept`."""
        endpoint.in_link, self.in_link = self.out, endpoint.out
        self.out.sink, endpoint.out.sink = endpoint, self
        self.wake(self.engine.now)

    def send(self, *flits: Flit, at: int = 0) -> None:
        at = max(at, self.engine._upcoming)  # the next cycle when called within one
        self.queue.extend((at, flit) for flit in flits)
        if self.queue:
            self.wake(max(self.engine._upcoming, self.queue[0][0]))

    def accept(self, flit: Flit, now: int) -> bool:
        if self.busy is not None and self.busy(now):
            return False
        self.received.append((now, flit))
        if self.on_flit is not None:
            self.on_flit(now, flit)
        return True

    def step(self, now: int) -> int:
        following = NEVER
        if self.queue:
            at, flit = self.queue[0]
            if at > now:
                following = at
            elif self.out.flit is None:
                self.queue.popleft()
                self.out.send(flit)
                following = now + 1 if self.queue else NEVER
            else:
                self.out.wanted = True
        if self.busy is not None:
            if not self.busy(now + 1):
                self.in_link.retry()
            following = now + 1
        return following


def compare(rtl: list[Transfer], model: list[Transfer]) -> int:
    """Both sides moved the same flits on the same links in the same cycles; returns how many.

    Raises AssertionError at the first difference with what surrounds it, and when nothing moved at all.
    """
    rtl, model = sorted(rtl), sorted(model)
    assert rtl or model, "nothing was transferred: there is nothing to compare"
    for index in range(max(len(rtl), len(model))):
        got = rtl[index] if index < len(rtl) else None
        want = model[index] if index < len(model) else None
        if got != want:
            before = "\n".join(f"    {text(item)}" for item in rtl[max(0, index - 4) : index])
            after = "\n".join(
                f"  {side} {text(item)}"
                for side, items in (("rtl  ", rtl), ("model", model))
                for item in items[index : index + 4]
            )
            raise AssertionError(
                f"transfer {index} of {len(rtl)} (rtl) and {len(model)} (model) differs:\n{before}\n{after}"
            )
    return len(rtl)


def text(transfer: Transfer | None) -> str:
    """A transfer for people."""
    if transfer is None:
        return "nothing"
    cycle, link, flit = transfer
    return (
        f"cycle {cycle} {link}: {type_name(flit.type)} {xy(flit.src)} to {xy(flit.dst)} txn {flit.txn:#04x} "
        f"last {flit.last} rsvd {flit.rsvd} payload {flit.payload:064x}"
    )
