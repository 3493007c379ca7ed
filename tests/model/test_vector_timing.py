"""The timing contract of docs/microarchitecture/vector-core.md: exact cycles, and the issue stage by registers."""

import random
import sys
from pathlib import Path

import pytest

from kohakutpu.conformance.vector import VectorBench
from kohakutpu.isa.assembler import assemble_words
from kohakutpu.model.vector_timing import Scoreboard

sys.path.insert(0, str(Path(__file__).parent))
from vector_reference import Issue, IssueStage  # noqa: E402

UNIT_WALK = [(0, 0, 0), (0, 1, 1 << 16 | 64)]  # A0: consecutive L1 words from 0
FILL_WALK = [(1, 0, 0x10000), (1, 1, 32 << 16 | 32)]  # A1: 32 words in a row of memory
START = 2  # cycles from RUN to the first decode


def cycles(text, descriptors=(), **options):
    """Kernel cycles of a program in the assembler's text."""
    bench = VectorBench(**options)
    signal = bench.run(assemble_words(text), [*UNIT_WALK, *FILL_WALK, *descriptors])
    assert signal.code == 0, f"fault {signal.arg}"
    return signal.arg


def vl(n, register=15):
    """VL = n: 3 cycles of decode."""
    return f"VSETI s{register}, {n}\nVSETVL s{register}\n"


# ---- whole kernels, cycle by cycle from the tables ----------------------------------------------------------

# the issue queue empties one cycle after decode pushed, so `p` decode cycles before the last push give
# START + p, its first beat one later
KERNELS = {
    "nothing": ("VHALT", START),
    "a word a cycle": ("VSETMODE D2\nVSETMODE D4\nVSETMODE FLAT\nVHALT", START + 3),
    "an immediate is a cycle": ("VSETI s0, 5\nVSETI k3, 7\nVHALT", START + 4),
    "a loop costs two, closing it nothing": (
        "VSETI s0, 5\nVLOOP s0, 2\nVSETMODE FLAT\nVSETMODE TREE\nVHALT", START + 2 + 2 + 5 * 2),
    "an empty loop": ("VSETI s0, 5\nVLOOP s0, 0\nVHALT", START + 2 + 2),
    # decoded in START + 3, beats START + 4..11, written 17 later, idle the cycle after
    "one FLAT word": (vl(128) + "VMOV v1, k1\nVHALT", START + 3 + 8 + 17 + 1),
    "16 elements": (vl(16) + "VMOV v1, k1\nVHALT", START + 3 + 1 + 17 + 1),
    "17 elements": (vl(17) + "VMOV v1, k1\nVHALT", START + 3 + 2 + 17 + 1),
    "independent words": (vl(128) + "VMOV v1, k1\nVMOV v2, k1\nVMOV v3, k1\nVHALT", START + 3 + 24 + 17 + 1),
    "dependent words": (
        vl(128) + "VMOV v1, k1\nVADD v2, v1, v1\nVADD v3, v2, v2\nVHALT", START + 3 + 2 * 17 + 8 + 17 + 1),
    "dependent words of one chunk": (vl(16) + "VMOV v1, k1\nVADD v2, v1, v1\nVHALT", START + 3 + 17 + 1 + 17 + 1),
    "an operand that the opcode ignores waits for nothing": (
        vl(128) + "VMOV v1, k1\nVMOV v2, k1 vb=v1 vc=v1\nVHALT", START + 3 + 16 + 17 + 1),
    "the same destination twice": (vl(128) + "VMOV v1, k1\nVMOV v1, k2\nVHALT", START + 3 + 16 + 17 + 1),
    "a predicated word right behind its compare": (
        vl(128) + "VCMPLT p1, v0, k1\nVMOV v1, k1 if p1\nVMOV v1, k2 if !p1\nVHALT", START + 3 + 24 + 17 + 1),
    "D2 chain": (vl(128) + "VSETMODE D2\nVMOV v1, k1\nVADD v1, c, k1 vb=k0\nVHALT", START + 3 + 2 + 16 + 32 + 1),
    "D4 chain": (
        vl(128) + "VSETMODE D4\nVMOV v1, k1" + "\nVADD v1, c, k1 vb=k0" * 3 + "\nVHALT", START + 3 + 4 + 32 + 62 + 1),
    "D4 tail needs only its own beats": (
        vl(18) + "VSETMODE D4\nVMOV v1, k1" + "\nVADD v1, c, k1 vb=k0" * 3 + "\nVHALT", START + 3 + 4 + 5 + 62 + 1),
    "chains without a gap": (
        vl(128) + "VSETMODE D4" + ("\nVMOV v1, k1" + "\nVADD v1, c, k1 vb=k0" * 3) * 3 + "\nVHALT",
        START + 3 + 4 + 3 * 32 + 62 + 1),
    "chains decode-bound": (
        vl(16) + "VSETMODE D4" + ("\nVMOV v1, k1" + "\nVADD v1, c, k1 vb=k0" * 3) * 3 + "\nVHALT",
        START + 3 + 4 + 3 * 4 + 62 + 1),
    # last D4 beat issues in START + 3 + 4 + 32; the next FLAT beat 46 later
    "a shallower word after a chain": (
        vl(128) + "VSETMODE D4\nVMOV v1, k1" + "\nVADD v1, c, k1 vb=k0" * 3 + "\nVSETMODE FLAT\nVMOV v2, k1\nVHALT",
        START + 3 + 4 + 32 + 46 + 7 + 17 + 1),
    "a deeper chain after a word": (
        vl(128) + "VMOV v1, k1\nVSETMODE D2\nVMOV v2, k1\nVADD v2, c, k1 vb=k0\nVHALT", START + 3 + 8 + 16 + 32 + 1),
    "load": (vl(128) + "VLD v1, A0, FP16\nVHALT", START + 3 + 8 + 6 + 1),
    "load FP32": (vl(128) + "VLD v1, A0, FP32\nVHALT", START + 3 + 16 + 6 + 1),
    "store": (vl(128) + "VST v1, A0, FP16\nVHALT", START + 3 + 8 + 3 + 1),
    "store FP32": (vl(128) + "VST v1, A0, FP32\nVHALT", START + 3 + 16 + 3 + 1),
    "load and use": (vl(128) + "VLD v1, A0, FP16\nVMOV v2, v1\nVHALT", START + 3 + 8 + 8 + 17 + 1),
    "load and use, one chunk": (vl(16) + "VLD v1, A0, FP16\nVMOV v2, v1\nVHALT", START + 3 + 1 + 6 + 17 + 1),
    "use and store": (vl(16) + "VMOV v2, k1\nVST v2, A0, FP16\nVHALT", START + 3 + 1 + 17 + 3 + 1),
    "store and load back": (vl(128) + "VST v1, A0, FP16\nVLD v1, A0, FP16\nVHALT", START + 3 + 16 + 6 + 1),
    "short operations": (
        vl(16) + "VCVT v1, v0, FP16\nVSHUF v2, v1, s0\nVBCAST v2, s0\nVHALT", START + 3 + 1 + 3 + 3 + 3 + 1),
    "scalar from a vector": (vl(16) + "VBCAST s1, v0\nVBCAST v2, s1\nVHALT", START + 3 + 1 + 3 + 1 + 3 + 1),
    "vote": (vl(16) + "VRED s1, v0, v0, ANY\nVBCAST v2, s1\nVHALT", START + 3 + 1 + 4 + 1 + 3 + 1),
    "vote behind a compare": (vl(16) + "VCMPLT p0, v0, k1\nVRED s1, v0, v0, ANY\nVHALT", START + 3 + 1 + 17 + 4),
    "sum": (vl(128) + "VSETMODE TREE\nVRED s1, v0, v0, SUM\nVHALT", START + 4 + 8 + 55),
    "dot, long": (vl(80) + "VSETMODE TREE\nVRED s1, v0, v1, DOT\nVHALT", START + 4 + 10 + 62),
    "dot, short": (vl(64) + "VSETMODE TREE\nVRED s1, v0, v1, DOT\nVHALT", START + 4 + 8 + 55),
    "two sums": (
        vl(128) + "VSETMODE TREE\nVRED s1, v0, v0, SUM\nVRED s2, v0, v0, MAX\nVHALT", START + 4 + 8 + 20 + 8 + 55),
    "a sum's result": (
        vl(16) + "VSETMODE TREE\nVRED s1, v0, v0, SUM\nVBCAST v1, s1\nVHALT", START + 4 + 1 + 55 + 1 + 3 + 1),
    "a scalar written twice": (
        vl(16) + "VSETMODE TREE\nVRED s1, v0, v0, SUM\nVRED s1, v0, v0, ANY\nVHALT", START + 4 + 1 + 55 + 1 + 4),
    "an immediate for a scalar on its way": (
        vl(16) + "VSETMODE TREE\nVRED s1, v0, v0, SUM\nVSETI s1, 5\nVHALT", START + 4 + 1 + 55 + 2),
    # request sent 1 after decode, on the link the cycle after, the words 20 later, visible a cycle after the link
    "a fill": ("VFILL A1, 0\nVBAR\nVHALT", START + 1 + 1 + 20 + 32 + 2),
    "a fill, VHALT waits too": ("VFILL A1, 0\nVHALT", START + 1 + 1 + 20 + 32 + 1),
    # the first descriptor in decode + 1, its words from + 3 on, then 9 flits for 8 words
    "a drain": ("VDRAIN A1, 0\nVHALT", START + 1 + 36 + 1),
    "a drain to a node": ("VDRAIN A1, 0 -> (2,1) buf=0\nVHALT", START + 2 + 32 + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("skip", [True, False], ids=["skip", "every-cycle"])
def test_kernel_cycles(name, skip):
    text, expected = KERNELS[name]
    assert cycles(text, skip=skip) == expected


def test_bank_conflict_delays_a_short_write():
    """A VLD beat whose write would meet a lane's in the same bank waits; in the other bank it does not."""
    # VMOV's chunk 0 beat issues in t and writes bank 0 in t + 17; fillers put a VLD beat on t + 11 or not
    base = vl(16) + "VMOV v1, k1\n"
    spread = {n: cycles(base + "VSETMODE FLAT\n" * n + "VLD v2, A0, FP16\nVHALT") for n in range(8, 14)}
    # VLD decoded n + 1 after VMOV: issue t + n + 1, write t + n + 7, equal to t + 17 for n = 10
    free = {n: START + 3 + 1 + (n + 1) + 6 + 1 for n in spread}
    assert spread == {n: max(cost + (n == 10), START + 3 + 1 + 17 + 1) for n, cost in free.items()}


def test_write_after_write_by_a_short_operation_waits():
    text = vl(16) + "VMOV v1, k1\nVBCAST v1, s0\nVHALT"
    assert cycles(text) == START + 3 + 1 + 17 + 3 + 1


@pytest.mark.parametrize("latency", [20, 57])
def test_second_fill_overlaps_the_first_but_loads_wait(latency):
    """Two fills back to back cost one latency; a VLD behind them waits for the first alone."""
    one = cycles("VFILL A1, 0\nVBAR\nVHALT", latency=latency)
    two = cycles("VFILL A1, 0\nVFILL A1, 32\nVBAR\nVHALT", latency=latency)
    assert two == one + 32
    for word in ("VLD v0, A0, FP16", "VST v0, A0, FP16"):
        text = vl(16) + f"VFILL A1, 0\nVFILL A1, 32\n{word}\n" + "VSETI s0, 1\n" * 40 + "VHALT"
        # decode goes on as soon as the first fill landed: the 80 immediate cycles run beside the second
        landed = START + 3 + 1 + 1 + latency + 32 + 1
        assert cycles(text, latency=latency) == landed + 1 + 80


def test_kernel_counter():
    """CU_CTRL index 3 counts while a kernel runs and holds its length afterwards."""
    bench = VectorBench()
    bench.load(assemble_words("VFILL A1, 0\nVHALT"), FILL_WALK)
    bench.wait(4)
    bench.instruct(0x3 << 252)
    running = []
    while len(bench.completions()) < 5:
        running.append(bench.core.debug_counter(bench.engine.now))
        bench.engine.advance(1)
    total = bench.completions()[-1].arg
    started = running.index(1)
    assert running[started - 1] == 0
    assert running[started : started + total] == list(range(1, total + 1))
    assert set(running[started + total :]) == {total}


# ---- fetch ---------------------------------------------------------------------------------------------------


def test_a_chain_across_the_loop_end_costs_a_refetch():
    """Decode does not test for `end` inside a chain: the chain runs on and the loop stays active."""
    # body of 2 words from address 5: the second word of the chain lies past `end`
    text = vl(16) + "VSETI s0, 3\nVSETMODE D2\nVLOOP s0, 1\nVMOV v1, k1\nVADD v1, c, k1 vb=k0\nVHALT"
    straight = vl(16) + "VSETI s0, 3\nVSETMODE D2\nVLOOP s0, 0\nVMOV v1, k1\nVADD v1, c, k1 vb=k0\nVHALT"
    assert cycles(text) == cycles(straight) + 2


def test_program_counter_wraps():
    bench = VectorBench()
    bench.load(assemble_words("VSETMODE D2"), at=511)
    bench.load(assemble_words("VHALT"), at=0)
    bench.instruct(0x3 << 252 | 511 << 243)
    bench.wait(3)
    assert bench.completions()[-1].arg == START + 1


# ---- the issue stage against its registers ---------------------------------------------------------------------


def random_instruction(rng):
    """(call on a Scoreboard given the push cycle, the same as an `Issue`)."""
    chunks = rng.randint(1, 8)
    length = 16 * chunks - rng.randint(0, 15)
    register = lambda: rng.randrange(rng.choice((2, 5, 16)))  # noqa: E731
    a, b, d = register(), register(), register()
    others = ["compare", "reduction", "expsum", "vote", "to_scalar", "short", "load", "load", "store"]
    kind = rng.choice(["lanes"] * 5 + others)
    if kind in ("lanes", "compare"):
        depth = rng.choice((1, 1, 1, 2, 4))
        compare = rng.randrange(4) if kind == "compare" else None
        target = d if compare is None else None
        issue = Issue("lanes", -(-length * depth // 16), depth, (a, b), target, 15 * depth + 2, depth, compare)
        return lambda s, t: s.lanes(t, (a, b), d, length, depth, compare), issue
    if kind in ("reduction", "expsum"):
        paired = kind == "reduction" and rng.random() < 0.5
        leaves = b if kind == "expsum" else None
        phases = 1 if paired else 2
        issue = Issue("reduction", chunks * phases, phases, (a,), leaves, 17, 1)
        return lambda s, t: s.reduction(t, (a,), 16 * chunks, paired, d, leaves), issue
    if kind == "vote":
        return lambda s, t: s.vote(t, d % 4, a), Issue("vote", 1, 1, votes=d % 4)
    if kind == "to_scalar":
        return lambda s, t: s.to_scalar(t, a, d), Issue("to_scalar", 1, 1, (a,))
    if kind == "short":
        source = None if rng.random() < 0.2 else a
        issue = Issue("short", chunks, 1, () if source is None else (a,), d, 3)
        return lambda s, t: s.short(t, source, d, chunks), issue
    phases = rng.choice((1, 2))
    if kind == "load":
        return lambda s, t: s.load(t, d, chunks, phases), Issue("load", chunks * phases, phases, (), d, 6)
    return lambda s, t: s.store(t, a, chunks, phases), Issue("store", chunks * phases, phases, (a,))


@pytest.mark.parametrize("seed", range(40))
def test_scoreboard_is_the_issue_stage(seed):
    """Closed form against registers: push cycles, last beats, write cycles and L1 cycles of random streams."""
    rng = random.Random(seed)
    board, stage = Scoreboard(), IssueStage()
    done = []
    ready_at = 5
    for _ in range(150):
        schedule, issue = random_instruction(rng)
        ready_at = max(ready_at + 1, stage.now) + rng.choice((0, 0, 0, 1, 7, 40))
        while stage.now < ready_at or stage.full:
            stage.clock()
        now = stage.now
        assert now >= board.queue_free and (now == ready_at or now == board.queue_free)
        access = schedule(board, now)
        stage.clock(issue)
        done.append((issue, board.last, access, dict(enumerate(board.ready))))
        ready_at = now
    while stage.queue:
        stage.clock()
    for issue, last, access, _ in done:
        assert issue.last == last
        if access is not None:
            assert access[-1] == last + 3 and len(access) == issue.beats and access[0] == issue.first + 3
    written = {8 * register + chunk: cycle for (register, chunk), cycle in stage.wrote.items()}
    assert {address: cycle for address, cycle in done[-1][3].items() if cycle} == written
