"""What kernels compute: random ones against an eager interpreter, and those that no recording covers."""

import random

import numpy as np
import pytest

from kohakutpu.conformance.vector import Traffic, VectorBench, integer
from kohakutpu.formats import e8m15, fp16
from kohakutpu.fuzz.vector_reference import Interpreter
from kohakutpu.isa.assembler import assemble_words
from kohakutpu.isa.vector import ALU_OPS, Opcode, encode

ONE, MINUS_ONE, INFINITY, HALF = 0x3F8000, 0xBF8000, 0x7F8000, 0x3F0000
WALK = [(0, 0, 0), (0, 1, 1 << 16 | 512)]  # A0: L1 words in a row


def bench_with(registers=None, predicates=None, scalars=None, **options):
    """A core whose registers hold what the test says, zero elsewhere."""
    bench = VectorBench(**options)
    path = bench.core.path
    for register, values in (registers or {}).items():
        path.v[register, : len(values)] = values
    for register, bits in (predicates or {}).items():
        path.p[register] = bits
    for register, value in (scalars or {}).items():
        path.s[register] = value
    return bench


def execute(bench, text, descriptors=WALK):
    signal = bench.run(assemble_words(text), descriptors)
    assert signal.code == 0, f"fault {signal.arg}"
    return bench.core.path


def numbers(seed, count=128):
    """E8M15 words of moderate size, both signs."""
    rng = np.random.default_rng(seed)
    return (rng.integers(0x3C0000, 0x430000, count) | rng.integers(0, 2, count) << 23).astype(np.uint32)


# ---- random programs -------------------------------------------------------------------------------------------


class Writer:
    """A random kernel without faults, and its descriptors."""

    def __init__(self, rng):
        self.rng = rng
        self.words = []
        self.mode = 0
        self.vl = 128
        self.filling = False
        self.descriptors = []
        for ad in range(6):  # 0..3 walk L1, 4 and 5 memory
            strides = (1, 1, 1, -1, 2, 0, 7, 40) if ad < 4 else (32, 32, 32, 64, -32, 4096, 0)
            base = rng.randrange(512) if ad < 4 else rng.randrange(0x8000, 0x9000) * 32 + rng.choice((0, 0, 1 << 35))
            self.descriptors.append((ad, 0, base))
            left = 40
            for d in range(4):
                bound = rng.randint(0, max(1, left))
                left //= bound or 1
                self.descriptors.append((ad, d + 1, (rng.choice(strides) & 0x3FFFF) << 16 | bound))

    def add(self, op, **fields):
        self.words.append(encode(op, **fields))

    def immediate(self, register, value):
        self.add(Opcode.VSETI, vd=register)
        self.words.append(value)

    def alu(self, *, stage=0, last=True):
        rng = self.rng
        pick = (0, 0, 0, 1, 3) if stage == 0 else (1, 2, 2, 2, 3)
        fields = {name: rng.choice(pick) for name in ("sa", "sb", "sc")}
        fields |= {name: rng.randrange(16) for name in ("va", "vb", "vc", "vd")}
        self.add(rng.choice(sorted(ALU_OPS)), **fields, pm=rng.choice((0, 0, 1, 2, 3)), pr=rng.randrange(4))

    def lanes(self):
        depth = {0: 1, 1: 2, 2: 4}.get(self.mode)
        if depth is None:
            self.set_mode(self.rng.randrange(3))
            depth = {0: 1, 1: 2, 2: 4}[self.mode]
        for stage in range(depth):
            self.alu(stage=stage)

    def set_mode(self, mode):
        self.mode = mode
        self.add(Opcode.VSETMODE, mode=mode)

    def set_length(self, length):
        self.vl = length
        self.immediate(0, length)
        self.add(Opcode.VSETVL, va=0)

    def reduction(self):
        kind = self.rng.randrange(8)
        if kind < 6:
            if self.vl % 16:
                self.set_length(16 * self.rng.randint(1, 8))
            if self.mode != 3:
                self.set_mode(3)
        r = self.rng.randrange
        self.add(Opcode.VRED, vd=r(1, 16), va=r(16), vb=r(16), kind=kind, pr=r(4))

    def memory(self):
        r = self.rng.randrange
        self.barrier()
        op = self.rng.choice((Opcode.VLD, Opcode.VST))
        self.add(op, ad=r(4), vd=r(16), dtype=r(1, 3), offset=r(-600, 600))

    def barrier(self):
        if self.filling:
            self.add(Opcode.VBAR)
            self.filling = False

    def short(self):
        r = self.rng.randrange
        which = r(4)
        if which == 0:
            self.add(Opcode.VCVT, dtype=r(1, 3), vd=r(16), va=r(16))
        elif which == 1:
            self.add(Opcode.VSHUF, vd=r(16), va=r(16), vb=r(16))
        else:
            self.add(Opcode.VBCAST, sa=which & 1, vd=r(1, 16), va=r(1, 16))

    def transfer(self):
        self.barrier()
        if self.rng.random() < 0.5:
            self.add(Opcode.VFILL, ad=4, l1=self.rng.randrange(512))
            self.filling = True
        else:
            self.add(Opcode.VDRAIN, ad=5, l1=self.rng.randrange(512))

    def loop(self):
        at = len(self.words)
        self.words.append(0)
        for _ in range(self.rng.randint(0, 3)):
            self.rng.choice((self.short, self.plain))()
        self.words[at] = encode(Opcode.VLOOP, va=0, vb=len(self.words) - at - 1)

    def plain(self):
        """One word whatever the mode."""
        self.add(Opcode.VSHUF, vd=self.rng.randrange(16), va=self.rng.randrange(16), vb=self.rng.randrange(16))

    def program(self, length):
        rng = self.rng
        for register in range(16):
            self.immediate(register, rng.choice((rng.randrange(1 << 24), ONE, MINUS_ONE, rng.randrange(40))))
        while len(self.words) < length:
            item = rng.choice((self.lanes,) * 6 + (self.memory,) * 3 + (
                self.short, self.short, self.reduction, self.transfer, self.loop,
                lambda: self.set_length(rng.randint(1, 128)), lambda: self.set_mode(rng.randrange(4)),
                lambda: self.immediate(rng.randrange(16), rng.randrange(1 << 24)),
            ))  # fmt: skip
            if item == self.loop:
                self.immediate(0, rng.randrange(4))
            item()
        self.add(Opcode.VHALT)
        return self.words


def random_case(seed):
    """(program, descriptors, initial L1, V, P, memory) of a seed."""
    rng = random.Random(seed)
    writer = Writer(rng)
    program = writer.program(110)
    data = np.random.default_rng(seed)
    l1 = data.integers(0, 1 << 16, (512, 16)).astype(np.uint16)
    l1[data.random(l1.shape) < 0.7] &= 0xBFFF  # mostly finite
    v = np.concatenate([numbers(seed + i) for i in range(16)]).reshape(16, 128)
    v[data.random(v.shape) < 0.05] = data.choice([0, 0x800000, INFINITY, 0xFF8000, 0x7FC000, 1, 0x7FFFFF])
    p = data.random((4, 128)) < 0.5
    memory = {32 * (0x8000 + i): int.from_bytes(data.bytes(32), "little") for i in range(0x1000)}
    return program, writer.descriptors, l1, v, p, memory


def run_random(seed, **options):
    program, descriptors, l1, v, p, memory = random_case(seed)
    bench = VectorBench(**options)
    bench.core.load_l1(l1.view(np.uint32))
    bench.core.path.v[:] = v
    bench.core.path.p[:] = p
    bench.memory.update(memory)
    signal = bench.run(program, descriptors)
    return bench, signal


def assert_interpreted(seed, bench, signal):
    """The core's whole state and memory equal the interpreter's."""
    program, descriptors, l1, v, p, memory = random_case(seed)
    reference = Interpreter()
    for item in descriptors:
        reference.describe(*item)
    reference.l1 = [integer(row) for row in l1.view(np.uint32)]
    reference.v[:] = v.reshape(16, 8, 16)
    reference.p[:] = p.reshape(4, 8, 16)
    reference.memory.update(memory)
    reference.run(program)
    path = bench.core.path
    assert signal.code == 0
    assert (path.v.reshape(16, 8, 16) == reference.v).all()
    assert (path.p.reshape(4, 8, 16) == reference.p).all()
    assert (path.s, path.k) == (reference.s, reference.k)
    assert [integer(row) for row in bench.core.l1_image()] == reference.l1
    assert bench.memory == reference.memory
    assert (bench.core.sequencer.vl, bench.core.sequencer.mode) == (reference.vl, reference.mode)


@pytest.mark.parametrize("seed", range(40))
def test_random_program(seed):
    assert_interpreted(seed, *run_random(seed))


PATTERNS = {
    "one in three": lambda cycle: cycle % 3 == 0,
    "long stops": lambda cycle: cycle % 97 > 60,
    "almost never": lambda cycle: cycle % 41 == 5,
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("seed", range(100, 104))
def test_backpressure_changes_cycles_only(seed, pattern):
    """The link out, the link in, and both, against the same kernel unhindered."""
    calm, signal = run_random(seed)
    stops = PATTERNS[pattern]
    for options in ({"accepts": stops}, {"offers": stops}, {"accepts": stops, "offers": stops}):
        bench, held = run_random(seed, **options)
        assert_interpreted(seed, bench, held)
        assert vars(Traffic(flit for _, flit in bench.sent)) == vars(Traffic(flit for _, flit in calm.sent))
        assert held.arg >= signal.arg


@pytest.mark.parametrize("seed", range(200, 212))
def test_skipping_changes_nothing(seed):
    """Every flit in the same cycle, with the links held up in various ways."""
    patterns = [None, *PATTERNS.values()]
    rng = random.Random(seed)
    options = {"accepts": rng.choice(patterns), "offers": rng.choice(patterns), "latency": rng.choice((3, 20, 61))}
    skipped, _ = run_random(seed, **options)
    stepped, _ = run_random(seed, skip=False, **options)
    assert skipped.sent == stepped.sent
    assert (skipped.core.path.v == stepped.core.path.v).all()


# ---- errata: ours, and the published behaviour when it is switched on ------------------------------------------------


def both(name):
    return pytest.mark.parametrize("errata", [frozenset(), frozenset({name})], ids=["ours", name])


@both("vcvt-late")
def test_vcvt_converts_its_own_chunk(errata):
    values = numbers(1)
    bench = bench_with({1: values, 3: numbers(2)}, errata=errata)
    path = execute(bench, "VMOV v9, v3\nVCVT v2, v1, FP16\nVHALT")
    trip = lambda words: e8m15.from_fp16(e8m15.to_fp16(words))  # noqa: E731
    expected = trip(values)
    if errata:  # chunk 0 gets the last chunk that the lanes read
        expected = np.concatenate([trip(numbers(2)[112:]), trip(values)[:112]])
    assert (path.v[2] == expected).all()


def test_vcvt_fp32_is_a_raw_copy_and_in_place_works():
    values = numbers(1)
    values[5:9] = [0x7FABCD, 0xFFFFFF, 0x800000, 0x000123]
    path = execute(bench_with({1: values}), "VCVT v2, v1, FP32\nVCVT v1, v1, FP16\nVHALT")
    assert (path.v[2] == values).all()
    assert (path.v[1] == e8m15.from_fp16(e8m15.to_fp16(values))).all()


@both("vote-register")
def test_votes_read_their_own_register(errata):
    bits = np.zeros(128, dtype=bool)
    bits[7] = True
    bench = bench_with(predicates={2: bits, 3: np.ones(128, dtype=bool)}, errata=errata)
    path = execute(
        bench,
        "VMOV v0, v0 pr=0\nVRED s1, v0, v0, ANY pr=2\nVRED s2, v0, v0, ALL pr=2\nVRED s3, v0, v0, ALL pr=3\nVHALT",
    )
    # published: the registers of the word before, that is P0, P2, P2
    assert path.s[1:4] == ([0, 0, 0] if errata else [ONE, 0, ONE])


def test_votes_see_compares_just_before_and_only_active_bits():
    values = np.full(128, HALF, dtype=np.uint32)
    values[20:] = MINUS_ONE
    bench = bench_with({1: values}, scalars={0: 20})
    path = execute(
        bench,
        "VCMPGT p1, v1, k0\nVRED s1, v0, v0, ALL pr=1\nVSETVL s0\nVRED s2, v0, v0, ALL pr=1\n"
        "VCMPLT p1, v1, k0\nVRED s3, v0, v0, ANY pr=1\nVHALT",
    )
    assert path.s[1:4] == [0, ONE, 0]


@both("expsum-stale-predicate")
def test_expsum_writes_its_leaves_unpredicated(errata):
    bits = np.arange(128) % 3 == 0
    bench = bench_with({1: numbers(4), 2: numbers(5)}, {1: bits}, errata=errata)
    before = numbers(5)
    path = execute(
        bench, "VMOV v9, v1 if p0\nVSETMODE TREE\nVRED s1, v1, v2, EXPSUM pr=1\nVSETMODE FLAT\nVEXP2 v3, v1\nVHALT"
    )
    leaves = path.v[3]
    assert (path.v[2] == (np.where(bits, leaves, before) if errata else leaves)).all()


@both("exp2-wrap")
def test_exp2_saturates(errata):
    inputs = {
        0xC34800: (0x5B8000, 0), 0x430200: (0x008000, INFINITY), 0x437F00: (0x3F0000, INFINITY),
        0xC30100: (0x7F0000, 0),
    }  # fmt: skip
    bench = bench_with({1: np.array(list(inputs), dtype=np.uint32)}, errata=errata)
    path = execute(bench, "VEXP2 v2, v1\nVHALT")
    assert path.v[2, :4].tolist() == [published if errata else ours for published, ours in inputs.values()]


@both("fp32-store")
def test_fp32_store(errata):
    bench = bench_with({1: numbers(7)}, errata=errata)
    bench.core.load_l1(np.full((512, 8), 0xAAAAAAAA, dtype=np.uint32))
    execute(bench, "VST v1, A0, FP32\nVHALT")
    image = bench.core.l1_image()
    rows = (numbers(7) << 8).reshape(16, 8)
    if errata:
        assert (image[0:16:2] == rows[1::2]).all()
        assert (image[1:16:2] == 0xAAAAAAAA).all()
    else:
        assert (image[:16] == rows).all()
    assert (image[16:] == 0xAAAAAAAA).all()


# ---- what the published core gets wrong and ours has to get right ---------------------------------------------------


def test_different_chains_back_to_back():
    """`chain-overlap`: nothing between two unlike D2 chains at full length, with unlike scalars."""
    a, b = numbers(8), numbers(9)
    bench = bench_with({1: a, 2: b}, scalars={4: 0x400000, 5: 0x3F4000})
    path = execute(
        bench,
        "VMUL v5, v1, s4\nVADD v6, v2, k1\nVSUB v7, v2, s5\nVMUL v8, v7, v7\nVSETMODE D2\n"
        "VMUL v10, v1, s4 vc=k0\nVADD v10, c, k1 vb=k0\n"
        "VSUB v11, v2, s5 vb=k0\nVMUL v11, c, c vc=k0\n"
        "VMUL v12, v1, s4 vc=k0\nVADD v12, c, k1 vb=k0\nVSETMODE FLAT\n"
        "VADD v5, v5, k1\nVHALT",
    )
    assert (path.v[10] == path.v[5]).all() and (path.v[12] == path.v[5]).all()
    assert (path.v[11] == path.v[8]).all()


def test_scalars_of_a_chain_are_those_of_its_gathering():
    """A VSETI right behind a chain, and one between two chains, changes neither."""
    bench = bench_with({1: numbers(8)}, scalars={4: 0x400000})
    path = execute(
        bench,
        "VSETMODE D4\nVMOV v10, v1\nVMUL v10, c, s4 vc=k0\nVMOV v10, c vb=k0 vc=k0\nVADD v10, c, s4 vb=k0\n"
        "VSETI s4, 0\nVSETMODE FLAT\nVSETI s4, 0x400000\nVMUL v5, v1, s4\nVADD v5, v5, s4\nVHALT",
    )
    assert (path.v[10] == path.v[5]).all()


def test_full_length_d4_chain_holds_what_depends_on_it():
    """`chain-count`: 32 beats are in flight, and the dependent word still waits."""
    bench = bench_with({1: numbers(8)})
    link = "VADD v2, c, k1 vb=k0\n"
    flat = "VMOV v3, v2\nVADD v4, v1, k1\nVADD v4, v4, k1\nVADD v4, v4, k1\nVHALT"
    path = execute(bench, f"VSETMODE D4\nVMOV v2, v1\n{link * 3}VSETMODE FLAT\n{flat}")
    assert (path.v[3] == path.v[4]).all()
    assert (path.v[2] == path.v[4]).all()


def test_a_chain_may_overwrite_its_own_source():
    bench = bench_with({1: numbers(8), 2: numbers(8)})
    chain = "VSETMODE D2\nVMUL v1, v1, v1\nVADD v1, c, k1 vb=k0\nVSETMODE FLAT\n"
    path = execute(bench, chain + "VMUL v2, v2, v2\nVADD v2, v2, k1\nVHALT")
    assert (path.v[1] == path.v[2]).all()


@pytest.mark.parametrize("length", [1, 16, 32, 100, 128])
@pytest.mark.parametrize("mode", ["FLAT", "D2", "D4"])
def test_predicated_words_right_behind_their_compare(length, mode):
    """`predicate-hazard`: the compiler's select sequence with nothing in between, in every mode."""
    values = numbers(10)
    bench = bench_with({1: values, 2: numbers(11)}, {0: np.arange(128) % 2 == 0}, {0: length})
    link, end = "VMOV v0, c vb=k0 vc=k0\n", "VMOV {0}, c{1} vb=k0 vc=k0\n"
    word = "VMOV {0}, {2}{1}\n" + {"FLAT": "", "D2": end, "D4": 2 * link + end}[mode]
    text = f"VSETVL s0\nVSETMODE {mode}\n"
    if mode == "FLAT":
        text += "VCMPGT p0, v1, k0\n"
    else:
        text += "VMOV v0, v1\n" + (2 * link if mode == "D4" else "") + "VCMPGT p0, c, k0 vc=k0\n"
    text += word.format("v3", " if p0", "v1") + word.format("v3", " if !p0", "v2")
    path = execute(bench, text + "VHALT")
    expected = np.where(values >> 23 == 0, values, numbers(11))
    assert (path.v[3, :length] == expected[:length]).all()
    assert (path.v[3, length:] == 0).all()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_empty_loop_is_none(count):
    """`loop-empty`: execution goes on, and a later loop is not refused."""
    bench = bench_with(scalars={1: count, 2: 3}, registers={1: np.full(16, ONE, dtype=np.uint32)})
    path = execute(bench, "VLOOP s1, 0\nVADD v1, v1, k1\nVLOOP s2, 1\nVADD v1, v1, k1\nVHALT")
    assert path.v[1, 0] == 0x40A000  # 1 + 1 + 3


@pytest.mark.parametrize("count, times", [(0, 1), (1, 1), (2, 2), (5, 5)])
def test_loop_counts_immediates_as_words(count, times):
    bench = bench_with(scalars={1: count})
    path = execute(bench, "VLOOP s1, 4\nVSETI s2, 0x3f8000\nVBCAST v2, s2\nVADD v1, v1, v2\nVHALT")
    assert path.v[1, 0] == e8m15.from_float(np.array([float(times)]))[0]


def test_a_later_fill_makes_the_earlier_one_visible():
    """The published core's second VFILL waits for the first; programs may lean on that without a VBAR."""
    bench = bench_with()
    words = [integer(np.arange(8, dtype=np.uint32) + 100 * i) for i in range(64)]
    bench.memory.update({32 * i: word for i, word in enumerate(words)})
    memory = [(ad, 0, base) for ad, base in ((1, 0), (2, 1024), (3, 0x4000))]
    memory += [(ad, 1, 32 << 16 | 32) for ad in (1, 2, 3)]
    execute(bench, "VFILL A1, 0\nVFILL A2, 32\nVDRAIN A3, 0\nVHALT", memory)
    assert [bench.memory[0x4000 + 32 * i] for i in range(32)] == words[:32]


# ---- the L1 footprints that were bad on the card -------------------------------------------------------------------


@pytest.mark.parametrize("footprint", range(320, 513, 16))
def test_l1_footprint(footprint):
    """Fill half of the footprint, double it into the other half, drain: every byte, and none outside."""
    half = footprint // 2
    rng = np.random.default_rng(footprint)
    source = rng.integers(0x3000, 0x5000, (half, 16)).astype(np.uint16)
    bench = bench_with(scalars={0: 128})
    bench.core.load_l1(np.full((512, 8), 0xAAAAAAAA, dtype=np.uint32))
    for i, row in enumerate(source):
        bench.memory[0x10000 + 32 * i] = integer(row.view(np.uint32))
    groups = -(-half // 8)
    moves = [(1, 0, 0x10000), (1, 1, 32 << 16 | half), (2, 0, 0x20000), (2, 1, 32 << 16 | half)]
    body = []
    for group in range(groups):
        at = min(8 * group, half - 8)
        body.append(f"VLD v0, A0+{at}, FP16\nVADD v1, v0, v0\nVST v1, A0+{half + at}, FP16")
    execute(bench, "VFILL A1, 0\nVBAR\n" + "\n".join(body) + f"\nVDRAIN A2, {half}\nVHALT", WALK + moves)
    doubled = fp16.from_float(2 * fp16.to_float(source))
    drained = [bench.memory[0x20000 + 32 * i] for i in range(half)]
    assert drained == [integer(row.view(np.uint32)) for row in doubled]
    image = bench.core.l1_image()
    assert (image[:half].view(np.uint16) == source).all()
    assert (image[footprint:] == 0xAAAAAAAA).all()


def test_a_loop_at_the_end_of_instruction_memory_goes_on_at_its_start():
    """The interpreter alone: the loop's first word is word 0. Random programs met it."""
    program = [0] * 512
    program[509:512] = assemble_words("VSETI s1\n.imm 3\nVLOOP s1, 2")
    program[0:3] = assemble_words("VSETI s2\n.imm 7\nVHALT")
    interpreter = Interpreter()
    assert interpreter.run(program, 509) == 0 and interpreter.s[2] == 7
