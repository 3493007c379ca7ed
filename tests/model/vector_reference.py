"""An independent reading of when beats of the vector core issue: the issue stage of
docs/microarchitecture/vector-core.md as registers stepped cycle by cycle, with pending bits and tags, reservation shift
registers and countdowns. It imports nothing of `kohakutpu.model`.
"""

from dataclasses import dataclass


@dataclass
class Issue:
    """One instruction as it enters the queue. `depth` is 0 for what does not use the lanes."""

    kind: str  # lanes, reduction, vote, to_scalar, short, load, store
    beats: int
    phases: int  # beats a chunk
    sources: tuple[int, ...] = ()
    vd: int | None = None  # vector register written
    write: int = 0  # cycles from issue to that write
    depth: int = 0
    compare: int | None = None
    votes: int | None = None  # P register read
    first: int = -1
    last: int = -1


class IssueStage:
    """`push` an instruction when `full` is false, then `clock`; `now` is the current cycle."""

    def __init__(self):
        self.now = 0
        self.queue = []
        self.beat = 0
        self.pending = [False] * 128
        self.tag = [0] * 128
        self.sequence = 0
        self.writes = []  # (cycle, chunk address, tag) in flight
        self.compares = []  # (cycle, P register)
        self.slots = [[False] * 80, [False] * 80]  # register writes k cycles from now, by bank
        self.leaving = 0  # cycles until the latest lane beat is past its last stage
        self.gap = 0
        self.wrote = {}  # (register, chunk) -> write cycle of the newest write

    @property
    def full(self):
        return len(self.queue) >= 2

    def may_issue(self, item):
        chunk = self.beat // item.phases
        if any(self.pending[8 * r + chunk] for r in item.sources):
            return False
        if item.kind in ("short", "load"):
            if self.pending[8 * item.vd + chunk] or self.slots[chunk % 2][item.write]:
                return False
        if item.depth and self.leaving >= 15 * item.depth:
            return False
        if item.kind == "reduction" and self.beat == 0 and self.gap:
            return False
        return item.votes is None or not any(p == item.votes for _, p in self.compares)

    def clock(self, pushed=None):
        """One cycle; an instruction pushed in it can issue in the next. Returns the beat issued, or None."""
        now = self.now
        # what is written in this cycle no longer holds anything back in it
        for _, address, tag in [w for w in self.writes if w[0] == now]:
            if self.tag[address] == tag:
                self.pending[address] = False
        self.writes = [w for w in self.writes if w[0] > now]
        self.compares = [c for c in self.compares if c[0] > now]
        issued = None
        if self.queue and self.may_issue(self.queue[0]):
            issued = item = self.queue[0]
            chunk = self.beat // item.phases
            if self.beat == 0:
                item.first = now
            if item.vd is not None:
                self.slots[chunk % 2][item.write] = True
                if (self.beat + 1) % item.phases == 0 or self.beat + 1 == item.beats:
                    address = 8 * item.vd + chunk
                    self.sequence += 1
                    self.pending[address], self.tag[address] = True, self.sequence
                    self.writes.append((now + item.write, address, self.sequence))
                    self.wrote[item.vd, chunk] = now + item.write
            if item.depth:
                self.leaving = 15 * item.depth
            self.beat += 1
            if self.beat == item.beats:
                item.last = now
                if item.compare is not None:
                    self.compares.append((now + item.write, item.compare))
                if item.kind == "reduction":
                    self.gap = 21
                self.queue.pop(0)
                self.beat = 0
        if pushed is not None:
            self.queue.append(pushed)
        self.slots = [bank[1:] + [False] for bank in self.slots]
        self.leaving = max(0, self.leaving - 1)
        self.gap = max(0, self.gap - 1)
        self.now += 1
        return issued
