"""Where a run may stop, and what it then leaves in its record for the host to read."""

from __future__ import annotations

from llvmlite import ir

from kohakutpu.xpu.types import Scalar

from .emit import I64, Emitter, Site, Value

# The record, in words of 64 bits: (site + 1, workgroup, work-item, two shown values) of what stopped the run; the
# address of launch-sized memory; the same five of the first broken promise.
TRAP, DYNAMIC, NOTE = 0, 8, 9


class Traps(Emitter):
    """Tests of undefined behaviour. `checked` builds make them; `record`, `stop` and `number` are the function's."""

    checked = True
    wave = None

    def check(self, bad: Value, at, text: str, *shown: tuple[Scalar, Value]) -> None:
        """Undefined behaviour where lanes of the mask are bad: the run ends, and says which work-item showed what."""
        if self.checked:
            self.stop_if(bad, at, text, *shown)

    def stop_if(self, bad: Value, at, text: str, *shown: tuple[Scalar, Value], refused: bool = False) -> None:
        """End the run where lanes of the mask are bad, in any build; `refused` says that the interpreter goes on."""
        b = self.builder
        if isinstance(bad.ir, ir.Constant) and bad.uniform and not bad.ir.constant:
            return
        lanes = self.under(bad.ir) if bad.stride is None else None
        with self.when(bad.ir if lanes is None else self.any(lanes), likely=False):
            lane = self.first(lanes) if lanes is not None else self.first()
            self.report(TRAP, lane, at, text, shown, refused)
            b.branch(self.stop)
            b.position_at_end(b.append_basic_block("never"))

    def note(self, bad: Value, at, text: str, *shown) -> None:
        """A broken promise, which is reported when the launch has ended; the first is kept."""
        lanes = self.under(self.spread(bad))
        b = self.builder
        with self.when(self.any(lanes), likely=False):
            slot = self.address(self.record, I64(NOTE), I64)
            with self.when(b.icmp_unsigned("==", b.load(slot, typ=I64), I64(0))):
                self.report(NOTE, self.first(lanes), at, text, shown)

    def report(self, place: int, lane, at, text: str, shown, refused: bool = False) -> None:
        """site + 1, workgroup, work-item and two shown values, from a place of the record on."""
        b = self.builder
        self.sites.append(Site(text, at, tuple(kind for kind, _ in shown), refused))
        item = b.add(self.widen(self.base(), 64), lane) if self.wave is not None else I64(0)
        numbers = [I64(len(self.sites)), self.number, item]
        for kind, value in shown:
            held = self.pick(value, lane)
            if kind.kind == "float":
                held = self.lift(kind, held)
                held = b.fpext(held, ir.DoubleType()) if held.type != ir.DoubleType() else held
                held = b.bitcast(held, I64)
            numbers.append(self.widen(held, 64, kind.signed))
        for offset, number in enumerate(numbers):
            b.store(number, self.address(self.record, I64(place + offset), I64))
