"""Decorators, annotations, templates, and the launch of the interpreter (spec/xpu.md 1.1, 1.6, 2.1)."""

import numpy as np
import pytest

from kohakutpu import xpu
from kohakutpu.reference.xpu import Bits, Launch, refusals, run, survey
from kohakutpu.xpu import (
    Backend, DeclarationError, FastMath, Instantiate, KernelBuffer, Occupancy, OverBudget, Refused, Requires,
    Unbounded, Undefined, Unlowered, Wave, f32, f64, i32, kernel, registered_kernels, thread, u8, u32,
)  # fmt: skip


@kernel
def saxpy(y: KernelBuffer[f32], x: KernelBuffer[f32], a: f32, n: u32):
    i = thread.global_id_x()
    if i < n:
        y[i] = a * x[i] + y[i]


def test_saxpy():
    x, y = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
    run(saxpy, [y, x, 2.5, 90], Launch(grid=4, block=32))
    assert y.tolist() == [2.5 * i + 1 for i in range(90)] + [1] * 10
    assert survey(saxpy) == "saxpy\tRUNS\t0" and not refusals(saxpy)


def test_a_kernel_in_a_file_is_refused_at_its_own_line():
    @kernel
    def bad(y: KernelBuffer[f32]):
        y[0] = y[1] @ 2

    (refusal,) = refusals(bad)
    assert refusal.at.file == __file__
    with open(__file__) as source:
        assert source.read().splitlines()[refusal.at.line - 1].strip() == "y[0] = y[1] @ 2"
    assert survey(bad).startswith("bad\tREFUSED\t1\tthis operator has no meaning")


ARGUMENTS = [
    ([np.zeros(4, np.float32), np.zeros(4, np.float32), 1.0], "3 arguments, where 4 are taken"),
    (
        [np.zeros(4), np.zeros(4, np.float32), 1.0, 4],
        r"argument y: a buffer of f32 .float32. expected, not float64.4,.",
    ),
    (
        [np.zeros((2, 2), np.float32)] * 2 + [1.0, 4],
        r"argument y: a buffer of f32 .float32. expected, not float32.2, 2.",
    ),
    ([1, np.zeros(4, np.float32), 1.0, 4], "argument y: a buffer of f32 .float32. expected, not int"),
    ([KernelBuffer(f64, 4)] * 2 + [1.0, 4], "argument y: a buffer of f32 .float32. expected, not float64"),
    ([np.zeros(4, np.float32)] * 2 + [1.0, -1], "argument n: a u32 expected, not -1"),
    ([np.zeros(4, np.float32)] * 2 + [1.0, 4.0], "argument n: a u32 expected, not 4.0"),
    ([np.zeros(4, np.float32)] * 2 + ["1", 4], "argument a: a f32 expected, not '1'"),
    ([np.zeros(4, np.float32)] * 2 + [True, 4], "argument a: a f32 expected, not True"),
    ([np.zeros(4, np.float32)] * 2 + [Bits(b"12"), 4], "argument a: 2 bytes for a f32"),
]


@pytest.mark.parametrize("arguments, reason", ARGUMENTS)
def test_a_wrong_argument_is_a_refusal(arguments, reason):
    with pytest.raises(Refused, match=f"XPU-REF01: saxpy: {reason}"):
        run(saxpy, arguments, Launch())


@pytest.mark.parametrize("extent", [0, -1, (1, 0), (1, 1, 1, 1), (), 2.5, (1.0,)])
@pytest.mark.parametrize("name", ["grid", "block"])
def test_a_wrong_extent_is_a_refusal(name, extent):
    with pytest.raises(Refused, match=f"{name}=.*: one to three positive integers are expected"):
        run(saxpy, [np.zeros(4, np.float32), np.zeros(4, np.float32), 1.0, 4], Launch(**{name: extent}))


def test_scalars_come_as_bits_too(launch, body_of):
    kernel = body_of("out[0] = a\nout[1] = b", "out: KernelBuffer[i32], a: i32, b: u8")
    out = np.zeros(2, np.int32)
    launch(kernel, out, Bits((-5 & 0xFFFFFFFF).to_bytes(4, "little") + b"tail"), Bits(b"\xff"))
    assert out.tolist() == [-5, 255]


def test_a_run_over_its_budget_ends(launch, body_of):
    kernel = body_of("while True:\n    pass", "n: i32")
    with pytest.raises(OverBudget, match="XPU-REF03: k: the run took more than its 0.05 seconds"):
        launch(kernel, 1, budget_seconds=0.05)


def test_a_run_of_barriers_over_its_budget_ends(launch, body_of):
    kernel = body_of("while True:\n    barrier.workgroup()", "n: i32")
    with pytest.raises(OverBudget):
        launch(kernel, 1, block=2, budget_seconds=0.05)


def test_nothing_runs_of_a_refused_kernel(launch, body_of):
    kernel = body_of("out[0] = 1\nq = thread.clock()")
    out = np.zeros(1, np.int32)
    with pytest.raises(Refused, match="thread.clock has no reference value, by its nature .line 4, near `thread.clock"):
        launch(kernel, out)
    assert not out.any()


def test_the_lowest_workgroup_that_fails_is_reported(launch, body_of):
    kernel = body_of("if workgroup.x() > 1:\n    out[workgroup.x() + 10] = 1\nout[0] = 1")
    with pytest.raises(Undefined, match=r"a write of out\[12\].*workgroup .2, 0, 0."):
        launch(kernel, np.zeros(4, np.int32), grid=5)


def test_annotations_stand_above_or_below_and_are_kept():
    @Wave(width=32)
    @Occupancy(max_waves=8, min_resident=2)
    @kernel
    @FastMath()
    @Backend("CPU", "ktpu")
    @Unlowered(backend="cpu", tracked="item-1", may_lower=True)
    @Unlowered(backend="ktpu", tracked="item-2", hold=True, host_wave_below=8)
    @Unbounded(tracked="item-3")
    def annotated(n: i32):
        pass

    assert annotated.wave_width == 32 and annotated.ceiling(64) == 512
    assert annotated.find(FastMath) and annotated.find(Backend).names == ("cpu", "ktpu")
    assert len(annotated.annotations) == 7 == len(annotated.program.annotations)
    assert annotated in registered_kernels()


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: Wave(width=33), r"Wave\(width=33\): a power of two from 1 to 64 is expected"),
        (lambda: Wave(width="8"), "a power of two from 1 to 64 is expected"),
        (lambda: Occupancy(max_threads=1, max_waves=1), "one bound in two units; declare one"),
        (lambda: Backend(), "the back ends are cpu, nvptx"),
        (lambda: Backend("tpu"), "the back ends are cpu, nvptx"),
        (lambda: Unlowered(backend="tpu", tracked="x"), "the back ends are cpu, nvptx"),
        (lambda: Unlowered(backend="cpu", tracked=""), "expected the plan item's name as text, not ''"),
        (lambda: Unbounded(tracked=3), "expected the plan item's name as text, not 3"),
        (lambda: Instantiate(), "one dict of template values per member"),
        (lambda: Instantiate({"T": 1}, {"T": 2}, max=1), "2 members, more than max=1"),
        (lambda: Wave(width=8)(5), "@Wave belongs on a kernel, not on 5"),
        (lambda: Wave(width=8)(Wave(width=8)(kernel(lambda n: n))), "@Wave twice"),
        (lambda: kernel(5), "@kernel belongs on a function, not on 5"),
        (lambda: xpu.device(saxpy), "@device belongs on a function"),
        (lambda: xpu.Vector[f32], r"Vector\[T, N\] takes 2 arguments, not 1"),
        (lambda: xpu.Shared[int], "the element is a primitive type such as f32, not <class 'int'>"),
        (lambda: xpu.BlockPadded[f32, 8, 0], "expected a positive integer constant, not 0"),
        (lambda: xpu.Function[saxpy], "lists the @xpu.device helpers it may hold"),
    ],
)
def test_a_declaration_is_refused_where_it_stands(make, reason):
    with pytest.raises(DeclarationError, match=reason):
        make()


@Instantiate(dict(TM=8, WM=4), dict(TM=16, WM=4))
@Requires("TM % WM == 0 and TM >= WM")
@Occupancy(max_waves="(TM // WM) * 2")
@kernel
def tiled(out: KernelBuffer[i32], *, TM: u32, WM: u32):
    s = xpu.Shared[i32](TM * 2)
    s[TM * 2 - 1] = TM // WM
    v = xpu.Vector[i32, WM](TM)
    out[0] = s[2 * TM - 1] + v[WM - 1]


def test_a_template_has_members_by_their_values():
    assert list(tiled.instances) == ["tiled_8_4", "tiled_16_4"] and tiled.is_template
    member = tiled.instances["tiled_16_4"]
    assert member.ceiling(32) == 256 and member.name == "tiled_16_4"
    out = np.zeros(1, np.int32)
    run(member, [out], Launch())
    assert out[0] == 20
    assert tiled.instance(WM=2, TM=8).name == "tiled_8_2"
    with pytest.raises(DeclarationError, match="tiled is a template over"):
        run(tiled, [out], Launch())


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: tiled.instance(TM=6, WM=4), r"XPU-TEMPLATE-REQUIREMENT: tiled: .*fails `TM % WM == 0`"),
        (lambda: tiled.instance(TM=0, WM=4), r"fails `TM >= WM`"),
        (lambda: tiled.instance(TM=8), r"its template values are \['TM', 'WM'\], not \['TM'\]"),
        (lambda: tiled.instance(TM=8.0, WM=4), "template value TM is an integer, not 8.0"),
        (
            lambda: Requires("Q > 1")(Instantiate({"T": 1})(kernel(template))).instance(T=1),
            "names Q, which is no template",
        ),
        (lambda: Instantiate({"T": 1})(Requires("T > 1")(kernel(template))), "fails `T > 1`"),
        (lambda: Requires("T > 1")(Instantiate({"T": 1})(kernel(template))), "fails `T > 1`"),
        (lambda: Requires("T >")(kernel(template)).instance(T=1), "is not an expression"),
        (lambda: Requires("f(T)")(kernel(template)).instance(T=1), "is not integer arithmetic over template values"),
        (lambda: Requires("T // 0 == 1")(kernel(template)).instance(T=1), "a constant expression fails"),
    ],
)
def test_a_member_that_is_refused(make, reason):
    with pytest.raises(DeclarationError, match=reason):
        make()


def template(out: KernelBuffer[i32], *, T: u32):
    out[0] = T


def test_helper_arms_and_the_portable_body():
    @xpu.device
    def portable(a: i32) -> i32:
        return a

    @portable.arm("nvptx")
    def portable(a: i32) -> i32:
        return a + 1

    assert isinstance(portable, xpu.Device) and list(portable.arms) == ["nvptx"] and portable.portable
    with pytest.raises(DeclarationError, match="the back ends are cpu"):
        portable.arm("cuda")

    @kernel
    def uses(out: KernelBuffer[i32]):
        out[0] = portable(4)

    out = np.zeros(1, np.int32)
    run(uses, [out], Launch())
    assert out[0] == 4


def test_a_kernel_without_source_is_refused():
    names = {}
    exec("def lost(n):\n    pass", names)
    with pytest.raises(DeclarationError, match="lost: its source cannot be read"):
        refusals(kernel(names["lost"]))


def test_types_know_their_memory():
    assert [t.size for t in (u8, f32, f64, xpu.bf16, xpu.types.BOOL)] == [1, 4, 8, 2, 1]
    assert (i32.low, i32.high, u8.low, u8.high) == (-(2**31), 2**31 - 1, 0, 255)
    assert str(xpu.Vector[f32, 4]) == "Vector[f32, 4]" and str(xpu.BlockPadded[f32, 8, 1]) == "BlockPadded[f32, 8, 1]"
    assert repr(xpu.Vector) == "Vector[T, N]" and repr(xpu.thread.x) == "thread.x" and repr(xpu.Texture) == "Texture"


@pytest.mark.parametrize(
    "word",
    ["Global", "Constant", "Private", "Generic", "PushConstant", "KernelArg", "Intrinsic", "Native", "Tile", "Access",
     "Streaming", "BestEffort", "DeviceScan", "DeviceSort", "Autotune", "Host"],
)  # fmt: skip
def test_a_name_of_the_full_product_is_refused(body_of, reasons, word):
    with pytest.raises(AttributeError, match=f"kohakutpu.xpu has no {word}: "):
        getattr(xpu, word)
    assert reasons(body_of(f"x: xpu.{word}"))[0].startswith(f"kohakutpu.xpu has no {word}: ")
    for draft in ("wave.rank()", "wave.count()", "wave.lane_mask_below()", "workgroup.broadcast(1)"):
        family, _, rest = draft.partition(".")
        assert reasons(body_of(f"x = {draft}"))[0].startswith(f"{family} has no {rest.partition('(')[0]}; it has ")
