"""Sessions: every kernel's bytes, what stays in memory, predicted and touched memory, refusals, planted faults."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, Options, compile_kernel
from kohakutpu.compiler.layouts import Flat, Tile
from kohakutpu.compiler.placement import Life
from kohakutpu.compiler.predict import predict
from kohakutpu.host.loader import Loader
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.simulate import run_model
from kohakutpu.host.transports import open_transport
from kohakutpu.kernels import bmm, conv2d, in_rows, linear_add, linear_bias, linear_transposed, matmul, rmsnorm, row_sum, softmax
from kohakutpu.kernels.elementwise import add, scale, sub
from kohakutpu.lang import dims, kernel, loop, units
from kohakutpu.machine import Dram, load
from kohakutpu.model.system import System
from kohakutpu.session import Session, SessionError, call, planning
from kohakutpu.session.session import KEPT

sys.path.insert(0, str(Path(__file__).parent))
from models import TILE, block, numbers, on_model, touched  # noqa: E402

X = (2, 12, 32)
M, K, N = dims("M, K, N")


def wrong(rows):
    return [str(row) for row in rows if not row.equal]


# ---- bytes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", ["mm_mesh", "quad", "ship_3x2"])
def test_every_kernel_leaves_the_interpreters_bytes(machine):
    session = on_model(machine)
    plan = session.plan(block(session), x=X)
    rows = plan.verify(x=numbers(*X, seed=9))
    assert len(rows) == 5 and not wrong(rows)
    again = numbers(*X, seed=10)
    found = plan.run(x=again).outputs["y"]
    want = plan.meant(x=again)[plan.outputs["y"]]
    assert found.dtype == np.float16 and (found.view(np.uint16) == want).all()
    assert (plan.outputs["y"].read().view(np.uint16) == want).all()


def test_what_saturates_is_said_beside_the_kernel_that_does():
    session = on_model()

    def made(x):
        return call(sub, a=call(scale, x=x, s=64.0).named("large"), b=x).named("y")

    x = np.ones((2, 40), np.float16)
    x[1, 3] = 2000
    large, y = session.plan(made, x=(2, 40)).verify(x=x)
    assert large.equal and y.equal and not y.saturated
    (line,) = large.saturated
    assert "1 element saturated at 65504, the first at y[1, 3]: kohakutpu/kernels/elementwise.py" in line and line in str(large)


def test_copies_are_few_and_stand_in_the_plan():
    """`e` stays in tiles for the norm and the residual; one copy serves all that read a tensor in one order."""
    session = on_model()
    plan = session.plan(block(session), x=X)
    copies = [step for step in plan.steps if isinstance(step, planning.CopyStep)]
    assert [(step.source, step.call.kernel.name) for step in copies] == [("n", "matmul"), ("s", "linear_add")]
    text = plan.summary()
    assert "copy n (flat) as entry:2x1 for matmul_2: " in text and "0 of 2 by the host" in text
    for name in ("square", "gain", "up", "down", "e", "n", "h", "s", "y", "x"):
        assert f" {name} " in text
    times = plan.predicted
    assert all(times) and len(times) == 7
    simulated = plan.run(x=numbers(*X)).elapsed
    assert abs(sum(times) - simulated) < 0.2 * simulated


def test_elementwise_kernels_work_where_their_operands_lie():
    session = on_model()
    w, other = session.pin("w", numbers(40, 32, seed=1)), session.pin("other", numbers(3, 10, 40, seed=2))

    def made(x):
        t = call(matmul, a=x, b=w, **TILE).named("t")
        return call(add, a=call(scale, x=t, s=0.5), b=other), call(add, a=other, b=other).named("flat")

    plan = session.plan(made, x=(3, 10, 32))
    orders = {slot.tensor.name: slot.image.layout.key for slot in plan.slots.values() if slot.tensor}
    assert orders["t"] == orders["add_2"] == "tile:2x2:2x8" and orders["flat"] == "rows"
    assert not wrong(plan.verify(x=numbers(3, 10, 32)))


def test_padding_between_kernels_stays_out_of_a_block():
    """12 tokens are the columns that pad a block of 32 in the product after next: rows behind them must be zero there."""
    session = on_model()
    w, p = session.pin("w", numbers(32, 32, seed=1)), session.pin("p", numbers(2, 8, 12, seed=2))
    gain = session.pin("gain", np.full(32, 30, np.float16))
    def made(x):
        n = call(rmsnorm, x=x, w=gain).named("n")
        v = call(linear_transposed, x=n, w=w, gm=8, gn=8, nk=1).named("v")
        return call(bmm, a=p, b=v, gm=2, gn=8, nk=1).named("y")

    plan = session.plan(made, x=X)
    assert plan.slots["n@entry:8x1"].cleared and not wrong(plan.verify(x=numbers(*X)))
    assert not wrong(plan.verify(x=numbers(*X, seed=3)))


def test_only_copies_that_matter_keep_their_padding_rows():
    """Of two copies for 12 rows, the one that a block of K comes to depend on has pages of its own."""
    session = on_model()
    w, p = session.pin("w", numbers(32, 32, seed=1)), session.pin("p", numbers(2, 8, 12, seed=2))

    def made(x):
        n, m = call(softmax, x=x).named("n"), call(softmax, x=x).named("m")
        v = call(linear_transposed, x=n, w=w, gm=8, gn=8, nk=1).named("v")
        return call(bmm, a=p, b=v, gm=2, gn=8, nk=1), call(linear_transposed, x=m, w=w, gm=8, gn=8, nk=1)

    plan = session.plan(made, x=X)
    assert {name: plan.slots[name].cleared for name in plan.slots if "@" in name} == {
        "n@entry:8x1": True, "m@entry:8x1": False, "v@entry:8x1": False
    }  # fmt: skip
    assert not wrong(plan.verify(x=numbers(*X)))


def test_rows_that_do_not_fill_a_group_are_refused_where_they_would_matter():
    session = on_model()
    w, p = session.pin("w", numbers(32, 32, seed=1)), session.pin("p", numbers(8, 13, seed=2))

    def made(x):
        v = call(linear_transposed, x=call(softmax, x=x).named("n"), w=w, gm=8, gn=8, nk=1).named("v")
        return call(matmul, a=p, b=v, gm=2, gn=8, nk=1)

    with pytest.raises(SessionError, match="matmul_2: v has 13 columns, and a product with x, whose rows past the last .*left"):
        session.plan(made, x=(13, 32))


def test_an_image_of_the_host_is_a_plane_and_a_computed_one_goes_through_the_host():
    session = on_model()
    w, gain = session.pin("w", numbers(32, 288, seed=1)), session.pin("gain", numbers(32, seed=2))

    def made(x, options=Options(), computed=False):  # noqa: B008 - frozen
        t = call(scale, x=x, s=2.0).named("t") if computed else x
        c = call(conv2d, x=t, w=w, gm=2, gn=8, options=options)
        return call(rmsnorm, x=call(scale, x=c, s=0.5), w=gain).named("y")

    plan = session.plan(made, x=(2, 4, 5, 32))
    assert plan.slots["x"].image.layout.key == "conv:1:2" and not any(isinstance(step, planning.CopyStep) for step in plan.steps)
    assert not wrong(plan.verify(x=numbers(2, 4, 5, 32)))
    with pytest.raises(SessionError, match="t would have to be copied into the order conv:1:2: such an operand is an input"):
        session.plan(lambda x: made(x, computed=True), x=(4, 5, 32))
    plan = session.plan(lambda x: made(x, Options(relayout="host"), True), x=(4, 5, 32))
    assert "1 of 1 by the host" in plan.summary() and not wrong(plan.verify(x=numbers(4, 5, 32)))


def test_weights_in_mxfp7_take_half_the_bytes_and_change_none():
    outputs, sizes = [], []
    for preq in ((), ("b",)):
        session = on_model()
        w = session.pin("w", numbers(64, 64))
        plan = session.plan(lambda x, w=w, preq=preq: call(matmul, a=x, b=w, options=Options(preq=preq)).named("y"), x=(20, 64))
        outputs.append(plan.run(x=numbers(20, 64, seed=4)).outputs["y"].tobytes())
        sizes.append(plan.slots["w"].image.bytes)
    assert outputs[0] == outputs[1] and sizes[0] == 2 * sizes[1]


# ---- memory ---------------------------------------------------------------------------------------------


def test_the_predicted_peak_is_what_is_touched(monkeypatch):
    session = on_model()
    plan = session.plan(block(session), x=X)
    with touched(monkeypatch) as ends:
        plan.run(x=numbers(*X))
    assert max(ends) == plan.peak_bytes and 0 < plan.peak_bytes <= session.peak_bytes
    own = sum(planning.pages(slot.image.bytes) for slot in plan.own)
    assert sum(end - first for first, end in plan.spans) < own / 2, "activations share pages"


def test_the_touched_peak_moves_with_the_predicted_one(monkeypatch):
    """Without lives nothing shares, and both are as much larger."""
    shared = on_model()
    plan = shared.plan(block(shared), x=X)
    place = planning.place
    monkeypatch.setattr(planning, "place", lambda *a: place(*a[:5], {}, *a[6:]))
    session = on_model()
    alone = session.plan(block(session), x=X)
    with touched(monkeypatch) as ends:
        assert not wrong(alone.verify(x=numbers(*X)))
    assert max(ends) == alone.peak_bytes > plan.peak_bytes


def test_weights_are_uploaded_once_and_stay():
    session = on_model()
    plan = session.plan(block(session), x=X)
    plan.run(x=numbers(*X))
    written = []
    original = session.loader.write_buffer
    session.loader.write_buffer = lambda image, data: (written.append(image.name), original(image, data))
    plan.run(x=numbers(*X, seed=1))
    assert written == ["x"]
    wider = session.plan(lambda x: call(matmul, a=x, b=session.plans[0].slots["square"].tensor, **TILE), x=(20, 32))
    wider.run(x=numbers(20, 32))
    assert written[1:] == ["x"] and wider.slots["square"] is plan.slots["square"]


def test_two_plans_do_not_touch_each_other():
    session = on_model()
    first = session.plan(block(session), x=X)
    second = session.plan(lambda x: call(softmax, x=x), x=(40, 40))
    assert all(a[1] <= b[0] or b[1] <= a[0] for a in first.spans for b in second.spans)
    kept = first.run(x=numbers(*X)).outputs["y"].tobytes()
    second.run(x=numbers(40, 40))
    assert first.outputs["y"].read().tobytes() == kept
    second.free()
    third = session.plan(lambda x: call(softmax, x=x), x=(40, 40))
    assert third.spans == second.spans
    with pytest.raises(SessionError, match="the plan of <lambda> was freed"):
        second.run(x=numbers(40, 40))


def test_equal_constants_lie_in_memory_once():
    session = on_model()
    gate = Options(constants="arrays")
    plan = session.plan(lambda x: call(scale, x=call(scale, x=x, s=3.25, options=gate), s=3.25, options=gate), x=(40, 40))
    assert [slot.role for slot in plan.slots.values()].count("constant") == 1
    assert not wrong(plan.verify(x=numbers(40, 40)))


# ---- calls one by one -----------------------------------------------------------------------------------


def test_results_of_calls_stay_in_memory():
    session = on_model()
    x, w = session.pin("x", numbers(12, 32)), session.pin("w", numbers(32, 32, seed=1))
    y = call(matmul, a=x, b=w, **TILE)
    z = call(add, a=y, b=y)
    n = call(softmax, x=z)
    assert (z.read() == 2 * y.read()).all() and np.abs(n.read().astype(float).sum(1) - 1).max() < 0.01
    assert y.image.layout.key == z.image.layout.key == "tile:2x1:2x8"
    plan = session.plan(lambda a: call(linear_add, x=a, w=w, r=y, **TILE).named("sum"), a=(12, 32))
    assert not wrong(plan.verify(a=numbers(12, 32)))
    place, before = z.image.address, session.peak_bytes
    z.free()
    assert call(add, a=y, b=y).image.address == place and session.peak_bytes == before
    with pytest.raises(SessionError, match="add:1 was freed"):
        z.read()
    with pytest.raises(SessionError, match="add:1 was freed"):
        call(add, a=z, b=y)
    y.free()
    with pytest.raises(SessionError, match="matmul:0 was freed"):
        plan.run(a=numbers(12, 32))


def test_a_kernel_is_compiled_once_for_a_setting(monkeypatch):
    from kohakutpu.session import session as module

    made = []
    prepare = module.prepare
    monkeypatch.setattr(module, "prepare", lambda *a: (made.append(a), prepare(*a))[1])
    session = on_model()
    x, w = session.pin("x", numbers(12, 32)), session.pin("w", numbers(32, 32))
    first = call(matmul, a=x, b=w, **TILE)
    first.free()
    call(matmul, a=x, b=w, **TILE)
    assert len(made) == 1 and len(session._artifacts) == 1
    call(matmul, a=x, b=w, **TILE | {"gm": 1})
    assert len(made) == 2


def test_a_session_keeps_what_was_used_last(monkeypatch):
    """Room for two compiled kernels: of three in turns the oldest goes each time, a plan's own stay with it."""
    from kohakutpu.session import session as module

    made = []
    prepare = module.prepare
    monkeypatch.setattr(module, "prepare", lambda *a: (made.append(a[3]["s"]), prepare(*a))[1])
    machine = load("quad")
    session = Session(machine, ModelTransport(System(machine)), kept=2)
    x = session.pin("x", numbers(12, 32))
    plan = session.plan(lambda x: call(scale, x=x, s=0.5), x=(12, 32))
    for factor in (1.0, 2.0, 1.0, 4.0, 1.0, 2.0):
        y = call(scale, x=x, s=factor)
        assert (y.read() == x.array.view(np.float16) * np.float16(factor)).all()
        y.free()
        assert len(session._compiled) == len(session._artifacts) == 2
    assert made == [0.5, 1.0, 2.0, 4.0, 2.0]
    assert not wrong(plan.verify(x=numbers(12, 32)))
    many = Session(machine)
    for factor in range(300):
        many.plan(lambda x, s=factor + 1.0: call(scale, x=x, s=s), x=(1, 16)).free()
    assert len(many._compiled) == len(many._artifacts) == KEPT == 256
    for kept in (0, -1, True, 2.5, None):
        with pytest.raises(SessionError, match=f"kept={kept}: how many compiled kernels are at hand, an integer of at least 1"):
            Session(machine, kept=kept)


# ---- other shapes ---------------------------------------------------------------------------------------


def test_reshaped_tensors_are_read_as_they_lie():
    """Results in rows, inputs and pinned tensors; into entries, as elements, out of another call's memory."""
    session = on_model()
    w = session.pin("w", numbers(4, 8, 128))

    def model(x):
        n = call(softmax, x=x.reshape(48, 64)).named("n")
        wide = call(scale, x=n.reshape(24, 128), s=2.0).named("wide")
        e = call(matmul, a=n.reshape(96, 32), b=w.reshape(128, 32), **TILE).named("e")
        deep = call(row_sum, x=wide.reshape(3, 16, 64)).named("deep")  # 16 rows of 64 are a page
        assert n.reshape(24, 128) is n.reshape((24, 128)) is n.reshape(np.int64(24), 128) and n.reshape(24, 128).reshape(48, 64) is n
        return e, deep, n

    plan = session.plan(model, x=(24, 128))
    assert not wrong(plan.verify(x=numbers(24, 128)))
    copies = [(step.source, step.target) for step in plan.steps if isinstance(step, planning.CopyStep)]
    assert copies == [("n", "n@entry:2x1")], "n is read where it lies, but by a product"
    n = plan.outputs["n"]
    flat = n.reshape(3, 1024)
    assert (flat.read() == n.read().reshape(3, 1024)).all() and flat.shape == (3, 1024)
    again = call(scale, x=flat, s=0.5)
    assert (again.read() == n.read().reshape(3, 1024) * np.float16(0.5)).all()


def test_python_does_not_branch_on_a_tensor():
    session = on_model()

    def model(x):
        return call(softmax, x=x) if x else None

    with pytest.raises(SessionError, match=r"x is a tensor of a model function.*cannot be branched on(?s:.*)if x else None"):
        session.plan(model, x=(4, 32))


def test_a_model_that_runs_nothing_is_refused():
    async def later(x):
        return call(softmax, x=x)

    def some(x):
        yield call(softmax, x=x)

    for model in (later, some):
        with pytest.raises(SessionError, match=f"{model.__name__} is a generator or asynchronous"):
            on_model().plan(model, x=(4, 32))


@pytest.mark.parametrize("relayout", ["machine", "host"])
def test_a_reshaped_result_in_tiles_is_copied_into_rows(relayout):
    session = on_model()
    w, v = session.pin("w", numbers(64, 32)), session.pin("v", numbers(8, 128))

    def model(x):
        t = call(matmul, a=x, b=w, **TILE).named("t")
        return call(matmul, a=t.reshape(6, 128), b=v, options=Options(relayout=relayout), **TILE)

    plan = session.plan(model, x=(12, 32))
    assert not wrong(plan.verify(x=numbers(12, 32)))
    assert [step.source for step in plan.steps if isinstance(step, planning.CopyStep)] == ["t", "t@flat"]


def test_shapes_that_are_refused():
    session = on_model()
    x = session.pin("x", numbers(2, 12, 32))
    for shape in ((), (768, 0), (-1, 32), (7, 100), (2.0, 384), ([2, 384],), ((7, 100),)):
        with pytest.raises(SessionError, match=r"x\[2, 12, 32\] has 768 elements, which .* is no shape of"):
            x.reshape(*shape)
    n = call(softmax, x=x)
    with pytest.raises(SessionError, match="x=softmax:0.reshape.24, 32.: softmax:0 lies in 2 batch elements of 768 bytes and is read in 1 of 1536, "
                       "each on pages of 2048: not the same bytes"):  # fmt: skip
        call(softmax, x=n.reshape(24, 32))
    assert call(row_sum, x=n.reshape(2, 1, 384)).shape == (2, 1, 1), "each batch element by itself"
    odd = call(softmax, x=session.pin("odd", numbers(4, 20)))
    with pytest.raises(SessionError, match="lies as rows: not the same bytes"):
        call(softmax, x=odd.reshape(5, 16))
    view = n.reshape(12, 64)
    with pytest.raises(SessionError, match="is a view: free softmax:0"):
        view.free()
    n.free()
    for use in (view.read, lambda: call(softmax, x=view), lambda: view.reshape(24, 32)):
        with pytest.raises(SessionError, match="softmax:0 was freed"):
            use()
    with pytest.raises(SessionError, match="returns <view .*expected results of kernels that it calls"):
        session.plan(lambda x: call(softmax, x=x).reshape(768), x=(2, 12, 32))


# ---- refusals -------------------------------------------------------------------------------------------


def test_tensors_of_two_sessions():
    one, two = Session(load("quad"), name="one"), Session(load("quad"), name="two")
    a, b = one.pin("a", numbers(8, 32)), two.pin("b", numbers(8, 32))
    with pytest.raises(SessionError, match="tensors of different sessions: a=a of one, b=b of two") as caught:
        call(matmul, a=a, b=b)
    assert caught.value.source.text == "call(matmul, a=a, b=b)"


@pytest.mark.parametrize("array, reason", [
    (np.zeros((2, 3)), "w: expected an array of float16 or of uint16 bit patterns, got float64"),
    ([1.0], "w: expected an array .* got list"),
    (np.zeros((2, 0), np.float16), r"w: shape \[2, 0\] has no elements"),
])  # fmt: skip
def test_what_cannot_be_pinned(array, reason):
    with pytest.raises(SessionError, match=reason):
        Session(load("quad")).pin("w", array)


def test_names_are_given_once():
    session = Session(load("quad"))
    session.pin("w", numbers(8, 32))
    with pytest.raises(SessionError, match="session has a tensor w already"):
        session.pin("w", numbers(8, 32))

    def twice(x):
        call(softmax, x=x).named("t")
        return call(softmax, x=x).named("t")

    with pytest.raises(SessionError, match="twice has a tensor t already"):
        session.plan(twice, x=(8, 32))


def refused(function, reason, **shapes):
    session = Session(load("quad"))
    with pytest.raises(SessionError, match=reason):
        session.plan(lambda **inputs: function(session, **inputs), **(shapes or {"x": (8, 32)}))


def test_calls_that_are_refused():
    def pinned(session, *shape):
        return session.pin("w", numbers(*shape))

    refused(lambda s, x: call(matmul, a=x, b=pinned(s, 8, 40)), r"K is 32 for one operand and 40 for b \(the call has a=x\[8, 32\], b=w\[8, 40\]\)")
    refused(lambda s, x: call(matmul, a=x, b=numbers(8, 32)), "matmul: b is of type ndarray, not a tensor; pin an array")
    refused(lambda s, x: call(matmul, a=x), "matmul: no shape for b")
    refused(lambda s, x: call(matmul, a=x, b=x, gk=3), "matmul has no knob 'gk'; it has")
    refused(lambda s, x: call(softmax, x=x, c=x), "softmax has no operand c; it has x")
    refused(lambda s, x: call(softmax), "softmax is called without operands")
    refused(lambda s, x: call(numbers, x=x), "is no kernel")
    refused(lambda s, x: call(softmax, x=x, options=Options(addresses={"x": 0})), "softmax: addresses is decided by the plan")
    refused(lambda s, x: x, "returns <input x.*: expected results of kernels that it calls")
    refused(lambda s, x: (call(softmax, x=x), 3), "returns int as 3")
    refused(lambda s, x: call(matmul, a=call(softmax, x=x), b=pinned(s, 8, 32), options=Options(preq=("a",))),
            "preq: a=softmax_0 is computed on the machine; only what the host uploads is quantised")  # fmt: skip
    refused(lambda s, x: s.plan(lambda y: call(softmax, x=y), y=(8, 8)), "<lambda> is traced inside <lambda>")
    refused(lambda s, x: call(matmul, a=x, b=pinned(s, 200, 32), gm=90), "<lambda>: a tile of 90x8 is 720 sub-tiles and the accumulator .* holds 512")
    refused(lambda s, x: x.named("other"), "x is input: only results of a model function are renamed")
    refused(lambda s, x: call(softmax, x=x).read(), "softmax_0 is result of a model function and stands in memory only while")


def test_inputs_that_are_refused():
    session = on_model()
    with pytest.raises(SessionError, match="<lambda> is given y: .*argument"):
        session.plan(lambda x: call(softmax, x=x), y=(8, 32))
    with pytest.raises(SessionError, match=r"input x has shape \(8, 0\)"):
        session.plan(lambda x: call(softmax, x=x), x=(8, 0))
    plan = session.plan(lambda x: call(softmax, x=x), x=(8, 32))
    for given, reason in (({}, "takes x; given nothing"), ({"x": numbers(8, 32), "y": 0}, "takes x; given x, y"),
                          ({"x": numbers(8, 31)}, r"x: expected shape \[8, 32\], got \[8, 31\]"),
                          ({"x": np.zeros((8, 32), np.float32)}, "got float32")):  # fmt: skip
        with pytest.raises(SessionError, match=reason):
            plan.run(**given)
    with pytest.raises(SessionError, match="softmax_0 is read before anything has been written to it"):
        plan.outputs["softmax_0"].read()
    kept = {}

    def leak(x):
        kept["x"] = call(softmax, x=x)
        return call(softmax, x=kept["x"])

    session.plan(leak, x=(8, 32))
    with pytest.raises(SessionError, match="softmax: x=softmax_0 is a value of leak, which is not being traced"):
        call(softmax, x=kept["x"])
    other = session.plan(lambda: call(softmax, x=plan.outputs["softmax_0"]))
    with pytest.raises(SessionError, match="<lambda> reads <lambda>/softmax_0 before anything has been written to it"):
        other.run()


def test_a_session_without_a_transport_plans_and_runs_nothing():
    session = Session(load("quad"))
    plan = session.plan(lambda x: call(softmax, x=x), x=(8, 32))
    assert "softmax" in plan.summary()
    for use in (lambda: plan.run(x=numbers(8, 32)), lambda: call(softmax, x=session.pin("w", numbers(8, 32)))):
        with pytest.raises(SessionError, match="session has no transport"):
            use()


def test_a_memory_that_is_full_says_what_is_needed():
    machine = replace(load("quad"), memory=Dram(bytes=64 << 10))
    session = Session(machine, ModelTransport(System(machine)))
    w = session.pin("w", numbers(64, 64))

    def three(x):
        a, b, c = (call(matmul, a=x, b=w) for _ in range(3))
        return call(add, a=call(add, a=a, b=b), b=c)

    reason = (
        "three does not fit: no 16384 bytes in a row for .*It needs 8192 bytes for what stays and at least 65536 for what "
        "shares; the memory has 65536, of which 0 are taken"
    )
    with pytest.raises(SessionError, match=reason):
        session.plan(three, x=(128, 64))
    fits = session.plan(three, x=(64, 64))
    assert not wrong(fits.verify(x=numbers(64, 64)))


A, B, C = dims("A, B, C")


@kernel
def doubled(x=L.In(A, B, C), y=L.Out(A, B, C)):
    """A cube without batch axes, which lies in memory without gaps."""
    y <<= x * 2.0


def test_orders_that_cannot_be_made():
    """One kernel's samples begin on pages, the other's follow each other: refused, and the host copies only when it is told to."""

    def made(options):
        return lambda x: call(add, a=call(doubled, x=x).named("t"), b=call(softmax, x=x).named("n"), options=options).named("y")

    session = on_model()
    with pytest.raises(SessionError, match="add_2: a=t lies as flat, b=n lies as flat.*relayout='host'") as caught:
        session.plan(made(Options()), x=(3, 12, 32))
    assert caught.value.source.text.startswith("return lambda x: call(add")
    session = on_model()
    plan = session.plan(made(Options(relayout="host")), x=(3, 12, 32))
    assert "by the HOST" in plan.summary() and "1 of 1 by the host" in plan.summary()
    assert not wrong(plan.verify(x=numbers(3, 12, 32)))


def test_tiles_are_copied_into_rows_where_nothing_else_will_do():
    """Tiles beside rows in one elementwise kernel, tiles of two sizes, and tiles of 12 columns that a product reads."""
    session = on_model()
    w, u = session.pin("w", numbers(64, 32)), session.pin("u", numbers(24, 64, seed=2))

    def made(x):
        t = call(matmul, a=x, b=w, **TILE).named("t")
        s = call(matmul, a=x, b=w, gm=3, gn=3, nk=1).named("s")
        y = call(add, a=t, b=call(softmax, x=t)).named("y")
        return y, call(add, a=s, b=t).named("z"), call(matmul, a=s, b=u, **TILE).named("p")

    plan = session.plan(made, x=X)
    copies = [(step.source, step.target) for step in plan.steps if isinstance(step, planning.CopyStep)]
    assert copies == [("t", "t@flat"), ("s", "s@flat"), ("s@flat", "s@entry:2x1")] and "0 of 3 by the host" in plan.summary()
    assert not wrong(plan.verify(x=numbers(*X, scale=1e-3))) and not wrong(plan.verify(x=numbers(*X)))


EVERY = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).reshape(512, 128)


@kernel
def copied(x=L.In(...), y=L.Out(...), *, part=8192):
    y <<= x


@kernel
def added_and_copied(x=L.In(...), t=L.In(...), s=L.Out(...), z=L.Out(...), *, part=8192):
    s <<= x + t
    z <<= x


@pytest.mark.parametrize("array", [EVERY[-60:], pytest.param(EVERY, marks=pytest.mark.slow)], ids=["NaNs of one sign and others", "all"])
def test_copies_of_device_tensors_keep_every_pattern(array):
    """Copied, copied into rows, read by a product in entries: a NaN comes out quiet, and as it was but for that."""
    session = on_model()
    eye = session.pin("eye", np.eye(128, dtype=np.float16))

    def made(x):
        first = call(copied, x=x).named("first")
        second = call(in_rows, x=first).named("second")
        return call(matmul, a=second, b=eye, **TILE), call(in_rows, x=second), call(softmax, x=first)

    assert not wrong(session.plan(made, x=array.shape).verify(x=array))


def refused_unless_the_host_copies(made, shape, message):
    """`made(session, **more)` is a model of x, that gives `more` to the kernel in question."""
    session = on_model()
    with pytest.raises(SessionError, match=message):
        session.plan(made(session), x=shape)
    session = on_model()
    plan = session.plan(made(session, options=Options(relayout="host")), x=shape)
    assert not wrong(plan.verify(x=numbers(*shape)))


def test_a_tensor_in_tiles_that_may_hold_any_nan_is_not_copied_out_of_them():
    def made(session, **more):
        w, eye, p = (session.pin(name, numbers(*size)) for name, size in (("w", (128, 32)), ("eye", (128, 128)), ("p", (60, 128))))

        def model(x):
            t = call(matmul, a=x, b=w, **TILE)
            z = call(added_and_copied, x=p, t=t)["z"].named("z")  # p is packed in t's tiles
            return call(matmul, a=z, b=eye, **TILE, **more)

        return model

    refused_unless_the_host_copies(made, (60, 32), "matmul_2: z lies in tiles and may hold a NaN other than 0x7e00")


def test_rows_beside_the_tiles_of_a_kernel_need_no_copy():
    session = on_model()
    w = session.pin("w", numbers(32, 32))
    plan = session.plan(lambda x: call(linear_add, x=x, w=w, r=call(softmax, x=x).named("n"), **TILE), x=(12, 32))
    assert not [step for step in plan.steps if isinstance(step, planning.CopyStep)]
    assert not wrong(plan.verify(x=numbers(12, 32)))


@kernel
def added_in_place(x=L.In(M, K), w=L.In(N, K), r=L.In(M, N), y=L.Out(M, N)):
    with units(x.tiles(1), w.tiles(8)) as (i, j):
        acc = L.tile(1, 8, 1)
        for k in loop(x.chunks32(1)):
            acc += x[i, k] @ w[j, k]
        y[i, j] <<= acc
    y <<= y + r


def test_an_order_that_a_kernel_cannot_take():
    def made(session, **more):
        w = session.pin("w", numbers(32, 32))
        return lambda x: call(added_in_place, x=x, w=w, r=call(softmax, x=x).named("n"), **more)

    refused_unless_the_host_copies(made, (12, 32), "added_in_place_1: r=n lies as flat, and that order will not do: .*two byte orders")


def test_a_bias_that_is_computed_is_refused():
    def made(session):
        w = session.pin("w", numbers(32, 32))
        return lambda x, b: call(linear_bias, x=x, w=w, b=call(scale, x=b, s=2.0), gm=2, gn=8)

    session = on_model()
    with pytest.raises(SessionError, match="would have to be copied into the order bias:8: such an operand is an input"):
        session.plan(made(session), x=(12, 32), b=(32,))


# ---- planted faults -------------------------------------------------------------------------------------


def early(monkeypatch):
    """`e` is given up after the norm, and the residual reads it once more."""
    place = planning.place

    def shorter(images, memory, addresses, overlap, reach, lives, held):
        return place(images, memory, addresses, overlap, reach, lives | {"e": Life(0, 1)}, held)

    monkeypatch.setattr(planning, "place", shorter)


def test_an_activation_that_is_freed_one_kernel_too_early_is_caught_by_the_guard(monkeypatch):
    early(monkeypatch)
    session = on_model()
    with pytest.raises(CompileError, match="stage . reads e, whose bytes .* has overwritten: an alias"):
        session.plan(block(session), x=X)


def test_and_by_its_bytes(monkeypatch):
    early(monkeypatch)
    monkeypatch.setattr(planning, "check", lambda plan: None)
    session = on_model()
    assert wrong(session.plan(block(session), x=X).verify(x=numbers(*X)))


def test_a_copy_that_is_left_out_shows(monkeypatch):
    monkeypatch.setattr(Loader, "compute", lambda self, artifact, compute=Loader.compute:
                        () if artifact.kernel.startswith("copy n") else compute(self, artifact))  # fmt: skip
    session = on_model()
    rows = session.plan(block(session), x=X).verify(x=numbers(*X))
    assert wrong(rows) and wrong(rows)[0].startswith("matmul_2: h")


def test_a_machine_with_a_fault_is_caught_at_the_first_kernel_that_it_spoils():
    machine = load("quad")
    session = Session(machine, ModelTransport(System(machine, faults=["vector-alu-sign"])))
    rows = session.plan(block(session), x=X).verify(x=numbers(*X))
    assert rows[0].equal and wrong(rows)[0].startswith("rmsnorm_1: n 1536 bytes, expected ")


def test_an_artifact_for_other_addresses_shows(monkeypatch):
    """As if instructions were kept without regard to where buffers lie."""
    original = Session.artifact
    monkeypatch.setattr(Session, "artifact", lambda self, key, images, make: original(self, key, {}, make))
    session = on_model()
    x, w = session.pin("x", numbers(12, 32)), session.pin("w", numbers(32, 32))
    first, second = (call(matmul, a=x, b=w, **TILE) for _ in range(2))
    assert first.image.address != second.image.address and (first.read() != second.read()).any()


def test_weights_that_are_not_there_show(monkeypatch):
    session = on_model()
    plan = session.plan(block(session), x=X)
    plan.slots["gain"].loaded = True
    assert wrong(plan.verify(x=numbers(*X)))[0].startswith("rmsnorm_1: n")


# ---- the compiler's part --------------------------------------------------------------------------------


def test_a_given_byte_order_is_checked():
    machine = load("quad")
    shapes = {"x": (12, 32), "w": (32,)}
    for layouts, reason in (({"y": Flat((12, 32))}, "layouts: y is no operand of rmsnorm; it has x, w"),
                            ({"x": Flat((32, 12))}, r"layouts: x has elements of shape \(12, 32\), not \(32, 12\)"),
                            ({"x": "flat"}, "layouts: x has elements of shape .* not 'flat'"),
                            ({"w": Tile(12, 32, 2, 8)}, "layouts: w has elements of shape")):  # fmt: skip
        with pytest.raises(CompileError, match=reason):
            compile_kernel(rmsnorm, machine, shapes, {}, Options(layouts=layouts))
    with pytest.raises(CompileError, match="a would need two byte orders: flat .* and entry:8x2"):
        compile_kernel(matmul, machine, {"a": (12, 32), "b": (8, 32)}, {}, Options(layouts={"a": Flat((12, 32))}))
    made = compile_kernel(rmsnorm, machine, shapes, {}, Options(layouts={"x": Tile(12, 32, 2, 8)}))
    assert made.options["layouts"] == {"x": "tile:2x1:2x8"} and made.buffer("x").layout == Tile(12, 32, 2, 8)


def test_rows_of_tiles_are_predicted():
    """A constant that a program sets is not taken for a length."""
    machine = load("quad")
    shapes = {"x": (32, 64), "w": (64,)}
    artifact = compile_kernel(rmsnorm, machine, shapes, {}, Options(layouts={"x": Tile(32, 64, 4, 8)}))
    operands = {name: numbers(*shape) for name, shape in shapes.items()}
    simulated = run_model(artifact, machine, operands).cycles
    assert abs(predict(artifact, machine).cycles - simulated) < 0.3 * simulated


# ---- other ways to a machine ----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_gates_run_the_same_session():
    outcomes = []
    machine = load("mm_mesh")
    for spec in ("model", "rtl"):
        with open_transport(spec, machine) as transport:
            session = Session(machine, transport)
            plan = session.plan(block(session), x=X)
            assert not wrong(plan.verify(x=numbers(*X)))
            outcome = plan.run(x=numbers(*X, seed=1))
            outcomes.append((outcome.outputs["y"].tobytes(), outcome.elapsed, tuple(outcome.steps)))
    assert outcomes[0] == outcomes[1]
