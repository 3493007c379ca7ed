"""Holds a model to the oracle's answer: arrivals at the bench, memory, state of the units."""

from __future__ import annotations

from collections import Counter, defaultdict

from kohakutpu.fuzz.accesses import Unjudged
from kohakutpu.fuzz.oracle import Arrival, ClusterState, Oracle
from kohakutpu.fuzz.play import COMPLETIONS, IMAGE
from kohakutpu.fuzz.program import Program
from kohakutpu.isa.cluster import Side
from kohakutpu.isa.flit import Flit, FlitType, xy
from kohakutpu.isa.memory import WORD_BYTES
from kohakutpu.isa.signals import CU_CAPS, CU_CTRL_REPLY, CU_SIGNAL, ControlIndex, SignalCode
from kohakutpu.model.system import System


def arrival(flit: Flit) -> Arrival | None:
    """What a flit that reached the bench says, as the oracle has it; None for what it does not foresee."""
    if flit.type == FlitType.CU_SIGNAL:
        code, arg = CU_SIGNAL.get(flit.payload, "code"), CU_SIGNAL.get(flit.payload, "arg")
        if code in COMPLETIONS:
            return Arrival(flit.src, "complete", (flit.txn, code, arg))
        return Arrival(flit.src, "received", (arg,)) if code == SignalCode.DATA_RECEIVED else None
    if flit.type == FlitType.CU_DATA:
        return Arrival(flit.src, "data", (flit.last, flit.payload))
    if flit.type == FlitType.MEM_RD_RESP:
        return Arrival(flit.src, "response", (flit.txn, flit.last, flit.rsvd, flit.payload))
    if flit.type == FlitType.MEM_WR_ACK:
        return Arrival(flit.src, "ack", (flit.txn,))
    return None


def _text(what: tuple | None) -> str:
    return "nothing" if what is None else " ".join("any" if part is None else f"{part:#x}" for part in what)


class Judge:
    """`before` and `after` each program that a `Player` plays. `difference` is the first; `judged`, `unjudged` count.

    A program that cannot be judged is counted by its reason.
    """

    def __init__(self, system: System):
        self.system = system
        self.difference = ""
        self.judged = 0
        self.unjudged: Counter[str] = Counter()
        self._oracle: Oracle | None = None

    def before(self, program: Program) -> None:
        """Work out what `program` must do, from the state as it is now."""
        self._oracle = None
        self._seen = len(self.system.bench.received)
        self._image = self.system.memory.read(0, IMAGE)
        try:
            oracle = Oracle(self.system)
            oracle.run(program)
        except Unjudged as reason:
            self.unjudged[_kind(str(reason))] += 1
        else:
            self._oracle = oracle

    def after(self, program: Program) -> None:
        """Compare, once all is quiet."""
        self._replies()
        if self._oracle is None:
            return
        self.judged += 1
        for found in (self._arrivals, self._memory, self._units):
            if text := found(self._oracle):
                self.difference = self.difference or f"program {program.number}: {text}"
                return

    def _replies(self) -> None:
        """What units say of themselves is known whatever the program."""
        for cycle, flit in self.system.bench.received[self._seen :]:
            unit = self.system.units.get(flit.src)
            if (
                flit.type != FlitType.CU_CTRL
                or unit is None
                or CU_CTRL_REPLY.get(flit.payload, "index") != ControlIndex.CAPS
            ):
                continue
            value = CU_CTRL_REPLY.get(flit.payload, "value")
            expected = CU_CAPS.encode(
                type=unit.unit_type, version=unit.version, buffers=unit.buffers, inst_depth=unit.inst.depth
            )
            if value != expected:
                self.difference = (
                    self.difference or f"cycle {cycle}: {unit.name} answers CAPS with {value:#x}, not {expected:#x}"
                )

    def _arrivals(self, oracle: Oracle) -> str:
        expected, found = defaultdict(list), defaultdict(list)
        for item in oracle.arrivals:
            expected[item.src, item.kind].append(item.what)
        for cycle, flit in self.system.bench.received[self._seen :]:
            if (item := arrival(flit)) is not None:
                found[item.src, item.kind].append((cycle, item.what))
        for src, kind in sorted(expected.keys() | found.keys()):
            wanted, got = expected[src, kind], found[src, kind]
            for at in range(max(len(wanted), len(got))):
                want = wanted[at] if at < len(wanted) else None
                cycle, have = got[at] if at < len(got) else (self.system.engine.now, None)
                if (
                    want is None
                    or have is None
                    or any(w is not None and w != h for w, h in zip(want, have, strict=True))
                ):
                    return f"{kind} {at} from {xy(src)}: {_text(want)} expected, {_text(have)} in cycle {cycle}"
        return ""

    def _memory(self, oracle: Oracle) -> str:
        expected = bytearray(self._image)
        for address, word in oracle.memory.items():
            data = word.to_bytes(WORD_BYTES, "little")
            if address < IMAGE:
                expected[address : address + WORD_BYTES] = data
            elif self.system.memory.read(address, WORD_BYTES) != data:
                return f"memory at {address:#x}: {word:#x} expected"
        found = self.system.memory.read(0, IMAGE)
        if found == bytes(expected):
            return ""
        at = next(at for at in range(IMAGE) if found[at] != expected[at]) // WORD_BYTES * WORD_BYTES
        words = [int.from_bytes(image[at : at + WORD_BYTES], "little") for image in (expected, found)]
        return f"memory at {at:#x}: {words[0]:#066x} expected, {words[1]:#066x} found"

    def _units(self, oracle: Oracle) -> str:
        try:
            now = Oracle(self.system)
        except Unjudged as reason:
            return str(reason)
        for at, expected in oracle.units.items():
            unit, found = self.system.units[at], now.units[at]
            if isinstance(expected, ClusterState):
                parts = {"tile": (expected.tiles, found.tiles)}
                parts |= {f"L1 {s.name}": (_listed(expected.l1[s.name]), _listed(found.l1[s.name])) for s in Side}
            else:
                parts = {
                    name: (getattr(expected, name), getattr(found, name))
                    for name in ("l1", "s", "k", "base", "imem", "dims")
                }
                parts |= {
                    name: (getattr(expected, name).tolist(), getattr(found, name).tolist()) for name in ("v", "p")
                }
                parts |= {name: ([getattr(expected, name)], [getattr(found, name)]) for name in ("vl", "mode")}
            for name, (want, have) in parts.items():
                for index, (w, h) in enumerate(zip(want, have, strict=True)):
                    if w != h:
                        return f"{unit.name} {name}[{index}]: {_value(w)} expected, {_value(h)} found"
        return ""


def _listed(entries: dict[int, list[int]]) -> list[list[int]]:
    return [entries[at] for at in sorted(entries)]


def _value(value) -> str:
    return f"{value:#x}" if isinstance(value, int) else repr(value)


def _kind(reason: str) -> str:
    """A reason without its numbers."""
    return " ".join(word for word in reason.split() if not any(c.isdigit() for c in word))
