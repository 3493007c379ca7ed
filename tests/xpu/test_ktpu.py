"""The ktpu back end: programs of the machine, whose models give the interpreter's bytes in machine arithmetic."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohakutpu.backends.ktpu import KTPU, KtpuBackEnd
from kohakutpu.backends.ktpu.work import Work
from kohakutpu.conformance.xpu.load import module_of
from kohakutpu.host.driver import Driver
from kohakutpu.host.loader import Loader
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.isa.vector import Opcode, decode_word
from kohakutpu.isa.vector import decode as decode_payload
from kohakutpu.model.system import System
from kohakutpu.reference.xpu import MACHINE, Launch, run
from kohakutpu.xpu import (
    KernelBuffer,
    KernelStream,
    KernelTimer,
    Undefined,
    Wave,
    XpuLaunchError,
    f16,
    f32,
    kernel,
    u32,
)
from kohakutpu.xpu.launch import Request, Runtime
from kohakutpu.xpu.timer import Tier

HERE = Path(__file__).parent
FILES = HERE.parents[1] / "benchmarks/xpu_kernels.py", HERE / "ktpu_kernels.py"


def kernels_by_name() -> dict:
    """The kernels of FILES; of two that share a name the later."""
    return {name: value for file in FILES for name, value in vars(module_of(file)).items()}


@pytest.fixture(scope="session")
def kernels():
    return kernels_by_name()


def corner(value) -> tuple:
    return (*((value,) if isinstance(value, int) else value), 1, 1)[:3]


def differing(declared, arguments, *, grid=1, block=16, backend=KTPU, faults=()) -> list[int]:
    """How many elements of each array differ on the model from the interpreter in machine arithmetic."""
    expected = [np.copy(a) if isinstance(a, np.ndarray) else a for a in arguments]
    run(declared, expected, Launch(grid, block, 16), MACHINE)
    lowered = backend.lower(Request(declared, corner(grid), corner(block), 0, tuple(arguments)))
    cycles = lowered.run(Loader(Driver(ModelTransport(System(lowered.machine, faults=faults)))).run)
    assert cycles > 0
    pairs = [(a, b) for a, b in zip(arguments, expected, strict=True) if isinstance(a, np.ndarray)]
    return [int((a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")).sum()) for a, b in pairs]


def random(kind, *shape, seed=2, deviation=1.0):
    return np.random.default_rng(seed).normal(0, deviation, shape).astype(kind.dtype)


CASES = {
    "saxpy": lambda: ([*random(f32, 2, 768), 2.5, 700], {"grid": 12, "block": 64}),
    "gelu": lambda: ([random(f16, 1000), random(f16, 1000, seed=3, deviation=3), 995], {"grid": 8, "block": 128}),
    "softmax": lambda: ([random(f16, 6 * 64), random(f16, 6 * 64, deviation=4), 64], {"grid": 6, "block": 32}),
    "softmax_of_a_wave": lambda: ([random(f32, 9 * 64), random(f32, 9 * 64, deviation=4), 50, 64], {"grid": 9}),
    "rmsnorm": lambda: ([random(f16, 640), random(f16, 640, seed=4), random(f16, 128, seed=5), 128], {"grid": 5}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("machine", ["quad", "mm_mesh"])
def test_a_kernel_on_the_models_is_byte_equal(kernels, name, machine):
    arguments, how = CASES[name]()
    assert not any(differing(kernels[name], arguments, backend=KtpuBackEnd(machine), **how))


@pytest.mark.parametrize("machine, activate", [("quad", 0), ("quad", 1), ("mm_mesh", 1)])
def test_a_product_with_its_epilogue_is_byte_equal(kernels, machine, activate):
    x, w = random(f16, 32 * 64, deviation=0.5), random(f16, 32 * 64, seed=7, deviation=0.5)
    x[5], w[5] = 60000, 60000  # the drain saturates
    arguments = [np.full(32 * 32, 7, np.float16), x, w, 64, 32, activate]
    assert not any(differing(kernels["gemm"], arguments, grid=(2, 2), backend=KtpuBackEnd(machine)))
    assert np.isfinite(arguments[0]).all()


def attending(tiles=3, keys=96):
    q, k = random(f16, tiles * 512), random(f16, keys * 32, seed=5)
    scratch = [np.full(tiles * size, 7, np.float16) for size in (512, 256)]
    arguments = [np.full(tiles * 256, 7, np.float32), q, k, random(f16, keys * 16, seed=6), *scratch, keys, 0.1767]
    return arguments, {"grid": tiles}


@pytest.mark.parametrize("machine", ["quad", "mm_mesh"])
def test_attention_in_blocks_of_keys_is_byte_equal(kernels, machine):
    arguments, how = attending()
    assert not any(differing(kernels["attention"], arguments, backend=KtpuBackEnd(machine), **how))
    out, q, k, v = (np.float64(a).reshape(-1, n) for a, n in zip(arguments, (16, 32, 32, 16), strict=False))
    weights = np.exp(q @ k.T * 0.1767)
    wanted = (weights @ v / weights.sum(1, keepdims=True)).reshape(3, 16, 16).transpose(0, 2, 1).reshape(-1, 16)
    # MXFP7 operands: close to the exact attention, and no closer to anything else.
    assert np.abs(out - wanted).max() < 0.1 and np.abs(wanted).max() > 0.4


def test_floats_that_do_not_wait_between_phases_are_missed(kernels, monkeypatch):
    """The greatest score and the sum live in memory from one block of keys to the next: lose them, and it shows."""
    arguments, how = attending(1, 64)
    bring = Work.bring

    def losing(part, memories, outputs):
        bring(part, memories, outputs)
        memories[-1][:] = 0

    monkeypatch.setattr(Work, "bring", losing)
    assert differing(kernels["attention"], arguments, **how)[0] > 100


PHASES = """
a: CooperativeMatrix[f16, 16, 32, Use.A]
b: CooperativeMatrix[f16, 32, 16, Use.B]
acc: CooperativeMatrix[f16, 16, 16, Use.ACCUMULATOR]
acc.splat(0)
a.load(x, workgroup.x() * 512, 0, 32)
b.load(w, 0, 1, 32)
acc.mma(a, b)
barrier.workgroup()
i = workgroup.x() * 256 + thread.x()
"""


@pytest.mark.parametrize("body, reason", [
    ("acc.store(y, workgroup.x() * 256, 0, 16)\nv = f32(y[i])\ny[i] = v + v", "with no barrier.workgroup between them"),
    ("y[i] = f32(w[thread.x()]) * f32(2.0)\nacc.store(y, workgroup.x() * 256, 0, 16)",
     "with no barrier.workgroup between them"),
    ("w[thread.x()] = f32(2.0)\nbarrier.workgroup()\nacc.store(y, workgroup.x() * 256, 0, 16)",
     "tiles that are read where others are stored"),
    ("acc.store(y, workgroup.x() * 256, 0, 16)\nbarrier.workgroup()\ny[thread.x()] = f32(1.0)",
     "tiles that overlap where they are stored"),
    ("acc.store(y, workgroup.x() * 256, 0, 16)\nbarrier.workgroup()\n"
     "y[i] = f32(y[256 - workgroup.x() * 256 + thread.x()])",
     "tiles that are read where others are stored"),
    ("if workgroup.x() == 0:\n    y[i] = f32(1.0)\nbarrier.workgroup()\nacc.store(y, workgroup.x() * 256, 0, 16)",
     "in different orders"),
    ("v = acc.get(0)\ny[i] = v", "a write of single elements beside a tile's product"),
    ("v = f32(x[i])\nbarrier.workgroup()\nacc.store(y, workgroup.x() * 256, 0, 16)\nbarrier.workgroup()\ny[i] = v * v",
     "where a NaN would have other bits"),
    ("v = f32(x[i]) * f32(2.0)\nfor e in range(acc.elements()):\n    acc.set(e, acc.get(e) * f32(w[thread.x()]))\n"
     "barrier.workgroup()\nacc.store(y, workgroup.x() * 256, 0, 16)",
     "the clusters and their epilogues read tiles only"),
])  # fmt: skip
def test_clusters_and_vector_work_that_barriers_do_not_part_are_refused(body_of, body, reason):
    declared = body_of(PHASES + body, "y: KernelBuffer[f16], x: KernelBuffer[f16], w: KernelBuffer[f16]")
    arguments = (random(f16, 1024), random(f16, 1024), random(f16, 1024))
    with pytest.raises(XpuLaunchError) as caught:
        KTPU.run(Request(declared, (2, 1, 1), (16, 1, 1), 0, arguments))
    assert reason in str(caught.value) and "(line " in str(caught.value)


@pytest.mark.parametrize("fault", ["vector-alu-sign"])
def test_a_fault_in_the_model_is_seen(kernels, fault):
    arguments, how = CASES["rmsnorm"]()
    assert any(differing(kernels["rmsnorm"], arguments, faults=(fault,), **how))


def test_workgroups_run_side_by_side_and_share_one_program(kernels):
    arguments, how = CASES["rmsnorm"]()
    lowered = KTPU.lower(Request(kernels["rmsnorm"], corner(how["grid"]), (16, 1, 1), 0, tuple(arguments)))
    (artifact,) = lowered.artifacts
    assert artifact.stages[0].grid == (1,) and artifact.kinds()["RUN"] == 1
    words = [decode_payload(flit.payload) for round_ in artifact.rounds for flit in round_.flits]
    opcodes = [decode_word(i.word).op for i in words if i.op == 1]
    assert (
        opcodes.count(Opcode.VSHUF) == 7 and Opcode.VRSQRT in opcodes
    )  # a butterfly of 16 lanes for five rows at once
    assert "VRSQRT" in artifact.flit_listing()


def test_launches_count_simulated_cycles(kernels):
    runtime = Runtime()
    runtime.register(KtpuBackEnd())
    stream = KernelStream(runtime)
    assert runtime.active().geometry().wave_size == 16
    y, x = (KernelBuffer.of(f32, values) for values in random(f32, 2, 64))
    timer = KernelTimer()
    timer.begin(stream)
    kernels["saxpy"].launch(stream, grid=1, block=64)(y, x, 2.0, 64)
    timer.end(stream)
    assert timer.tier is Tier.SIMULATED and timer.elapsed_cycles() > 100
    assert np.isfinite(y.download()).all()


def test_only_what_was_stored_comes_back(body_of):
    declared = body_of(
        "i = thread.x()\nif i < 5:\n    y[i] = x[i] * f32(2.0)", "y: KernelBuffer[f32], x: KernelBuffer[f32]"
    )
    y = np.full(16, np.nan, np.float32)
    y.view(np.uint32)[5:] = 0x7FABCDEF  # no E8M15 word has these bits
    assert differing(declared, [y, random(f32, 16)]) == [0, 0]
    assert (y.view(np.uint32)[5:] == 0x7FABCDEF).all()


REFUSED = [
    ("y[i] = x[i + 1]", "begins inside a word of 32 bytes"),
    ("y[i] = x[i * 2]", "lanes that do not read neighbours, in order"),
    ("y[i] = x[0]", "lanes that do not read neighbours, in order"),
    ("if x[i] > f32(0.0):\n    y[i] = f32(1.0)", "a branch that depends on data"),
    ("s = Shared[f32](16)\ns[i] = x[i]\ny[i] = s[i]", "Shared memory: lanes reach each other by rotations"),
    ("y[i] = f32(i)", "integers that differ between lanes as floats"),
    ("y[i] = math.sin(x[i])", "math.sin: the core has exp2"),
    ("n.atomic_add(0, 1)", "memory.atomic_add has no code on ktpu"),
    ("y[i] = f32(n[i])", "a read of u32 memory"),
    ("y[i] = wave.shuffle_xor_sync_f32(x[i], 1)", "lanes reach each other by float reductions"),
    ("y[i] = f32(wave.reduce_sum(u32(1)))", "wave.reduce_sum: lanes reach each other by float reductions"),
    ("v: f32 = x[i]\nif i < 5:\n    v = y[i]\ny[i] = v", "a word that was loaded, not computed"),
    ("v = x.vload[4](i * 4)\ny[i] = v[0]", "vload: a work-item's neighbours lie in other lanes"),
    ("y[i] = f32(1.0) if x[i] >= f32(0.0) else x[i]", "ge of data: the core compares <, > and =="),
    ("y[i % 16] = x[i]", "workgroups that touch one word of memory, which one of them stores"),
    ("\n".join(f"v{k} = x[i] * f32({k}.5)" for k in range(18)) + "\ny[i] = (" + " + ".join(f"v{k}" for k in range(18))
     + ") * " + " * ".join(f"v{k}" for k in range(18)), "more than 15 values are alive at once, and a core has 16"),
    ("for j in range(400):\n    y[i] = y[i] * x[i] + f32(0.5)", "loops unrolled, where a core holds 512"),
    ("if i < 7:\n    y[i] = wave.reduce_sum_f32(x[i])", "wave.reduce_sum_f32 that some lanes of a wave miss"),
    ("t: CooperativeMatrix[f16, 16, 16, Use.A]\nt.load(h, 0, 0, 16)\nt.store(h, 0, 0, 16)",
     "tile.store of a tile that no product filled"),
    ("t: CooperativeMatrix[f32, 16, 16, Use.ACCUMULATOR]\nt.splat(f32(1.0))", "only an accumulator begins so, at zero"),
]  # fmt: skip


@pytest.mark.parametrize("body, reason", REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_the_machine_cannot_do_is_refused_by_name(body_of, body, reason):
    parameters = "y: KernelBuffer[f32], x: KernelBuffer[f32], n: KernelBuffer[u32], h: KernelBuffer[f16]"
    declared = body_of("i = thread.global_id_x()\n" + body, parameters)
    arguments = (*random(f32, 2, 64), np.zeros(64, np.uint32), random(f16, 256))
    before = arguments[0].copy()
    with pytest.raises(XpuLaunchError) as caught:
        KTPU.run(Request(declared, (2, 1, 1), (16, 1, 1), 0, arguments))
    assert reason in str(caught.value) and "(line " in str(caught.value) and caught.value.code == 0
    assert arguments[0].tobytes() == before.tobytes()


def test_another_wave_width_is_unsupported():
    @Wave(width=32)
    @kernel
    def wide(y: KernelBuffer[f32]):
        y[0] = f32(1.0)

    with pytest.raises(
        XpuLaunchError, match="unsupported declared wave width: @Wave.32., and the machine's waves"
    ) as caught:
        KTPU.run(Request(wide, (1, 1, 1), (32, 1, 1), 0, (np.zeros(16, np.float32),)))
    assert caught.value.code == 3


def test_a_view_that_begins_inside_a_word_cannot_be_bound(kernels):
    slab, y = KernelBuffer.of(f32, random(f32, 64)), KernelBuffer(f32, 64)
    before = y.download().tobytes()
    for offset, fits in ((8, True), (4, False), (16, True), (17, False)):
        call = Request(kernels["saxpy"], (1, 1, 1), (16, 1, 1), 0, (y.slice(0, 16), slab.slice(offset, 16), 0.5, 16))
        if fits:
            KTPU.lower(call)
            continue
        with pytest.raises(XpuLaunchError, match="cannot bind: .*inside a word of 32 bytes .line ") as caught:
            KTPU.run(call)
        assert caught.value.code == 9 and f"x begins at byte {4 * offset} of its allocation" in str(caught.value)
    assert y.download().tobytes() == before


@pytest.mark.parametrize("body, text", [
    ("y[i + 64] = x[i]", r"a write of y\[64\], which has 64 elements"),
    ("if i < 3:\n    barrier.workgroup()", "barrier.workgroup, which a work-item does not reach"),
    ("y[i] = x[div(i, i)]", "division by zero"),
])  # fmt: skip
def test_undefined_behaviour_is_found_when_a_launch_is_lowered(body_of, body, text):
    declared = body_of("i = thread.x()\n" + body, "y: KernelBuffer[f32], x: KernelBuffer[f32]")
    with pytest.raises(Undefined, match=text):
        KTPU.run(Request(declared, (1, 1, 1), (16, 1, 1), 0, tuple(random(f32, 2, 64))))


EXPRESSION = st.recursive(
    st.sampled_from(["a", "b", "f32(0.75)", "f32(-3.0)", "f32(0.0)", "s"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(st.sampled_from(["abs", "exp2", "sqrt", "log"]), inner).map(lambda t: f"math.{t[0]}({t[1]})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"math.{t[0]}({t[1]}, {t[2]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"math.fma({t[0]}, {t[1]}, {t[2]})"),
        st.tuples(inner, inner, st.sampled_from("<>"), inner).map(lambda t: f"({t[0]} if {t[1]} {t[2]} {t[3]} else a)"),
        st.tuples(inner, inner).map(lambda t: f"({t[0]} if t % 3 == 1 else {t[1]})"),
        inner.map(lambda text: f"f32(f16({text}))"),
    ),
    max_leaves=8,
)  # fmt: skip


def generated_agrees(body_of, expression: str, kind, n: int, seed: int) -> None:
    body = f"""
i = thread.global_id_x()
t = thread.x()
total = f32(0.0)
if i < n:
    a = f32(x[i])
    b = f32(y[i])
    total = {expression}
y[i] = {kind}(wave.reduce_sum_f32(total) + total)
"""
    declared = body_of(body, f"y: KernelBuffer[{kind}], x: KernelBuffer[{kind}], s: f32, n: u32")
    y, x = random(kind, 2, 96, seed=seed)
    x[:6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-7]
    try:
        assert not any(differing(declared, [y, x, 1.5, n], grid=3, block=32)), expression
    except XpuLaunchError as refused:  # noqa: B904 - a refusal by name is an answer
        assert "XPU-N01" in str(refused)


@settings(max_examples=8, deadline=None)
@given(EXPRESSION, st.sampled_from([f16, f32]), st.integers(1, 96), st.integers(0, 99))
def test_generated_expressions_are_byte_equal(body_of, expression, kind, n, seed):
    generated_agrees(body_of, expression, kind, n, seed)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(EXPRESSION, st.sampled_from([f16, f32]), st.integers(1, 96), st.integers(0, 99))
def test_many_generated_expressions_are_byte_equal(body_of, expression, kind, n, seed):
    generated_agrees(body_of, expression, kind, n, seed)


def test_the_kernels_have_other_values_elsewhere(kernels):
    """What is compared is the machine's arithmetic: float32 would differ."""
    arguments, how = CASES["saxpy"]()
    exact = [np.copy(a) if isinstance(a, np.ndarray) else a for a in arguments]
    run(kernels["saxpy"], exact, Launch(how["grid"], how["block"], 16))
    assert not any(differing(kernels["saxpy"], arguments, **how))
    assert (arguments[0] != exact[0]).any() and u32.bits == 32
