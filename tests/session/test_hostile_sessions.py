"""What a session must survive: names that its own buffers have, tensors freed at odd times, functions that are no models, machines that
fail in the middle."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kohakutpu.compiler import Options
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.transport import TransportError
from kohakutpu.kernels import linear_silu_staged, matmul, softmax
from kohakutpu.kernels.elementwise import add, scale
from kohakutpu.machine import load
from kohakutpu.model.system import System
from kohakutpu.session import Session, SessionError, call

sys.path.insert(0, str(Path(__file__).parent))
from models import TILE, numbers, on_model  # noqa: E402

X = (12, 32)


def wrong(rows):
    return [str(row) for row in rows if not row.equal]


# ---- names ----------------------------------------------------------------------------------------------


def test_an_output_that_is_none_is_refused_with_those_there_are():
    session = on_model()
    w = session.pin("w", numbers(32, 32, seed=1))
    plan = session.plan(lambda x: (call(matmul, a=x, b=w, **TILE), call(softmax, x=x).named("n")), x=X)
    assert "2 kernels, 0 copies, " in plan.summary()
    one = session.plan(lambda x: call(matmul, a=call(softmax, x=x), b=w, **TILE), x=X)
    assert "2 kernels, 1 copy, " in one.summary()
    for outputs in (plan.outputs, plan.run(x=numbers(*X)).outputs):
        with pytest.raises(SessionError, match=r"<lambda> has no output 'y': its outputs are matmul_0, n \(") as caught:
            outputs["y"]
        assert 'outputs["y"]' in str(caught.value)
        assert list(outputs) == ["matmul_0", "n"] and outputs.get("y") is None and "y" not in outputs


@pytest.mark.parametrize("name", ["constant:0", "n@entry:2x1", "w@flat", "linear_silu_staged_2.t1", "softmax_0", "<lambda>/softmax_0"])
def test_tensors_may_have_the_names_of_a_plans_own_buffers(name):
    session = on_model()
    w, odd = session.pin("w", numbers(32, 32, seed=1)), session.pin(name, numbers(*X, seed=2))
    other = session.plan(lambda x: call(softmax, x=x), x=X)
    other.run(x=numbers(*X, seed=4))
    resident = next(iter(other.outputs.values()))

    def made(x):
        n = call(softmax, x=x).named("n")
        p = call(matmul, a=n, b=w, **TILE)
        q = call(linear_silu_staged, x=n, w=w, **TILE)
        r = call(scale, x=odd, s=3.25, options=Options(constants="arrays"))
        return p, q, call(add, a=r, b=odd), call(softmax, x=w), call(add, a=resident, b=odd)

    plan = session.plan(made, x=X)
    assert len(plan.slots) == len({slot.image.name for slot in plan.slots.values()})
    assert not wrong(plan.verify(x=numbers(*X)))


def test_a_name_of_a_result_or_an_image_is_not_given_again():
    session = on_model()
    w = session.pin("w", numbers(32, 32))
    session.plan(lambda x: (call(matmul, a=x, b=w, **TILE), call(softmax, x=w)), x=X)
    with pytest.raises(SessionError, match="session has a tensor w@flat already"):
        session.pin("w@flat", numbers(*X))
    session.pin("softmax:0", numbers(*X))
    assert call(softmax, x=w).name == "softmax:0'"


@pytest.mark.parametrize("name", ["n", "x"])
def test_pinning_in_a_model_function_under_a_name_that_it_has(name):
    session = on_model()

    def made(x):
        n = call(softmax, x=x).named("n")
        return call(add, a=n, b=session.pin(name, numbers(*X)))

    with pytest.raises(SessionError, match=f"made has a tensor {name} already"):
        session.plan(made, x=X)


def test_a_result_is_renamed_while_its_function_is_traced_and_not_later():
    session = on_model()
    kept = []

    def made(x):
        kept.append(call(softmax, x=x))
        return call(softmax, x=kept[0])

    plan = session.plan(made, x=X)
    for tensor, function in ((kept[0], "made"), (plan.outputs["softmax_1"], "made"), (call(softmax, x=session.pin("w", numbers(*X))), "softmax")):
        with pytest.raises(SessionError, match=f"is renamed after {function} was traced"):
            tensor.named("late")
    assert not wrong(plan.verify(x=numbers(*X)))


def test_an_input_may_be_called_self():
    plan = on_model().plan(lambda self: call(softmax, x=self), self=X)
    assert not wrong(plan.verify(self=numbers(*X)))


# ---- options --------------------------------------------------------------------------------------------


def test_calls_that_differ_in_bands_alone_are_compiled_apart():
    session = Session(load("quad"))
    counts = []
    for bands in (True, False):
        plan = session.plan(lambda x, bands=bands: call(linear_silu_staged, x=x, w=x, **TILE, options=Options(bands=bands)), x=(40, 40))
        counts.append(plan.steps[0].compilation)
    assert counts[0] is not counts[1]


# ---- memory ---------------------------------------------------------------------------------------------


def test_a_plan_whose_tensors_are_gone_still_gives_its_pages_back():
    session = on_model()
    w = session.pin("w", numbers(32, 32))
    plan = session.plan(lambda x: call(matmul, a=x, b=w, **TILE), x=X)
    reader = session.plan(lambda: call(softmax, x=plan.outputs["matmul_0"]))
    reader.free()  # what it reads was never written
    w.free()
    with pytest.raises(SessionError, match="w was freed"):
        plan.run(x=numbers(*X))
    plan.free()
    assert not session.taken()
    with pytest.raises(SessionError, match="the plan of <lambda> was freed"):
        plan.free()


def test_a_tensor_that_the_model_function_frees_is_refused_and_holds_no_pages():
    session = on_model()
    w = session.pin("w", numbers(32, 32))

    def made(x):
        y = call(matmul, a=x, b=w, **TILE)
        w.free()
        return y

    with pytest.raises(SessionError, match="w was freed") as caught:
        session.plan(made, x=X)
    assert caught.value.source.text == "y = call(matmul, a=x, b=w, **TILE)"
    assert not session.taken() and not session.plans


def test_a_session_is_usable_after_an_exception_in_a_model_function():
    session = on_model()

    def deep(x):
        return deep(call(softmax, x=x))

    with pytest.raises(RecursionError):
        session.plan(deep, x=(4, 8))
    with pytest.raises(ZeroDivisionError):
        session.plan(lambda x: 1 // 0, x=(4, 8))
    assert not wrong(session.plan(lambda x: call(softmax, x=x), x=(4, 8)).verify(x=numbers(4, 8)))
    assert len(session.taken()) == 1


# ---- functions that are none ----------------------------------------------------------------------------


@pytest.mark.parametrize("function, reason", [
    (softmax, "softmax is a kernel: a plan is made of a function that calls it"),
    (dict, "dict is given x: no signature found"),
    (lambda x: (), "<lambda> returns no results: expected some"),
    (lambda x: {}, "<lambda> returns no results: expected some"),
    (lambda x: None, "<lambda> returns NoneType as None"),
])  # fmt: skip
def test_what_is_no_model_function(function, reason):
    session = Session(load("quad"))
    with pytest.raises(SessionError, match=reason):
        session.plan(function, x=X)
    assert not session.taken() and not session.plans


def test_a_truth_value_is_no_extent():
    with pytest.raises(SessionError, match=r"input x has shape \(True, 32\)"):
        Session(load("quad")).plan(lambda x: call(softmax, x=x), x=(True, 32))


# ---- machines that fail ---------------------------------------------------------------------------------


class Failing(ModelTransport):
    """Raises at the access that `left` counts down to."""

    left = 0
    done = 0

    def _access(self, what, access):
        self.done += 1
        self.left -= 1
        if self.left == 0:
            raise TransportError(f"planted at a {what}")
        return super()._access(what, access)


def failing():
    machine = load("quad")
    transport = Failing(System(machine))
    return Session(machine, transport), transport


def test_a_run_that_stops_in_a_kernel_ends_the_session_by_name():
    """Not 2,000,000 cycles later, by a count that no unit reaches."""
    session, transport = failing()
    w = session.pin("w", numbers(32, 32))
    plan = session.plan(lambda x: call(softmax, x=call(matmul, a=x, b=w, **TILE)), x=X)
    assert not wrong(plan.verify(x=numbers(*X)))
    kept = call(softmax, x=w)
    before = kept.read().tobytes()
    start = transport.done
    plan.run(x=numbers(*X))
    transport.left = (transport.done - start) // 2
    with pytest.raises(TransportError, match="planted"):
        plan.run(x=numbers(*X))
    for again in (lambda: plan.run(x=numbers(*X)), lambda: call(softmax, x=w)):
        with pytest.raises(SessionError, match=r"<lambda> stopped in (matmul|softmax|copy).*planted at a .*; the machine is as that left it"):
            again()
    assert kept.read().tobytes() == before
    with pytest.raises(SessionError, match="is read before anything has been written"):
        plan.outputs["softmax_1"].read()


def test_a_run_that_fails_before_its_kernels_can_be_repeated():
    """Outputs of the run before count as gone: what was uploaded may lie in their pages."""
    session, transport = failing()
    plan = session.plan(lambda x: call(softmax, x=call(softmax, x=x)).named("y"), x=X)
    assert plan.slots["x"].image.address == plan.slots["y"].image.address, "they share a page"
    plan.run(x=numbers(*X))
    upload = session.loader.write_buffer

    def stopped(image, data):
        upload(image, data)
        raise TransportError("planted behind an upload")

    session.loader.write_buffer = stopped
    with pytest.raises(TransportError, match="planted"):
        plan.run(x=numbers(*X, seed=1))
    session.loader.write_buffer = upload
    with pytest.raises(SessionError, match="y is read before anything has been written"):
        plan.outputs["y"].read()
    assert not wrong(plan.verify(x=numbers(*X, seed=1)))


def test_weights_that_went_up_by_half_go_up_again():
    session, transport = failing()
    w = session.pin("w", numbers(32, 32))
    plan = session.plan(lambda x: call(matmul, a=x, b=w, **TILE), x=X)
    upload = session.loader.write_buffer

    def half(image, data):
        upload(image, data[: len(data) // 2])
        raise TransportError("planted in an upload")

    session.loader.write_buffer = half
    with pytest.raises(TransportError, match="planted"):
        plan.run(x=numbers(*X))
    session.loader.write_buffer = upload
    assert not wrong(plan.verify(x=numbers(*X)))


# ---- threads --------------------------------------------------------------------------------------------


def test_another_thread_is_refused_while_a_function_is_traced():
    """Its call would become part of the model."""
    session = on_model()
    w = session.pin("w", numbers(*X))

    def made(x):
        y = call(softmax, x=x)
        with ThreadPoolExecutor(1) as pool:
            for use in (lambda: call(softmax, x=w), lambda: session.plan(lambda: call(softmax, x=w))):
                with pytest.raises(SessionError, match="session is at work in another thread"):
                    pool.submit(use).result()
        return y

    plan = session.plan(made, x=X)
    assert len(plan.steps) == 1
    with ThreadPoolExecutor(1) as pool:
        assert not wrong(pool.submit(plan.verify, x=numbers(*X)).result())
