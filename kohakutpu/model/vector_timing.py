"""When each beat of the vector core issues: latencies, scoreboard and issue queue.

The rules are `docs/microarchitecture/vector-core.md`, section "Issue"; every method below schedules the beats
of one instruction there. Cycles are absolute. A register is `ready` at c when a beat that reads it may issue
in cycle c.
"""

from __future__ import annotations

CHUNKS = 8
LANES = 16
QUEUE_DEPTH = 2  # instructions between decode and issue
ALU_STAGES = 15
ALU_WRITE = 2  # from the last stage's issue slot to the register write
SHORT_WRITE = 3  # VCVT, VSHUF, VBCAST
LOAD_WRITE = 6  # VLD
L1_ACCESS = 3  # VLD and VST
SCALAR_WRITE = 3  # VBCAST to a scalar
VOTE_WRITE = 4  # ANY, ALL
TREE_GAP = 21  # from the last leaf beat of a reduction to the first of the next
TREE_SHORT = 55  # from the last leaf beat to the scalar, up to 8 beats
TREE_LONG = 62  # the same, 9 to 16 beats


class Scoreboard:
    """The issue stage's state: what is pending, which write slots are taken, what has left the queue."""

    def __init__(self):
        self.ready = [0] * (16 * CHUNKS)  # vector register * 8 + chunk
        self.predicate_ready = [0] * 4
        self.scalar_ready = [0] * 16  # when decode may use the scalar
        self.last = -1  # issue cycle of the latest beat
        self.previous = -1  # the same, one instruction earlier
        self.idle = 0  # first cycle with nothing in any pipeline
        self.l1_last = -1  # L1 cycle of the latest VLD or VST beat
        self._lanes_end = -1  # when the latest ALU beat leaves the last stage
        self._tree_free = 0
        self._slots: set[int] = set()  # taken register writes, cycle * 2 + bank

    @property
    def queue_free(self) -> int:
        """The first cycle in which decode may push an instruction."""
        return self.previous + 1

    @property
    def queue_empty(self) -> int:
        """The first cycle in which the issue queue is empty."""
        return self.last + 1

    def _left(self, last: int, idle: int) -> None:
        self.previous, self.last = self.last, last
        if idle > self.idle:
            self.idle = idle
        if len(self._slots) > 128:
            horizon = 2 * last
            self._slots = {slot for slot in self._slots if slot > horizon}

    def lanes(self, now: int, sources: tuple[int, ...], vd: int, vl: int, depth: int, compare: int | None) -> None:
        """An ALU word (depth 1) or a chain of `depth` words pushed in cycle `now`.

        `sources` are vector registers, `compare` the predicate register written instead of `vd`.
        """
        ready, slots = self.ready, self._slots
        latency = ALU_STAGES * depth
        write = latency + ALU_WRITE
        t = max(now, self.last, self._lanes_end - latency)
        bases = [register * CHUNKS for register in sources]
        beats = -(-vl * depth // LANES)
        for beat in range(beats):
            chunk = beat // depth
            t += 1
            for base in bases:
                if ready[base + chunk] > t:
                    t = ready[base + chunk]
            if compare is None:
                slots.add(2 * (t + write) + (chunk & 1))
                if (beat + 1) % depth == 0 or beat + 1 == beats:
                    ready[vd * CHUNKS + chunk] = t + write
        if compare is not None:
            self.predicate_ready[compare] = t + write
        self._lanes_end = t + latency
        self._left(t, t + write + 1)

    def reduction(self, now: int, sources: tuple[int, ...], vl: int, paired: bool, vd: int, leaves: int | None) -> None:
        """VRED of values into scalar `vd`: a beat a chunk (`paired`) or two; EXPSUM writes its `leaves`."""
        ready, slots = self.ready, self._slots
        phases = 1 if paired else 2
        beats = vl // LANES * phases
        write = ALU_STAGES + ALU_WRITE
        t = max(now, self.last, self._lanes_end - ALU_STAGES, self._tree_free - 1)
        for beat in range(beats):
            chunk = beat // phases
            t += 1
            for register in sources:
                if ready[register * CHUNKS + chunk] > t:
                    t = ready[register * CHUNKS + chunk]
            if leaves is not None:
                slots.add(2 * (t + write) + (chunk & 1))
                if beat & 1:
                    ready[leaves * CHUNKS + chunk] = t + write
        self._lanes_end = t + ALU_STAGES
        self._tree_free = t + TREE_GAP
        done = t + (TREE_SHORT if beats <= CHUNKS else TREE_LONG)
        self.scalar_ready[vd] = done
        self._left(t, done)

    def vote(self, now: int, predicate: int, vd: int) -> None:
        """ANY or ALL: one beat, once every compare into the predicate register has written."""
        t = max(now + 1, self.last + 1, self.predicate_ready[predicate])
        self.scalar_ready[vd] = t + VOTE_WRITE
        self._left(t, t + VOTE_WRITE)

    def to_scalar(self, now: int, va: int, vd: int) -> None:
        """VBCAST of element 0: one beat."""
        t = max(now + 1, self.last + 1, self.ready[va * CHUNKS])
        self.scalar_ready[vd] = t + SCALAR_WRITE
        self._left(t, t + SCALAR_WRITE)

    def short(self, now: int, source: int | None, vd: int, chunks: int) -> None:
        """VCVT, VSHUF and VBCAST to a vector register: a beat a chunk."""
        ready = self.ready
        t = max(now, self.last)
        for chunk in range(chunks):
            t += 1
            t = max(t, ready[vd * CHUNKS + chunk])
            if source is not None:
                t = max(t, ready[source * CHUNKS + chunk])
            t = self._take_slot(t, SHORT_WRITE, chunk)
            ready[vd * CHUNKS + chunk] = t + SHORT_WRITE
        self._left(t, t + SHORT_WRITE + 1)

    def load(self, now: int, vd: int, chunks: int, phases: int) -> list[int]:
        """VLD, `phases` words a chunk. Returns the L1 cycle of each word."""
        t = max(now, self.last)
        access = []
        for chunk in range(chunks):
            written = self.ready[vd * CHUNKS + chunk]
            for _ in range(phases):
                t = self._take_slot(max(t + 1, written), LOAD_WRITE, chunk)
                access.append(t + L1_ACCESS)
            self.ready[vd * CHUNKS + chunk] = t + LOAD_WRITE
        self.l1_last = t + L1_ACCESS
        self._left(t, t + LOAD_WRITE + 1)
        return access

    def store(self, now: int, source: int, chunks: int, phases: int) -> list[int]:
        """VST, `phases` words a chunk. Returns the L1 cycle of each word."""
        t = max(now, self.last)
        access = []
        for chunk in range(chunks):
            t = max(t, self.ready[source * CHUNKS + chunk] - 1)
            for _ in range(phases):
                t += 1
                access.append(t + L1_ACCESS)
        self.l1_last = t + L1_ACCESS
        self._left(t, t + L1_ACCESS + 1)
        return access

    def _take_slot(self, t: int, write: int, chunk: int) -> int:
        """The first issue cycle from `t` on whose register write, `write` cycles later, is free; takes it."""
        slot = 2 * (t + write) + (chunk & 1)
        while slot in self._slots:
            slot += 2
        self._slots.add(slot)
        return slot // 2 - write
